"""What each kernel of a scheduled μGraph does: what it moves and computes, what it is predicted to take and waits for.

    MuGraph, Schedule, Target ─► KernelProfile for each kernel

Bytes and operations count each element once, as in a roofline; what tiles read or compute again is in the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod

from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError, Loop, place
from mirage_cli.ir.program import DTYPE_BYTES, Eqn, Tensor
from mirage_cli.ir.reach import limits, made_by, visited
from mirage_cli.ir.schedule import (
    AtEnd,
    Before,
    Early,
    HandOver,
    KernelSchedule,
    Lead,
    Relay,
    Schedule,
    block_sizes,
    chunk_length,
)
from mirage_cli.search.cost.library import library_us
from mirage_cli.search.cost.model import LIMITS
from mirage_cli.search.cost.traffic import part_of
from mirage_cli.search.cost.work import chunk_sizes
from mirage_cli.target.gpus import Target
from mirage_cli.tune.price import estimates


@dataclass(frozen=True, slots=True)
class LoopProfile:
    """A loop over the tiles of `dims`, of so many iterations.

    visited: the part of them that masks leave, in the mean over program instances. by_data: whether data end it too.
    """

    dims: tuple[str, ...]
    iterations: int
    visited: float = 1.0
    by_data: bool = False


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel under its schedule.

    instances: program instances, None of a library call. blocks: the block size of each axis. chunks: the size of its
    chunk axis. read, written: bytes by tensor. operations: of products and all else, each element once; masks are taken
    off. flops: of products alone. predicted_us, limit: by the cost model, None without a target. overlaps: what of it
    runs beside the kernels around it, in words.
    """

    name: str
    library: bool
    instances: int | None
    blocks: Mapping[str, int]
    chunks: Mapping[str, int]
    loops: tuple[LoopProfile, ...]
    read: Mapping[str, int]
    written: Mapping[str, int]
    flops: float
    operations: float
    predicted_us: float | None
    limit: str | None
    overlaps: tuple[str, ...]

    @property
    def moved_bytes(self) -> int:
        return sum(self.read.values()) + sum(self.written.values())

    @property
    def intensity(self) -> float:
        """Operations for each byte that is moved."""
        return self.operations / max(self.moved_bytes, 1)


def profile(graph: MuGraph, schedule: Schedule | None, target: Target | None) -> tuple[KernelProfile, ...]:
    """The kernels in their order. Without a schedule that fits, what no schedule changes alone; without a target, no
    prediction."""
    scheduled = schedule if schedule is not None and schedule.fits(graph) else None
    one_chunk = {k.chunk: 1 for k in graph.kernels if k.split}
    sizes = chunk_sizes(graph, scheduled) if scheduled else graph.sizes | one_chunk
    expected: dict[str, tuple[float, str]] = {}
    if scheduled and target:
        found = estimates(graph, scheduled, target).items()
        expected = {name: (float(e.us[0]), LIMITS[int(e.limit[0])]) for name, e in found}
        element = DTYPE_BYTES[graph.dtype]
        calls = (k for k in graph.kernels if k.kind == "library")
        expected |= {k.name: (library_us(k, graph.inputs, sizes, element, target), "library") for k in calls}
    return tuple(_profiled(graph, k, scheduled, sizes, expected.get(k.name)) for k in graph.kernels)


def _profiled(
    graph: MuGraph, k: Kernel, schedule: Schedule | None, sizes: Mapping[str, int], expected: tuple[float, str] | None
) -> KernelProfile:
    s = schedule.kernels.get(k.name) if schedule else None
    loops = _loops(k)
    integers = {x.out: t for x in k.loads for t in graph.inputs if t.name == x.buffer}
    shares = [_share(k, loop, graph.sizes, integers) for loop in loops]
    blocks = block_sizes(k, s, sizes) if s else {}
    part = {step.out: share for loop, (share, _) in zip(loops, shares, strict=True) for step in loop.steps}
    work = [(e, _operations(e, sizes) * part.get(e.out, 1.0)) for e in k.body]
    return KernelProfile(
        name=k.name,
        library=k.kind == "library",
        instances=_instances(k, s, graph.sizes) if s else None,
        blocks=blocks,
        chunks={k.chunk: s.split} if s and k.split else {},
        loops=tuple(
            LoopProfile(loop.dims, _iterations(k, loop, s, graph.sizes) if s else 0, *share)
            for loop, share in zip(loops, shares, strict=True)
        ),
        read=_bytes(graph, k.loads, sizes),
        written=_bytes(graph, k.stores, sizes),
        flops=sum(n for e, n in work if e.op == "dot"),
        operations=sum(n for _, n in work),
        predicted_us=expected and expected[0],
        limit=expected and expected[1],
        overlaps=tuple(overlaps(s)) if s else (),
    )


