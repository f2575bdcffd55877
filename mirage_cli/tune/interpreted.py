"""The floating-point judgement of a kernel in Triton's interpreter, in a process of its own.

The interpreter is chosen when Triton is imported (TRITON_INTERPRET=1), so it needs a process without a compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod
from tempfile import TemporaryDirectory
from typing import Any  # connection and modules of generated text

from mirage_cli.codegen.blocks import MAX_PRODUCT
from mirage_cli.ir.access import renames
from mirage_cli.ir.derived import lower
from mirage_cli.ir.footprint import large_enough
from mirage_cli.ir.merge import merge_axes, read_in_parts
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program, distinct_positions
from mirage_cli.ir.rewrites.running import pairs_of
from mirage_cli.ir.schedule import MIN_DOT, KernelSchedule, Schedule, block_sizes
from mirage_cli.search.cost.work import chunk_sizes
from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from mirage_cli.tune.measure import Judged
from mirage_cli.tune.triton_interpreter import like_a_gpu
from mirage_cli.verify.axisclasses import AxisClasses, counted
from mirage_cli.verify.rings import large_enough_around, reduced_to, without_rings

TIMEOUT_S = 120.0
REDUCED = (7, 33, 20, 48)
"""Sizes that stand for large ones: odd, over a block, under a block, three blocks of 16."""
SMALL = 16
"""A dimension up to this size keeps it."""
BLOCKS = 2
"""Blocks of positions that stand for many."""
BATCH = 3
"""The size that stands for a batch axis of contractions: its positions repeat one another's work."""
SPACE = 1 << 22
"""Elements of the space of one equation at reduced sizes, beyond which the longest axes are made BATCH long, but for
what has to be there to be read."""
PART = 3
"""The size that stands for a part of a merged axis, but its last, with which it is about as long as one of REDUCED."""
FEW = 24
"""Program instances of a kernel in the reduced schedule, unless its dimensions have two blocks each at most."""
FEW_OF_ALL = 240
"""The same of all kernels together, where they are so many that it is less for each."""

FEW_STEPS, MANY_STEPS = 64, 400
"""Iterations of all program instances, of which the interpreter takes about 20 to 60 a second with seven distributions
one after another (some four times as many at once, `tune.lanes`): up to the first a μGraph is judged as it is, up to
the second in parts."""
SOON_ELEMENTS, SOON_PRODUCTS = 1 << 23, 1 << 26
"""Elements of the space of one equation or of a tensor, and of one contraction, up to which that holds."""


