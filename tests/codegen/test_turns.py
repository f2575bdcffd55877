"""Loads and stores of elements that lie in turns, as one of a block of all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_cli.codegen import addresses, plan, scalars
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import ExportInfo, export_source, kernels_source, load_export
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.codegen.sized import Variant, sized_source
from mirage_cli.ir.access_text import parse_access
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import DTYPES, Program, Tensor
from mirage_cli.ir.turns import in_turns
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.codegen.conftest import Stages
from tests.codegen.test_dynamic import judged
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import check, draw, schedule
from tests.mugraphs import Case, Write, case
from tests.searched import BEST
from tests.selfchecks import check_itself

LOADS = {"A": "i*2", "B": "i*2 + 1"}
STORES = {"Y": "i*2", "Z": "i*2 + 1"}


def pair(
    dtype: str = "float16", loads: dict[str, str] = LOADS, stores: dict[str, str] = STORES, i: str = "grid"
) -> Case:
    """Two loads and two stores of one tensor each, by these indices."""
    kind = DTYPES[dtype]
    text = f"""
mugraph turned {dtype}
dims m=24 i=32 d=64
input X {kind}[m, d]
input C {kind}[m, i]
output O {kind}[m, d]
kernel k0 generated m:grid i:{i}
  A = load X[m, {loads["A"]}]
  B = load X[m, {loads["B"]}]
  C = load C[m, i]
  P[m, i] = mul(A, C)
  Q[m, i] = add(B, C)
  Y[m, i] = sub(P, B)
  Z[m, i] = mul(Q, A)
  store O[m, {stores["Y"]}] = Y
  store O[m, {stores["Z"]}] = Z
"""

    def define(w: Write) -> None:
        w.rename("A", "X", over=f"d {loads['A'].replace(' ', '')}")
        w.rename("B", "X", over=f"d {loads['B'].replace(' ', '')}")
        w.mul("P", "A", "C")
        w.add("Q", "B", "C")
        w.sub("Y", "P", "B")
        w.mul("Z", "Q", "A")

    return case(text, define, "\n".join(f"O[m, {i}] = {v}" for v, i in stores.items()))


def records(count: int, dtype: str = "float32") -> Case:
    """Records of so many numbers, of which the first is read."""
    stores = "\n".join(f"  store O[m, {n}] = Y{n}" for n in reversed(range(count)))
    eqns = "\n".join(f"  Y{n}[m] = mul(A, {n + 2})" for n in range(count))
    text = f"""
mugraph records {dtype}
dims m=50 c={count}
input X {DTYPES[dtype]}[m, c]
output O {DTYPES[dtype]}[m, c]
kernel k0 generated m:grid
  A = load X[m, 0]
{eqns}
{stores}
"""

    def define(w: Write) -> None:
        w.rename("A", "X", over="c 0")
        for n in range(count):
            w.mul(f"Y{n}", "A", n + 2)

    return case(text, define, "\n".join(f"O[m, {n}] = Y{n}" for n in range(count)))


def fields(dtype: str = "float32") -> Case:
    """Records of four numbers."""
    kind = DTYPES[dtype]
    loads = "\n".join(f"  A{n} = load X[m, {n}]" for n in (2, 0, 3, 1))
    stores = "\n".join(f"  store O[m, {n}] = Y{n}" for n in (1, 2, 3, 0))
    text = f"""
