"""Small sizes at which a μGraph is tested, and schedules for them: several tiles along every axis, the last short."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Container, Mapping
from math import prod

from mirage_cli.ir.access import renames
from mirage_cli.ir.footprint import ENTRIES, READ, large_enough
from mirage_cli.ir.mugraph import MuGraph, split_axis
from mirage_cli.ir.program import (
    Program,
    distinct_positions,
    mixed,
)
from mirage_cli.ir.schedule import KernelSchedule, Schedule

ROOM = 1 << 17
"""Elements of any one value of a program, where axes as short as may be leave the choice."""


class _Classes:
    """Axes that must have equal sizes, since one is loaded, stored or renamed as the other; or since they have, and
    nothing else says which axis of the program another one stands for."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def find(self, a: str) -> str:
        while self.parent.setdefault(a, a) != a:
            a = self.parent[a]
        return a

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)


def _classes(program: Program, graph: MuGraph) -> _Classes:
    classes = _Classes()
    for d in (*program.order, *graph.sizes):
        classes.find(d)
    for e in (*program.eqns, *(e for k in graph.kernels for e in k.body)):
        for d, i in e.names.items():
            if i.axis is not None and renames(d, i, graph.sizes | program.sizes):
                classes.join(d, i.axis)
    for d, i in graph.accesses():
        if i.axis is not None and (d == i.axis or renames(d, i, graph.sizes)):
            classes.join(d, i.axis)
    known = {classes.find(d) for d in (*program.order, *(name for name, _ in graph.merged))}
    for made_up in [d for d in graph.sizes if classes.find(d) not in known]:  # positions alone: only its size ties it
        for d, n in program.dims:
            if n == graph.sizes[made_up]:
                classes.join(made_up, d)
    return classes


def same_axes(program: Program, graph: MuGraph) -> Callable[[str], str]:
    """A name for all axes that are one (`_Classes`)."""
    return _classes(program, graph).find


def small_instance(
    program: Program, graph: MuGraph, seed: int, *, least: bool = False
) -> tuple[dict[str, int], Schedule]:
    """Reduced sizes and a schedule: several tiles along every grid, loop and split dimension, the last one short, also
    where it follows from the parts of a merged axis.

    Axes of one class get one size, and axes whose size is a number of the program (`size`) get sizes of their own, so
    that one is not taken for another. Chunk axes get no size: the schedule's split is theirs.

    least: the smallest sizes for which that can be said, with two tiles.
    """
    rng = random.Random(seed)
    classes = _classes(program, graph)
    sizes, uneven = _reduced_sizes(program, graph, classes, rng, least)
    return sizes, _reduced_schedule(graph, sizes, lambda d: classes.find(d) in uneven, rng, least)


def dynamic_sizes(graph: MuGraph, schedule: Schedule, seed: int) -> list[dict[str, int]]:
    """Sizes of the dynamic axes for these tiles: 1, about a tile, and several tiles with a short one last."""
    rng = random.Random(seed)
    some: dict[str, tuple[int, ...]] = {}
    for r in graph.dynamic:
        tile = max((dict(s.tiles).get(r.dim, 1) for s in schedule.kernels.values()), default=1)
        many = tile * rng.randint(2, 4) + rng.randint(1, max(1, tile - 1))
        some[r.dim] = 1, max(1, tile + rng.choice((-1, 0, 1))), many
    return mixed(some)


def _reduced_sizes(
    program: Program, graph: MuGraph, classes: _Classes, rng: random.Random, least: bool
) -> tuple[dict[str, int], set[str]]:
    """The sizes, and the classes of those that are not chosen: they follow from parts, or from what is read."""
    roles: dict[str, set[str]] = {}
    for k in graph.kernels:
        for d, role in k.roles:
            roles.setdefault(classes.find(d), set()).add(role)
    counted = {
        classes.find(e.axes[0]) for e in (*program.eqns, *(e for k in graph.kernels for e in k.body)) if e.op == "size"
    }
    size: dict[str, int] = {}
    shortest: dict[str, int] = {}
    for c in sorted({classes.find(d) for d in (*program.order, *graph.sizes)}):
        has = roles.get(c, set())
        cut = bool(has & {"split", "loop", "grid"})
        choices = [7, 5] if "split" in has else [5, 7] if "loop" in has else [3, 5, 7] if "grid" in has else [2, 3, 4]
        shortest[c] = 3 if cut else 2
        size[c] = shortest[c] if least else choices[0] if cut else rng.choice(choices)
    whole = graph.sizes | program.sizes
    read = [(d, i) for d, i in (*program.accesses(), *graph.accesses()) if d in whole and not renames(d, i, whole)]
    read_axes = {a for of, i in read for a in (of, *i.dims)}

    def limit(size: dict[str, int]) -> None:
        for d in read_axes:  # none longer than in the program: what is read is there
            size[classes.find(d)] = min(size[classes.find(d)], whole[d])

    limit(size)
    size = _with_room(program, classes, size, counted, shortest, rng)
    for name, parts in graph.merged:
        size[classes.find(name)] = prod(size[classes.find(p)] for p in parts)
    of_parts = {classes.find(name) for name, _ in graph.merged}
    limit(size)
    pieces = {classes.find(d): whole[d] for d in _first_pieces(program, graph, whole)}
    size |= pieces
    sizes = {d: size[classes.find(d)] for d in (*program.order, *graph.sizes)}
    entries = READ if least else ENTRIES
    short, sizes = sizes, large_enough(sizes, read, whole, classes.find, entries, distinct_positions(program.inputs))
    return sizes, of_parts | {*pieces} | {classes.find(d) for d, n in sizes.items() if n > short[d]}


