"""From kernels in order to the μGraph: buffers, stores of outputs, and the order of axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_cli.algebra.canonical import Form
from mirage_cli.ir.mugraph import Kernel, MuGraph, Store
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.program import DTYPE_BYTES, FLOAT8, Tensor, tensor_type
from mirage_cli.ir.schedule import KernelSchedule, Schedule, next_power_of_two
from mirage_cli.ir.text import mugraph_id
from mirage_cli.search import greedy
from mirage_cli.search.cost.work import chunk_sizes, model
from mirage_cli.search.expand import axes_of, fresh_name, stored_axes
from mirage_cli.search.roles import Costed
from mirage_cli.search.storage import Storage
from mirage_cli.search.tiles import best_schedule
from mirage_cli.search.twice import summed_twice
from mirage_cli.target.gpus import Target

REPEATED = 64
"""The most elements of a block along an axis that only an output has, along which it repeats itself."""


@dataclass(frozen=True, slots=True)
class ScheduledGraph:
    """A μGraph with the schedule that the cost model would choose and its predicted time."""

    graph: MuGraph
    schedule: Schedule
    predicted_us: float
    shape: tuple[object, ...] = ()

    @property
    def id(self) -> str:
        return mugraph_id(self.graph)


def concatenated(
    first: ScheduledGraph, last: ScheduledGraph, whole: MuGraph, between: Iterable[Tensor], gap_us: float
) -> ScheduledGraph:
    """The kernels of the first candidate, then those of the last. whole: a μGraph with the inputs and outputs of both.
    between: the tensors that the first writes and the last reads."""
    names = {k.name: f"k{len(first.graph.kernels) + i}" for i, k in enumerate(last.graph.kernels)}
    graph = replace(
        whole,
        buffers=(*first.graph.buffers, *between, *last.graph.buffers),
        kernels=(*first.graph.kernels, *(replace(k, name=names[k.name]) for k in last.graph.kernels)),
    ).with_aligned_rows()
    schedules = dict(first.schedule.kernels) | {names[name]: s for name, s in last.schedule.kernels.items()}
    us = first.predicted_us + gap_us + last.predicted_us
    return ScheduledGraph(graph, Schedule(schedules), us, (*first.shape, *last.shape))


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a μGraph. names: by the names that steps use: `@form` for the result of a class, which all steps
    share, and a key of `scratch_key` for a step's own scratch. taken: all names."""

    taken: set[str]
    names: dict[str, str]
    tensors: list[Tensor]

    def add(self, key: str, wanted: str, dims: tuple[str, ...], dtype: str) -> None:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        self.names[key] = name
        self.tensors.append(Tensor(name, dims, dtype))

    def name_of(self, buffer: str, n: int) -> str:
        """The μGraph's name of a buffer that step n names: an input keeps its name."""
        return self.names.get(scratch_key(buffer, n)) or self.names.get(buffer, buffer)


def scratch_key(buffer: str, n: int) -> str:
    """Two steps may name their scratch alike: step n's is another buffer."""
    return f"{buffer}#{n}"


def with_kernels_of(c: ScheduledGraph, graph: MuGraph, target: Target, what: str) -> ScheduledGraph | None:
    """A plan with this μGraph, in which some kernels are gone, and others are not those that have their names in the
    plan: these get the best tiles with as many chunks as before. None where one does not fit. what: changes the shape.
    """
    us, schedules, sizes = c.predicted_us, dict(c.schedule.kernels), chunk_sizes(c.graph, c.schedule)
    kernels = {k.name: k for k in graph.kernels}
    try:
        for old in (k for k in c.graph.kernels if kernels.get(k.name) != k):
            new, s = kernels.get(old.name), schedules[old.name]
            old_us, _ = _best_with(c.graph, old, sizes, target, s)
            if new is None:
                us -= target.costs.gap_us
                us -= old_us
                del schedules[old.name]
            else:
                new_us, schedules[old.name] = _best_with(graph, new, sizes, target, s)
                us += new_us - old_us
    except InexpressibleError:
        return None
    return ScheduledGraph(graph, Schedule(schedules), us, (*c.shape, what))


