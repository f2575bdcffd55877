"""The slow, obvious definition of programs and of scheduled μGraphs, over any semantics of the operators.

`run_program` evaluates equation by equation. `run_mugraph` executes a μGraph as its schedule says: every program
instance, every tile of every loop but those that masks leave nothing to do, accumulators, running maxima with their
rescaling, chunks of a split dimension and stores into memory that starts undefined. Instances that differ along axes
of the grid alone compute at once where no operator can tell. Values that were computed before are not computed again
(`verify.remembered`). `FieldSemantics` makes it the verifier's, `FloatSemantics` a reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from math import inf, isfinite, prod
from typing import Any  # values of the semantics: residues, or arrays of float64

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Access, Tables, dims_of, lookups_of, may_name_nothing, plain
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.beside import beside
from mirage_cli.ir.inplace import too_late
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import Loop, Placement, Straight, place
from mirage_cli.ir.program import Eqn, Part, Program, Tensor, tables_of, unmerged
from mirage_cli.ir.reach import Left, left_out, limits
from mirage_cli.ir.scans import Scan, by_scans
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.verify.places import element, in_front, named, places_of, positions, where_worked
from mirage_cli.verify.remembered import Contents, Remembered
from mirage_cli.verify.residues import DRAW
from mirage_cli.verify.semantics import At, Memory, ScheduleFailure, Semantics, Window


class VerificationEndedError(Exception):
    """There is no time left to execute a μGraph."""


def never() -> bool:
    """A deadline that never comes."""
    return False


Mask = tuple[str, bool]
"""A mask, and its value where there is work."""
Ends = tuple[tuple[Mask, ...], ...]
"""Groups of masks of a loop: a tile has no work where, in some group, no mask has its value anywhere."""


# -- programs


def run_program(program: Program, inputs: Mapping[str, Any], semantics: Semantics) -> dict[str, Any]:
    """The outputs of a lowered program, by name. The semantics' sizes are the sizes."""
    env = dict(inputs)
    for _ in evaluated(program, env, semantics):
        pass
    return outputs_of(program, env, semantics)


def evaluated(program: Program, env: dict[str, Any], semantics: Semantics) -> Iterator[str]:
    """Puts what the equations of a program make beside its inputs, and tells the name of each value that is there."""
    semantics.window, semantics.tables = {}, {}
    for e in by_scans(program, sums_alone=True).eqns:
        env[e.out] = semantics.running(e, env[e.values[0]]) if isinstance(e, Scan) else applied(e, env, semantics)
        yield e.out


def outputs_of(program: Program, env: Mapping[str, Any], semantics: Semantics) -> dict[str, Any]:
    """The outputs of a program, of whose values all are known."""
    nowhere = {p.value: _nowhere(p, env, semantics) for p in program.parts if may_name_nothing(p.access)}
    return {t.name: env[t.name] for t in program.outputs} | nowhere


def applied(e: Eqn, env: Mapping[str, Any], semantics: Semantics) -> Any:
    """What an equation makes of these values."""
    return semantics.apply(e.op, e.arguments(env.__getitem__), e.axes)


def _nowhere(p: Part, env: Mapping[str, Any], semantics: Semantics) -> Any:
    """The value of a part, undefined where tables name nothing for it to be written to."""
    dims = p.tensor.dims
    whole = semantics.full(Fraction(1), dims, tuple(semantics.sizes[d] for d in dims), "int")
    axes = substitution_text({d: i for d, i in zip(dims, p.access, strict=True) if i.axis != d})
    there = semantics.apply("rename", (whole, *(env[t] for t in tables_of(p.access))), axes)
    written = semantics.apply("gt", (there, Fraction(0)))
    return semantics.apply("where", (written, env[p.value], semantics.apply("sub", (inf, inf))))


# -- μGraphs


