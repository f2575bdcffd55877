"""Products over values that lie one behind another, summed over each of them."""

from __future__ import annotations

import re

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.joined import by_parts, outputs_by_parts
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.roofline import bounds
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from tests.pipeline.test_random import problem
from tests.searched import BEST

TARGET = find_target("h100")
UNIT = """
name: unit
dims: {{b: {b}, t: {t}, c: {c}, e: 80, f: {f}}}
inputs:
  Q: [b, c]
  K: [b, t, c]
  W: {{dims: [e, f], scale: 0.06}}
program: |
  D = Q - K
  P = Q * K
  X = where(index(f) < {c}, Q[b, f], K[b, t, f - {c}])
  Y = where(index(f) < {c3}, D[b, t, f - {c2}], P[b, t, f - {c3}])
  O = max(dot(where(index(f) < {c2}, X, Y), W, f), t)
outputs: {{O: [b, e]}}
"""
PAIR = """
name: pair
dims: {{m: 32, a: 32, b: 48, k: 80, n: 16}}
dtype: float32
inputs: {{A: [m, a], B: [m, b], W: [k, n]}}
program: |
  X = where(index(k) < 32, A[m, k], {second})
  O = dot({value}, W, k)
outputs: {{O: [m, n]}}
"""


SINK = """
name: sink
dims: {h: 2, m: 40, s: 40, d: 16, e: 16, t: 41}
dtype: float32
inputs: {Q: [h, m, d], K: [h, s, d], V: [h, s, e], S: [h]}
program: |
  R = dot(Q, K, d) + where(index(s) > index(m), -inf, 0)
  X = where(index(t) < 40, R[h, m, t], S)
  P = softmax(X - max(X, t), t)
  O = dot(P[h, m, s], V, s)
outputs: {O: [h, m, e]}
"""


def unit(b: int = 4096, t: int = 50, c: int = 64) -> Program:
    text = UNIT.format(b=b, t=t, c=c, c2=2 * c, c3=3 * c, f=4 * c)
    return parse_spec(text).at()


def pair(second: str = "B[m, k - 32]", value: str = "X") -> Program:
    return parse_spec(PAIR.format(second=second, value=value)).at()


def test_each_value_has_a_product_of_its_own() -> None:
    program = by_parts(lower(merge_axes(unit())))
    assert program is not None
    text = str(program)
    assert [line.split(" = ")[1] for line in text.splitlines() if "dot(" in line] == [
        "dot(Q, part; c)",
        "dot(K, part2; c)",
        "dot(D, part4; c)",
        "dot(P, part6; c)",
    ]
    assert "rename(W; f=c + 192)" in text
    assert "where" not in text
    assert by_parts(program) is None


def test_what_is_made_of_all_values_is_made_of_each() -> None:
    program = by_parts(lower(pair(value="exp(X) * (index(k) + 1)")))
    assert program is not None
    assert {"exp(A)", "exp(B)"} <= {line.split(" = ")[1] for line in str(program).splitlines() if " = " in line}
    assert "index(b + 32)" in str(program)


@pytest.mark.parametrize(
    "value", ["X * where(index(k) % 2 == 0, 1, 2)", "where(index(k) < 70, X, 0)", "where(index(k) < index(m), X, 1)"]
)
def test_parts_that_are_many_or_short_or_no_values_stay_together(value: str) -> None:
    """A mask of each second position, one that leaves no value, and parts that another mask would choose from."""
    assert by_parts(lower(pair(second="0", value=value))) is None


@pytest.mark.parametrize("reduction", ["max(B, k)", "sum(B, k)", "dot(B, B, k)"])
def test_a_part_with_one_value_for_all_positions_stays_where_it_is(reduction: str) -> None:
    text = f"""
name: same
dims: {{k: 257}}
dtype: float32
inputs: {{X: [k]}}
program: |
  B = where(index(k) < 28, X, max(X, k))
  S = {reduction}
outputs: {{S: []}}
"""
    assert by_parts(lower(parse_spec(text).at())) is None


