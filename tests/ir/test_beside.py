"""Which parts of a kernel run side by side."""

from __future__ import annotations

import re

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.beside import beside
from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.work import model
from tests.mugraphs import CASES


def kernel(name: str) -> Kernel:
    return CASES[name].graph.kernels[0]


def written(parts: tuple[Kernel, ...]) -> list[list[str]]:
    return [sorted(f"{s.buffer} {s.value}" for s in k.stores) for k in parts]


@pytest.mark.parametrize(
    ("tiled", "stores"),
    [
        ("t", [["KC K1", "KC K2", "Q Q", "VC W"]]),
        ("t h", [["KC K1", "KC K2", "Q Q", "VC W"]]),
        ("t h g", [["KC K1", "KC K2", "VC W"], ["Q Q"]]),
        ("t h g w", [["KC K1", "KC K2", "VC W"], ["Q Q"]]),
        ("t h g f", [["KC K1", "KC K2", "VC W"], ["Q Q"]]),
        ("t h g f w", [["KC K1", "KC K2"], ["Q Q"], ["VC W"]]),
    ],
)
def test_parts_are_apart_where_each_has_tiles_that_another_lacks(tiled: str, stores: list[list[str]]) -> None:
    """Else an instance of the one has the blocks of the other already."""
    assert sorted(written(beside(kernel("slots"), tiled.split()))) == stores


def test_parts_are_all_of_a_kernel_and_have_what_they_need() -> None:
    whole = kernel("slots")
    parts = beside(whole, whole.with_role("grid"))
    assert sorted(s.value for k in parts for s in k.stores) == sorted(s.value for s in whole.stores)
    assert sorted(e.out for k in parts for e in k.body) == sorted(e.out for e in whole.body)
    for k in parts:
        known = {x.out for x in k.loads} | {e.out for e in k.body}
        assert all(v in known for e in k.body for v in e.values)
        assert {d for d, _ in k.roles} == {d for x in (*k.loads, *k.stores) for d in x.dims}
        assert k.name == whole.name


def test_what_two_parts_need_is_computed_by_the_instances_of_each() -> None:
    whole = kernel("projections")
    parts = beside(whole, ("m", "n", "p"))
    assert [[e.out for e in k.body] for k in parts] == [["A", "Q"], ["A", "K"]]
    assert [k.with_role("grid") for k in parts] == [("m", "n"), ("m", "p")]
    assert beside(whole, ("m", "n")) == (whole,)


TOGETHER = """
mugraph together float16
dims m=32 n=32 k=64
input X f16[m, k]
input W f16[k, n]
output O f16[m, n]
output S f16[m]
output C f16[n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  O[m, n] = dot(X, W; k)
  S[m] = sum(X; k)
  T[n] = sum(W; k)
  C[n] = {of}
  store O[m, n] = O
  store S[m] = S
  store C[n] = C
"""


def test_what_another_part_loads_anyway_stays_with_it() -> None:
    (k,) = parse_mugraph(TOGETHER.format(of="mul(T, 2)")).kernels
    assert beside(k, ("m", "n")) == (k,)


def test_a_kernel_with_parts_is_modelled_as_these() -> None:
    whole = kernel("slots")
    element = dict.fromkeys((*whole.read, *(s.buffer for s in whole.stores)), 2)
    m = model(whole, element, (), (), ())
    assert m.several and [len(p.stores) for p in m.parts(whole.with_role("grid"))] == [1, 2, 1]
    assert not model(kernel("attention"), dict.fromkeys("QKVO", 2), (), (), ()).several


def test_parts_that_differ_in_names_alone_have_one_model() -> None:
    """Kernels have parts in common: each is modelled once, and its blocks are chosen once."""
    (k,) = parse_mugraph(TABLES).kernels
    (other,) = parse_mugraph(TABLES.replace("X = load", "Z = load").replace("mul(X, 3)", "mul(Z, 3)")).kernels
    (third,) = parse_mugraph(TABLES.replace("mul(X, 3)", "mul(X, 4)")).kernels
    element = dict.fromkeys((*k.read, "P", "Q"), 2)
    of, of_other, of_third = (model(x, element, (), (), ()).parts(("m", "n")) for x in (k, other, third))
    assert k != other and len({*of}) == 2 and of == of_other
    assert [a is b for a, b in zip(of, of_third, strict=True)] == [True, False]


def test_what_one_table_holds_at_two_places_has_two_names_in_parts_side_by_side() -> None:
    """Branches of one kernel that give one name to blocks of two shapes are none that Triton compiles."""
    graph = parse_mugraph(TABLES)
    (k,) = graph.kernels
    schedule = KernelSchedule((("m", 8), ("n", 16)), ("m", "n"))
    source = kernels_source(graph, Schedule({k.name: schedule}))
    names = re.findall(r"^ +(\w+) = tl.load\(T_ptr", source, re.MULTILINE)
    assert len(names) == len(set(names)) == 2, source


TABLES = """
mugraph tables float16
dims m=32 n=32 v=9 k=64
input X f16[v, n]
input Y f16[v, m]
input T i32[k] below v
output P f16[m]
output Q f16[n]
kernel k0 generated m:grid n:grid
  X = load X[T{v}[n + 32], n]
  Y = load Y[T{v}[m], m]
  P[m] = mul(Y, 2)
  Q[n] = mul(X, 3)
  store P[m] = P
  store Q[n] = Q
"""
