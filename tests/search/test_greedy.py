"""What there is of a program when there is no time to search: its operators, fused where that is predicted to pay."""

from __future__ import annotations

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Program
from mirage_cli.search import greedy
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.generator import SearchResult, _Search, search  # pyright: ignore[reportPrivateUsage]
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.price import prices
from mirage_cli.verify.equivalence import check_equivalence
from tests.searched import BEST

H100 = find_target("h100")
BLOCK = """
name: block
dims: {{b: 2, t: {t}, s: {t}, d: {d}, h: 2, e: 16}}
dtype: bfloat16
inputs: {{X: [b, t, d], Wq: [d, h, e], Wk: [d, h, e], Wv: [d, h, e], Wo: [h, e, d], G: [d]}}
program: |
  N = rms_norm(X, d) * G
  Q = dot(N, Wq, d)
  K = rename(dot(N, Wk, d), t=s)
  V = rename(dot(N, Wv, d), t=s)
  A = dot(softmax(where(index(s) <= index(t), dot(Q, K, e) / 4, -inf), s), V, s)
  O = dot(A, Wo, h, e) + X
  F = silu(O) * sigmoid(X)
outputs: {{O: [b, t, d], F: [b, t, d]}}
"""
TWO_SPLITS = """
name: sums
dims: {m: 4, n: 3, k: 65536}
dtype: float16
inputs: {X: [m, k], Y: [n, k], Z: [k]}
program: |
  A = sum(exp(X), k)
  B = dot(exp(Y), Z, k)
outputs: {A: [m], B: [n]}
"""


def without_time(text: str) -> tuple[Program, SearchResult]:
    program = lower(parse_spec(text).at())
    return program, search(program, H100, deadline=lambda: True)


@pytest.mark.parametrize(("t", "d"), [(24, 32), (512, 1024)])
def test_a_program_is_fused_without_time_to_search(t: int, d: int) -> None:
    program, result = without_time(BLOCK.format(t=t, d=d))
    assert result.stopped == "budget"
    best = result.candidates[0]
    assert len(best.graph.kernels) <= 6 < 20 < len(result.as_written.graph.kernels)
    assert best.predicted_us < 0.5 * result.as_written.predicted_us
    assert check_equivalence(program, best.graph, 0).ok
    assert kernels_source(best.graph, best.schedule)


PACKED = """
name: packed
dims: {b: 4, t: 512, s: 512, h: 16, e: 64, f: 64, d: 1024, n: 3072}
dtype: bfloat16
inputs: {X: [b, t, d], W: [n, d], B: [n]}
program: |
  R = dot(X, W, d) + B
  K = rename(R[b, t, h*64 + e + 1024], t=s)
  V = rename(R[b, t, h*64 + f + 2048], t=s)
  O = dot(softmax(where(index(s) <= index(t), dot(R[b, t, h*64 + e], K, e) / 8, -inf), s), V, s)
outputs: {O: [b, t, h, f]}
"""


def test_parts_of_a_packed_product_are_read_from_it_without_time() -> None:
    _, result = without_time(PACKED)
    kernels = result.candidates[0].graph.kernels
    assert len(kernels) == 2, "the product of all three, and attention"


STEPS = """
name: steps
dims: {m: 16, i: 8, j: 7}
dtype: float32
inputs: {X: [m], G: [i]}
program: |
  W = where(X >= G[i], 1, 0) / 1
  O = X * W[m, j] + G[j] * W[m, j + 1]
outputs: {O: [m, j]}
"""


def test_a_whole_number_that_is_read_elsewhere_is_computed_there_without_time() -> None:
    program = lower(parse_spec(STEPS).at())
    result = search(program, H100, end=lambda: True, deadline=lambda: True)
    assert check_equivalence(program, result.as_written.graph, 0).ok


def test_kernels_that_split_one_axis_have_chunks_of_their_own() -> None:
    _, result = without_time(TWO_SPLITS)
    best = result.candidates[0]
    assert [k.chunk for k in best.graph.kernels if k.split == "k"] == ["k_split", "k_split_1"]
    assert kernels_source(best.graph, best.schedule)


