"""Small sizes at which a μGraph is tested, and schedules for them: several tiles along every axis, the last short."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from mirage_cli.ir.access import Index, index, renames
from mirage_cli.ir.footprint import ENTRIES, READ
from mirage_cli.ir.merge import between_parts, read_in_parts
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, distinct_positions, mixed
from mirage_cli.ir.scans import by_scans
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.verify.axisclasses import AxisClasses, counted, digits
from mirage_cli.verify.contracted import are_matrices
from mirage_cli.verify.lasts import is_last, read_at_last
from mirage_cli.verify.rings import large_enough_around, mistaken, whole_rounds, without_rings
from mirage_cli.verify.stretches import (
    compared,
    compared_by_index,
    compared_with_numbers,
    counted_alone,
    first_pieces,
    is_stretch,
)

ROOM = 1 << 17
"""The most elements of a value, unless its axes are as short as they may be."""
FAR_ROOM = 1 << 18
"""The most elements of a value in one test where axes are long for far reads: above it, tests take turns."""

CUT = {"split": 7, "loop": 5, "grid": 3}
"""Roles of axes that are cut in tiles, each with a size of several tiles, the last one short."""

NEAR, NEAR_READ = 8, 32
"""Positions of an axis among which some are looked for that an index takes inside of another, and of that."""

Read = tuple[str, Index]
"""An axis of a tensor, and an index that it is read by."""


def small_instance(
    program: Program, graph: MuGraph, seed: int, *, least: bool = False, read: Collection[Read] | None = None
) -> tuple[dict[str, int], Schedule]:
    """Reduced sizes and a schedule: several tiles along every grid, loop and split dimension, the last one short, also
    where it follows from the parts of a merged axis.

    Axes of one class get one size, and axes whose size is a number of the program (`size`) get sizes of their own, so
    that one is not taken for another. Chunk axes get no size: the schedule's split is theirs.

    least: the smallest sizes for which that can be said, with two tiles. read: what is there, of all that is read by an
    index (one of `turns`); None for all.
    """
    rng = random.Random(seed)
    classes = AxisClasses.of(program, graph)
    short = _Short.of(program, graph, classes, rng, least)
    sizes = short.grown(short.read if read is None else [x for x in short.read if x in read])
    uneven = short.following | {classes.find(d) for d, n in sizes.items() if n > short.sizes[d]}
    return sizes, _reduced_schedule(graph, sizes, lambda d: classes.find(d) in uneven, rng, least)


def turns(program: Program, graph: MuGraph) -> list[frozenset[Read]]:
    """What is read in each of several tests, where values would be too large in one that has all of it, such as the
    last positions of two axes: all is in some test, and what takes little room in each. Empty where one test will do.

    What tables name, and where they are read, is in each test, and so is what is written by an index, which has to lie
    inside.
    """
    tensors = graph.tensors()
    stores = [*((p.tensor, p.access) for p in program.parts)]
    stores += [(tensors[s.buffer], s.access) for k in graph.kernels for s in k.stores]
    written = {x for t, access in stores for x in zip(t.dims, access, strict=True)}
    of_tables = {d for x in program.lookups() for d in tensors[x.table].dims}
    short = _Short.of(program, graph, AxisClasses.of(program, graph), random.Random(0), least=False)
    always = [x for x in short.read if x in written or x[0] in of_tables or x[1].lookups]

    def room(read: Iterable[Read]) -> int:
        return elements(program, short.grown([*always, *read]))

    if room(short.read) <= FAR_ROOM:
        return []
    rooms = {x: room([x]) for x in short.read if x not in always}
    order = sorted(rooms, key=lambda x: rooms[x])
    found: list[frozenset[Read]] = []
    while left := [x for x in order if not any(x in read for read in found)]:
        some = left[-1:]
        most = max(FAR_ROOM, 2 * rooms[some[0]])
        for x in order:
            some += [x] if x not in some and room([*some, x]) <= most else []
        found.append(frozenset([*always, *some]))
    return found if len(found) > 1 else []


def dynamic_sizes(graph: MuGraph, schedule: Schedule, seed: int) -> list[dict[str, int]]:
    """Sizes of the dynamic axes for these tiles: 1, about a tile, and several tiles with a short one last."""
    rng = random.Random(seed)
    some: dict[str, tuple[int, ...]] = {}
    for r in graph.dynamic:
        tile = max((dict(s.tiles).get(r.dim, 1) for s in schedule.kernels.values()), default=1)
        many = tile * rng.randint(2, 4) + rng.randint(1, max(1, tile - 1))
        some[r.dim] = 1, max(1, tile + rng.choice((-1, 0, 1))), many
    return mixed(some)


@dataclass(frozen=True)
class Turn:
    """A position at which a comparison turns: of an index, so far from the size of an axis or a number."""

    place: Index
    end: str | int
    beyond: int

    def at(self, sizes: Mapping[str, int]) -> int:
        return (sizes[self.end] if isinstance(self.end, str) else self.end) + self.beyond


@dataclass(frozen=True)
class _Short:
    """Reduced sizes, before they grow to what is read.

    sizes: of every axis. following: the classes whose sizes follow from parts and pieces. read: axes of tensors, and
    the indices that they are read by. whole: the sizes in full. entries: of each table. tables: the distinct ones.
    counted: axes that the μGraph counts by blocks, and how. met: positions of axes that the program compares with a
    number, which is this index in the μGraph's comparison: both are beyond it in a test, or neither. ends: indices of
    several axes that are compared with the size of an axis, or with 0, and how far from that a position is at which the
    comparison turns. inside: axes whose size such an index never comes to in full, and this index. numbers: `ends` of
    all indices and numbers that are compared, of which some are not met. indices: of both, by which anything is read or
    compared. tied: the classes of merged axes and of their parts.
    """

    classes: AxisClasses
    sizes: dict[str, int]
    following: set[str]
    read: list[Read]
    whole: Mapping[str, int]
    entries: int
    tables: list[tuple[tuple[str, ...], str]]
    counted: list[Read]
    met: list[tuple[str, int, Index]]
    ends: list[Turn]
    inside: list[Read]
    numbers: list[Turn]
    indices: frozenset[Index]
    tied: frozenset[str]

    @classmethod
    def of(cls, program: Program, graph: MuGraph, classes: AxisClasses, rng: random.Random, least: bool) -> _Short:
        roles = _roles(graph, classes)
        eqns = (*program.eqns, *graph.eqns)
        sized = {classes.find(e.axes[0]) for e in eqns if e.op == "size"}
        order = sorted({classes.find(d) for d in (*program.order, *graph.sizes)})
        shortest = {c: 3 if roles[c] & CUT.keys() else 2 for c in order}
        size = {c: shortest[c] if least else _usual_size(roles[c], rng) for c in order}
        whole = graph.sizes | program.sizes
        read = [(d, i) for d, i in (*program.accesses(), *graph.accesses()) if d in whole and not renames(d, i, whole)]
        by_parts = between_parts(graph.merged, whole)
        lasts = read_at_last(program, graph, classes.find)
        read = [x for x in read if x not in by_parts]
        rings, read = without_rings(read, eqns, whole, classes.find)
        read += [*_ends_of_parts(program, graph, classes), *_last_parts(program, graph)]
        read = [x for x in read if not (classes.find(x[0]) in lasts and is_last(*x, whole))]
        read_axes = {a for of, i in read for a in (of, *i.dims)} | {d for d in whole if classes.find(d) in rings}
        read_axes |= {d for d in whole if classes.find(d) in lasts}
        read_axes |= {t.below for t in program.inputs if isinstance(t.below, str)}

        def limit(size: dict[str, int]) -> None:
            for d in read_axes:  # none longer than in the program: what is read is there
                size[classes.find(d)] = min(size[classes.find(d)], whole[d])

        for c, n in rings.items():
            size[c], shortest[c] = max(size[c], n), max(shortest[c], n)
        limit(size)
        size = _with_room(program, classes, size, sized, shortest, rng)
        in_full = {classes.find(p): whole[p] for p in read_in_parts(graph)}
        size |= in_full
        limit(size)
        for name, parts in graph.merged:
            size[classes.find(name)] = prod(size[classes.find(p)] for p in parts)
        limit(size)
        pieces = {classes.find(d): whole[d] for d in first_pieces(program, graph, whole) | digits(program, graph)}
        size |= (pieces := pieces | in_full)
        sizes = {d: size[classes.find(d)] for d in (*program.order, *graph.sizes)}
        following = {classes.find(name) for name, _ in graph.merged} | {*pieces}
        tables, blocks = distinct_positions(program.inputs), counted(program, graph)
        own = dict.fromkeys(compared_with_numbers(program.eqns))
        moved = [x for x in dict.fromkeys(compared_with_numbers(graph.eqns)) if x not in own]
        met = [(j.axis, n, i) for j, n in own if j.axis is not None for i, m in moved if m == n]
        known = [x for x in dict.fromkeys(_turns(eqns)) if {*x.place.dims} <= whole.keys()]  # chunks have no size
        turns = [x for x in known if _comes_to(x.place, x.at(whole), whole)]
        ends = [x for x in turns if len(x.place.dims) > 1 and (isinstance(x.end, str) or x.end == 0)]
        sizes_of = dict.fromkeys((x.end, x.place) for x in known if isinstance(x.end, str))
        inside = [(d, i) for d, i in sizes_of if i.bounds(whole)[1] < whole[d]]
        numbers = [x for x in turns if isinstance(x.end, int) and x not in ends]
        return cls(
            classes,
            sizes,
            following,
            read,
            whole,
            READ if least else ENTRIES,
            tables,
            blocks,
            met,
            ends,
            inside,
            numbers,
            frozenset(i for _, i in (*program.accesses(), *graph.accesses())).union(e.place for e in eqns if e.place),
            frozenset(classes.find(d) for name, parts in graph.merged for d in (name, *parts)),
        )

    def grown(self, read: Iterable[Read]) -> dict[str, int]:
        """The sizes, large enough for what is read, and with as many blocks as there are positions for."""
        read, sizes, before = [*read], self.sizes, dict[str, int]()
        while sizes != before:  # blocks that are there for the positions that one reads reach further, for another
            before = sizes
            sizes = large_enough_around(sizes, read, self.whole, self.classes.find, self.entries, self.tables, self.met)
            for d, i in self.counted:
                need = {self.classes.find(a): -(-sizes[d] // c) for a, c in i.terms if isinstance(a, str) and c > 1}
                sizes |= self.longer(sizes, need)
            for x in self.ends:
                for full, i in zip(_held(x.place, self.whole), _held(x.place, sizes), strict=True):
                    if _comes_to(full, x.at(self.whole), self.whole):
                        sizes |= self.longer(sizes, dict(self.coming_to(i, x.at(sizes), sizes)))
            for x in self.numbers:
                if _comes_to(x.place, int(x.end), sizes):
                    sizes |= self.longer(sizes, dict(self.coming_to(x.place, x.at(sizes), sizes)))
                    sizes |= self.longer(sizes, dict(self.read_at(x, read, sizes)))
            for d, i in (x for x in read if {*x[1].dims} <= sizes.keys()):
                sizes = self.reaching(d, i, sizes)
            for d, i in self.inside:
                sizes |= self.longer(sizes, {self.classes.find(d): i.bounds(sizes)[1] + 1})
            rounds = whole_rounds(self.indices, self.whole, sizes)
            for d in mistaken(self.indices, self.whole, sizes) | rounds:
                found = {self.classes.find(d): sizes[d] + 1}
                sizes |= self.longer(sizes, found) if self.tied.isdisjoint(found) else {}
        return sizes

    def reaching(self, d: str, i: Index, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes at which what is read along an axis is there, as far as it is in full."""
        if not i.lookups:
            first, last = i.bounds(sizes)
            nearest = min(max(first, 0), sizes[d] - 1) if last >= 0 else 0
            missed = not first <= nearest <= last and _comes_to(i, nearest, self.whole)
            sizes |= self.longer(sizes, dict(self.coming_to(i, nearest, sizes))) if missed else {}
        if is_stretch(i) and i.bounds(self.whole)[1] >= self.whole[d] - 1:
            behind = dict(self.coming_to(i, sizes[d] - 1, sizes))  # up to the last position
            sizes |= self.longer(sizes, behind) if behind else {}
        for need in met_inside(d, i, sizes, self.whole) if i.affine else ():
            found = {self.classes.find(a): n for a, n in need.items()}
            sizes |= self.longer(sizes, found) if self.tied.isdisjoint(found) else {}
        return sizes

    def read_at(self, x: Turn, read: Iterable[Read], sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """How long axes have to be for what is read where a comparison of a plain axis turns: a test in which it lies
        outside sees 0 on either side."""
        for d, i in read:
            if x.place.axis in i.dims and i.affine and {*i.dims} <= sizes.keys():
                last = i.within({str(x.place.axis): index({}, x.at(sizes))}).bounds(sizes)[1]
                if 0 <= last < self.whole[d]:
                    yield self.classes.find(d), last + 1

    def coming_to(self, i: Index, number: int, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """How long axes have to be for an index to come to a number."""
        if i.affine:
            first, last = i.bounds(sizes)
            for a, c in i.terms:
                missing = number - last if c > 0 else first - number
                if isinstance(a, str) and missing > 0:
                    yield self.classes.find(a), sizes[a] - (-missing // abs(c))
            return
        longer = dict(sizes)
        while not _comes_to(i, number, longer) and any(longer[d] < self.whole[d] for d in i.dims):
            longer |= {d: min(longer[d] + 1, self.whole[d]) for d in i.dims}
        yield from ((self.classes.find(d), longer[d]) for d in i.dims)

    def longer(self, sizes: Mapping[str, int], need: Mapping[str, int]) -> dict[str, int]:
        """These sizes, those of classes that need more positions as long as that, but not longer than in full."""
        return {a: min(max(n, need.get(self.classes.find(a), 0)), self.whole[a]) for a, n in sizes.items()}


def _roles(graph: MuGraph, classes: AxisClasses) -> Mapping[str, set[str]]:
    """The roles that the axes of each class have in some kernel."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for k in graph.kernels:
        for d, role in k.roles:
            found[classes.find(d)].add(role)
    return found


def _usual_size(roles: Collection[str], rng: random.Random) -> int:
    """The size of an axis with these roles."""
    return next((n for role, n in CUT.items() if role in roles), None) or rng.choice([2, 3, 4])


def _ends_of_parts(program: Program, graph: MuGraph, classes: AxisClasses) -> list[Read]:
    """Positions beside which masks of the program choose another value, and no mask of the μGraph does: it takes an
    axis in parts. What lies behind is there for tests, as if it were read by its number.

    A mask of the μGraph's stands for it where another axis is read by an index, as the mask's is, and nothing begins
    at the number: index(t) < 14 of X[t] is index(a + b) < 14 of X[a + b].
    """
    own = {(classes.find(d), n) for d, n in compared(graph.eqns)}
    moved = {*compared_by_index(graph.eqns)} - {*compared_by_index(program.eqns)}
    moved -= {i.offset for _, i in graph.accesses()}
    apart = (x for x in compared(program.eqns) if (classes.find(x[0]), x[1]) not in own and x[1] not in moved)
    return [(d, index({}, n)) for d, n in dict.fromkeys(apart) if 0 < n < program.sizes[d]]


def _last_parts(program: Program, graph: MuGraph) -> list[Read]:
    """Axes whose positions the program counts, and by which the μGraph counts the last of these: r and b + 36 of 64
    positions r that are a, of 36, and b, of 28. They are there for tests, as if a tensor were read by them."""
    whole = {**graph.sizes, **program.sizes}
    along = {e.place.axis for e in program.eqns if e.place}
    last = [i for i in counted_alone(program, graph) if i.offset]
    return [(d, i) for i in last for d, n in program.dims if d in along and i.bounds(whole)[1] == n - 1]


def _turns(eqns: Iterable[Eqn]) -> Iterator[Turn]:
    """Where comparisons of indices with numbers, or with sizes of axes, turn."""
    known: dict[str, Eqn] = {}  # so far: kernels may have the same names
    for e in eqns:
        known[e.out] = e
        order = OPS[e.op].order
        if order is None:
            continue
        x, y = e.args[:: -1 if order.turned else 1]
        for a, b, before in ((x, y, -order.strict), (y, x, order.strict - 1)):  # x + strict <= y
            place = known[a].place if isinstance(a, str) and a in known else None
            if place is None:
                continue
            size = known[b].axes[0] if isinstance(b, str) and b in known and known[b].op == "size" else None
            end = size if size is not None else int(b) if isinstance(b, Fraction) else None
            if end is not None:
                yield from (Turn(place, end, before + n) for n in (0, 1))


def _held(i: Index, sizes: Mapping[str, int]) -> Iterator[Index]:
    """An index, and what it is at the first and the last position of each of its axes: where a row of a window meets
    one position alone, nothing that all rows have in common is seen."""
    yield i
    for a, _ in i.terms if i.affine else ():
        yield from (i.within({str(a): index({}, n)}) for n in (0, sizes[str(a)] - 1))


def met_inside(d: str, i: Index, sizes: Mapping[str, int], whole: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """How long an axis and those of an index have to be, for each of the latter, for another of its positions than the
    first to be read, if one is in full: t + 2*w + 3 lies in five positions for w = 0 alone, as t + 3*w + 3 does."""
    axes = [str(a) for a, _ in i.terms]
    for a in axes if len(axes) > 1 else ():
        if _first_inside(i, a, sizes[d], tuple(sizes[b] for b in axes)) is None:
            near = tuple(min(whole[b], max(sizes[b], NEAR)) for b in axes)
            found = _first_inside(i, a, min(whole[d], max(sizes[d], NEAR_READ)), near)
            if found is not None:
                at, positions = found
                yield {d: at + 1} | {b: n + 1 for b, n in zip(axes, positions, strict=True)}


@lru_cache(maxsize=1 << 12)
def _first_inside(i: Index, axis: str, length: int, sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """The least position that an index comes to inside of so many where this axis is not at its first, and the
    positions along its axes."""
    axes = [a for a, _ in i.terms]
    at = np.indices(sizes)
    value = sum((c * x for (_, c), x in zip(i.terms, at, strict=True)), np.array(i.offset))
    found = np.argwhere((value >= 0) & (value < length) & (at[axes.index(axis)] > 0))
    return min(((int(value[*x]), tuple(map(int, x))) for x in found), default=None)


def _comes_to(i: Index, number: int, sizes: Mapping[str, int]) -> bool:
    first, last = i.bounds(sizes)
    return first <= number <= last


def elements(program: Program, sizes: Mapping[str, int]) -> int:
    """Of the largest tensor at these sizes, or of the largest array that an operator makes of some."""
    return max(
        largest_array(by_scans(program, sums_alone=True), sizes),
        *(prod(sizes[d] for d in t.dims) for t in program.inputs),
    )


def largest_array(program: Program, sizes: Mapping[str, int]) -> int:
    """Elements of the largest array that an operator makes. A reduction holds its argument, a dot of vectors the
    products of all pairs; an access, and a dot of matrices, their result alone."""
    dims = {t.name: t.dims for t in program.inputs} | {e.out: e.dims for e in program.eqns}

    def held(e: Eqn) -> Collection[str]:
        of_matrices = OPS[e.op].kind == "contraction" and are_matrices(*(dims[v] for v in e.values))
        return e.dims if of_matrices else e.spans

    return max((prod(sizes[d] for d in held(e)) for e in program.eqns), default=1)


def _with_room(
    program: Program,
    classes: AxisClasses,
    size: Mapping[str, int],
    counted: Container[str],
    shortest: Mapping[str, int],
    rng: random.Random,
) -> dict[str, int]:
    """These sizes, of which the counted ones differ. Where values have more than `ROOM` elements, their axes are as
    short as may be, other ones in each test, and differ by little."""
    values = [{*map(classes.find, e.spans)} for e in program.eqns]
    apart = _made_distinct(size, counted, 2)
    large = [v for v in values if prod(apart[c] for c in v) > ROOM]
    if not large:
        return apart
    short = dict(size)
    for c in rng.sample(sorted(size), len(size)):
        if any(c in v and prod(short[x] for x in v) > ROOM for v in large):
            short[c] = shortest[c]
    return _made_distinct(short, counted, 1)


def _made_distinct(size: Mapping[str, int], counted: Container[str], step: int) -> dict[str, int]:
    """The sizes, the counted ones larger by steps until no two are equal."""
    found = dict(size)
    taken: set[int] = set()
    for c in sorted((c for c in size if c in counted), key=lambda c: (size[c], c)):
        found[c] = next(n for n in itertools.count(size[c], step) if n not in taken)
        taken.add(found[c])
    return found


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
            splits[k.chunk] = splits.get(k.chunk) or (2 if least else rng.choice((2, 2, 3)))
        tiles: list[tuple[str, int]] = []
        for d in k.with_role("grid", "split", "loop"):
            if d in splits:
                tiles.append((d, 1 if splits[d] == 2 else 2))
            elif uneven(d):
                tiles.append((d, short_tile(sizes[d])))
            elif k.role(d) == "split":
                tiles.append((d, 1 if least else 2))
            else:
                tile = 2 if sizes.get(d, 3) < 5 else rng.choice((2, 2, 3))
                divides = sizes.get(d, 3) % tile == 0 and sizes.get(d, 3) > tile
                tiles.append((d, short_tile(sizes[d]) if divides else tile))
        order = tuple(d for d, _ in k.roles)
        kernels[k.name] = KernelSchedule(tuple(tiles), order, split=splits[k.chunk] if k.split else 1)
    return Schedule(kernels)


def short_tile(size: int) -> int:
    """A tile of which a size takes two or more, up to about five, and the last of them short; 1 where none is."""
    return next((t for t in range(max(2, size // 4), size) if size % t), 1)
