"""Schedules: the numbers of a μGraph that the tuner chooses, apart from its structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal, TypeAlias  # the type of a choice, which differs by row, and JSON

from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.program import FLOAT8, HALVES, Eqn, Range, Tensor, cast_of
from mirage_cli.ir.scans import scans_of

Word: TypeAlias = int | bool
Words: TypeAlias = Mapping[str, Word]
"""What texts, JSON and recorded measurements call what a schedule does or leaves: `relay`, `lead=4`."""


# -- when the kernel behind may start


@dataclass(frozen=True, slots=True)
class AtEnd:
    """When the loops are done."""


@dataclass(frozen=True, slots=True)
class Early:
    """As soon as this kernel has waited for the one in front."""


@dataclass(frozen=True, slots=True)
class Lead:
    """When so many iterations of the last loop are left."""

    iterations: int


@dataclass(frozen=True, slots=True)
class Relay:
    """At once, before this kernel has waited for the one in front."""


HandOver: TypeAlias = AtEnd | Early | Lead | Relay
LEADS = (1, 2, 3, 4, 5, 6, 8)
HAND_OVERS: tuple[HandOver, ...] = (Relay(), Early(), AtEnd(), *map(Lead, LEADS))


def _hand_over_words(x: HandOver) -> Words:
    return {"early": x == Early(), "lead": x.iterations if isinstance(x, Lead) else 0, "relay": x == Relay()}


def _hand_over(w: Words) -> HandOver:
    return Relay() if w["relay"] else Early() if w["early"] else Lead(w["lead"]) if w["lead"] else AtEnd()


# -- prefetches into the L2 while a kernel waits for the one in front


class Before(Enum):
    """How inputs that are read in front of all loops are prefetched. READ: by loads whose result is dropped: they bring
    a line nearer than a prefetch does, but other loads wait for them."""

    NOTHING = 0
    PREFETCH = 1
    READ = 2


def _before_words(x: Before) -> Words:
    return {"fetch": x != Before.NOTHING, "read": x == Before.READ}


def _before(w: Words) -> Before:
    return Before.NOTHING if not w["fetch"] else Before.READ if w["read"] else Before.PREFETCH


@dataclass(frozen=True, slots=True)
class FetchedAhead:
    """A prefetch of the inputs of the first loop: so many iterations. share: of each iteration one part in so many, the
    one that is needed first (0: all of it)."""

    iterations: int
    share: int = 0


AHEAD = (0, 1, 2, 4, 8)
SHARED = tuple(FetchedAhead(n, share) for n, share in ((2, 2), (4, 2), (4, 4), (6, 4), (8, 4), (8, 8)))


def _ahead_words(x: FetchedAhead | None) -> Words:
    return {"ahead": x.iterations, "share": x.share} if x else {"ahead": 0, "share": 0}


def _ahead(w: Words) -> FetchedAhead | None:
    return FetchedAhead(w["ahead"], w["share"]) if w["ahead"] else None


def _near_ahead(x: FetchedAhead | None) -> Iterator[FetchedAhead | None]:
    """The same with other numbers of iterations, the same in full, and the choices of `SHARED`, which often win."""
    share = x.share if x else 0
    yield from (FetchedAhead(n, share) if n else None for n in AHEAD if n != (x.iterations if x else 0))
    yield FetchedAhead(x.iterations) if x else None
    yield from SHARED


# -- how many registers a thread has at most

REGISTER_BYTES = 4
REGISTERS = (128, 168, 255)
"""4, 3 and 2 blocks of 128 threads have room in a multiprocessor's 65,536 registers; 255 is the hardware's limit."""


def _registers(w: Words) -> int | None:
    return min(REGISTERS, key=lambda n: abs(n - w["registers"])) if w["registers"] else None


# -- the choices


Need: TypeAlias = Literal["overlaps", "descriptors", "specializes", "single", "crowded", "windows", ""]


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a schedule. Texts, JSON, columns and what the tuner tries next follow from its row.

    field: of `KernelSchedule`. words: what the value is written as; they are in `WORDS`. read: a value from all words;
    some that mean nothing together are read as one of them. near: what the tuner tries instead of a value. needs: what
    this takes of the GPU or the kernel.
    """

    field: str
    words: Callable[[Any], Words]  # Any: the type of the field, which differs by row
    read: Callable[[Words], Any]
    near: Callable[[Any], Iterable[Any]]
    needs: Need = ""


