"""The order of program instances: which tiles an instance computes, by its number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import SimpleNamespace

import pytest

from mirage_cli.codegen import planner
from mirage_cli.codegen.loops import uneven
from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.plan import Instances
from mirage_cli.codegen.planner import SECTION_BYTES, plan_kernel
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph

ATTENTION = """
mugraph causal f16
dims h={heads} g=2 q={n} s={n} d=64 e=64
input Q f16[h, g, q, d]
input K f16[h, s, d]
input V f16[h, s, e]
output O f16[h, g, q, e]

kernel k0 generated {grid} s:loop d:tile e:tile
  Q = load Q[h, g, q, d]
  K = load K[h, s, d]
  V = load V[h, s, e]
  iq[q] = index(q)
  is[s] = index(s)
  C[q, s] = {mask}
  A[{own}, s] = dot(Q, K; d)
  B[{own}, s] = where(C, A, -inf)
  M[{own}] = max(B; s)
  E[{own}, s] = exp_sub(B, M)
  L[{own}] = sum(E; s)
  U[{own}, e] = dot(E, V; s)
  O[{own}, e] = div(U, L)
  store O[h, g, q, e] = O
"""
HEADS_FIRST, ROWS_FIRST = "h:grid g:grid q:grid", "q:grid h:grid g:grid"


def attention(heads: int, n: int, grid: str = HEADS_FIRST, mask: str = "ge(iq, is)") -> MuGraph:
    own = grid.replace(":grid", ",").removesuffix(",")
    return parse_mugraph(ATTENTION.format(heads=heads, n=n, grid=grid, mask=mask, own=own))


def instances(graph: MuGraph, group: int = 1, **sizes: int) -> tuple[Instances, list[dict[str, int]]]:
    """What the plan says, and the tiles of every instance by the kernel's text. sizes: of dynamic axes."""
    s = KernelSchedule((("h", 1), ("g", 1), ("q", 64), ("s", 64)), ("h", "g", "q", "s", "d", "e"), group=group)
    schedule = Schedule({"k0": s})
    plan = plan_kernel(graph, graph.kernels[0], schedule, launch_sizes(graph, schedule))
    (found,) = (x for x in plan.statements if isinstance(x, Instances))
    text = emit_kernel(graph, graph.kernels[0], schedule, launch_sizes(graph, schedule)).source
    lines = [x.strip() for x in text[text.index("pid = tl.program_id") : text.index("i_q = ")].splitlines()]
    programs = found.programs * sizes.get("h", 1) * -(-sizes.get("q", 1) // 64)
    return found, [*_tiles(lines, programs, {f"SIZE_{d}": n for d, n in sizes.items()})]


def _tiles(lines: list[str], programs: int, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    for number in range(programs):
        names: dict[str, object] = {"tl": SimpleNamespace(program_id=lambda _, number=number: number), "min": min}
        names |= sizes
        for line in lines:
            exec(line, names)
        yield {d: v for d in "hgq" if isinstance(v := names[f"t_{d}"], int)}


def all_once(tiles: list[dict[str, int]], heads: int, rows: int) -> bool:
    return sorted((t["h"], t["g"], t["q"]) for t in tiles) == [
        (h, g, q) for h in range(heads) for g in range(2) for q in range(rows)
    ]


@pytest.mark.parametrize("grid", [HEADS_FIRST, ROWS_FIRST])
def test_the_longest_loops_of_all_heads_come_first(grid: str) -> None:
    """Heads one after the other leave the last one's longest loops for the end, when other multiprocessors are done:
    list scheduling of 1,024 instances with 32 lengths in 528 places takes 1.6 times the mean so, and 1.0 like this."""
    _, tiles = instances(attention(6, 512, grid))
    assert all_once(tiles, 6, 8)
    assert [q for q, _ in groupby(t["q"] for t in tiles)] == [*reversed(range(8))]


def test_heads_run_in_sections_of_one_size_whose_keys_the_l2_holds() -> None:
    heads, n = 5, 24 * 1024
    assert 2 * SECTION_BYTES < 2 * heads * 2 * n * 64 * 2 < 3 * SECTION_BYTES
    for grid in (HEADS_FIRST, ROWS_FIRST):
        found, tiles = instances(attention(heads, 2 * n, grid))
        assert (found.near, found.far, found.group) == (("h", "g"), ("q",), 4), "10 pairs of heads, three sections"
        rows = 2 * n // 64
        assert all_once(tiles, heads, rows)
        for first in range(0, len(tiles), 4 * rows):
            section = tiles[first : first + 4 * rows]
            assert [q for q, _ in groupby(t["q"] for t in section)] == [*reversed(range(rows))]
            assert len({(t["h"], t["g"]) for t in section}) == min(4, 2 * heads - first // rows)


@pytest.mark.parametrize("axis", ["h", "q"])
@pytest.mark.parametrize("size", [1, 3, 65, 200])
def test_sizes_that_differ_by_call_leave_no_tile_out(axis: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SECTION_BYTES", 1 << 16)
    text = ATTENTION.format(heads=3, n=256, grid=HEADS_FIRST, mask="ge(iq, is)", own="h, g, q").strip().splitlines()
    graph = parse_mugraph("\n".join([*text[:2], f"dynamic {axis}=1..4096", *text[2:]]) + "\n")
    found, tiles = instances(graph, **{axis: size})
    assert found.near and all_once(tiles, *((size, 4) if axis == "h" else (3, -(-size // 64))))


def test_a_schedule_may_choose_the_section() -> None:
    found, tiles = instances(attention(6, 512), group=8)
    assert (found.near, found.group) == (("h", "g"), 8) and all_once(tiles, 6, 8)
    assert [q for q, _ in groupby(t["q"] for t in tiles)] == [*reversed(range(8)), *reversed(range(8))]


@pytest.mark.parametrize(
    ("mask", "backwards"),
    [("ge(iq, is)", ("q",)), ("le(iq, is)", ())],
    ids=["up to the row", "from the row on"],
)
def test_loops_that_get_shorter_begin_with_the_first_tile(mask: str, backwards: tuple[str, ...]) -> None:
    found, tiles = instances(attention(3, 256, mask=mask))
    order = [q for q, _ in groupby(t["q"] for t in tiles)]
    assert found.backwards == backwards and order == sorted(range(4), reverse=bool(backwards))
    assert all_once(tiles, 3, 4)


def test_loops_of_one_length_stay_in_the_order_of_the_roles() -> None:
    found, tiles = instances(attention(3, 256, mask="ne(iq, is)"))
    assert not found.near and not found.backwards and [t["h"] for t in tiles] == sorted(t["h"] for t in tiles)


def test_nothing_is_uneven_where_there_is_no_limit() -> None:
    assert uneven({}) == {}
