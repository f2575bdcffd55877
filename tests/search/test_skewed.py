"""Products with rows that are read by the difference of two axes: the difference is taken of the product."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Program
from mirage_cli.ir.reach import limits, visited
from mirage_cli.ir.rewrites.skewed import by_entries, over_entries, skewed
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify import interpret
from mirage_cli.verify.equivalence import check_equivalence
from tests.pipeline.test_random import problem
from tests.searched import BEST

H100 = find_target("h100")
RELATIVE = """
name: relative
dims: {{b: 2, h: 3, q: {q}, s: {q}, d: 32, r: {r}}}
inputs: {{Q: [b, q, h, d], K: [b, s, h, d], V: [b, s, h, d], R: [r, h, d], W: [h, d]}}
program: |
  E = dot(Q + W, R[{index}, h, d], d)
  A = where(index(s) <= index(q), dot(Q, K, d) + E, -inf)
  O = dot(softmax(A, s), V, s)
outputs: {{O: [b, q, h, d]}}
"""


def relative(q: int, r: int, index: str) -> str:
    return RELATIVE.format(q=q, r=r, index=index)


def test_the_difference_is_taken_of_the_product() -> None:
    found = skewed(lower(parse_spec(relative(17, 33, "s - q + 16")).at()))
    assert found is not None
    text = [str(e) for e in found.eqns]
    assert "E_r[b, h, q, r] = dot(t0, R; d)" in text
    assert "E[b, h, q, s] = rename(E_r; r=-q + s + 16)" in text


@pytest.mark.parametrize(
    ("r", "index"),
    [
        (17, "s"),  # rows of one axis
        (17 * 17 * 3, "17*q + s"),  # each position has rows of its own: 17 times as many products
        (33, "s // 2 - q // 2 + 16"),  # no sum of axes
    ],
)
def test_other_products_are_as_they_were(r: int, index: str) -> None:
    assert skewed(lower(parse_spec(relative(17, r, index)).at())) is None


def test_windows_are_summed_as_they_are_read() -> None:
    """i is summed over: no product with rows alone has it."""
    text = """
name: windows
dims: {y: 40, c: 16, e: 16, i: 3}
inputs: {X: [y, c], W: [i, c, e]}
program: |
  O = dot(X[y + i - 1, c], W, c, i)
outputs: {O: [y, e]}
"""
    assert skewed(lower(parse_spec(text).at())) is None


NEIGHBOURS = """
name: neighbours
dims: {{n: {n}, m: {m}, k: 4, d: {d}, e: 8}}
inputs: {{H: [m, d], N: {{dims: [n, k], dtype: int32, below: m, padded: true}}, W: [d, e], B: [e]}}
program: |
  O = max(relu(dot(H[N[n, k], d], W, d) + B), k)
outputs: {{O: [n, e]}}
"""


def test_rows_that_a_table_names_often_are_multiplied_once() -> None:
    found = skewed(lower(parse_spec(NEIGHBOURS.format(n=20, m=20, d=8)).at()))
    assert found is not None
    assert "t1_m[m, e] = dot(H, W; d)" in [str(e) for e in found.eqns]


@pytest.mark.parametrize(("m", "d"), [(21, 8), (20, 7)])
def test_rows_that_are_read_seldom_or_have_more_columns_behind_it_are_multiplied_as_they_are_read(
    m: int, d: int
) -> None:
    assert skewed(lower(parse_spec(NEIGHBOURS.format(n=20, m=m, d=d)).at())) is None


def test_kernels_that_read_products_of_rows_by_a_table_are_right(interpreter: Interpreter) -> None:
    assert problem(NEIGHBOURS.format(n=17, m=13, d=8), interpreter) is None


@pytest.mark.parametrize("index", ["s - q + 16", "q - s + 19"])
def test_kernels_that_read_it_are_right(index: str, interpreter: Interpreter) -> None:
    assert problem(relative(17, 40, index), interpreter) is None


def test_relative_positions_are_a_product_of_matrices() -> None:
    """In front of one loop over the keys, which reads it askew. And it is the program."""
    program = parse_spec(relative(512, 1024, "s - q + 511")).at()
    found = search_program(program, H100, Options(budget_s=60.0, bounds=BEST, tune=False))
    assert found.plans and not found.rejected
    product, attention = found.plans[0].graph.kernels
    assert {x.buffer for x in product.loads} == {"Q", "R", "W"} and product.stores[0].buffer in {
        x.buffer for x in attention.loads
    }
    assert any(str(i) == "-q + s + 511" for x in attention.loads for i in x.access)


EXPERTS = """
name: experts
dims: {{t: {t}, j: 2, k: {k}, n: {n}, e: {e}}}
dtype: bfloat16
inputs:
  X: [t, k]
  W: {{dims: [e, k, n], scale: 0.1}}
  E: {{dims: [t, j], dtype: int32, below: e}}
  P: [t, j]