def test_the_search_finds_it_by_itself() -> None:
    whole = search(lower(merge_axes(unit())), TARGET, bounds=BEST).candidates[0]
    found = search_program(unit(), TARGET, Options(tune=False))
    assert found.rejected == ()
    best = found.plans[0]
    assert best.predicted_us < 0.7 * whole.predicted_us
    assert "where" not in print_mugraph(best.graph)


def test_wrong_parts_are_refused() -> None:
    program = lower(pair())
    form = by_parts(program)
    assert form is not None
    graph = search(form, TARGET, bounds=BEST).candidates[0].graph
    assert check_equivalence(program, graph, 0).ok
    for wrong in ("b + 31", "b"):
        changed = parse_mugraph(print_mugraph(graph).replace("W[b + 32, n]", f"W[{wrong}, n]"))
        assert changed != graph
        assert not check_equivalence(program, changed, 0).ok


def test_kernels_in_parts_are_right(interpreter: Interpreter) -> None:
    program = unit(b=3, t=5, c=16)
    form = by_parts(lower(program))
    assert form is not None
    for c in search(form, TARGET).candidates[:3]:
        judged = interpreter.judge(program, kernels_source(c.graph, c.schedule), 0, True)
        assert judged.ok, judged.problem


def sink() -> tuple[Program, Program]:
    """Attention with a number for each head beside the scores, lowered, and in parts."""
    program = lower(parse_spec(SINK).at())
    form = by_parts(program)
    assert form is not None
    return program, form


def test_a_softmax_is_joined_of_its_parts() -> None:
    """And what is read of the part with many positions is computed of that alone. A maximum is subtracted once."""
    _, form = sink()
    lines = [line.split(" = ")[1] for line in str(form).splitlines() if " = " in line]
    joined = [x.split("(")[0] for x in lines if x.startswith(("max", "sum"))]
    assert joined == ["max", "maximum", "sum"]
    assert not any("rename" in x or "t)" in x for x in lines)


def test_what_a_mask_leaves_is_told_of_parts() -> None:
    """As of attention without a sink."""
    program = parse_spec(SINK).at()
    plain = SINK.replace("where(index(t) < 40, R[h, m, t], S)", "R").replace("t)", "s)").replace("S: [h]", "")
    least = bounds(program, TARGET), bounds(parse_spec(plain).at(), TARGET)
    assert least[0].flops == least[1].flops
    assert least[0].flops < 2 * 2 * 2 * 40 * 40 * 16 * 0.6
    assert floor_of(program, TARGET) < 1.01 * floor_of(parse_spec(plain).at(), TARGET)


def test_attention_with_a_sink_is_one_kernel_whose_parts_are_all_tested(interpreter: Interpreter) -> None:
    program, form = sink()
    best = search(form, TARGET, bounds=BEST).candidates[0]
    assert len(best.graph.kernels) == 1
    assert check_equivalence(program, best.graph, 0).ok
    text = print_mugraph(best.graph)
    ((first, second),) = re.findall(r"= add\((part\d+), (part\d+)\)", text)
    for one in (first, second):
        wrong = parse_mugraph(text.replace(f"add({first}, {second})", f"add({one}, {one})"))
        assert not check_equivalence(program, wrong, 0).ok
    judged = interpreter.judge(program, kernels_source(best.graph, best.schedule), 0, True)
    assert judged.ok, judged.problem


def test_scores_and_values_whose_keys_have_other_names_are_walked_together() -> None:
    """By the axis that the program reads the part by: what softmax leaves without the sink."""
    text = (
        SINK.replace("s: 40", "s: 40, n: 40").replace("V: [h, s, e]", "V: [h, n, e]").replace("s], V, s)", "n], V, n)")
    )
    program = lower(parse_spec(text).at())
    form = by_parts(merge_axes(program))
    assert form is not None
    best = search(form, TARGET, bounds=BEST).candidates[0]
    (kernel,) = best.graph.kernels
    assert {"s", "n"} & {*dict(kernel.roles)} == {"n"}
    assert check_equivalence(program, best.graph, 0).ok