def _loops(k: Kernel) -> tuple[Loop, ...]:
    try:
        return place(k).loops if k.kind == "generated" else ()
    except InexpressibleError:
        return ()


def _share(k: Kernel, loop: Loop, sizes: Mapping[str, int], integers: Mapping[str, Tensor]) -> tuple[float, bool]:
    """The part of a loop that masks leave, and whether data end it as well as positions."""
    found = limits(k, loop)
    leaves = {leaf for x in found for leaf in x.leaves}
    by_data = any(kind == "value" for kind, _ in leaves)
    made = {v: m for kind, v in leaves if kind == "made" and (m := made_by(k, v)) is not None}
    return visited(found, sizes, {**integers, **made}).mean, by_data


def _iterations(k: Kernel, loop: Loop, s: KernelSchedule, sizes: Mapping[str, int]) -> int:
    """Of one program instance, before masks end the loop; of its chunk, where the axis is split."""
    tiles = dict(s.tiles)
    extent = {d: chunk_length(sizes[d], s.split, tiles[d]) if d == k.split else sizes[d] for d in loop.dims}
    return prod(ceil(extent[d] / tiles[d]) for d in loop.dims)


def _instances(k: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> int:
    tiles = dict(s.tiles)
    return prod(ceil(sizes[d] / tiles[d]) if d in sizes else 1 for d in k.with_role("grid")) * s.split


def _bytes(graph: MuGraph, moves: Iterable[Load | Store], sizes: Mapping[str, int]) -> dict[str, int]:
    """By tensor; parts that are read twice count once."""
    tensors = graph.tensors()
    parts = {(part_of(x.buffer, x.access) if isinstance(x, Load) else str(x.access)): x for x in moves}
    found: dict[str, int] = {}
    for x in parts.values():
        size = prod(sizes.get(a, 1) for a in x.dims) * DTYPE_BYTES[tensors[x.buffer].dtype]
        found[x.buffer] = found.get(x.buffer, 0) + size
    return found


def _operations(e: Eqn, sizes: Mapping[str, int]) -> float:
    """Two for each product of elements, and the operator's for each element of another."""
    axes = {*e.dims, *(e.axes if OPS[e.op].kind in ("reduction", "contraction") else ())}
    return (2.0 if e.op == "dot" else OPS[e.op].flops) * prod(sizes[a] for a in axes)


def overlaps(s: KernelSchedule) -> Iterator[str]:
    """What of a kernel runs beside the one in front of it and the one behind it."""
    if s.overlap:
        yield "starts before the kernel in front has ended" + ", behind one that lets it only" * s.patient
    if s.before != Before.NOTHING:
        yield "brings inputs that no loop reads into the L2 before it waits"
    if s.ahead:
        part = f", one part in {s.ahead.share} of each" if s.ahead.share > 1 else ""
        yield f"brings the first {s.ahead.iterations} iterations' inputs into the L2 before it waits{part}"
    if (told := _hand_over_text(s.hand_over)) is not None:
        yield told


def _hand_over_text(x: HandOver) -> str | None:
    match x:
        case AtEnd():
            return None
        case Early():
            return "lets the kernel behind start as soon as it has waited itself"
        case Lead(iterations):
            return f"lets the kernel behind start {iterations} iterations before its loop ends"
        case Relay():
            return "lets the kernel behind start at once"