def _with_room(
    program: Program,
    classes: _Classes,
    size: Mapping[str, int],
    counted: Container[str],
    shortest: Mapping[str, int],
    rng: random.Random,
) -> dict[str, int]:
    """These sizes, of which the counted ones differ. Where values have more than `ROOM` elements, their axes are as
    short as may be, other ones in each test, and differ by little."""
    values = [{classes.find(d) for d in (*e.dims, *e.acts_on)} for e in program.eqns if e.op != "rename"]
    apart = _apart(size, counted, 2)
    large = [v for v in values if prod(apart[c] for c in v) > ROOM]
    if not large:
        return apart
    short = dict(size)
    for c in rng.sample(sorted(size), len(size)):
        if any(c in v and prod(short[x] for x in v) > ROOM for v in large):
            short[c] = shortest[c]
    return _apart(short, counted, 1)


def _apart(size: Mapping[str, int], counted: Container[str], step: int) -> dict[str, int]:
    """The sizes, the counted ones larger by steps until no two are equal."""
    found = dict(size)
    taken: set[int] = set()
    for c in sorted((c for c in size if c in counted), key=lambda c: (size[c], c)):
        found[c] = next(n for n in itertools.count(size[c], step) if n not in taken)
        taken.add(found[c])
    return found


def _first_pieces(program: Program, graph: MuGraph, whole: Mapping[str, int]) -> set[str]:
    """Axes that stay whole: by which the μGraph alone reads a tensor's axis up to where another axis goes on."""
    own = {*program.accesses()}
    behind = {
        (d, i.offset)
        for d, i in graph.accesses()
        if (d, i) not in own and i.offset and i.affine and len(i.terms) == 1 and i.terms[0][1] == 1
    }
    return {i.axis for d, i in graph.accesses() if i.axis is not None and (d, whole.get(i.axis)) in behind}


def _reduced_schedule(
    graph: MuGraph, sizes: Mapping[str, int], uneven: Callable[[str], bool], rng: random.Random, least: bool
) -> Schedule:
    """Several tiles along every dimension, the last one short also where its size is `uneven`."""
    splits: dict[str, int] = {}
    kernels: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.kind == "library":
            continue
        if k.split:
            splits[k.split] = splits.get(k.split) or (2 if least else rng.choice((2, 2, 3)))
        tiles: list[tuple[str, int]] = []
        for d in k.with_role("grid", "split", "loop"):
            chunked = next((s for s in splits if split_axis(s) == d), None)
            if chunked is not None:
                tiles.append((d, 1 if splits[chunked] == 2 else 2))
            elif uneven(d):
                tiles.append((d, short_tile(sizes[d])))
            elif k.role(d) == "split":
                tiles.append((d, 1 if least else 2))
            else:
                tile = 2 if sizes.get(d, 3) < 5 else rng.choice((2, 2, 3))
                divides = sizes.get(d, 3) % tile == 0 and sizes.get(d, 3) > tile
                tiles.append((d, short_tile(sizes[d]) if divides else tile))
        order = tuple(d for d, _ in k.roles)
        kernels[k.name] = KernelSchedule(tuple(tiles), order, split=splits[k.split] if k.split else 1)
    return Schedule(kernels)


def short_tile(size: int) -> int:
    """A tile of which a size takes two or more, up to about five, and the last of them short."""
    return next(t for t in range(max(2, size // 4), size) if size % t)