MAXIMA = """
name: maxima
dims: {m: 6, k: 12, a: 12}
dtype: float32
inputs: {A: [m, a], B: [m, k], C: [m]}
program: |
  X = where(index(k) < 7, A[m, k], where(index(k) == 7, C, B))
  M = max(X * 2, k)
  O = M * C + B
outputs: {O: [m, k]}
"""


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_maximum_is_joined_of_its_parts(reduction: str) -> None:
    """One that does not cancel, as that of a softmax does: no plan is refused, and a wrong one is."""
    program = parse_spec(MAXIMA.replace("max(X", f"{reduction}(X")).at()
    parts = by_parts(lower(program))
    assert parts is not None
    assert [e.op for e in parts.eqns].count(reduction) == 2
    found = search_program(program, TARGET, Options(budget_s=20, tune=False))
    joined = [p.graph for p in found.plans if f"{reduction}imum(" in print_mugraph(p.graph)]
    assert joined and not found.rejected
    for graph in joined:
        text = print_mugraph(graph)
        first, *_ = re.findall(rf"= ({reduction}imum\(.*)\n", text)
        wrong = [text.replace(f"= {first}", f"= add({first.split('(')[1]}", 1)]
        wrong += [re.sub(r"(A\[m, )(a\w*|k\w*)\]", r"\1\2 + 1]", text, count=1)]
        for t in wrong:
            assert t == text or not check_equivalence(program, parse_mugraph(t), 3).ok
        assert wrong[0] != text


CHOSEN = """
name: chosen
dims: {m: 6, e: 8, j: 2}
dtype: float32
inputs: {X: [m, e], A: [m], B: [m]}
program: |
  K = where(index(j) < 1, max(X, e), A)
  M = max(CHOSEN, j)
  O = where(M > 0, X, B)
outputs: {O: [m, e]}
"""


@pytest.mark.parametrize(
    "chosen", ["where(index(e) == integer(K), 1, 0)", "where(K > B, index(e), where(K < X, -inf, 3))"]
)
def test_a_maximum_of_numbers_that_masks_choose_stays_whole(chosen: str) -> None:
    """Whether one of several computed numbers names a position: joined of parts, it was refused by the verifier."""
    program = parse_spec(CHOSEN.replace("CHOSEN", chosen)).at()
    assert by_parts(lower(program)) is None
    found = search_program(program, TARGET, Options(budget_s=60, tune=False))
    assert len(found.plans[0].graph.kernels) == 1 and not found.rejected


LAID = """
name: laid
dims: {{m: 6, a: 8, b: 8, c: 5, k: {k}, w: 16}}
dtype: float32
inputs: {{A: [m, a], B: [m, b], C: [m, c], D: [m], W: [m, w]}}
program: |
  {program}
outputs: {{{outputs}}}
"""
BEHIND = "O = where(index(k) < 8, exp(A[m, k]), B[m, k - 8] * 2)"


def laid(program: str, k: int = 16, outputs: str = "O: [m, k]") -> str:
    return LAID.format(program=program.replace("; ", "\n  "), k=k, outputs=outputs)


def test_an_output_that_is_a_concatenation_is_written_by_parts() -> None:
    made = outputs_by_parts(lower(parse_spec(laid(BEHIND)).at()))
    assert made is not None
    assert [str(p) for p in made.parts] == ["O[m, a] = part", "O[m, a + 8] = part2"]
    text = str(made)
    assert "part[m, a] = exp(A)" in text and "where" not in text