def _best_with(
    g: MuGraph, k: Kernel, sizes: Mapping[str, int], target: Target, s: KernelSchedule
) -> tuple[float, KernelSchedule]:
    """The least predicted time of a kernel of a μGraph with as many chunks as `s` has. Raises InexpressibleError."""
    dynamic = frozenset(r.dim for r in g.dynamic)
    work = model(k, g.element_bytes, g.exact()[k.name], g.inputs, g.outputs, dynamic)
    found = best_schedule(work, sizes, target, s.split if k.split else None)
    if found is None:
        raise InexpressibleError("blocks too large")
    return found


def with_own_chunks(steps: Iterable[Costed], taken: Collection[str]) -> tuple[Costed, ...]:
    """The steps, each with axes of chunks of its own: those that split the same axis may cut it in other numbers.
    taken: names that no axis of chunks may have."""
    used, found = {*taken}, list[Costed]()
    for step in steps:
        names: dict[str, str] = {}
        for chunk in (k.chunk for k in step.implementation.kernels if k.split):
            names[chunk] = fresh_name(chunk, used)
        used |= {*names.values()}
        found.append(_renamed(step, names) if any(old != new for old, new in names.items()) else step)
    return (*found,)


def _renamed(step: Costed, names: Mapping[str, str]) -> Costed:
    """The step with other names for axes of chunks."""
    x = step.implementation
    scratch = tuple(replace(t, dims=tuple(names.get(d, d) for d in t.dims)) for t in x.scratch)
    kernels = tuple(k.renamed(names) for k in x.kernels)
    schedules = tuple(s and replace(s, order=tuple(names.get(d, d) for d in s.order)) for s in step.schedules)
    return replace(step, implementation=replace(x, kernels=kernels, scratch=scratch), schedules=schedules)


def stores_floats_as_integers(graph: MuGraph) -> bool:
    """Whether a kernel computes by an operator of floats what its buffer holds as integers: a sum of products of
    integers as a product, which rounds beyond 2^24."""
    whole = {t.name for t in (*graph.outputs, *graph.buffers) if tensor_type(t) == "int"}
    return any(
        e.type == "float"
        for k in graph.kernels
        for s in k.stores
        if s.buffer in whole
        for e in k.body
        if e.out == s.value
    )