def _flag(name: str, needs: Need = "") -> Choice:
    """What is done or left."""
    return Choice(name, lambda x: {name: x}, lambda w: bool(w[name]), lambda x: [not x], needs)


CHOICES = (
    _flag("overlap", "overlaps"),
    Choice("hand_over", _hand_over_words, _hand_over, lambda x: [y for y in HAND_OVERS if y != x], "overlaps"),
    Choice("before", _before_words, _before, lambda x: [y for y in Before if y != x], "overlaps"),
    Choice("ahead", _ahead_words, _ahead, _near_ahead, "overlaps"),
    _flag("stream"),
    _flag("tf32x3", "single"),
    _flag("descriptors", "descriptors"),
    _flag("specialize", "specializes"),
    _flag("patient", "overlaps"),
    Choice(
        "registers",
        lambda x: {"registers": x or 0},
        _registers,
        lambda x: [y for y in (None, *REGISTERS) if y != x],
        "crowded",
    ),
    _flag("unroll", "windows"),
)
FLAGS = ("overlap", "descriptors", "stream", "specialize", "early", "fetch")
WORDS: Words = (
    dict.fromkeys(FLAGS, False)
    | {"ahead": 0, "lead": 0}
    | {"relay": False, "read": False, "share": 0, "tf32x3": False, "patient": False, "registers": 0}
    | {"unroll": False}
)
"""All words, as they are where nothing is chosen. Recorded measurements hold them in this order: new ones come last."""
NUMBERS = ("warps", "stages", "split", "group")
COMPILED = ("warps", "stages", "registers")
"""Numbers and words that are for the compiler, which is told them beside the kernel's text."""


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class KernelSchedule:
    """How one generated kernel is cut and compiled.

    tiles: block size of each grid, split and loop dimension, a power of two; 1 makes the dimension a scalar with no
        axis in the blocks. A dimension with role "tile" is held whole: its block is the next power of two.
        Several of an axis along which small products multiply one by one are one product (`ir.diagonal`).
    order: order of the axes inside blocks. The first axis of a product is the matrix unit's M, so putting the
        weights' axis first swaps the operands.
    split: number of chunks of the split dimension, 1 where there is none.
    group: programs of the first grid dimension that run next to each other before the second moves on (1: row-major).
    overlap: start before the kernel in front has ended, and wait for its results there (programmatic dependent launch).
    descriptors: read blocks in loops through tensor descriptors (TMA) where the hardware takes their shape.
    stream: what is read once in the whole μGraph is the first to leave the caches.
    specialize: warps of their own fetch for the loops that multiply on the matrix units (warp specialization).
    hand_over: when the kernel behind may start.
    before, ahead: what is brought into the L2 while this kernel waits for the one in front.
    patient: in a CUDA graph, start early only behind a kernel that releases this one early.
    tf32x3: products of float32 on the matrix units, as three products of TF32: the operands' first 11 bits and the next
        11, but for the product of the latter (3xTF32). Where one operand is of a smaller type (`multiplied_as`), as
        three of bfloat16 or two of TF32: of the other operand's 24 bits, or 22 of them.
    registers: of a thread, at most; None leaves it to the assembler. With fewer, more blocks share a multiprocessor;
        what has no room is spilled to local memory. With a limit, the assembler may also take more than without.
    unroll: windows are in registers (`ir.unrolled`): the tile along the axis that they overlap along may be any number.
    """

    tiles: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    warps: int = 4
    stages: int = 3
    split: int = 1
    group: int = 1
    overlap: bool = False
    descriptors: bool = False
    stream: bool = False
    specialize: bool = False
    hand_over: HandOver = AtEnd()
    before: Before = Before.NOTHING
    ahead: FetchedAhead | None = None
    tf32x3: bool = False
    patient: bool = False
    registers: int | None = None
    unroll: bool = False

    def tile(self, dim: str) -> int:
        return dict(self.tiles)[dim]

    def __str__(self) -> str:
        return self.text

    @cached_property
    def words(self) -> Words:
        """All of `WORDS`, in that order."""
        own = {word: x for c in CHOICES for word, x in c.words(getattr(self, c.field)).items()}
        return {word: own[word] for word in WORDS}

    def choosing(self, **words: Word) -> KernelSchedule:
        """The same with other words."""
        if unknown := words.keys() - WORDS.keys():
            raise ValueError(f"a schedule has no {', '.join(sorted(unknown))}")
        new = {**self.words, **words}
        return replace(self, **{c.field: c.read(new) for c in CHOICES})

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {name: getattr(self, name) for name in NUMBERS}

    @cached_property
    def compiled(self) -> tuple[tuple[str, Word], ...]:
        """What of `COMPILED` is chosen, in that order."""
        named = {**self.numbers, **self.words}
        return tuple((name, named[name]) for name in COMPILED if named[name])

    @cached_property
    def text(self) -> str:
        """One line, without choices that are at their defaults."""
        tiles = " ".join(f"{d}={t}" for d, t in self.tiles)
        numbers = "".join(f" {n}={x}" for n, x in self.numbers.items() if n in ("warps", "stages") or x > 1)
        flags = "".join(f" {word}" for word, x in self.words.items() if x is True)
        counts = "".join(f" {word}={x}" for word, x in self.words.items() if x and x is not True)
        return f"{tiles} order={','.join(self.order)}{numbers}{flags}{counts}"

    @staticmethod
    def parse(text: str) -> KernelSchedule:
        """The schedule that is written so: `parse(str(s)) == s`. Raises ValueError."""
        words = text.split()
        at = next(i for i, x in enumerate(words) if x.startswith("order=") and not x[6:].isdecimal())
        tiles = tuple((d, int(t)) for d, _, t in (x.partition("=") for x in words[:at]))
        order = tuple(filter(None, words[at].removeprefix("order=").split(",")))
        given = {name: int(x) if x else True for name, _, x in (word.partition("=") for word in words[at + 1 :])}
        return KernelSchedule.of(tiles, order, given)

    @staticmethod
    def of(tiles: tuple[tuple[str, int], ...], order: tuple[str, ...], given: Words) -> KernelSchedule:
        """From numbers and words by name. Raises ValueError."""
        numbers = {name: x for name, x in given.items() if name in NUMBERS}
        words = {word: x for word, x in given.items() if word not in NUMBERS}
        return replace(KernelSchedule(tiles, order), **numbers).choosing(**words)

    def to_json(self) -> dict[str, Any]:
        """Tiles, order, numbers and words: what databases and recorded measurements hold."""
        return {"tiles": self.tiles, "order": self.order, **self.numbers, **self.words}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelSchedule:
        """Words that are not there are as they are where nothing is chosen. Raises ValueError."""
        given = {name: x for name, x in data.items() if name not in ("tiles", "order")}
        return KernelSchedule.of(tuple((d, int(t)) for d, t in data["tiles"]), tuple(data["order"]), given)

    @cached_property
    def doublings(self) -> Mapping[str, float]:
        """Numbers and words by name, on a scale on which a doubling is a step of 1, of counts a step of 1/2."""
        counts = {word: math.log2(x + 1) / 2 for word, x in self.words.items() if WORDS[word] is not False}
        flags = {word: float(x) for word, x in self.words.items() if WORDS[word] is False}
        return {**{n: math.log2(x) for n, x in self.numbers.items()}, **flags, **counts}


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Schedule:
    """A schedule for every generated kernel of a μGraph, by kernel name."""

    kernels: Mapping[str, KernelSchedule] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.kernels.items()))

    def to_json(self) -> dict[str, Any]:
        return {name: k.to_json() for name, k in self.kernels.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schedule:
        """What `to_json` gave. Raises ValueError where it is nothing that this version has written."""
        try:
            return Schedule({name: KernelSchedule.from_json(k) for name, k in data.items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{str(data)!r:.60} is no schedule: {error}") from None

    def fits(self, graph: MuGraph) -> bool:
        """Whether it has a schedule for each generated kernel, with a tile of every axis that is cut."""
        cut = {k.name: {*k.with_role("grid", "split", "loop")} for k in graph.kernels if k.kind == "generated"}
        tiles = {name: dict(k.tiles) for name, k in self.kernels.items()}
        positive = all(t > 0 for of_one in tiles.values() for t in of_one.values())
        return positive and {name: {*of_one} for name, of_one in tiles.items()} == cut

    @property
    def specialize(self) -> bool:
        """Whether any kernel is specialized."""
        return any(k.specialize for k in self.kernels.values())

    @property
    def tf32x3(self) -> bool:
        """Whether any kernel multiplies float32 on the matrix units."""
        return any(k.tf32x3 for k in self.kernels.values())

    def by_arithmetic(self) -> Schedule:
        """The same with all products of float32 by float32 arithmetic."""
        return Schedule({name: replace(k, tf32x3=False) for name, k in self.kernels.items()})

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """A kernel a line."""
        return "\n".join(f"{name}: {k.text}" for name, k in self.kernels.items())

    @staticmethod
    def parse(text: str) -> Schedule:
        """The schedule that is written so, a kernel a line. Raises ValueError."""
        lines = (line.partition(": ") for line in text.splitlines())
        return Schedule({name: KernelSchedule.parse(rest) for name, _, rest in lines})


MIN_DOT, MIN_COLUMNS = 16, 8
"""The smallest block axes that the matrix units take (mma.m16n8k16): rows and what is summed, and columns."""
WARPGROUP, WARPGROUP_ROWS = 4, 64
"""Warps that multiply together straight from shared memory, and the rows of a block that this takes (sm_90). For less
than MIN_DOT columns Triton has single warps multiply (3.6 and 3.7)."""
MIN_BYTES_DEPTH = 32
"""Elements that the matrix units sum over at least, of float8 and int8 (the same)."""


MAX_LANES = 64
"""Elements of a thread in an accumulator that is reduced only after its loop."""


def on_matrix_units(e: Eqn, dims: Mapping[str, tuple[str, ...]], block: Mapping[str, int]) -> bool:
    """Whether the blocks of a product are large enough for the matrix units. dims: of every value."""
    a, b = (set(dims[v]) for v in e.values)
    summed = set(e.axes)
    if any(block[d] > 1 for d in summed & (a ^ b)):
        return False
    sides = (a - b) - summed, (b - a) - summed, a & b & summed
    left, right, depth = (prod(block[d] for d in side) for side in sides)
    return large_enough(left, right, depth)


def large_enough(left: int, right: int, summed: int) -> bool:
    """Whether the matrix units take a product of blocks with so many elements: its shorter side has the columns."""
    return min(left, right) >= MIN_COLUMNS and max(left, right) >= MIN_DOT and summed >= MIN_DOT


def exchanged(kernel: Kernel, order: tuple[str, ...]) -> tuple[str, ...]:
    """The order with rows and columns of products exchanged. Axes of one side stay in order, and so do those that are
    summed: neighbours in memory are merged to one axis of an operand in their own order alone."""
    found = order[::-1]
    for side in dict.fromkeys(side for product in kernel.products for side in product):
        kept = iter([d for d in order if d in side])
        found = tuple(next(kept) if d in side else d for d in found)
    return found


def block_order(kernel: Kernel, order: tuple[str, ...], block: Mapping[str, int]) -> tuple[str, ...]:
    """The order of axes in blocks: the schedule's, or the nearest in which no side of a product stands in front of the
    other that is too short for rows. So results need no transposition. order: the schedule's."""
    sides: list[tuple[frozenset[str], frozenset[str]]] = []
    for a, b, axes in kernel.products:
        left, right, summed = (prod(block[d] for d in side) for side in (a, b, axes))
        if large_enough(left, right, summed) and min(left, right) < MIN_DOT:
            sides.append((a, b) if left < right else (b, a))
    short = {d for few, _ in sides for d in few}
    last = (*(d for d in order if d not in short), *(d for d in order if d in short))

    def fits(order: tuple[str, ...]) -> bool:
        return all(min(map(order.index, many)) < min(map(order.index, few)) for few, many in sides)

    return next(filter(fits, (order, exchanged(kernel, order), last)), order) if sides else order


def multiplied_as(dtype: str) -> str:
    """The type in which the matrix units take a stored operand of a product whose other is float32: bfloat16 holds
    float8, and TF32 holds float16. All others are float32 too."""
    return "bfloat16" if dtype in FLOAT8 else dtype if dtype in HALVES else "float32"


def bytes_taken(
    e: Eqn, loads: Mapping[str, Load], tensors: Mapping[str, Tensor], eqns: Mapping[str, Eqn]
) -> Literal["float8", "int8"] | None:
    """As what the matrix units may take both operands of a product where they are bytes: float8, as casts make them or
    as they are stored, or int8 as it is stored. Neighbours in memory lie along an axis that is summed: up to sm_90 they
    take no others, and Triton would turn these byte by byte.

    loads, tensors, eqns: by the names of values and buffers, as far as they are known.
    """
    kinds = set[str]()
    for v in e.values:
        if v in eqns and cast_of(eqns[v]) in FLOAT8:
            kinds.add("float8")
            continue
        t = tensors.get(loads[v].buffer) if v in loads else None
        if t is None or not {*loads[v].neighbours(t)} & {*e.axes}:
            return None
        kinds.add("float8" if t.dtype in FLOAT8 else t.dtype)
    return "float8" if kinds == {"float8"} else "int8" if kinds == {"int8"} else None


def block_sizes(kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> dict[str, int]:
    """The block size of every dimension."""
    return {**dict(schedule.tiles), **whole_blocks(kernel, sizes)}


def whole_blocks(kernel: Kernel, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The block sizes of the dimensions that are held whole.

    Where the matrix units may take a product, the longest of a side is padded if the side has less than MIN_DOT. Beside
    a dimension that has tiles, the schedule decides. A scan has blocks of one size, of what it reads and what it makes.
    """
    return _whole_blocks(kernel, tuple((d, sizes[d]) for d, _ in kernel.roles))


@lru_cache(maxsize=1 << 12)
def _whole_blocks(kernel: Kernel, axes: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """axes: with their sizes."""
    sizes = dict(axes)
    block = {d: next_power_of_two(sizes[d]) for d in kernel.with_role("tile")}
    matrix = kernel.matrix_axes(sizes)
    for side in (side for product in kernel.products for side in product if side <= matrix):
        own = [d for d in sorted(side) if sizes[d] > 1]
        if own and {*own} <= block.keys():
            longest = max(own, key=block.__getitem__)
            block[longest] = max(block[longest], block[longest] * MIN_DOT // prod(block[d] for d in own))
    scans = [pair for s in scans_of(kernel) if {*(pair := (s.to, *s.over))} <= block.keys()]
    scans = [pair for pair in scans if len({sizes[d] for d in pair}) == 1]
    while uneven := [pair for pair in scans if len({block[d] for d in pair}) > 1]:  # which have axes in common
        block |= dict.fromkeys(uneven[0], max(block[d] for d in uneven[0]))
    return block


def chunk_length(size: int, chunks: int, tile: int) -> int:
    """Elements of one chunk of a split dimension: a whole number of tiles. The last chunks may be short or empty."""
    tiles = math.ceil(math.ceil(size / chunks) / tile)
    return tiles * tile


def about_tiles(dynamic: Iterable[Range], schedule: Schedule) -> dict[str, list[int]]:
    """Small sizes of dynamic axes: 1, about a tile of them, and beyond two."""
    found: dict[str, list[int]] = {}
    for r in dynamic:
        tile = max((dict(s.tiles).get(r.dim, 1) for s in schedule.kernels.values()), default=1)
        found[r.dim] = Range(r.dim, 1, min(r.most, 2 * tile + 3)).some(tile)
    return found


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