@pytest.mark.parametrize(
    ("program", "k", "outputs"),
    [
        pytest.param(BEHIND, 16, "O: [m, k]", id="two of one size"),
        pytest.param(f"X{BEHIND[1:]}; O = maximum(X, X * 0.1)", 16, "O: [m, k]", id="computed behind"),
        pytest.param(BEHIND, 16, "O: [k, m]", id="rows"),
        pytest.param(
            "O = where(index(k) < 8, A[m, k] - D, where(index(k) < 13, exp(C[m, k - 8]), B[m, k - 13] * 2))",
            21,
            "O: [m, k]",
            id="three of several sizes",
        ),
        pytest.param("O = where(index(k) < 8, A[m, k] * 2, D + 1)", 9, "O: [m, k]", id="one of one position"),
        pytest.param(
            "G = exp(W[m, a]); H = W[m, a + 8] * A; O = where(index(k) < 8, (G * H)[m, k], (A / (1 + G))[m, k - 8])",
            16,
            "O: [m, k]",
            id="both of the same values",
        ),
        pytest.param(f"{BEHIND}; S = sum(O * O, k)", 16, "O: [m, k], S: [m]", id="read by another output"),
        pytest.param(f"{BEHIND}; R = O + W[m, k]", 16, "O: [m, k], R: [m, k]", id="two outputs"),
        pytest.param(
            "E = exp(A); O = where(index(k) < 8, E[m, k], B[m, k - 8] * 2); R = where(index(k) < 8, E[m, k], D * 3)",
            16,
            "O: [m, k], R: [m, k]",
            id="two outputs with one value",
        ),
    ],
)
def test_kernels_that_write_parts_are_right(program: str, k: int, outputs: str, interpreter: Interpreter) -> None:
    text = laid(program, k, outputs)
    made = outputs_by_parts(lower(parse_spec(text).at()))
    assert made is not None and made.results == parse_spec(text).at().results
    assert problem(text, interpreter) is None


@pytest.mark.parametrize(
    ("program", "k"),
    [
        pytest.param("O = where(index(k) < 8, A[m, k], B[m, k - 8])", 16, id="copies"),
        pytest.param("O = where(index(k) < 8, exp(A[m, k]), 0)", 16, id="a number"),
        pytest.param("O = where(index(k) % 2 == 0, exp(W[m, k]), W[m, k] * 2)", 16, id="in turns"),
        pytest.param("O = where(index(k) < index(m), exp(W[m, k]), W[m, k] * 2)", 16, id="a mask of two axes"),
        pytest.param("Y = exp(A); O = where(index(k) < 8, Y[m, k], Y[m, k - 8])", 16, id="one value twice"),
    ],
)
def test_other_outputs_stay_whole(program: str, k: int) -> None:
    assert outputs_by_parts(lower(parse_spec(laid(program, k)).at())) is None


@pytest.mark.parametrize("place", ["7", "9", "a + 1"])
def test_one_position_that_is_written_elsewhere_is_refused(place: str) -> None:
    program = parse_spec(laid("O = where(index(k) < 8, A[m, k] * 2, D + 1)", 9)).at()
    found = search_program(program, TARGET, Options(budget_s=20, tune=False))
    text = next(t for p in found.plans if "store O[m, 8]" in (t := print_mugraph(p.graph)))
    assert check_equivalence(program, parse_mugraph(text), 3).ok
    assert not check_equivalence(program, parse_mugraph(text.replace("O[m, 8]", f"O[m, {place}]")), 3).ok


def test_parts_that_are_written_elsewhere_are_refused() -> None:
    program = parse_spec(laid(BEHIND)).at()
    found = search_program(program, TARGET, Options(budget_s=20, tune=False))
    graph = next(p.graph for p in found.plans if "store O[m, a + 8]" in print_mugraph(p.graph))
    text = print_mugraph(graph)
    first, second = re.findall(r"store O\[m, a(?: \+ 8)?\] = (\w+)", text)
    swapped = (
        text.replace(f"] = {first} ", "] = _ ")
        .replace(f"] = {second} ", f"] = {first} ")
        .replace("= _ ", f"= {second} ")
    )
    assert check_equivalence(program, parse_mugraph(text), 3).ok
    assert swapped != text and not check_equivalence(program, parse_mugraph(swapped), 3).ok
    assert not check_equivalence(program, parse_mugraph(text.replace("a + 8", "a + 7")), 3).ok