class Assembly:
    """Puts μGraphs of a decomposition's program together."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.d, self.sizes = storage, storage.d, storage.sizes
        self.gap_us = storage.target.costs.gap_us

    def in_order(self, kernels: greedy.Kernels) -> ScheduledGraph:
        """The μGraph of a greedy plan."""
        made = self.assemble(tuple(kernels.values()))
        assert made is not None, "kernels are in order"
        return made

    def exact_candidate(self, steps: tuple[Costed, ...]) -> ScheduledGraph | None:
        """The μGraph of these steps, unless it would be less exact than the program."""
        made = self.assemble(steps)
        if made is None or stores_floats_as_integers(made.graph):
            return None
        return None if summed_twice(made.graph, {e.out for e in self.d.program.eqns}) else made

    def assemble(self, steps: tuple[Costed, ...]) -> ScheduledGraph | None:
        """The μGraph of these steps in order. None where a step reads what only a later one writes, or an output
        repeats itself along an axis that its kernel walks."""
        program = self.d.program
        steps = with_own_chunks(steps, {*self.sizes, *program.values()})
        buffers = self.buffers(steps)
        scheduled = self.kernels(steps, buffers)
        kernels = tuple(k for k, _ in scheduled)
        if not self.reads_what_is_written(kernels) or any(self.walks_repeated(k) for k in kernels):
            return None
        graph = MuGraph(
            name=program.name,
            dims=(*program.dims, *((a, self.sizes[a]) for a in self.d.algebra.aliases)),
            dtype=program.dtype,
            inputs=program.inputs,
            outputs=program.results,
            buffers=tuple(buffers.tensors),
            kernels=kernels,
            merged=program.merged,
            dynamic=program.dynamic,
        ).with_aligned_rows()
        schedule = Schedule({k.name: s for k, s in scheduled if s is not None})
        us = sum(step.us + (self.gap_us if n else 0.0) for n, step in enumerate(steps))
        return ScheduledGraph(graph, schedule, us, tuple(s.implementation.shape for s in steps))

    def kernels(self, steps: Sequence[Costed], buffers: Buffers) -> list[tuple[Kernel, KernelSchedule | None]]:
        """The kernels of all steps in order, each with its schedule; a library call has none."""
        planned = [
            (n, *x) for n, s in enumerate(steps) for x in zip(s.implementation.kernels, s.schedules, strict=True)
        ]
        found: list[tuple[Kernel, KernelSchedule | None]] = []
        for i, (n, kernel, schedule) in enumerate(planned):
            kernel = self.with_buffers(kernel, f"k{i}", buffers, n)
            found.append((kernel, None) if schedule is None else self.broadcasting(kernel, schedule))
        return found

    def reads_what_is_written(self, kernels: Iterable[Kernel]) -> bool:
        """Whether every kernel reads only inputs and what kernels in front of it write."""
        there = {t.name for t in self.d.program.inputs}
        for k in kernels:
            if any(x.buffer not in there for x in k.loads):
                return False
            there |= {s.buffer for s in k.stores}
        return True

    def buffers(self, steps: Sequence[Costed]) -> Buffers:
        """The buffers of these steps. A class that is an output is read from that output by later kernels, if it holds
        the class exactly; any other class that is read has a buffer, and so has the scratch of each step."""
        d, program = self.d, self.d.program
        found = Buffers({t.name for t in (*program.inputs, *program.results)}, {}, [])
        for (t, whole, _), f in zip(program.places(), d.outputs, strict=True):
            if t is whole and t.dims == stored_axes(d, f) and self.holds(t, f):  # later kernels read it from there
                found.names.setdefault("@" + f.key, t.name)
        read = {f for s in steps for f in s.implementation.leaves if not d.is_input(f)}
        for n, step in enumerate(steps):
            for f in step.implementation.targets:
                if "@" + f.key not in found.names and (f in read or f not in d.outputs):
                    found.add("@" + f.key, d.names.get(f, "t"), axes_of(d, f), self.storage.dtype_of(f))
            for t in step.implementation.scratch:
                found.add(scratch_key(t.name, n), t.name.strip("@"), t.dims, t.dtype)
        return found

    def holds(self, t: Tensor, f: Form) -> bool:
        """Whether an output has a class as the program's own equations read it."""
        whole = self.storage.types[f] == "int"
        if whole and tensor_type(t) != "int":
            return False
        if whole or f in self.storage.precise:
            return DTYPE_BYTES[t.dtype] >= DTYPE_BYTES["float32"]
        rounded = self.d.rounded.get(f)
        return t.dtype in (rounded, "float32") if rounded else t.dtype not in FLOAT8

    def with_buffers(self, kernel: Kernel, name: str, buffers: Buffers, n: int) -> Kernel:
        """A kernel of step n with the μGraph's names of buffers. A class that is an output is stored in all outputs
        that are this class, and in its buffer."""
        outputs = {t.name for t in self.d.program.results}
        loads = tuple(replace(x, buffer=buffers.name_of(x.buffer, n)) for x in kernel.loads)
        stores: list[Store] = []
        for s in kernel.stores:
            stores += self.output_stores(s)
            buffer = buffers.name_of(s.buffer, n)
            if buffer not in outputs | {s.buffer}:
                stores.append(replace(s, buffer=buffer))
        return replace(kernel, name=name, loads=loads, stores=tuple(stores))

    def output_stores(self, s: Store) -> list[Store]:
        """The stores of a class into the outputs that are this class, each at the output's part."""
        outputs = zip(self.d.program.places(), self.d.outputs, strict=True)
        return [Store(t.name, s.value, access) for (_, t, access), f in outputs if "@" + f.key == s.buffer]

    @staticmethod
    def walks_repeated(kernel: Kernel) -> bool:
        """Whether a kernel walks an axis that a store has and its value lacks: the output repeats itself along it."""
        walked = {*kernel.with_role("loop", "split")}
        return any(walked & {*s.dims} - {*kernel.value_dims[s.value], kernel.chunk} for s in kernel.stores)

    def broadcasting(self, kernel: Kernel, schedule: KernelSchedule) -> tuple[Kernel, KernelSchedule]:
        """The kernel with grid axes for those that only a store has: along them the output repeats itself."""
        have = {*(a for a, _ in kernel.roles), kernel.chunk}
        for a in dict.fromkeys(a for s in kernel.stores for a in s.dims if a not in have):
            tile = min(REPEATED, next_power_of_two(self.sizes[a]))
            kernel = replace(kernel, roles=(*kernel.roles, (a, "grid")))
            schedule = replace(schedule, tiles=(*schedule.tiles, (a, tile)), order=(*schedule.order, a))
        return kernel, schedule