APPENDED = """
name: append
dims: {b: 4, d: 64, s: 1024}
inputs: {K: [b, d], V: [b, d], KC: [b, s, d], VC: [b, s, d], L: {dims: [b], dtype: int32, below: s}}
program: |
  KC[b, L[b], d] = K * 2
  VC[b, L[b], d] = V * 3
outputs: {KC: {inout: KC}, VC: {inout: VC}}
"""


def test_outputs_with_the_same_axes_are_one_kernel() -> None:
    """They share nothing else: to launch another one takes longer than both."""
    _, result = without_time(APPENDED)
    assert len(result.candidates[0].graph.kernels) == 1 < len(result.as_written.graph.kernels)


MANY = """
name: many
dims: {n: 100000}
dtype: float32
inputs: {X: [n]}
program: |
  A = exp(X)
  B = sin(X)
  C = cos(X)
  D = A * B
  E = A * C
  F = B * C
  G = A + C
outputs: {A: [n], B: [n], C: [n], D: [n], E: [n], F: [n], G: [n]}
"""


def test_seven_outputs_of_one_input_are_one_kernel() -> None:
    _, result = without_time(MANY)
    assert len(result.candidates[0].graph.kernels) == 1


RECORDS = """
name: records
dims: {n: 100000, i: 3, j: 3}
dtype: float32
inputs: {X: [n, i, j]}
program: |
  D = X[n, 0, 0] * X[n, 1, 1] - X[n, 0, 1] * X[n, 1, 0]
  O[n, 0, 0] = X[n, 1, 1] / D
  O[n, 0, 1] = X[n, 0, 1] / D
  O[n, 0, 2] = X[n, 0, 2] / D
  O[n, 1, 0] = X[n, 1, 0] / D
  O[n, 1, 1] = X[n, 0, 0] / D
  O[n, 1, 2] = X[n, 1, 2] / D
  O[n, 2, 0] = X[n, 2, 0] / D
  O[n, 2, 1] = X[n, 2, 1] / D
  O[n, 2, 2] = X[n, 2, 2] / D
outputs: {O: [n, i, j], D: [n]}
"""


def test_ten_outputs_are_one_kernel_at_the_price_of_their_places() -> None:
    """Nine parts of a record and a result beside it. A kernel for some of the parts leaves gaps in sectors, which the
    search knows as the tuner does."""
    _, result = without_time(RECORDS)
    best, *others = result.candidates
    assert len(best.graph.kernels) == 1
    for c in (best, *others[:3]):
        gaps_us = H100.costs.gap_us * (len(c.graph.kernels) - 1)
        priced = prices(c.graph, H100).totals_us([c.schedule])[0]
        assert priced <= c.predicted_us <= priced + gaps_us + 0.01


REPEATED = """
name: repeated
dims: {n: 1000, i: 3}
dtype: float32
inputs: {X: [n]}
program: |
  O[n, 0] = X
  O[n, 1] = 0 * X
  O[n, 2] = exp(X)
outputs: {O: [n, i]}
"""


def test_a_part_may_repeat_itself_along_an_axis() -> None:
    program, result = without_time(REPEATED)
    assert all(check_equivalence(program, c.graph, 0).ok for c in (result.as_written, *result.candidates[:2]))


COVARIANCES = """
name: covariances
dims: {n: 100000, i: 3, j: 3, k: 3}
dtype: float32
inputs: {X: [n], Y: [n], S: [n, k]}
program: |
  r = rsqrt(X * X + Y * Y + 1)
  x = X * r
  y = Y * r
  e = index(i) + index(k)
  a = where(e == 0, 1 - 2 * (y * y), where(e == 1, x * y, 0))
  b = where(e == 2, x - y, where(e == 3, 1 - x * x, 0))
  M = (a + b) * exp(S)
  O = sum(M * rename(M, i=j), k)
outputs: {O: [n, i, j]}
"""


def test_what_another_axis_names_is_computed_anew_and_the_rest_as_written() -> None:
    """M with j in the place of i is no operator of the program. The product with it and its sum are: multiplied out,
    they would be products of 3 by 3, each filled up to 16 by 16."""
    program, result = without_time(COVARIANCES)
    best = result.candidates[0]
    assert [k.body[-1].op for k in best.graph.kernels] == ["sum"]
    assert check_equivalence(program, best.graph, 0).ok


