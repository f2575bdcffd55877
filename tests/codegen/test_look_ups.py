"""Where tables are read: ahead of all loads that need not wait for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_cli.codegen import addresses, plan
from mirage_cli.codegen.check import check
from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph

# rows that a table names, in front of and behind rows that no table names, and rows that a table of tables names
TABLES = """
mugraph rows float16
dims m=8 e=4 f=6 k=32
input A f16[e, k]
input X f16[m, k]
input B f16[f, k]
input Y f16[m, k]
input T i32[m] below e
input U i32[e] below f
output O f16[m, k]
kernel k0 generated m:grid k:grid
  A = load A[T{e}[m], k]
  X = load X[m, k]
  B = load B[U{f}[T{e}[m]], k]
  Y = load Y[m, k]
  t0[m, k] = mul(A, X)
  t1[m, k] = mul(B, Y)
  O[m, k] = add(t0, t1)
  store O[m, k] = O
"""
# the second kernel waits for what the first has written, and looks up what is there before
BEHIND = """
mugraph behind float16
dims m=8 e=4 k=32
input X f16[m, k]
input A f16[e, k]
input T i32[m] below e
output O f16[m, k]
buffer S f16[m, k]
kernel k0 generated m:grid k:grid
  X = load X[m, k]
  S[m, k] = exp(X)
  store S[m, k] = S
kernel k1 generated m:grid k:grid
  A = load A[T{e}[m], k]
  S = load S[m, k]
  O[m, k] = mul(A, S)
  store O[m, k] = O
"""
# the second kernel loads what the first has written at places that an input names
NAMED = """
mugraph named float16
dims m=8 e=4 k=32
input X f16[e, k]
input T i32[m] below e
output O f16[m, k]
buffer S f16[e, k]
kernel k0 generated e:grid k:grid
  X = load X[e, k]
  S[e, k] = exp(X)
  store S[e, k] = S
kernel k1 generated m:grid k:grid
  S = load S[T{e}[m], k]
  O[m, k] = neg(S)
  store O[m, k] = O
"""


def planned(text: str, kernel: str, overlap: bool = False) -> KernelPlan:
    graph = parse_mugraph(text)
    own = KernelSchedule((("m", 4), ("k", 16)), ("m", "k"), overlap=overlap)
    schedule = Schedule({k.name: own for k in graph.kernels})
    made = plan_kernel(
        graph, next(k for k in graph.kernels if k.name == kernel), schedule, launch_sizes(graph, schedule)
    )
    check(made)
    return made


def loaded(statements: Sequence[Statement]) -> list[str]:
    return [s.out for s in statements if isinstance(s, plan.Load)]


def test_tables_are_read_first_and_what_they_name_last() -> None:
    assert loaded(planned(TABLES, "k0").statements) == ["T_at", "U_at", "X", "Y", "A", "B"]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_wait_keeps_its_place(overlap: bool) -> None:
    """What is read of inputs in front of it stays there."""
    statements = planned(BEHIND, "k1", overlap).statements
    assert loaded(statements) == (["T_at", "A", "S"] if overlap else ["T_at", "S", "A"])
    waits = [i for i, s in enumerate(statements) if isinstance(s, plan.Wait)]
    assert len(waits) == overlap
    at = {s.out: i for i, s in enumerate(statements) if isinstance(s, plan.Load)}
    assert not overlap or at["A"] < waits[0] < at["S"]


def test_what_names_places_in_the_results_of_the_kernel_in_front_is_looked_up_before_the_wait() -> None:
    """Lengths and tables are inputs: so the merge of a decoded token's chunks waits for one load, and not for two."""
    p = planned(NAMED, "k1", overlap=True)
    waits = [i for i, s in enumerate(p.statements) if isinstance(s, plan.Wait)]
    reads = {s.out: i for i, s in enumerate(p.statements) if isinstance(s, plan.Load)}
    assert len(waits) == 1
    assert reads["T_at"] < waits[0] < reads["S"]


def test_a_look_up_is_of_the_tables_own_positions() -> None:
    _, second, *_ = (s for s in planned(TABLES, "k0").statements if isinstance(s, plan.Load))
    assert isinstance(second.access, addresses.Pointers)
    ((place, _),) = second.access.terms
    assert place == addresses.Looked("T_at", ("m",), False)


PAGES = """
mugraph pages float16
dims m=16 e=128 n=64 k=512 p=32 pages=64 page=16
input X f16[m, k]
input C f16[pages, page, n]
input T i32[p] below pages
input U i32[pages] below pages
output O f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  C = load C[{row}, k%16, n]
  O[m, n] = dot(X, C; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize(
    ("row", "stages"),
    [("k//16", None), ("T{pages}[k//16]", 2 * 3 + 1), ("U{pages}[T{pages}[k//16]]", 3 * 3 + 1), ("T{pages}[m]", None)],
)
def test_as_many_iterations_are_in_flight_whatever_tables_they_read(row: str, stages: int | None) -> None:
    """Of n stages, Triton has ⌈(n - 2) / (tables in a row + 1)⌉ iterations in flight: with four, three."""
    graph = parse_mugraph(PAGES.replace("{row}", row))
    schedule = Schedule({"k0": KernelSchedule((("m", 16), ("n", 64), ("k", 32)), ("m", "n", "k"), stages=4)})
    made = plan_kernel(graph, graph.kernels[0], schedule, launch_sizes(graph, schedule))
    (loop,) = (s for s in made.statements if isinstance(s, plan.Loop))
    assert loop.stages == stages
    if stages is not None:
        tables = stages // 3 - 1
        assert -(-(stages - 2) // (tables + 1)) == 3