mugraph fields {dtype}
dims m=50 c=4
input X {kind}[m, c]
output O {kind}[m, c]
kernel k0 generated m:grid
{loads}
  Y0[m] = add(A1, A2)
  Y1[m] = mul(A3, A0)
  Y2[m] = sub(A0, A1)
  Y3[m] = add(A2, 3)
{stores}
"""

    def define(w: Write) -> None:
        for n in range(4):
            w.rename(f"A{n}", "X", over=f"c {n}")
        w.add("Y0", "A1", "A2")
        w.mul("Y1", "A3", "A0")
        w.sub("Y2", "A0", "A1")
        w.add("Y3", "A2", 3)

    return case(text, define, "\n".join(f"O[m, {n}] = Y{n}" for n in range(4)))


def counts(text: str) -> tuple[int, int]:
    return len(re.findall(r"tl\.load\(X_ptr", text)), len(re.findall(r"tl\.store\(O_ptr", text))


# -- what lies in turns


@pytest.mark.parametrize(
    ("accesses", "found"),
    [
        (["m, i*2", "m, i*2 + 1"], [("i", (0, 1))]),
        (["m, i*2 + 1", "m, i*2"], [("i", (1, 0))]),
        (["i, 1", "i, 0"], [("i", (1, 0))]),  # along an axis of two
        (["m, i*2", "m, i*2 + 1", "m, i*2 + 2"], [("i", (0, 1))]),  # a window: the one that begins even
        (["m, i*4", "m, i*4 + 1", "m, i*4 + 2", "m, i*4 + 3"], [("i", (0, 1, 2, 3))]),
        (["m, i*2", "m, i*2 + 1", "m, i*2 + 32", "m, i*2 + 33"], [("i", (0, 1)), ("i", (2, 3))]),
        (["m, i*2", "m, i*2"], []),
        (["m, i*2", "m, i*2 + 2"], []),
        (["m, i*4", "m, i*4 + 1"], []),
        (["m, i*4", "m, i*4 + 1", "m, i*4 + 2"], []),
        (["m, i*2", "m, j*2 + 1"], []),
        (["i, i*2", "i, i*2 + 1"], []),  # an axis that occurs twice
        (["m, i*2 + i//2", "m, i*2 + i//2 + 1"], []),
        (["m, i*2", "m + 1, i*2 + 1"], []),
    ],
)  # fmt: skip
def test_which_accesses_lie_in_turns(accesses: list[str], found: list[tuple[str, tuple[int, ...]]]) -> None:
    narrow = any(a in ("i, 0", "i, 1") for a in accesses)
    sizes = {"a": 64, "b": 2 if narrow else 256, "m": 8, "i": 16, "j": 16}
    some = [(Tensor("X", ("a", "b"), "float16"), parse_access(a)) for a in accesses]
    assert [tuple(x) for x in in_turns(some, sizes, ())] == found


def test_elements_of_two_tensors_do_not() -> None:
    some = [(Tensor(n, ("a",), "float16"), parse_access(a)) for n, a in (("X", "i*2"), ("Y", "i*2 + 1"))]
    assert in_turns(some, {"a": 64, "i": 32}, ()) == []


def test_a_size_that_differs_by_call_is_no_number() -> None:
    """X[c, m]: the elements of two rows lie m apart, whatever m is tuned for."""
    some = [(Tensor("X", ("c", "m"), "float16"), parse_access(f"{n}, m")) for n in (0, 1)]
    assert in_turns(some, {"c": 2, "m": 1}, ("m",)) == []
    some = [(Tensor("X", ("m", "c"), "float16"), parse_access(f"m, {n}")) for n in (0, 1)]
    assert [tuple(x) for x in in_turns(some, {"c": 2, "m": 1}, ("m",))] == [("m", (0, 1))]


# -- kernels


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("tiles", ["m=1 i=8", "m=8 i=16", "m=4 i=64"])
@pytest.mark.parametrize("order", ["m i", "i m"])
def test_both_are_one(dtype: str, tiles: str, order: str) -> None:
    of = pair(dtype)
    for sizes in ({"m": 24, "i": 32, "d": 64}, {"m": 7, "i": 21, "d": 42}):
        graph = of.graph.resized(sizes)
        chosen = schedule(graph, tiles, order)
        assert counts(kernels_source(graph, chosen)) == (1, 1)
        check(graph, chosen, of.program.resized(sizes), draw(graph))


@pytest.mark.parametrize("sizes", [{"m": 48}, {"m": 51}, {"m": 3}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_four_are_one(sizes: dict[str, int], dtype: str) -> None:
    of = fields(dtype)
    graph = of.graph.resized({"c": 4} | sizes)
    chosen = schedule(graph, "m=16")
    assert counts(kernels_source(graph, chosen)) == (1, 1)
    check(graph, chosen, of.program.resized({"c": 4} | sizes), draw(graph))


@pytest.mark.parametrize("count", [2, 3, 7, 9, 16])
@pytest.mark.parametrize("sizes", [{"m": 48}, {"m": 51}, {"m": 3}])
def test_stores_of_any_number_are_one(count: int, sizes: dict[str, int]) -> None:
    """A block of three and their likes has room for more, which is not stored."""
    of = records(count, "float16" if count == 3 else "float32")
    graph = of.graph.resized({"c": count} | sizes)
    for tiles in ("m=16", "m=2"):
        chosen = schedule(graph, tiles)
        assert counts(kernels_source(graph, chosen)) == (1, 1)
        check(graph, chosen, of.program.resized({"c": count} | sizes), draw(graph))
    chosen = schedule(graph, "m=1")
    assert counts(kernels_source(graph, chosen)) == (1, count)


def test_threads_store_records_side_by_side(stage: Stages) -> None:
    """Of nine numbers, a thread stores one, and its neighbour the next: 128 rows in room for 16 are 16 for a thread."""
    ptx = stage(records(9).graph, schedule(records(9).graph, "m=128"), 90, "ptx")
    assert re.findall(r"st\.global\S*", ptx) == ["st.global.b32"] * 16


def test_records_in_64_bits() -> None:
    of = records(3).graph.resized({"m": 1 << 30, "c": 3})
    text = kernels_source(of, schedule(of, "m=64"))
    assert (
        "(t_m * BLOCK_m).to(tl.int64) * 3 + (tl.arange(0, BLOCK_m * 4) // 4 * 3 + tl.arange(0, BLOCK_m * 4) % 4)"
        in text
    )


def test_in_a_loop() -> None:
    of = pair(i="loop")
    for tiles, order in (("m=8 i=8", "m i"), ("m=1 i=16", "i m")):
        chosen = schedule(of.graph, tiles, order)
        text = kernels_source(of.graph, chosen)
        assert counts(text) == (1, 1) and "for s_i" in text
        check(of.graph, chosen, of.program, draw(of.graph))


def test_positions_of_64_bits() -> None:
    of = pair().graph.resized({"m": 1 << 21, "i": 1 << 11, "d": 1 << 12})
    text = kernels_source(of, schedule(of, "m=8 i=16"))
    assert text.count("(t_i * BLOCK_i).to(tl.int64) * 2 + tl.arange(0, BLOCK_i * 2))[None, :]") == 2
    text = kernels_source(of, schedule(of, "m=8 i=2048"))
    assert text.count("(tl.arange(0, BLOCK_i * 2).to(tl.int64))[None, :]") == 2


def test_one_element_at_a_time_stays() -> None:
    chosen = schedule(of := pair().graph, "m=8 i=1")
    assert counts(kernels_source(of, chosen)) == (2, 2)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({"A": "i*2", "B": "i*2 + 2"}, (2, 1)),
        ({"A": "i*2 - 1", "B": "i*2"}, (2, 1)),  # the first lies before the tensor
        ({"A": "i*2 + 1", "B": "i*2"}, (1, 1)),
    ],
)
def test_other_loads_stay(loads: dict[str, str], expected: tuple[int, int]) -> None:
    of = pair(loads=loads)
    for tiles in ("m=8 i=16", "m=1 i=64"):
        chosen = schedule(of.graph, tiles)
        assert counts(kernels_source(of.graph, chosen)) == expected
        check(of.graph, chosen, of.program, draw(of.graph))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_threads_store_what_lies_side_by_side(stage: Stages, dtype: str) -> None:
    ptx = stage(pair(dtype).graph, schedule(pair(dtype).graph, "m=32 i=32", "m i"), 90, "ptx")
    stores = re.findall(r"st\.global\S*", ptx)
    assert stores and {*stores} <= {"st.global.v4.b32", "st.global.v2.b64"}
    if dtype == "float32":
        four = stage(fields().graph, schedule(fields().graph, "m=128"), 90, "ptx")
        assert {*re.findall(r"(?:st|ld)\.global\S*", four)} <= {"st.global.v4.b32", "ld.global.v4.b32"}


# -- what check refuses


def one_less(s: Statement) -> list[Statement]:
    return [replace(s, others=s.others[1:]) if isinstance(s, plan.Store) else s]


def moved(**fields: object) -> object:
    def change(s: Statement) -> list[Statement]:
        if not isinstance(s, plan.Store):
            return [s]
        terms = tuple((replace(p, **fields) if isinstance(p, addresses.Turns) else p, n) for p, n in s.pointers.terms)
        return [replace(s, pointers=replace(s.pointers, terms=terms))]

    return change


def twice_as_far(s: Statement) -> list[Statement]:
    if not isinstance(s, plan.Store):
        return [s]
    terms = tuple((p, 2 * n if isinstance(p, addresses.Turns) else n) for p, n in s.pointers.terms)
    return [replace(s, pointers=replace(s.pointers, terms=terms))]


def unmasked(s: Statement) -> list[Statement]:
    return [replace(s, mask=()) if isinstance(s, plan.Store | plan.Load) and s.others else s]


def alone(s: Statement) -> list[Statement]:
    return [replace(s, others=()) if isinstance(s, plan.Load) else s]


def three(s: Statement) -> list[Statement]:
    return [replace(s, others=(*s.others, "more")) if isinstance(s, plan.Load) and s.others else s]


WRONG = {
    "a block too few": (one_less, "not accessed in turns|blocks of O"),
    "loads of three": (three, "with 2 others"),
    "four of two": (moved(count=4), "blocks of O"),
    "from elsewhere": (moved(start=scalars.AtZero()), "from elsewhere"),
    "with gaps": (twice_as_far, "blocks of O"),
    "past the end": (unmasked, "is masked along"),
    "a block that nobody takes": (alone, "not accessed in turns"),
}  # fmt: skip


def padded_pair() -> KernelPlan:
    graph = pair().graph.resized({"m": 24, "i": 21, "d": 42})
    (found,) = plans(graph, schedule(graph, "m=8 i=8"))
    return found


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    change, message = WRONG[name]
    check_plan(right := padded_pair())
    with pytest.raises(PlanError, match=message):
        check_plan(changed(right, change))


# -- specs

IN_PLACE = """
name: turned
dims: {t: 5, hq: 3, hk: 2, d: 16, half: 4, pos: 20, two: 2}
dtype: bfloat16
inputs:
  P: {dims: [t], dtype: int64, below: pos}
  Q: [t, hq, d]
  K: [t, hk, d]
  CS: [pos, two, half]