STRAIGHT_THROUGH = """
name: hard
dims: {m: 3, n: 7}
inputs:
  X: [m, n]
program: |
  P = softmax(X, n)
  first = min(where(X == max(X, n), index(n), 7), n)
  O = where(index(n) == first, 1, 0) - P + P
outputs:
  O: [m, n]
"""


def test_a_result_that_was_a_step_on_the_way_is_not_made_of_what_follows_it() -> None:
    """The result is the mask as numbers, as is what P is subtracted from: a kernel is not to make it of the difference,
    and the difference of that."""
    program, result = without_time(STRAIGHT_THROUGH)
    assert all(check_equivalence(program, c.graph, 0).ok for c in (result.as_written, *result.candidates))


NORM_OF_ALL = """
name: norm_of_all
dims: {m: 512, k: 4096, n: 512, s: 16}
dtype: bfloat16
inputs:
  X: [m, k]
  W: [k, n]
program: |
  Y = X / (sqrt(sum(square(X), m, k)) + 1e-7)
  ONES = sum(where(index(s) >= 3, 1.0, 0.0), s)
  A = dot(Y, W, k) + ONES
  O = A * relu(A) + exp(-abs(A))
outputs:
  O: [m, n]
"""


def test_a_sum_over_all_is_a_kernel_of_its_own() -> None:
    """In chunks, that is: what reads it would compute it in one program instance, or in each."""
    program, result = without_time(NORM_OF_ALL)
    best = result.candidates[0]
    assert best.predicted_us < 30
    assert all(check_equivalence(program, c.graph, 0).ok for c in (result.as_written, best))


def test_a_sum_over_all_may_lie_between_kernels() -> None:
    """X divided by its norm: the sum in chunks, and the quotients, each kernel with the sum of chunks; none has one
    program instance that reads all of X."""
    text = NORM_OF_ALL.partition("  ONES")[0].replace("  W: [k, n]\n", "").replace("  Y =", "  O =")
    program, result = without_time(f"{text}outputs:\n  O: [m, k]\n")
    best = result.candidates[0]
    assert best.predicted_us < 12
    assert [k.split is not None or bool(k.with_role("grid")) for k in best.graph.kernels] == [True, True]
    assert check_equivalence(program, best.graph, 0).ok


LOSS = """
name: loss
dims: {m: 4096, k: 768, v: 50257}
dtype: bfloat16
inputs:
  X: [m, k]
  W: {dims: [v, k], scale: 0.02}
program: |
  O = mean(logsumexp(dot(X, W, k), v), m)
outputs:
  O: {dims: [], dtype: float32}
"""


def test_what_a_kernel_reduces_is_stored_where_that_is_faster() -> None:
    """One kernel of all operators holds all that the product sums."""
    rows = LOSS.replace("mean(logsumexp(dot(X, W, k), v), m)", "max(dot(X, W, k), v)").replace("[]", "[m]")
    program = lower(parse_spec(rows).at())
    d = decompose(program)
    run = _Search(d, H100, Bounds(), True, {})
    one = min(run.implemented(greedy.folded(run, d.outputs, d.is_input)), key=lambda c: c.us)
    stored = greedy.improved(run, {d.outputs: one})
    assert greedy.predicted_us(stored, run.gap_us) < 0.6 * one.us
    assert check_equivalence(program, run.assembly.in_order(stored).graph, 0).ok
    assert search(program, H100, bounds=BEST).candidates[0].predicted_us <= greedy.predicted_us(stored, run.gap_us)


FLUX = """
name: flux
dims: {y: 4096, x: 4096}
dtype: float32
inputs: {U: [y, x]}
program: |
  f = log1p(exp(tanh(log1p(exp(U) / (1 + U * U)))))
  O = f[y, x + 1] + f[y, x - 1] + f[y + 1, x] + f[y - 1, x]
outputs: {O: [y, x]}
"""