program: |
  O = sum(dot(X, W[{row}, k, n], k) * P, j)
outputs: {{O: [t, n]}}
"""


def experts(t: int, e: int, k: int = 24, n: int = 20, row: str = "E[t, j]") -> str:
    return EXPERTS.format(t=t, e=e, k=k, n=n, row=row)


def test_rows_with_a_matrix_each_are_multiplied_by_all() -> None:
    found = by_entries(lower(parse_spec(experts(9, 5)).at()))
    assert found is not None
    text = [str(e) for e in found.eqns]
    assert "t1_e[t, n, e] = dot(X, W; k)" in text
    assert "t1[t, j, n] = rename(t1_e, E; e=E{e}[t, j])" in text


@pytest.mark.parametrize(
    "text",
    [
        experts(9, 19),  # more matrices than rows
        experts(99, 65),  # many
        experts(9, 5, row="E[t // 3, j]"),  # rows share a matrix as they are
        experts(9, 5, row="4 - E[t, j]"),  # another one than the table names
        experts(9, 5, row="3").replace("k, n], k)", "k, n], k) * E"),  # one for all
        experts(9, 5).replace("X: [t, k]", "X: [t, m, k]").replace("O: [t", "O: [t, m").replace("k: 24", "k: 24, m: 4"),
    ],
)
def test_rows_are_multiplied_by_their_own_matrix(text: str) -> None:
    assert by_entries(lower(parse_spec(text).at())) is None


def test_kernels_that_multiply_by_all_are_right_and_faster(interpreter: Interpreter) -> None:
    assert problem(experts(9, 5), interpreter) is None
    program = parse_spec(experts(256, 8, 1024, 2048)).at()
    found = search_program(program, H100, Options(budget_s=60.0, tune=False))
    assert not found.rejected
    assert any(e.out.startswith("t1_e") for k in found.plans[0].graph.kernels for e in k.body)
    text = print_mugraph(found.plans[0].graph)
    assert "E{e}[t, j]" in text
    assert not check_equivalence(lower(program), parse_mugraph(text.replace("E{e}[t, j]", "E{e}[t, 0]")), 0).ok


SORTED = """
name: sorted_experts
dims: {{t: {t}, k: {k}, n: {n}, e: {e}}}
dtype: bfloat16
inputs:
  X: [t, k]
  W: {{dims: [e, n, k], scale: 0.1}}
  E: {{dims: [t], dtype: int32, below: e, drawn: {drawn}}}
program: |
  O = dot(X, W[E[t], n, k], k)
outputs: {{O: [t, n]}}
"""


def sorted_experts(t: int, e: int, k: int = 24, n: int = 20, drawn: str = "sorted") -> Program:
    return parse_spec(SORTED.format(t=t, e=e, k=k, n=n, drawn=drawn)).at()


def test_products_that_no_row_of_a_block_reads_are_not_taken() -> None:
    """Where others are 0: NaN in a matrix that no row names, or that rows of other blocks name, gets into none."""
    program = lower(sorted_experts(256, 8, 512, 256))
    form = by_entries(program)
    assert form is not None
    text = [str(e) for e in form.eqns]
    assert text[-1] == "O[t, n] = rename(O_e_own, E; e=E{e}[t])"
    best = next(c for c in search(form, H100).candidates if [b.name for b in c.graph.buffers] == ["O_e_own"])
    schedule = reduced_schedule(best.graph, best.schedule, t=32, e=1)
    source = kernels_source(best.graph, schedule)
    assert "end_k = min(SIZE_k, " in source
    module = load_export(source)
    X, W = torch.randn(256, 512).bfloat16(), torch.randn(8, 256, 512).bfloat16() / 16
    E = torch.tensor([0] * 60 + [1] * 50 + [3] * 100 + [7] * 46, dtype=torch.int32)
    expected = torch.einsum("tk,tnk->tn", X.float(), W.float()[E.long()])
    W[2] = W[4] = torch.nan
    output = torch.full((256, 256), torch.nan, dtype=torch.bfloat16)
    named = {"X": X, "W": W, "E": E}
    module.launch([named[t.name] for t in best.graph.inputs], [output], module.make_scratch("cpu"))
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.02)
    W[0] = torch.nan  # of the first rows
    module.launch([named[t.name] for t in best.graph.inputs], [output], module.make_scratch("cpu"))
    assert output[:60].isnan().all()
    torch.testing.assert_close(output[60:].float(), expected[60:], atol=0.05, rtol=0.02)


TOGETHER = """
mugraph sorted_experts bfloat16
dims t=256 n=64 k=512 e=9
input X bf16[t, k]
input W bf16[e, n, k]
input E i32[t] below e drawn sorted
output O bf16[t, n]

