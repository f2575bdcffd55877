"""The plan of one generated kernel of a μGraph. Any kernel: nothing here knows what the program is for.

All decisions are made here and in the modules that this one calls: `blocks` (what is padded, of which type),
`expressions` (equations), `loops` (bounds), `iterations` (accumulators), `moves` (memory), `handover` (kernels in front
and behind).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import ceil, prod

from mirage_cli.codegen import bytepairs, nodes, plan, scalars, words
from mirage_cli.codegen.access import (
    Around,
    Descriptor,
    Fetch,
    around,
    awaited,
    descriptors,
    fetched_ahead,
    leading,
    merged_box,
    multiplies,
    specialized,
    streamed,
)
from mirage_cli.codegen.ahead import few_bytes, taken_ahead
from mirage_cli.codegen.axisnames import Axes
from mirage_cli.codegen.blocks import MAX_ELEMENTS, EmitError, Live, ScheduledKernel
from mirage_cli.codegen.early import MOST_BYTES, held_bytes, placed_early
from mirage_cli.codegen.expressions import NOWHERE, Scope, computed, matrix_product, merged_operands
from mirage_cli.codegen.handover import HandOver, Unit, hand_over, units
from mirage_cli.codegen.iterations import combined, completed, deferred, initialised, wide_products_last
from mirage_cli.codegen.loops import (
    LoopRange,
    in_turn,
    loop_starts,
    positions,
    ranges,
    stages,
    starts,
    together,
    uneven,
)
from mirage_cli.codegen.moves import load, look_up, prefetches, store
from mirage_cli.codegen.picked import picked
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.codegen.scalars import Start
from mirage_cli.codegen.turns import loads_in_turns, stores_in_turns
from mirage_cli.ir.access import Lookup, dims_of, lookups_of
from mirage_cli.ir.beside import beside
from mirage_cli.ir.forms import at_schedule
from mirage_cli.ir.inplace import overwrites
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.phases import phased
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.reach import Left, Limit, left_out, limits, needed, settled
from mirage_cli.ir.scans import scanned, whole_alike
from mirage_cli.ir.schedule import REGISTER_BYTES, Early, KernelSchedule, Lead, Schedule
from mirage_cli.ir.tables import with_entries
from mirage_cli.ir.unrolled import in_blocks

MAX_PROGRAMS = (1 << 31) - 1
"""Program instances of one launch, whose chunks are not counted here (CUDA C++ programming guide, compute
capabilities)."""

SECTION_BYTES = 24 << 20
"""Half of an H200's L2, of which each half caches what the multiprocessors beside it read."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """What is decided before any statement is written, and what is known of the statements that are written so far.

    phases: the kernel in each phase of its loops. The first is `scheduled`, which all else is planned in.
    units: the loops and the straight code, in order. over: before which units the kernel waits and releases. awaited:
    buffers that are read after the wait alone; None where the kernel does not wait. ahead: loads that are prefetched
    before the wait. boxes: by value, loads through descriptors. streamed: values whose loads nobody repeats. narrowed:
    values that are rounded to the type in which they are stored, with the type. leading: the loop in whose last
    iterations the kernel behind may start. empty_chunks: whether a chunk without work stores nothing.
    clean: for each value so far the padded axes along which it is zero past their end. looked_up: look-ups so far.
    """

    scheduled: ScheduledKernel
    phases: tuple[ScheduledKernel, ...]
    units: tuple[Unit, ...]
    over: HandOver
    awaited: frozenset[str] | None
    ahead: Mapping[Loop | None, Sequence[Fetch]]
    boxes: Mapping[str, Descriptor]
    streamed: frozenset[str]
    limits: Mapping[Loop, tuple[Limit, ...]]
    specialized: bool
    narrowed: Mapping[str, str]
    leading: Loop | None
    empty_chunks: bool
    clean: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    looked_up: set[Lookup] = field(default_factory=set["Lookup"])


def plan_kernel(graph: MuGraph, kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> KernelPlan:
    """The kernel at this schedule. `sizes` holds every axis, those of chunks included. Raises EmitError."""
    return plan_one(graph, kernel, schedule.kernels[kernel.name], around(graph, kernel, schedule, sizes), sizes)


def plan_one(
    graph: MuGraph, kernel: Kernel, own: KernelSchedule, others: Around, sizes: Mapping[str, int]
) -> KernelPlan:
    """The kernel at its own schedule, whatever those of the others are besides this. Raises EmitError."""
    made = at_schedule(graph, kernel, own, sizes)
    if made is not None:
        graph, kernel, own, sizes = made.graph(graph), made.kernel, made.schedule(own), made.sizes(sizes)
    own = in_blocks(own) if own.unroll else own
    k = ScheduledKernel(graph, kernel, own, sizes)
    parts = beside(kernel, {d for d in kernel.with_role("grid") if k.tiled(d)})
    plans = [_plan(graph, part, own, others, sizes) for part in parts]
    if len(plans) == 1:
        return plans[0]
    return _side_by_side(plans) if _alike(plans) else _plan(graph, kernel, own, others, sizes)


def _alike(plans: Sequence[KernelPlan]) -> bool:
    """Whether parts have the same blocks of each axis and the same boxes, and numbers of tiles from the same sizes."""
    dims = {d.name: d for p in plans for d in p.dims}
    boxes = {name: box for p in plans for name, box in p.descriptors}
    same_boxes = all(boxes[n] == b for p in plans for n, b in p.descriptors)
    return same_boxes and all(dims[d.name] == d for p in plans for d in p.dims) and len({p.tiles for p in plans}) == 1


def _side_by_side(plans: Sequence[KernelPlan]) -> KernelPlan:
    """One launch with the instances of these one behind another. They are parts of one kernel."""
    dims = {d.name: d for p in plans for d in p.dims}
    boxes = {name: box for p in plans for name, box in p.descriptors}
    bodies: list[tuple[Statement, ...]] = []
    first = 0
    for p in plans:
        bodies.append(tuple(replace(s, first=first) if isinstance(s, plan.Instances) else s for s in p.statements))
        first += p.programs
    if first > MAX_PROGRAMS:
        raise EmitError("too many program instances")
    return replace(
        plans[0],
        dims=tuple(dims.values()),
        sizes=tuple(dict.fromkeys(d for p in plans for d in p.sizes)),
        values=tuple(dict.fromkeys(v for p in plans for v in p.values)),
        args=tuple(dict.fromkeys(b for p in plans for b in p.args)),
        descriptors=tuple(boxes.items()),
        awaited=frozenset[str]().union(*(p.awaited for p in plans)),
        programs=first,
        statements=(plan.Beside(tuple(p.programs for p in plans), tuple(bodies)),),
    )


def _plan(graph: MuGraph, kernel: Kernel, own: KernelSchedule, others: Around, sizes: Mapping[str, int]) -> KernelPlan:
    """Of a kernel whose parts share their program instances."""
    c = _decided(graph, kernel, own, others, sizes)
    k = c.scheduled
    instances = _instances(k, c.limits)
    body = (instances, *_fixed_positions(k), *[plan.Release()] * c.over.at_once, *_body(c))
    besides = [*(x.part for x in k.factored.values()), *k.before.values()]
    fetched = {x.load.buffer for found in c.ahead.values() for x in found}
    loaded = {x.buffer for phase in c.phases for x in phase.kernel.loads if x.out not in c.boxes}
    pointed = loaded | fetched | {x.table for x in k.looked_up} | {s.buffer for s in k.kernel.stores}
    return KernelPlan(
        name=kernel.name,
        dims=tuple(plan.Dimension(d, k.sizes[d], n, d in k.padded, d in k.dynamic) for d, n in k.block.items()),
        sizes=k.size_arguments,
        values=tuple(dict.fromkeys((*(v for x in c.phases for v in x.dims), *besides, *k.looked_up.values()))),
        args=tuple(b for b in k.buffers if b in pointed),
        descriptors=tuple(c.boxes.items()),
        awaited=c.awaited or frozenset(),
        programs=instances.programs,
        compiled=k.schedule.compiled,
        waits=k.schedule.overlap,
        fuses=not k.float32_accurate,  # a * b - a * b is 0, and not what a * b is rounded by
        statements=body,
    )


def _decided(graph: MuGraph, kernel: Kernel, own: KernelSchedule, others: Around, sizes: Mapping[str, int]) -> _Decided:
    """Raises EmitError."""
    kernel = scanned(kernel) if whole_alike(kernel, sizes) else kernel
    dynamic = {r.dim for r in graph.dynamic}
    kernel = with_entries(kernel, graph.tensors(), {d: n for d, n in sizes.items() if d not in dynamic})
    left = left_out(graph)
    live = _live(left, kernel, dict(others.lengths), sizes)
    phases = [(graph, kernel)]
    if not specialized(graph, kernel, own, sizes):
        found = phased(graph, kernel, own, sizes)
        phases, own, sizes = found.phases, found.schedule, found.sizes
    in_phases = tuple(ScheduledKernel(g, k, own, sizes, live) for g, k in phases)
    graph, kernel, scheduled = *phases[0], in_phases[0]
    if any(scheduled.elements(scheduled.axes(dims)) > MAX_ELEMENTS for dims in scheduled.dims.values()):
        raise EmitError("block too large")
    if scheduled.dynamic and scheduled.huge:
        raise EmitError("offsets beyond 32 bits")
    unread = awaited(graph, kernel, others.held) if own.overlap else None
    some = units(placed_early(scheduled, unread or ()), unread or ())
    first = graph.kernels[0].name == kernel.name
    over = hand_over(some, unread, first, others.relays, own.hand_over == Early(), others.releases)
    boxes = {v: box for g, k in phases for v, box in descriptors(g, k, own, sizes, narrow=True).items()}
    merged, boxes = _with_operands_merged(in_phases, boxes, sizes)
    boxed = {v: axes for found in merged for v, axes in found.items() if v in boxes}
    folded = frozenset(v for v, axes in boxed.items() if not {*axes} <= {*boxes[v].block})
    if any(merged):  # what is known of a kernel is lost where it is replaced
        in_phases = tuple(replace(x, merged=m, folded=folded) for x, m in zip(in_phases, merged, strict=True))
    paired = bytepairs.paired_loads(in_phases, boxes)
    if paired:
        in_phases = tuple(replace(x, paired=paired) for x in in_phases)
    if not specialized(graph, kernel, own, sizes):
        found_few = [words.of_few_bytes(x, boxes) for x in in_phases]
        in_all = {v: at for x in found_few for v, at in x.items() if all(y.get(v, at) == at for y in found_few)}
        worded = {**in_all, **bytepairs.worded_loads(in_phases, boxes)}
        in_phases = tuple(replace(x, worded=worded) for x in in_phases)
    scheduled = in_phases[0]
    return _Decided(
        scheduled=scheduled,
        phases=in_phases,
        units=some,
        over=over,
        awaited=unread,
        ahead=fetched_ahead(graph, kernel, own, sizes),
        boxes=boxes,
        streamed=frozenset[str]().union(*(streamed(g, k, own, sizes) for g, k in phases)),
        limits={x: tuple(_known_in_front(some, x, limits(kernel, x))) for x in scheduled.placement.loops},
        specialized=specialized(graph, kernel, own, sizes),
        narrowed=_narrowed(scheduled),
        leading=leading(graph, kernel, own, sizes) if others.releases and not over.at_once else None,
        empty_chunks=any(x.kernel == kernel.name for x in left.values()),
    )


def _with_operands_merged(
    phases: Sequence[ScheduledKernel], boxes: Mapping[str, Descriptor], sizes: Mapping[str, int]
) -> tuple[list[dict[str, nodes.Axes]], dict[str, Descriptor]]:
    """The axes of what is loaded for products alone, in each phase, and all boxes with these. Boxes that are too narrow
    otherwise are none where their axes are not merged."""
    merged = merged_operands(phases, boxes)
    axes = {v: axes for found in merged for v, axes in found.items() if v in boxes}
    made = {v: merged_box(d, axes[v], sizes) if v in axes else d for v, d in boxes.items()}
    if any(d.narrow for d in made.values()):
        return _with_operands_merged(phases, {v: boxes[v] for v, d in made.items() if not d.narrow}, sizes)
    return merged, made


def _body(c: _Decided) -> list[Statement]:
    """The units in order, with the wait and the release in front of those that `over` names. Look-ups come as early as
    they may, but no other load waits for them."""
    k, wait = c.scheduled, c.over.wait
    walked = {d for x in k.placement.loops for d in x.dims}
    body: list[Statement] = []
    for i in range(len(c.units) + 1):
        if i == wait:
            body += _looked_up(c, _looked_up_in_front(c, c.units[i:]), walked)
            body += [*prefetches(k, c.ahead, c.specialized), plan.Wait()]
        if i == c.over.release:
            body.append(plan.Release())
        if i == (wait or 0):  # behind the loops, what is loaded or stored there would wait for it
            body += _looked_up(c, _behind_loops(c), walked)
        if i in (0, wait) or isinstance(c.units[i - 1], Loop):
            body += _looked_up(c, _straight(c.units[i : wait if i < (wait or 0) else None]), ())
        for x in c.units[i : i + 1]:
            if isinstance(x, Loop):
                waited = c.awaited is None or (wait is not None and wait <= i)
                body += _loop(c, x, x == c.leading and waited, waited)
            elif isinstance(x, tuple):
                body += _stores(k, x, starts(k))
            else:
                body += _step(c, x, starts(k), Scope(k, c.clean))
    return loads_in_turns(c.phases, body, starts(k))


def _looked_up_in_front(c: _Decided, behind: Sequence[Unit]) -> list[Load | Eqn | Store]:
    """Of the units behind the wait the steps and stores whose tables are there before it, few bytes of a thread."""
    steps = (s for x in behind for s in ((*x.steps, *x.stores) if isinstance(x, Loop) else _steps_of(x)))
    tables = ((s, _lookups(c.scheduled, s)) for s in steps)
    return [s for s, found in tables if all(a.table not in (c.awaited or ()) for a in found) and _are_few(c, found)]


def _steps_of(x: Unit) -> Sequence[Load | Eqn | Store]:
    return x if isinstance(x, tuple) else [x] if isinstance(x, Load | Eqn) else ()


def _are_few(c: _Decided, found: Sequence[Lookup]) -> bool:
    """Whether a thread has room for what is looked up."""
    return all(held_bytes(c.scheduled, dims_of(a.access), REGISTER_BYTES) <= MOST_BYTES for a in found)


def _behind_loops(c: _Decided) -> list[Load | Eqn | Store]:
    """Stores, and the steps behind the first loop whose tables a thread has room for."""
    k = c.scheduled
    first = next((i for i, x in enumerate(c.units) if isinstance(x, Loop)), len(c.units))
    steps = (x for x in c.units[first:] if isinstance(x, Load | Eqn))
    return [*(x for x in steps if _are_few(c, _lookups(k, x))), *k.kernel.stores]


def _straight(some: Sequence[Unit]) -> list[Load | Eqn]:
    """The steps in front of the first loop."""
    before = takewhile(lambda x: not isinstance(x, Loop), some)
    return [x for x in before if isinstance(x, Load | Eqn)]


def _live(
    left: Mapping[str, Left], kernel: Kernel, lengths: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, Live]:
    """Where the partial results that a kernel reads were stored. lengths: of their chunks."""
    found: dict[str, Live] = {}
    for x in (x for x in kernel.loads if x.buffer in left):
        of = left[x.buffer]
        where = of.live(lengths[x.buffer], sizes[of.dim])
        found[x.buffer] = Live(where, of.identity(of.reduction.type == "int"))
    return found


def _instances(k: ScheduledKernel, found: Mapping[Loop, tuple[Limit, ...]]) -> plan.Instances:
    grid = tuple((d, ceil(k.sizes[d] / k.block[d])) for d in k.kernel.with_role("grid") if k.tiled(d))
    many = tuple((d, scalars.Tiles(d, k.block[d]) if d in k.dynamic else n) for d, n in grid)
    each = prod(n for _, n in many if isinstance(n, int))
    if each * prod(ceil(r.most / k.block[r.dim]) for r in k.graph.dynamic if r.dim in k.block) > MAX_PROGRAMS:
        raise EmitError("too many program instances")
    chunks = k.schedule.split if k.kernel.split else 1
    chunk = None if k.kernel.split is None else each if chunks > 1 else 0
    lengths = uneven(found)
    backwards = tuple(d for d, _ in many if lengths.get(d))
    near, far, group = _longest_first(k, grid, lengths.keys(), {d for loop in found for d in loop.dims})
    if near and group >= prod(n for d, n in grid if d in near) and not k.dynamic & {*near}:
        many, near = tuple(sorted(many, key=lambda x: x[0] in near)), ()
    elif not near and len(many) > 1 and k.schedule.group > 1:
        near, far, group = (many[0][0],), (many[1][0],), k.schedule.group
    return plan.Instances(chunks * each, chunk, many, near, far if near else (), group if near else 1, backwards)


def _longest_first(
    k: ScheduledKernel, grid: Sequence[tuple[str, int]], lengths: Collection[str], walked: Collection[str]
) -> tuple[Axes, Axes, int]:
    """The dimensions of the grid beside those along which loops differ in length, these, and how many tiles along the
    former are a section: within a section, instances with the longest loops come first. What the loops of a section
    load fits the L2 (`SECTION_BYTES`). All sections are of about one size: the longest loops of a small one at the end
    would run alone. lengths: dimensions along which loops differ. walked: those of loops."""
    far = tuple(d for d, _ in grid if d in lengths)
    near = tuple(d for d, _ in grid if d not in lengths)
    if not near or not far:
        return (), (), 1
    beside = prod(n for d, n in grid if d in near)
    loads = (x for x in k.kernel.loads if {*x.dims} & {*walked} and {*x.dims} & {*near})
    loaded = sum(prod(k.sizes[d] for d in x.dims) * k.graph.element_bytes[x.buffer] for x in loads)
    section = k.schedule.group if k.schedule.group > 1 else ceil(beside / max(1, ceil(loaded / SECTION_BYTES)))
    return near, far, section


def _fixed_positions(k: ScheduledKernel) -> list[Statement]:
    """The positions along the dimensions that no loop walks."""
    at = starts(k)
    return [positions(k, d, at[d]) for role in ("grid", "tile") for d in k.kernel.with_role(role)]


def _known_in_front(some: Sequence[Unit], loop: Loop, found: Sequence[Limit]) -> Iterator[Limit]:
    """The limits of a loop but for those by what is loaded behind it."""
    loaded = {x.out for x in some[: some.index(loop)] if isinstance(x, Load)}
    for x in found:
        if not x.steady or all(name in loaded for kind, name in x.leaves if kind == "value"):
            yield x


def _narrowed(k: ScheduledKernel) -> dict[str, str]:
    """Values that are stored in a narrower type for later kernels to read, with that type.

    This kernel goes on with the rounded value, as PyTorch does. Otherwise two kernels would disagree about a value: one
    would subtract a maximum of unrounded values from the other's rounded ones, say.
    """
    names = [x.name for x in k.graph.kernels]
    later = k.graph.kernels[names.index(k.kernel.name) + 1 :]
    read = {load.buffer for x in later for load in x.loads}
    stored = {s.value: k.tensors[s.buffer].dtype for s in k.kernel.stores if s.buffer in read}
    used = {v for e in k.kernel.body for v in e.values}
    return {
        v: dtype
        for v, dtype in stored.items()
        if v in used and k.type_of(v) == "float32" and dtype in ("float16", "bfloat16")
    }


def _step(c: _Decided, x: Load | Eqn, at: Mapping[str, Start], scope: Scope) -> list[Statement]:
    """A load or an equation. at: where blocks start."""
    k = c.scheduled
    looked_up = _looked_up(c, [x], ())
    if isinstance(x, Load):
        zero = x.buffer not in k.live or not k.live[x.buffer].identity
        c.clean[x.out] = k.padded & set(k.axes(x.dims)) if zero else NOWHERE
        return [*looked_up, load(k, x, c.boxes.get(x.out), x.out in c.streamed, at)]
    found = computed(scope, x)
    c.clean[x.out] = found.clean
    return [*looked_up, plan.Let(x.out, found.expr), *_rounded(c, x.out)]


def _looked_up(c: _Decided, steps: Sequence[Load | Eqn | Store], moving: Collection[str]) -> list[Statement]:
    """The look-ups of these steps that are not written yet, but for those at positions along axes that move."""
    needed = dict.fromkeys(a for x in steps for a in _lookups(c.scheduled, x))
    new = [a for a in needed if a not in c.looked_up]
    found = [a for a in new if not set(dims_of(a.access)) & set(moving)]
    c.looked_up.update(found)
    return [look_up(c.scheduled, a) for a in found]


def _lookups(k: ScheduledKernel, x: Load | Eqn | Store) -> tuple[Lookup, ...]:
    """The look-ups of a step; of a load of partial results also those that say which chunks stored any."""
    if isinstance(x, Eqn):
        return x.looks_up
    return lookups_of((*x.access, *(k.live[x.buffer].where if isinstance(x, Load) and x.buffer in k.live else ())))


def _rounded(c: _Decided, value: str) -> list[Statement]:
    return [plan.Round(value, c.narrowed[value])] if value in c.narrowed else []


def _loop(c: _Decided, loop: Loop, leads: bool, waited: bool) -> list[Statement]:
    """A loop with its accumulators. leads: whether the kernel behind may start in its last iterations. waited: whether
    the wait stands in front of it."""
    k = c.scheduled
    late = deferred(k, loop)
    at = k.placement.loops.index(loop)
    ahead = {v for x in c.phases for v in few_bytes(x, x.placement.loops[at], c.boxes) if not c.specialized}
    marks, parts = ranges(k, loop, c.limits[loop], c.specialized)
    leaves = c.empty_chunks and waited and not c.specialized
    body = [*marks, plan.Leave(parts[0].first, parts[-1].last)] if leaves else []
    body += [initialised(k, k.eqns[name], degrees, name in late) for name, degrees in loop.accumulators]
    body += _looked_up(c, (*loop.steps, *loop.stores), {*loop.dims})
    body += [] if leaves else marks
    outside = set(c.looked_up)
    c.clean.update(dict.fromkeys((x.extremum for x in loop.anew), NOWHERE))
    for part in (x._replace(masks=settled(loop, x.masks)) for x in parts):
        iteration = _iteration(c, loop, part, late, ahead)
        front, inside, iteration = taken_ahead(c.phases, loop, part, iteration, ahead)
        inside += [positions(k, d, start) for d, start in loop_starts(k, loop).items()]
        if leads and part.last == parts[-1].last and isinstance(k.schedule.hand_over, Lead):
            (d,) = loop.dims
            inside.append(plan.ReleaseBefore(d, part.last, k.schedule.hand_over.iterations * k.block[d]))
        inside += iteration
        hidden = part.first != parts[0].first and multiplies(loop, k.dims, k.block)
        d, *_ = in_turn(k, loop)
        over = plan.Over(d, part.first, part.last, k.block[d], hidden)
        c.looked_up.intersection_update(outside)
        walked = over if len(loop.dims) == 1 else together(k, loop, over)
        in_flight = None if c.specialized else stages(k, loop, ahead)
        body += front
        body.append(plan.Loop(walked, c.specialized, tuple(inside), in_flight))
    for name, degrees in loop.accumulators:
        body += [*completed(k, k.eqns[name], degrees, name in late), *_rounded(c, name)]
        c.clean[name] = NOWHERE
    return body


def _iteration(
    c: _Decided, loop: Loop, part: LoopRange, late: frozenset[str], ahead: Collection[str]
) -> list[Statement]:
    """The statements of an iteration, phase by phase. A value that several phases need is computed in the first.
    ahead: loads of the next iteration."""
    at = c.scheduled.placement.loops.index(loop)
    body: list[Statement] = []
    there = set[str]()
    for k in c.phases:
        body += _phase(replace(c, scheduled=k), k.placement.loops[at], part, late, there)
    body, k = bytepairs.added_up(body), c.scheduled
    scope = Scope(k, c.clean, part.masks, frozenset(loop.running), loop.anew)
    for name, degrees in loop.accumulators:
        if name in k.factored:
            body += combined(scope, k.eqns[name], degrees, False)
    body += [*_looked_up(c, loop.stores, ()), *_stores(k, loop.stores, starts(k, loop))]
    body = loads_in_turns(c.phases, body, starts(k, loop))
    return picked(k, body, ahead) if len(c.phases) == 1 else body


def _stores(k: ScheduledKernel, some: Sequence[Store], at: Mapping[str, Start]) -> list[Statement]:
    """A barrier stands in front of stores into a buffer that threads of the instance read in another layout."""
    meet = any(overwrites(k.kernel, s, k.sizes, k.graph.distinct) for s in some)
    return [*[plan.Barrier()] * meet, *stores_in_turns(k, some, [store(k, s) for s in some], at)]


def _phase(c: _Decided, loop: Loop, part: LoopRange, late: frozenset[str], there: set[str]) -> Iterator[Statement]:
    """The statements of one phase of an iteration. there: the values of the phases before; this one's are added."""
    k = c.scheduled
    accumulators = dict(loop.accumulators)
    factored = {name: x for name, x in k.factored.items() if name in accumulators}
    loop = replace(loop, steps=tuple(factored[s.out].product if s.out in factored else s for s in loop.steps))
    need = needed(loop, part.masks, {v for x in factored.values() for v in x.by}, lambda e: bytepairs.read(k, e))
    scope = Scope(k, c.clean, part.masks, frozenset(loop.running), loop.anew)
    at = starts(k, loop)
    for step in wide_products_last(k, loop):
        if step.out in factored:
            x = factored[step.out]
            yield plan.Let(x.part, matrix_product(scope, x.product, x.part if x.part in there else None))
            there.add(x.part)
        elif step.out in accumulators:
            assert isinstance(step, Eqn), "an accumulator is an equation"
            yield from combined(scope, step, accumulators[step.out], step.out in late)
        elif step.out in need and step.out not in there:
            there.add(step.out)
            yield from _step(c, step, at, scope)