def test_what_a_kernel_makes_at_several_places_is_stored_where_that_is_faster() -> None:
    program = lower(parse_spec(FLUX).at())
    d = decompose(program)
    run = _Search(d, H100, Bounds(), True, {})
    one = min(run.implemented(greedy.folded(run, d.outputs, d.is_input)), key=lambda c: c.us)
    stored = greedy.improved(run, {d.outputs: one})
    assert greedy.predicted_us(stored, run.gap_us) < 0.6 * one.us
    assert check_equivalence(program, run.assembly.in_order(stored).graph, 0).ok


LOGITS = """
name: logits
dims: {m: 4096, n: 4096, d: 768}
dtype: bfloat16
inputs:
  I: [m, d]
  T: [n, d]
  B: {dims: [], dtype: float32}
program: |
  s = dot(I, T, d)
  x = exp(B) * float32(s) + B
  R = sum(x * x, n)
  C = max(x, m)
outputs:
  R: {dims: [m], dtype: float32}
  C: {dims: [n], dtype: float32}
"""


def test_a_product_of_16_bits_lies_in_memory_in_the_place_of_what_is_made_of_it() -> None:
    """PyTorch rounds s to bfloat16. Kernels that read it and make x of it read half as much as those that read x."""
    program = lower(parse_spec(LOGITS).at())
    run = _Search(decompose(program), H100, Bounds(), True, {})
    fused = greedy.fused(run, greedy.as_written(run))
    stored = greedy.improved(run, fused)
    assert greedy.predicted_us(stored, run.gap_us) < 0.9 * greedy.predicted_us(fused, run.gap_us)
    graph = run.assembly.in_order(stored).graph
    assert [t.dtype for t in graph.buffers if t.dims == ("m", "n")] == ["bfloat16"]
    assert check_equivalence(program, graph, 0).ok


CUT_OUT = """
name: cut_out
dims: {b: 4, t: 512, s: 512, d: 1024, j: 3072, h: 16, e: 64, f: 64}
dtype: bfloat16
inputs: {X: [b, t, d], W: [j, d], B: [j]}
program: |
  R = bfloat16(dot(X, W, d) + B)
  Q = R[b, t, h*64 + e]
  K = R[b, s, h*64 + e + 1024]
  V = R[b, s, h*64 + f + 2048]
  A = where(index(t) >= index(s), dot(Q, K, e) * 0.125, -inf)
  O = dot(softmax(A, s), V, s)
outputs: {O: [b, t, h, f]}
"""
CELL = """
name: cell
dims: {b: 64, n: 1024, m: 4096, k: 1024, l: 1024}
dtype: bfloat16
inputs: {W: [m, k], U: [m, l], X: [b, k], H: [b, l], C: [b, n], P: [m], Q: [m]}
program: |
  R = bfloat16(dot(X, W, k) + P + (dot(H, U, l) + Q))
  D = sigmoid(R[b, n + 1024]) * C + sigmoid(R[b, n]) * tanh(R[b, n + 2048])
  E = sigmoid(R[b, n + 3072]) * tanh(D)
outputs: {D: [b, n], E: [b, n]}
"""


def test_operators_are_fused_from_few_kernels_and_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fused from few is there first, and of an LSTM's cell what is fused from all is faster."""

    def fused_us(text: str) -> float:
        run = _Search(decompose(lower(parse_spec(text).at())), find_target("h200"), Bounds(), True, {})
        return greedy.predicted_us(greedy.fused(run, greedy.as_written(run)), run.gap_us)

    attention_us, cell_us = fused_us(CUT_OUT), fused_us(CELL)
    with monkeypatch.context() as from_all:
        from_all.setattr(greedy, "_without_all", lambda *_: greedy.Change((), {(): lambda: None}))
        assert attention_us <= fused_us(CUT_OUT) and cell_us == fused_us(CELL)
    with monkeypatch.context() as from_few:
        from_few.setattr(greedy, "MANY", 0)
        assert attention_us <= fused_us(CUT_OUT) and cell_us < 0.95 * fused_us(CELL)