kernel k0 generated t:grid n:grid k:loop e:loop
  W = load W[e, n, k]
  E = load E[t]
  X = load X[t, k]
  e_at[e] = index(e)
  own[t, e] = eq(e_at, E)
  X_own[t, k, e] = where(own, X, 0)
  O[t, n] = dot(X_own, W; k, e)
  store O[t, n] = O
"""
NAMED = {
    "sorted": [0] * 60 + [1] * 50 + [3] * 100 + [4] * 46,
    "one": [2] * 256,
    "in any order": [(7 * i) % 5 for i in range(256)],
}
"""Matrices that rows may name."""


@pytest.mark.parametrize("tiles", ["t=32 k=64 e=1", "t=64 k=128 e=2"])
@pytest.mark.parametrize("named", NAMED)
def test_a_loop_over_matrices_goes_over_those_that_the_rows_of_a_block_name(named: str, tiles: str) -> None:
    """And over those between: NaN in one that lies outside gets into no row, however many a tile holds."""
    program = lower(sorted_experts(256, 9, 512, 64))
    form = over_entries(program)
    assert form is not None
    assert str(form.eqns[-1]) == "O[t, n] = dot(X_own, W; k, e)"
    graph = parse_mugraph(TOGETHER)
    assert check_equivalence(program, graph, 0).ok
    own = KernelSchedule.parse(f"{tiles} n=32 order=t,e,k,n warps=4 stages=3")
    source = kernels_source(graph, Schedule({"k0": own}))
    assert source.count("for step in range(") == 3
    module = load_export(source)
    X, W = torch.randn(256, 512).bfloat16(), torch.randn(9, 64, 512).bfloat16() / 16
    E = torch.tensor(NAMED[named], dtype=torch.int32)
    expected = torch.einsum("tk,tnk->tn", X.float(), W.float()[E.long()])
    W[max(NAMED[named]) + own.tile("e") :] = torch.nan
    output = torch.full((256, 64), torch.nan, dtype=torch.bfloat16)
    module.launch([X, W, E], [output], module.make_scratch("cpu"))
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.02)


def test_limits_along_an_axis_that_a_loop_walks_beside_another_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finite fields refuse a kernel that leaves out the matrix that a row names."""
    program = lower(sorted_experts(256, 9, 512, 64))
    graph = parse_mugraph(TOGETHER)
    (kernel,) = graph.kernels
    (loop,) = place(kernel).loops
    found = limits(kernel, loop)
    assert {(x.dim, x.lower) for x in found} == {("e", True), ("e", False)}
    monkeypatch.setattr(interpret, "limits", lambda *_: tuple(replace(x, holds=not x.holds) for x in found))
    assert not check_equivalence(program, graph, 0).ok


def test_a_loop_over_matrices_is_expected_to_visit_whole_tiles() -> None:
    """A matrix for each row, in tiles of one, of four, or of all; and together those that are named."""
    graph = parse_mugraph(TOGETHER)
    (kernel,) = graph.kernels
    found = limits(kernel, place(kernel).loops[0])
    integers = {"E": next(t for t in graph.inputs if t.name == "E")}
    for tile, mean in ((1, 1 / 9), (4, (4 * 16 + 1) / 17 / 9), (9, 1.0)):
        assert visited(found, graph.sizes, integers, tile=tile).mean == pytest.approx(mean)
    rows = visited(found, graph.sizes, integers)
    assert rows.touched(1) == pytest.approx(1 / 9) and rows.touched(9) == pytest.approx(1 - (8 / 9) ** 9)


def reduced_schedule(graph: MuGraph, schedule: Schedule, **tiles: int) -> Schedule:
    """The schedule with these tiles in its first kernel."""
    first = graph.kernels[0].name
    own = tuple((d, tiles.get(d, n)) for d, n in schedule.kernels[first].tiles)
    return Schedule({**schedule.kernels, first: replace(schedule.kernels[first], tiles=own)})


def test_rows_sorted_by_their_matrix_are_expected_to_take_less_time() -> None:
    times: dict[str, float] = {}
    for drawn in ("sorted", "evenly"):
        found = search_program(sorted_experts(4096, 32, 1024, 2048, drawn), H100, Options(budget_s=60.0, tune=False))
        assert not found.rejected
        times[drawn] = found.plans[0].predicted_us
        stored = {b.dims for b in found.plans[0].graph.buffers}
        assert stored == (set() if drawn == "sorted" else {("e", "t", "n")})
    assert 3 * times["sorted"] < times["evenly"]


@pytest.mark.parametrize("drawn", ["sorted", "evenly", "evenly, padded: true"])
def test_kernels_of_rows_with_a_matrix_each_are_right(drawn: str, interpreter: Interpreter) -> None:
    """Sorted, in any order, and some without one."""
    assert problem(SORTED.format(t=37, e=5, k=24, n=20, drawn=drawn), interpreter) is None