@dataclass(frozen=True, slots=True)
class Front:
    """The leading axes of every tensor in memory, with their sizes: the axis of draws, or none."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    access: Access = field(init=False)
    ranges: Window = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "access", plain(self.dims))
        object.__setattr__(self, "ranges", {d: (0, n) for d, n in zip(self.dims, self.shape, strict=True)})

    @staticmethod
    def of(values: Iterable[Any]) -> Front:
        """From the inputs, of which all have the axis of draws or none has."""
        x = next((x for x in values if DRAW in getattr(x, "dims", ())), None)
        return Front((DRAW,), x.shape[:1]) if x is not None else Front((), ())

    def places(self, access: Access, dims: tuple[str, ...], ranges: Window, memory: Memory, tables: Tables) -> At:
        """Where an access with these axes lies, in each draw."""
        lengths = memory.written.shape
        return positions((*self.access, *access), ranges | self.ranges, lengths, tables, (*self.dims, *dims))

    def tables(self, memories: Mapping[str, Memory], names: Iterable[str]) -> Tables:
        return {name: (self.dims, memories[name].whole().data) for name in names}


def tiles(low: int, high: int, tile: int) -> list[tuple[int, int]]:
    """The ranges [low, high) is cut into; the last may be short."""
    return [(i, min(i + tile, high)) for i in range(low, high, tile)]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def chunks(size: int, split: int, tile: int) -> list[tuple[int, int]]:
    """The ranges of the chunks of a split dimension: whole tiles, except at the end; late chunks may be empty."""
    length = ceil_div(ceil_div(size, split), tile) * tile
    return [(min(i * length, size), min((i + 1) * length, size)) for i in range(split)]


def run_mugraph(
    graph: MuGraph,
    schedule: Schedule,
    inputs: Mapping[str, Any],
    semantics: Semantics,
    seed: int = 0,
    program: Program | None = None,
    end: Callable[[], bool] = never,
) -> dict[str, Any]:
    """Every buffer and output of the μGraph, by name, executed as scheduled; instances in an order drawn from `seed`.

    Inputs and outputs have the program's own axes; those of the μGraph see several as one (`MuGraph.merged`).
    Inputs may be of several draws, along an axis of their own in front: then all results are.
    program: what says how inputs lie in memory, where not as in the μGraph, and what parts are written: their values
    are among the results, as they lie in their tensors then. end: asked before every run of program instances whether
    the time is up.

    Raises ScheduleFailure for a race, conflicting stores, or stores that do not write just what they should: all of a
    tensor, or its parts. InexpressibleError as `place` does. VerificationEndedError at the end.
    """
    tensors = graph.tensors()
    parts = program.parts if program else ()
    memories: dict[str, Memory] = {}
    run = _Run(
        graph, memories, semantics, Front.of(inputs.values()), left_out(graph), {}, end, Contents(graph, memories)
    )
    run.hold(inputs, {t.name: t for t in program.inputs} if program else {})
    front, left = run.front, run.left
    shapes = {t.name: tuple(graph.sizes.get(d, 0) for d in t.dims) for t in graph.inputs}
    complete = {s.buffer: kernel.name for kernel in graph.kernels for s in kernel.stores}  # behind the last of these
    for kernel in graph.kernels:
        ks = schedule.kernels.get(kernel.name) or KernelSchedule((), ())
        chunk = {kernel.chunk: ks.split} if kernel.split else {}
        for s in kernel.stores:
            sizes = graph.sizes | _chunk_sizes(graph, kernel, shapes) | chunk
            shapes[s.buffer] = tuple(sizes[d] for d in tensors[s.buffer].dims)
            if s.buffer not in memories:
                dims, shape = (*front.dims, *tensors[s.buffer].dims), (*front.shape, *shapes[s.buffer])
                memories[s.buffer] = semantics.memory(s.buffer, dims, shape)
        semantics.sizes = graph.sizes | _chunk_sizes(graph, kernel, shapes)
        run.refuse_races(kernel, semantics.sizes | chunk)
        run.execute(kernel, ks, random.Random(seed))
        own = {s.buffer for s in kernel.stores} - {p.tensor.name for p in parts} - {*left}
        for name, x in ((s.buffer, left[s.buffer]) for s in kernel.stores if s.buffer in left):
            (_, length), *_ = chunks(graph.sizes[x.dim], ks.split, ks.tile(x.dim))
            run.live[name] = x.live(length, graph.sizes[x.dim])
        for name in (name for name in own if complete[name] == kernel.name):
            _check_written(memories[name], np.ones_like(memories[name].written))
    written = [t.name for t in (*graph.buffers, *graph.outputs) if t.name in memories and t.name not in left]
    results = {name: memories[name].whole() for name in written}
    for t in graph.outputs:
        if t.name in results:
            results[t.name] = _seen(results[t.name], unmerged(t.dims, graph.merged), t, graph, semantics, front)
    return results | _parts(parts, memories, graph.sizes, front)


def _seen(value: Any, dims: tuple[str, ...], t: Tensor, graph: MuGraph, semantics: Semantics, front: Front) -> Any:
    """What is in memory for a tensor of the program, as a tensor of these axes."""
    if unmerged(t.dims, graph.merged) == t.dims:
        return value
    return semantics.seen_as(value, (*front.dims, *dims), (*front.shape, *(graph.sizes[d] for d in dims)))


def _found(value: Any, own: Tensor, t: Tensor, graph: MuGraph, semantics: Semantics, front: Front) -> Any:
    """What a μGraph that has the tensor `t` finds at its addresses, where `own` lies in memory. Gaps are undefined."""
    if not own.strides and not t.strides:
        return _seen(value, t.dims, t, graph, semantics, front)
    lies, found = (_addresses(x, graph.sizes) for x in (own, t))
    places = np.unique(np.concatenate((lies.ravel(), found.ravel())))
    memory = semantics.memory(t.name, (*front.dims, "address"), (*front.shape, len(places)))
    memory.write(in_front(front.shape, (np.searchsorted(places, lies),)), (*front.dims, *own.dims), value)
    return memory.read(in_front(front.shape, (np.searchsorted(places, found),)), (*front.dims, *t.dims))


def _addresses(t: Tensor, sizes: Mapping[str, int]) -> NDArray[np.int64]:
    """Of every element of a tensor, in elements from the first."""
    positions = np.indices([sizes[d] for d in t.dims])
    return np.tensordot(np.array(t.steps(sizes), dtype=np.int64), positions, 1)


def _parts(
    parts: Sequence[Part], memories: Mapping[str, Memory], sizes: Mapping[str, int], front: Front
) -> dict[str, Any]:
    """The values of parts, by name. Raises ScheduleFailure where anything else of their tensors was written."""
    found: dict[str, Any] = {}
    want: dict[str, NDArray[np.bool_]] = {}
    for p in parts:
        memory = memories[p.tensor.name]
        dims = dims_of(p.access)
        tables = front.tables(memories, tables_of(p.access))
        at = front.places(p.access, dims, {d: (0, sizes[d]) for d in dims}, memory, tables)
        written = at if (kept := named(at)) is None else places_of(at, kept)
        want.setdefault(p.tensor.name, np.zeros_like(memory.written))[written] = True
        found[p.value] = memory.read(at, (*front.dims, *dims))
    for name, parts_of in want.items():
        _check_written(memories[name], parts_of)
    return found


def _check_written(memory: Memory, want: NDArray[np.bool_]) -> None:
    """Whether these elements were written, and no others. Raises ScheduleFailure."""
    if (wrong := memory.written != want).any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        if want[at]:
            raise ScheduleFailure("hole", f"nothing writes {element(memory, at)}")
        raise ScheduleFailure("stray store", f"{element(memory, at)} is no part that the program writes")


def _chunk_sizes(graph: MuGraph, kernel: Kernel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of the chunk axes of earlier kernels' partial results, as this kernel loads them."""
    return {
        d: n
        for x in kernel.loads
        for i, n in zip(x.access, shapes.get(x.buffer, ()), strict=False)
        if (d := i.axis) is not None and d not in graph.sizes
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """One execution of a μGraph. left: partial results that are not stored everywhere. live: where those of the kernels
    in front were stored. contents: what is in memory, as `_Step` names it."""

    graph: MuGraph
    memories: dict[str, Memory]
    semantics: Semantics
    front: Front
    left: Mapping[str, Left]
    live: dict[str, Access]
    end: Callable[[], bool]
    contents: Contents

    def hold(self, inputs: Mapping[str, Any], given: Mapping[str, Tensor]) -> None:
        """Puts the inputs into memory. given: how they lie in it, where not as in the μGraph."""
        graph, front = self.graph, self.front
        for t in graph.inputs:
            if t.name in inputs:
                x, own = inputs[t.name], given.get(t.name, t)
                found = _found(x, own, t, graph, self.semantics, front)
                self.memories[t.name] = memory = self.semantics.input(t.name, found, (*front.dims, *t.dims))
                memory.changes = t.name in graph.changed
                layout = REMEMBERED.number((own, t, graph.merged, *graph.sizes.items()))
                known = ("given", layout, id(x))  # the same for all μGraphs
                self.contents.known[t.name] = REMEMBERED.value(known, (x,), object)

    def refuse_races(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """Raises ScheduleFailure where the kernel reads what it writes, or what nothing has written."""
        stored = {s.buffer for s in kernel.stores}
        race = [x.buffer for _, x, _ in too_late([kernel], stored, sizes, self.graph.distinct)]
        race += stored & {a.table for a in kernel.lookups}
        if race:
            raise ScheduleFailure("race", f"{kernel.name} reads and writes {min(race)}")
        if stale := [b for b in kernel.read if b not in self.memories]:
            raise ScheduleFailure("race", f"{kernel.name} reads {stale[0]} before anything writes it")

    def execute(self, kernel: Kernel, schedule: KernelSchedule, rng: random.Random) -> None:
        """Runs every program instance of a kernel, in a random order. Raises VerificationEndedError."""
        changing, sizes = {*self.live, *(s.buffer for s in kernel.stores)}, self.semantics.sizes

        def held(name: str) -> Hashable:
            return None if name in changing else self.contents.of(name)

        if kernel.kind == "library":
            whole = Placement((Straight((*kernel.loads, *kernel.body), kernel.stores),))
            _Instances(self, _Shared(kernel, whole, sizes, held), schedule, [({}, {})]).run()
            return
        tiled = {d for d in kernel.with_role("grid") if sizes[d] > schedule.tile(d)}
        parts = [_Shared(k, place(k), sizes, held) for k in beside(kernel, tiled)]
        groups = [(part, at) for part in parts for at in _at_once(part, _instances(part.kernel, schedule, sizes))]
        rng.shuffle(groups)
        for part, instances in groups:
            if self.end():
                raise VerificationEndedError
            rng.shuffle(instances)
            _Instances(self, part, schedule, instances).run()


Instance = tuple[Window, dict[str, int]]
"""Where the tile and the chunk of a program instance lie, and the index of each."""


def _instances(kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> Iterator[Instance]:
    """Every program instance."""
    cut = {d: tiles(0, sizes[d], schedule.tile(d)) for d in kernel.with_role("grid")}
    if kernel.split:
        cut[kernel.split] = chunks(sizes[kernel.split], schedule.split, schedule.tile(kernel.split))
    for index in product(*(range(len(ranges)) for ranges in cut.values())):
        at = dict(zip(cut, index, strict=True))
        window = {d: cut[d][i] for d, i in at.items()}
        if kernel.split:
            window[kernel.chunk] = (at[kernel.split], at[kernel.split] + 1)
        yield window, at


def _at_once(part: _Shared, instances: Iterable[Instance]) -> list[list[Instance]]:
    """Program instances that differ along pointwise axes alone, together."""
    groups: dict[Hashable, list[Instance]] = {}
    for instance in instances:
        common = tuple((d, at) for d, at in instance[0].items() if d not in part.pointwise)
        groups.setdefault(common, []).append(instance)
    return list(groups.values())


REMEMBERED = Remembered()
"""Of all μGraphs: those of one program are tested one after another, on the same draws."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step's value depends on.

    said: the number of its operator, or of its access and of what it reads; None where that changes. operands: the
    values. axes: those whose ranges matter.
    """

    said: int | None
    operands: tuple[str, ...]
    axes: tuple[str, ...] = ()

    @staticmethod
    def of(step: Load | Eqn, sizes: Mapping[str, int], held: Callable[[str], Hashable]) -> _Step:
        """held: what a tensor in memory holds, where that does not change."""
        whole, operands = tuple(sizes.items()), () if isinstance(step, Load) else step.values
        if isinstance(step, Load):
            said, axes, reads = (step.access, step.dims, whole), step.dims, step.buffers
        elif step.op == "index":
            said, axes, reads = (step.axes, whole), tuple(sorted(step.acts_on)), tuple(x.table for x in step.looks_up)
        else:
            numbers = tuple("" if isinstance(a, str) else repr(a) for a in step.args)
            said, axes, reads = (step.op, step.axes, numbers), (), ()
            if step.op in ("size", "rename"):
                said = *said, whole
        contents = tuple(map(held, reads))
        return _Step(None if None in contents else REMEMBERED.number((*said, contents)), operands, axes)


NO_ENDS: tuple[Ends, tuple[Load | Eqn, ...]] = (), ()


def _ends(kernel: Kernel, loop: Loop) -> tuple[Ends, tuple[Load | Eqn, ...]]:
    """The masks that end a loop, and the steps that those are made of which do not depend on its position."""
    found = limits(kernel, loop)
    needed = {x.mask for x in found if x.steady}
    cone: list[Load | Eqn] = []
    for e in reversed(kernel.body):
        if e.out in needed:
            needed |= {*e.values}
            cone.append(e)
    cone += [x for x in kernel.loads if x.out in needed]
    return tuple(tuple((y.mask, y.holds) for y in x.all) for x in found), tuple(reversed(cone))


class _Shared:
    """A kernel and what its program instances have in common.

    segments: of the placement, with what ends the loops, and what has to be known in front of them for that. steps:
        what each depends on, by its result.
    pointwise: axes of the grid along which every value is computed element by element: no operator mixes positions
        along them, no loop ends by a mask that depends on them, and nothing is read that other instances may write.
        Computed over the whole of such an axis at once, each element is what it is in the tile of its own instance.
    """

    def __init__(
        self, kernel: Kernel, placement: Placement, sizes: Mapping[str, int], held: Callable[[str], Hashable]
    ) -> None:
        self.kernel = kernel
        ends = [_ends(kernel, x) if isinstance(x, Loop) else NO_ENDS for x in placement.segments]
        self.segments = [(x, *its) for x, its in zip(placement.segments, ends, strict=True)]
        self.steps = {x.out: _Step.of(x, sizes, held) for x in (*kernel.loads, *kernel.body)}
        self.pointwise = self._pointwise()

    def _pointwise(self) -> frozenset[str]:
        if {*self.kernel.read} & {s.buffer for s in self.kernel.stores}:
            return frozenset()
        mixed = {d for e in self.kernel.body if e.op != "index" for d in e.acts_on}
        masks = {mask for _, ends, _ in self.segments for some in ends for mask, _ in some}
        mixed |= {d for mask in masks for d in self.kernel.value_dims[mask]}
        return frozenset(self.kernel.with_role("grid")) - mixed


class _Instances:
    """Program instances of a kernel that differ along pointwise axes alone, of all draws: they compute at once, and
    each stores its own tile.

    window: where the tiles and the chunk lie that they have in common. worked: whether they had anything to do in their
    loops, in each draw where these differ. tiles: of each store, as `tiles_of`.
    """

    def __init__(self, run: _Run, shared: _Shared, schedule: KernelSchedule, instances: Sequence[Instance]) -> None:
        self.shared, self.kernel, self.schedule, self.instances = shared, shared.kernel, schedule, instances
        self.memories, self.semantics, self.front = run.memories, run.semantics, run.front
        self.left, self.live = run.left, run.live
        self.window = {d: at for d, at in instances[0][0].items() if d not in shared.pointwise}
        self.worked = np.array(False)
        self.tiles: dict[Store, list[Window]] = {}

    def run(self) -> None:
        env: dict[str, Any] = {}
        for segment, ends, first in self.shared.segments:
            if isinstance(segment, Loop):
                known = dict(env)
                self.straight(tuple(x for x in first if x.out not in env), (), known, self.window)
                env |= self.loop(segment, ends, known)
            else:
                self.straight(segment.steps, segment.stores, env, self.window)

    def straight(
        self, steps: tuple[Load | Eqn, ...], stores: tuple[Store, ...], env: dict[str, Any], window: Window
    ) -> None:
        for step in steps:
            env[step.out] = self.step(step, env, window)
        for s in stores:
            self.store(s, env, window)

    def step(self, step: Load | Eqn, env: Mapping[str, Any], window: Window) -> Any:
        x = self.shared.steps[step.out]
        if x.said is None:
            return self.computed(step, env, window)
        key, operands = (x.said, *map(window.get, x.axes)), tuple(env[v] for v in x.operands)
        return self.once(key, operands, lambda: self.computed(step, env, window))

    def once(self, key: tuple[Hashable, ...], operands: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """A value that depends on this, on operands, and on what the operators mean, computed once."""
        known = (self.semantics, *operands)
        return REMEMBERED.value((*key, *map(id, known)), known, compute)

    def apply(self, op: str, *args: Any) -> Any:
        return self.once((op,), args, lambda: self.semantics.apply(op, args))

    def computed(self, step: Load | Eqn, env: Mapping[str, Any], window: Window) -> Any:
        if isinstance(step, Load):
            memory = self.memories[step.buffer]
            ranges = {d: self.range(d, window) for d in step.dims}
            if step.buffer in self.live:
                return self.partial(step, memory, ranges)
            at = self.front.places(step.access, step.dims, ranges, memory, self.tables(step.buffers[1:]))
            return memory.read(at, (*self.front.dims, *step.dims))
        self.semantics.window, self.semantics.tables = window, self.tables(x.table for x in step.looks_up)
        return applied(step, env, self.semantics)

    def partial(self, x: Load, memory: Memory, ranges: Window) -> Any:
        """A partial result, where it was not stored the identity of its reduction."""
        where = self.live[x.buffer]
        tables = self.tables(a.table for a in lookups_of(where))
        dims = (*self.front.dims, *x.dims)
        shape = (*self.front.shape, *(high - low for low, high in (ranges[d] for d in x.dims)))
        stored = np.ones(shape, dtype=bool)
        for i in where:
            stored &= i.positions(dims, ranges | self.front.ranges, tables) >= 0
        left = self.left[x.buffer]
        identity = self.semantics.full(number(left.identity(whole=False)), dims, shape, left.reduction.type)
        if not memory.written.any():
            return identity
        found = memory.read(self.front.places(x.access, x.dims, ranges, memory, {}), dims)
        return self.semantics.apply("where", (self.semantics.mask(dims, stored), found, identity))

    def tables(self, names: Iterable[str]) -> Tables:
        return self.front.tables(self.memories, names)

    def range(self, dim: str, window: Window) -> tuple[int, int]:
        return window[dim] if dim in window else (0, self.semantics.sizes[dim])

    def store(self, s: Store, env: Mapping[str, Any], window: Window) -> None:
        """Write the tile of each instance."""
        if s.buffer in self.left and not self.worked.any():
            return
        if s not in self.tiles:
            self.tiles[s] = self.tiles_of(s)
        tables, may_miss = self.tables(tables_of(s.access)), bool(may_name_nothing(s.access))
        for tile in self.tiles[s]:
            at = self.places(s, window | tile, tables)
            self.write(s, at, self.semantics.tile(env[s.value], tile), may_miss)

    def tiles_of(self, s: Store) -> list[Window]:
        """Where the tiles of the instances lie. Those that differ only in what the store does not depend on leave it to
        the first of them. Tiles side by side are one, where no element is in two."""
        split = self.kernel.split
        written = {*s.dims, *((split,) if split and self.kernel.chunk in s.dims else ())}
        found = [
            {d: at for d, at in own.items() if d in self.shared.pointwise}
            for own, index in self.instances
            if all(i == 0 or d in written for d, i in index.items())
        ]
        if not found or any(i.axis is None for i in s.access):
            return found
        cuts = {d: sorted({tile[d] for tile in found}) for d in found[0]}
        side_by_side = all(a[1] == b[0] for ranges in cuts.values() for a, b in pairwise(ranges))
        whole = side_by_side and len(found) == prod(map(len, cuts.values()))
        return [{d: (ranges[0][0], ranges[-1][1]) for d, ranges in cuts.items()}] if whole else found

    def write(self, s: Store, at: At, tile: Any, padded: bool) -> None:
        """padded: whether tables may name no place for some."""
        if s.buffer in self.left and not self.worked.all():
            at, padded = where_worked(at, self.worked), True
        self.memories[s.buffer].write(at, (*self.front.dims, *s.dims), tile, padded)

    def places(self, s: Store, window: Window, tables: Tables) -> At:
        """Where the tile of a store lies."""
        ranges = {d: self.range(d, window) for d in s.dims}
        return self.front.places(s.access, s.dims, ranges, self.memories[s.buffer], tables)

    def loop(self, loop: Loop, ends: Ends, env: Mapping[str, Any]) -> dict[str, Any]:
        """Its accumulators."""
        degrees = {name: dict(d) for name, d in loop.accumulators}
        whole = self.extrema(loop, env)
        accumulators = {s.out: self.identity(s) for s in loop.steps if isinstance(s, Eqn) and s.out in degrees}
        cuts = [tiles(*self.range(d, self.window), self.schedule.tile(d)) for d in loop.dims]
        for ranges in product(*cuts):
            window = self.window | dict(zip(loop.dims, ranges, strict=True))
            inner, before = dict(env), dict(accumulators)
            moved: dict[str, tuple[Any, Any]] = {}
            for step in loop.steps:
                value = self.step(step, inner, window)
                if not isinstance(step, Eqn) or step.out not in accumulators:
                    inner[step.out] = value
                    continue
                old = accumulators[step.out]
                for m, g in degrees[step.out].items():
                    old = self.rescaled(old, moved[m], g)
                new = self.joined(step.op, old, value)
                accumulators[step.out] = new
                if step.out in loop.running:
                    moved[step.out] = (old, new)
                    inner[step.out] = new
                if step.out in whole:
                    inner[step.out] = whole[step.out]
            works = self.works(inner, ends)
            self.worked = self.worked | works
            if not works.all():  # kernels leave this tile out
                accumulators = {name: self.either(works, x, before[name]) for name, x in accumulators.items()}
            for s in loop.stores:
                self.store(s, inner, window)
        return accumulators

    def extrema(self, loop: Loop, env: Mapping[str, Any]) -> dict[str, Any]:
        """The extrema that choose what a loop accumulates, of all its tiles. Of what was chosen before one moves
        nothing is left, as if it were known from the start."""
        names = {x.extremum for x in loop.anew}
        needed = {*names}
        for step in reversed(loop.steps):
            needed |= {*step.values} if step.out in needed and isinstance(step, Eqn) else set()
        steps = [step for step in loop.steps if step.out in needed] if names else []
        found: dict[str, Any] = {}
        cuts = [tiles(*self.range(d, self.window), self.schedule.tile(d)) for d in loop.dims]
        for ranges in product(*cuts) if steps else ():
            inner = dict(env)
            for step in steps:
                inner[step.out] = self.step(step, inner, self.window | dict(zip(loop.dims, ranges, strict=True)))
                if step.out in names and isinstance(step, Eqn):
                    old = found.get(step.out, self.identity(step))
                    found[step.out] = self.joined(step.op, old, inner[step.out])
        return found

    def joined(self, op: str, old: Any, value: Any) -> Any:
        return self.once(("join", op), (old, value), lambda: self.semantics.join(op, old, value))

    def works(self, env: Mapping[str, Any], ends: Ends) -> NDArray[np.bool_]:
        """Whether each of the ends of a loop leaves work somewhere in this tile, in each draw where they differ."""
        works = np.array(True)
        for masks in ends:
            one = np.array(False)
            for mask, holds in masks:
                dims, data = env[mask].dims, env[mask].data == holds
                one = one | data.any(axis=tuple(i for i, d in enumerate(dims) if d not in self.front.dims))
            works = works & one
        return works

    def either(self, works: NDArray[np.bool_], x: Any, before: Any) -> Any:
        """An accumulator after a tile, or as it was before."""
        if works.ndim == 0:
            return x if works else before
        said = "mask", *self.front.dims, works.shape, works.tobytes()
        mask = self.once(said, (), lambda: self.semantics.mask(self.front.dims, works))
        return self.apply("where", mask, x, before)

    def rescaled(self, x: Any, moved: tuple[Any, Any], g: int) -> Any:
        """An accumulator of degree g in exp(-m), after m has moved."""
        old, new = moved if g > 0 else moved[::-1]
        factor = self.apply("exp_sub", old, new)
        for _ in range(abs(g)):
            x = self.apply("mul", x, factor)
        return x

    def identity(self, e: Eqn) -> Any:
        shape = (*self.front.shape, *(high - low for low, high in (self.range(d, self.window) for d in e.dims)))
        neutral, dims = number(OPS[e.op].neutral(whole=False)), (*self.front.dims, *e.dims)
        said = "full", repr(neutral), dims, shape, e.type
        return self.once(said, (), lambda: self.semantics.full(neutral, dims, shape, e.type))


def number(c: float) -> Fraction | float:
    """What an accumulator starts with."""
    return Fraction(c) if isfinite(c) else c