def reduced_sizes(program: Program, variant: int = 0, graph: MuGraph | None = None) -> dict[str, int]:
    """Small odd sizes for every axis, and for those that are merged together. Axes that a rename makes one another's
    keep equal sizes. graph: whose rings (`verify.rings`) these sizes have room for too, and whose blocks of positions
    are whole."""
    sizes = program.sizes
    root = _same_axes(program)
    roots = sorted(set(root.values()))
    small = {d: REDUCED[(i + variant) % len(REDUCED)] for i, d in enumerate(roots)}
    batch = {root[d] for d in _batch_axes(program)}

    part = {
        d: PART if d != parts[-1] else -(-small[root[d]] // PART ** (len(parts) - 1))
        for _, parts in merge_axes(program).merged
        for d in parts
        if root[d] not in batch
    }

    lowered, distinct = lower(program), distinct_positions(program.inputs)
    rings, read = without_rings(lowered.accesses(), lowered.eqns, sizes, root.__getitem__)
    if graph is not None:
        own, _ = without_rings(graph.accesses(), graph.eqns, sizes | graph.sizes, lambda d: root.get(d, d))
        rings |= {d: max(n, rings.get(d, 0)) for d, n in own.items()}

    def reduced(d: str) -> int:
        if d in part:
            return max(part[d], 2)
        if root[d] in batch:
            return BATCH
        return small[root[d]] if sizes[d] > SMALL else sizes[d]

    def found() -> dict[str, int]:
        least = {d: min(sizes[d], max(reduced(root[d]), rings.get(root[d], 0))) for d in sizes}
        return large_enough_around(least, read, sizes, root.__getitem__, distinct=distinct)

    for d in sorted(roots, key=lambda d: (-small[d], d)):
        least = {a: min(sizes[a], small[root[a]]) for a in sizes}
        if max(_largest_space(lowered.resized(x)) for x in (least, found())) > SPACE:
            small[d] = BATCH
    return found() if graph is None else _with_blocks(found(), lowered, graph, root)


def _with_blocks(sizes: Mapping[str, int], lowered: Program, graph: MuGraph, same: Mapping[str, str]) -> dict[str, int]:
    """The sizes, and of what the μGraph counts by blocks: several blocks, the last as short as in full."""
    found, whole, classes = dict(sizes), graph.sizes, AxisClasses.of(lowered, graph)
    for d, i in sorted(counted(lowered, graph), key=lambda read: (-whole[read[0]], read[0])):
        (block, length), *_ = i.terms
        if len(i.terms) == 2 and isinstance(block, str):
            count = min(max(-(-found.get(d, whole[d]) // length), BLOCKS), whole[block])
            found |= {a: count * length - -whole[d] % length for a in sizes if d in same and same[a] == same[d]}
            found |= {a: count for a in whole if classes.find(a) == classes.find(block)}
    return found | {p: whole[p] for p in read_in_parts(graph)}


def _largest_space(program: Program) -> int:
    """Elements of the largest space of an equation: the axes of its result, and those that it sums over."""
    sizes = program.sizes
    return max((prod(sizes[a] for a in e.spans) for e in program.eqns), default=1)


def _same_axes(program: Program) -> dict[str, str]:
    """For each axis one that stands for all those that renames make one another's, or sums up to each position."""
    same: dict[str, str] = {}

    def root(d: str) -> str:
        while d in same:
            d = same[d]
        return d

    for a, i in program.accesses():
        if i.axis is not None and renames(a, i, program.sizes) and root(a) != root(i.axis):
            same[root(a)] = root(i.axis)
    for a, b in pairs_of(lower(program)):
        if root(a) != root(b):
            same[root(a)] = root(b)
    return {d: root(d) for d in program.sizes}


def _batch_axes(program: Program) -> set[str]:
    """Axes that both operands of every contraction over them have, and the result too."""
    dims = {name: set(v.dims) for name, v in program.values().items()}
    shared: set[str] = set()
    free: set[str] = set()
    for e in program.eqns:
        if e.op == "dot":
            a, b = (dims[x] if isinstance(x, str) else set[str]() for x in e.args)
            shared |= (a & b) - set(e.axes)
            free |= a ^ b | set(e.axes)
        elif e.op != "index":
            free |= e.acts_on
    return shared - free


def reduced_schedule(graph: MuGraph, schedule: Schedule) -> Schedule:
    """The schedule with blocks so small that a graph of reduced sizes still has several per dimension, yet few in all,
    as far as the emitter takes the larger blocks: the interpreter runs one program instance after another."""
    few = min(FEW, FEW_OF_ALL // len(graph.kernels))
    kernels: dict[str, KernelSchedule] = {}
    chunks: dict[str, int] = {}
    for k in graph.kernels:
        s = schedule.kernels.get(k.name)
        if s is None:
            continue
        split = 1
        if k.split is not None:
            split = chunks.setdefault(k.chunk, min(s.split, 3))
        sizes = graph.sizes | chunks
        matrix = k.matrix_axes(sizes)
        tiles = {d: min(t, MIN_DOT) if d in matrix else min(t, 8) for d, t in s.tiles}
        grid = [d for d in k.with_role("grid") if d in tiles]
        s = replace(s, tiles=tuple(tiles.items()), split=split)
        while prod(blocks := [ceil(sizes[d] / s.tile(d)) for d in grid]) > few and max(blocks) > 2:
            longest = grid[blocks.index(max(blocks))]
            larger = replace(s, tiles=tuple((d, t << (d == longest)) for d, t in s.tiles))
            if _largest_block(k, larger, sizes) > MAX_PRODUCT:
                break
            s = larger
        kernels[k.name] = s
    return Schedule(kernels)


def _largest_block(kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> int:
    """Elements of the largest block of an equation's space."""
    block = block_sizes(kernel, schedule, sizes)
    return max((prod(block.get(d, 1) for d in {*e.dims, *e.axes}) for e in kernel.body), default=1)


def own_sums(program: Program, graph: MuGraph, schedule: Schedule) -> tuple[MuGraph, Schedule] | None:
    """Sums as long as the program's own, which take as much out of a type's range: the μGraph as it is or, where the
    interpreter would take minutes for that, with one small block of each axis that nothing is summed over. None where
    it would even then."""
    if _soon_done(graph, schedule, FEW_STEPS):
        return graph, schedule
    root, lowered = _same_axes(program), lower(program)
    summed = {root[d] for e in lowered.eqns if OPS[e.op].kind in ("reduction", "contraction") for d in e.axes}
    free = {d for d in root if root[d] not in summed}
    last = {name: parts[-1] for name, parts in graph.merged if {*parts} <= free}  # which has the block of the whole
    small = {
        n: replace(s, tiles=tuple((d, min(t, MIN_DOT) if last.get(d, d) in free else t) for d, t in s.tiles))
        for n, s in schedule.kernels.items()
    }
    block = {root[d]: 1 for d in free}
    for k in graph.kernels:
        if k.name in small:
            for d, t in (*small[k.name].tiles, *((d, MIN_DOT) for d in k.with_role("tile"))):
                if (axis := last.get(d, d)) in free:
                    block[root[axis]] = max(block[root[axis]], t)
    sizes = graph.sizes | {d: min(program.sizes[d], block[root[d]]) for d in free}
    distinct = distinct_positions(graph.inputs)
    read = (*lowered.accesses(), *graph.accesses())  # the μGraph lacks axes that only the program reads along
    large = large_enough(sizes, read, graph.sizes, lambda d: root.get(d, d), distinct=distinct)
    short = reduced_to(graph, large)
    return (short, Schedule(small)) if _soon_done(short, Schedule(small), MANY_STEPS) else None


def _soon_done(graph: MuGraph, schedule: Schedule, most_steps: int) -> bool:
    """Whether the interpreter takes seconds for a graph."""
    sizes = chunk_sizes(graph, schedule)
    if any(prod(sizes[d] for d in t.dims) > SOON_ELEMENTS for t in (*graph.inputs, *graph.outputs)):
        return False
    steps = 0
    for k in graph.kernels:
        if (s := schedule.kernels.get(k.name)) is not None:
            steps += prod(ceil(sizes[d] / s.tile(d)) for d in k.with_role("grid", "split", "loop"))
    return steps <= most_steps and all(
        prod(sizes.get(d, 1) for d in {*e.dims, *e.axes}) <= (SOON_PRODUCTS if e.op == "dot" else SOON_ELEMENTS)
        for k in graph.kernels
        for e in k.body
    )


class Interpreter:
    """A process that judges kernels in the interpreter; replaced when one hangs or dies. A context manager.

    What the process leaves in its folder for temporary files goes with it: it is killed, and cannot tidy up itself.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def start(self) -> None:
        """Starts the process ahead of need, so that its seconds of imports pass while other work is done."""
        if self._child is None:
            self._folder = TemporaryDirectory(prefix="mirage-", ignore_cleanup_errors=True)
            env = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": self._folder.name}
            env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # blocks are small
            self._child = Child("mirage_cli.tune.interpreted", (), env, kernels=True)

    def judge(self, program: Program, source: str, seed: int, overflow_like_eager: bool = False) -> Judged:
        """Judge module text with `make_scratch` and `launch` (as `kernels_source` gives) on every distribution.

        overflow_like_eager: an inf or NaN passes where eager PyTorch has one too.
        """
        request = program, source, seed, overflow_like_eager
        try:
            try:
                return self._ask(request)
            except ChildKilled:
                return self._ask(request)
        except (TimeoutError, ChildDied) as error:
            return Judged(False, problem=f"in the interpreter: {error}")

    def _ask(self, request: tuple[Program, str, int, bool]) -> Judged:
        """Raises TimeoutError, ChildDied."""
        self.start()
        child = self._child
        assert child is not None
        try:
            child.send(request)
            return child.receive(TIMEOUT_S)
        except (TimeoutError, ChildDied):
            self.close()
            raise


def prepare() -> None:
    """Imports what the parent has no use for."""
    for name in ("codegen.export", "codegen.torch_source", "verify.numeric"):
        importlib.import_module(f"mirage_cli.{name}")
    importlib.import_module("triton.runtime.interpreter")


def main(connection: Any) -> None:
    """The process: answers the arguments of each `Interpreter.judge` with a `Judged`."""
    import warnings

    import torch

    like_a_gpu()
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
    while True:
        connection.send(_judge(*connection.recv()))


def _judge(program: Program, source: str, seed: int, overflow_like_eager: bool) -> Judged:
    import torch

    from mirage_cli.codegen.export import load_export
    from mirage_cli.codegen.torch_source import torch_source
    from mirage_cli.tune.lanes import at_once
    from mirage_cli.tune.outputs import poison
    from mirage_cli.verify.numeric import judge

    sizes = program.sizes
    names: Mapping[str, Any] = {"torch": torch}
    exec(torch_source(program.apart()), dict_names := dict(names))  # noqa: S102 - our own text, from a checked program
    try:
        module = load_export(source)

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            outputs = [
                poison(torch.empty([sizes[d] for d in t.dims], dtype=getattr(torch, t.dtype))) for t in program.results
            ]
            module.launch(inputs, outputs, module.make_scratch("cpu", *program.arguments))
            return outputs

        reference = dict_names["reference"]
        verdict = judge(program, run, reference, "cpu", seed, overflow_like_eager=overflow_like_eager, at_once=at_once)
        return Judged.of(verdict.detail)
    except Exception as error:  # the border of the process: whatever the generated text raises is its failure
        return Judged(False, problem=f"in the interpreter: {type(error).__name__}: {error}")