def test_what_takes_too_long_is_not_priced_to_the_end() -> None:
    """Of kernels that come in the place of others, those behind the one with which they take as long."""
    run = _Search(decompose(lower(parse_spec(LOSS).at())), H100, Bounds(), True, {})
    (first, c), *_ = greedy.as_written(run).items()
    asked: list[str] = []

    def priced(name: str) -> greedy.Costed:
        asked.append(name)
        return c

    change = greedy.Change((first,), {first: lambda: priced("one"), (): lambda: priced("other")})
    assert change.within(c.us, run.gap_us) is None and asked == ["one"]
    asked.clear()
    assert change.within(3 * c.us + run.gap_us, run.gap_us) is not None and asked == ["one", "other"]


def test_a_library_gives_way_to_a_faster_kernel() -> None:
    """Rows of 50,257 are slow in libraries, which take no gaps between rows."""
    program = lower(parse_spec(LOSS).at())
    run = _Search(decompose(program), H100, Bounds(), True, {})
    written = greedy.as_written(run)
    products = {t: c for t, c in written.items() if c.implementation.kernels[0].kind == "library"}
    fused = greedy.fused(run, written)
    assert products and all(t not in fused or fused[t].us < 0.5 * c.us for t, c in products.items())


def test_a_plan_is_fused_as_far_as_time_allows() -> None:
    """What time leaves of 36 operators in a row are fewer kernels than these."""
    steps = [f"x{i + 1} = exp(x{i} - max(x{i}, n))" for i in range(12)]
    text = "name: row\ndims: {m: 4096, n: 64}\ndtype: float32\ninputs: {x0: [m, n]}\nprogram: |\n"
    text += "".join(f"  {s}\n" for s in steps) + "outputs: {x12: [m, n]}\n"
    asked: list[int] = []

    def end() -> bool:
        asked.append(0)
        return len(asked) > most

    most = 1 << 30
    program = lower(parse_spec(text).at())
    whole = search(program, H100, end=end, deadline=lambda: True)
    most, asked = len(asked) // 2, []
    part = search(program, H100, end=end, deadline=lambda: True)
    assert part.stopped == whole.stopped == "budget"
    written = len(part.as_written.graph.kernels)
    assert len(whole.candidates[0].graph.kernels) < len(part.candidates[0].graph.kernels) < written


DISTANCE = """
name: distance
dims: {m: 4096, v: 50257}
dtype: bfloat16
inputs:
  P: [m, v]
  Q: [m, v]
program: |
  d = softmax(P, v) - softmax(Q, v)
  D = sign(d)
  LOSS = sum(abs(d), m, v)
outputs:
  D: [m, v]
  LOSS: {dims: [], dtype: float32}
"""


def test_sums_of_rows_are_made_beside_an_output_of_the_same_rows() -> None:
    """A kernel of their own would read all that they sum once more, which the kernel of the output has at hand."""
    program = lower(parse_spec(DISTANCE).at())
    run = _Search(decompose(program), H100, Bounds(), True, {})
    stored = greedy.improved(run, greedy.fused(run, greedy.as_written(run)))
    graph = run.assembly.in_order(stored).graph
    assert [t.dims for t in graph.buffers] == [("m",)]
    assert check_equivalence(program, graph, 0).ok


def test_a_product_that_is_taken_in_float32_too_lies_in_memory_as_such() -> None:
    """What PyTorch computes in both types is one value, and as exact as the better of the two."""
    both = LOGITS.replace("C = max(x, m)", "C = max(dot(float32(I), float32(T), d), m)")
    program = lower(parse_spec(both).at())
    run = _Search(decompose(program), H100, Bounds(), True, {})
    stored = greedy.improved(run, greedy.fused(run, greedy.as_written(run)))
    graph = run.assembly.in_order(stored).graph
    assert {t.dtype for t in graph.buffers if t.dims == ("m", "n")} == {"float32"}
    assert check_equivalence(program, graph, 0).ok