program: |
  c = CS[P[t], 0, half]
  s = CS[P[t], 1, half]
  q0 = Q[t, hq, 2*half]
  q1 = Q[t, hq, 2*half + 1]
  k0 = K[t, hk, 2*half]
  k1 = K[t, hk, 2*half + 1]
  Q[t, hq, 2*half] = q0 * c - q1 * s
  Q[t, hq, 2*half + 1] = q1 * c + q0 * s
  K[t, hk, 2*half] = k0 * c - k1 * s
  K[t, hk, 2*half + 1] = k1 * c + k0 * s
outputs: {Q: {inout: Q}, K: {inout: K}}
"""
DYNAMIC = """
name: products
dims: {n: {min: 1, max: 300, tune: [16, 200]}, c: 2}
dtype: float32
inputs: {A: [n, c], B: [n, c]}
program: O = A[n, 0] * B[n, 0] - A[n, 1] * B[n, 1]
outputs: {O: [n]}
"""


def best(text: str) -> list[tuple[Program, ScheduledGraph]]:
    target = find_target("h200")
    return [(p, search(lower(merge_axes(p)), target, bounds=BEST).candidates[0]) for p in parse_spec(text).programs()]


def test_in_place() -> None:
    ((p, c),) = best(IN_PLACE)
    source = export_source(p, c.graph, schedule(c.graph, "t=2 hq=2 hk=1 half=8"))
    assert source.count("tl.store(") == 2 == source.count("tl.split(")
    assert check_itself(source).code == 0


def test_sizes_that_differ_by_call() -> None:
    found = best(DYNAMIC)
    source = sized_source([Variant(p, c.graph, schedule(c.graph, "n=64"), ExportInfo()) for p, c in found])
    assert "SIZE_n * 2" in source and "tl.split(" in source
    function = load_export(source).products
    for n in (1, 2, 17, 299):
        assert judged(found[0][0].resized({"n": n}), function) is None, n
