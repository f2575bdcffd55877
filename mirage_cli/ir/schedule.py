"""Schedules: the numbers of a μGraph that the tuner chooses, apart from its structure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.program import Eqn

CHOICES = ("overlap", "descriptors", "stream", "specialize", "early", "fetch", "relay", "read", "tf32x3")
COUNTS = ("ahead", "lead", "share")
"""What a schedule does or leaves."""


@dataclass(frozen=True)  # without slots, for what is cached
class KernelSchedule:
    """How one generated kernel is cut and compiled.

    tiles: block size of each grid, split and loop dimension, a power of two; 1 makes the dimension a scalar with no
        axis in the blocks. A dimension with role "tile" is held whole: its block is the next power of two.
    order: order of the axes inside blocks. The first axis of a product is the matrix unit's M, so putting the
        weights' axis first swaps the operands.
    split: number of chunks of the split dimension, 1 where there is none.
    group: programs of the first grid dimension that run next to each other before the second moves on (1: row-major).
    overlap: start before the kernel in front has ended, and wait for its results there (programmatic dependent launch).
    descriptors: read blocks in loops through tensor descriptors (TMA) where the hardware takes their shape.
    stream: what is read once in the whole μGraph is the first to leave the caches.
    specialize: warps of their own fetch for the loops that multiply on the matrix units (warp specialization).
    early: let the kernel behind start as soon as this one has waited, not only when its loops are done.
    lead: iterations of its last loop that are left when it lets the kernel behind start (0: when its loops are done).
    fetch: bring the inputs that are read before any loop into the L2 while this kernel waits for the one in front.
    ahead: iterations of the first loop whose inputs are brought into the L2 then.
    relay: let the kernel behind start at once, before this one has waited for the kernel in front.
    read: fetch by reads that are forgotten, not by prefetches: nearer, but other reads have to wait for them.
    share: of what `ahead` has fetched of each iteration, only one part in so many, what is needed first (0: all).
    tf32x3: products of float32 on the matrix units, as three products of TF32: the operands' first 11 bits and the next
        11, but for the product of the latter (3xTF32).

    Recorded measurements hold the fields in this order: new ones come last.
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
    early: bool = False
    fetch: bool = False
    ahead: int = 0
    lead: int = 0
    relay: bool = False
    read: bool = False
    share: int = 0
    tf32x3: bool = False

    def tile(self, dim: str) -> int:
        return dict(self.tiles)[dim]

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """One line, without choices that are at their defaults."""
        tiles = " ".join(f"{d}={t}" for d, t in self.tiles)
        split = f" split={self.split}" if self.split > 1 else ""
        group = f" group={self.group}" if self.group > 1 else ""
        choices = "".join(f" {name}" for name in CHOICES if getattr(self, name))
        counts = "".join(f" {name}={n}" for name in COUNTS if (n := getattr(self, name)))
        numbers = f"warps={self.warps} stages={self.stages}{split}{group}"
        return f"{tiles} order={','.join(self.order)} {numbers}{choices}{counts}"

    @cached_property
    def doublings(self) -> tuple[float, ...]:
        """All numbers but the order, on a scale on which a doubling is a step of 1: sizes, choices, and counts."""
        sizes = [t for _, t in self.tiles] + [self.warps, self.stages, self.split, self.group]
        choices = [float(getattr(self, name)) for name in CHOICES]
        return *map(math.log2, sizes), *choices, *(math.log2(getattr(self, name) + 1) / 2 for name in COUNTS)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule for every generated kernel of a μGraph, by kernel name."""

    kernels: Mapping[str, KernelSchedule] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: asdict(k) for name, k in self.kernels.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schedule:
        """What `to_json` gave. Raises ValueError where it is nothing that this version has written."""
        try:
            return Schedule({name: _kernel_from_json(k) for name, k in data.items()})
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
        return "\n".join(f"{name}: {k}" for name, k in self.kernels.items())


def _kernel_from_json(k: Mapping[str, Any]) -> KernelSchedule:
    """Raises KeyError, TypeError, ValueError, AttributeError."""
    choices = {name: value for name, value in k.items() if name not in ("tiles", "order")}
    if others := [name for name, value in choices.items() if not isinstance(value, int)]:
        raise TypeError(f"{others[0]} is {choices[others[0]]!r:.40}")
    return KernelSchedule(tuple((str(d), int(t)) for d, t in k["tiles"]), tuple(map(str, k["order"])), **choices)


MIN_DOT = 16
"""The smallest block axis that the matrix units take (Triton's tl.dot, float16)."""


MAX_LANES = 64
"""Elements of a thread in an accumulator that is reduced only after its loop."""


def on_matrix_units(e: Eqn, dims: Mapping[str, tuple[str, ...]], block: Mapping[str, int]) -> bool:
    """Whether the blocks of a product are large enough for the matrix units. dims: of every value."""
    a, b = (set(dims[v]) for v in e.values)
    summed = set(e.axes)
    if any(block[d] > 1 for d in summed & (a ^ b)):
        return False
    sides = (a - b) - summed, (b - a) - summed, a & b & summed
    return all(prod(block[d] for d in side) >= MIN_DOT for side in sides)


def block_sizes(kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> dict[str, int]:
    """The block size of every dimension; one that is held whole is padded where the matrix units take it."""
    matrix = kernel.matrix_axes()
    block = dict(schedule.tiles)
    for d in kernel.with_role("tile"):
        least = MIN_DOT if d in matrix and sizes[d] > 1 else 1
        block[d] = max(next_power_of_two(sizes[d]), least)
    return block


def chunk_length(size: int, chunks: int, tile: int) -> int:
    """Elements of one chunk of a split dimension: a whole number of tiles. The last chunks may be short or empty."""
    tiles = math.ceil(math.ceil(size / chunks) / tile)
    return tiles * tile


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