ELEMENTS = """
name: elements
dims: {e: 8192, k: 8, j: 8, i: 8, p: 8, g: 6}
dtype: float32
inputs: {U: [e, k, j, i], D: [i, p], G: [e, g, k, j, i]}
program: |
  r = dot(D, U[e, k, j, p], p)
  s = dot(D[j, p], U[e, k, p, i], p)
  t = dot(D[k, p], U[e, p, j, i], p)
  R = G[e, 0, k, j, i] * r + G[e, 1, k, j, i] * s + G[e, 2, k, j, i] * t
  S = G[e, 1, k, j, i] * r + G[e, 3, k, j, i] * s + G[e, 4, k, j, i] * t
  T = G[e, 2, k, j, i] * r + G[e, 4, k, j, i] * s + G[e, 5, k, j, i] * t
  W = dot(D[p, i], R[e, k, j, p], p) + dot(D[p, j], S[e, k, p, i], p) + dot(D[p, k], T[e, p, j, i], p)
outputs: {W: [e, k, j, i]}
"""


def test_nothing_is_stored_that_nobody_reads() -> None:
    """What two kernels pass on is stored no more where they are made one."""
    several = 0
    for text in (ELEMENTS, LOGITS, DISTANCE):
        run = _Search(decompose(lower(parse_spec(text).at())), H100, Bounds(), True, {})
        kernels = greedy.fused(run, greedy.as_written(run))
        read = {f for c in kernels.values() for f in c.implementation.leaves}
        several += sum(len(targets) > 1 for targets in kernels)
        assert all(f in read or f in run.d.outputs for targets in kernels for f in targets)
    assert several


TWO_NORMS = """
name: norms
dims: {m: 8, k: 4096}
inputs: {H: [m, k], X: [m, k], A: [m, k]}
program: |
  Y = X + A * (H / sqrt(sum(H * H, k)) - X)
  O = Y / sqrt(sum(Y * Y, k))
outputs: {O: [m, k]}
"""


def test_the_best_that_is_found_within_bounds_is_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    improved = greedy.improved

    def recorded(run: greedy.Planner, kernels: greedy.Kernels) -> greedy.Kernels:
        given.append(greedy.predicted_us(kernels, run.gap_us))
        return improved(run, kernels)

    monkeypatch.setattr(greedy, "improved", recorded)
    result = search(lower(parse_spec(TWO_NORMS).at()), H100)
    fused_us, found_us = given
    assert result.candidates[0].predicted_us <= found_us < fused_us


DIFFERENCE = """
name: difference
dims: {h: 16, q: 1024, s: 1024, d: 64}
dtype: bfloat16
inputs:
  Q1: [h, q, d]
  Q2: [h, q, d]
  K: [h, s, d]
  V: [h, s, d]
program: |
  A = softmax(dot(Q1, K, d) / 8, s)
  B = softmax(dot(Q2, K, d) / 8, s)
  O = rms_norm(dot(A, V, s) - 0.2 * dot(B, V, s), d)
outputs: {O: [h, q, d]}
"""


def test_what_is_divided_by_a_sum_is_divided_behind_the_product() -> None:
    """As the program says it, the product of the quotients waits for the sum: a second pass over all keys."""
    program, result = without_time(DIFFERENCE)
    graph = result.candidates[0].graph
    assert [len(place(k).loops) for k in graph.kernels] == [1]
    assert check_equivalence(program, graph, 0).ok


GATHERED = """
name: gathered
dims: {n: 1200, d: 128, c: 2, v: 1024}
dtype: float32
inputs: {X: [n, d], B: [c, v, d], I: {dims: [n], dtype: int64, below: v}, S: [v]}
program: |
  Y = 0.0 + B[0, I[n], d]
  R = X - Y
  A = sum(square(R), d) - dot(R * 2, B[1, v, d], d) + S
  J = min(where(A == min(A, v), index(v), 1024), v)
outputs: {Y: [n, d], R: [n, d], J: {dims: [n], dtype: int64}}
"""


def test_an_output_that_is_what_an_input_holds_elsewhere_is_waited_for_by_nobody() -> None:
    """The product reads rows of the input, whichever kernel stores them."""
    result = search(lower(parse_spec(GATHERED).at()), H100)
    assert result.stopped == "exhausted"
    assert any(len(c.graph.kernels) == 2 for c in result.candidates)
