"""The printer: a `KernelPlan` -> the source of a `@triton.jit` function. Nothing is decided here.

This module prints statements, `triton_expressions` what they compute, and `triton_addresses` where in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mirage_cli.codegen import addresses, nodes, scalars
from mirage_cli.codegen import plan as p
from mirage_cli.codegen.access import Around, Descriptor, around
from mirage_cli.codegen.check import check
from mirage_cli.codegen.helpers import HELPERS
from mirage_cli.codegen.nodes import Axes
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.codegen.planner import plan_one
from mirage_cli.codegen.triton_addresses import (
    Names,
    bound_text,
    corner_text,
    extent_text,
    factors_text,
    length_text,
    pointers_mask_text,
    pointers_text,
    scalar_text,
    spread_text,
    start_text,
    tiles_in_front_text,
    tiles_text,
    turns_of,
    within_text,
)
from mirage_cli.codegen.triton_expressions import (
    LOG2E,
    TYPE,
    cast_text,
    exp_of_difference_text,
    expression_text,
    joined_text,
    moved_last_text,
    number_text,
    of_words_text,
    permuted_text,
    shape_text,
)
from mirage_cli.codegen.writing import spelled
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.schedule import KernelSchedule, Schedule

NAN_TOO = ", propagate_nan=tl.PropagateNan.ALL"
"""The argument by which `tl.maximum` and `tl.minimum` return NaN where an argument is NaN."""
MARK_NOTES = {
    "end": "outside these bounds, {} would make all that is added up zero",
    "pause": "behind this, and in front of the next bound, nothing is added up either",
    "whole": "from here on they hold for whole tiles",
    "rest": "up to here they hold for whole tiles",
}
COMPILED = {"warps": "num_warps", "stages": "num_stages", "registers": "maxnreg"}
"""Triton's names of the compiler's options."""
RESERVED = HELPERS | {"tl", "triton", "range", "pid", "chunk", "step", "min", "max", "float"}
OWN_PREFIXES = (
    "i_",
    "in_",
    "s_",
    "t_",
    "first_",
    "rows_",
    "begin_",
    "end_",
    "whole_",
    "rest_",
    "SIZE_",
    "BLOCK_",
    "tiles_",
)
OWN_SUFFIXES = ("_ptr", "_desc", "_next", "_scale", "_shift")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A complete `@triton.jit` function and how to launch it.

    args: the buffers of the pointer parameters, in order. descriptors: the parameters after the pointers. sizes: the
    parameters after the descriptors. programs: the size of the one-dimensional grid, an expression in sizes. options:
    further arguments of the launch. fetches: whether it fetches inputs ahead. shared_bits: buffers
    that it reads in more than an element at a time, with the most bits.
    """

    name: str
    source: str
    args: tuple[str, ...]
    descriptors: tuple[Descriptor, ...]
    sizes: tuple[str, ...]
    programs: str
    options: tuple[str, ...]
    fetches: bool
    shared_bits: Mapping[str, int]


def emit_kernel(graph: MuGraph, kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> KernelSource:
    """The kernel at this schedule. `sizes` holds every axis, those of chunks included. Raises EmitError, PlanError."""
    others = around(graph, kernel, schedule, sizes)
    return written_once(graph, kernel, schedule.kernels[kernel.name], others, tuple(sizes.items()))


@lru_cache(maxsize=1 << 10)
def written_once(
    graph: MuGraph, kernel: Kernel, own: KernelSchedule, others: Around, axes: tuple[tuple[str, int], ...]
) -> KernelSource:
    """Schedules of a μGraph often differ in one kernel; what the others are is written once. axes: with their sizes."""
    plan = plan_one(graph, kernel, own, others, dict(axes))
    check(plan)
    return print_kernel(plan)


def print_kernel(plan: KernelPlan) -> KernelSource:
    parameters = [*(f"{b}_ptr" for b in plan.args), *(f"{v}_desc" for v, _ in plan.descriptors)]
    sizes = tuple(f"SIZE_{d}" for d in plan.sizes)
    unspecialized = ", ".join(f'"{x}"' for x in sizes)  # one compilation serves every size
    lines = [f"@triton.jit(do_not_specialize=[{unspecialized}])" if sizes else "@triton.jit"]
    lines.append(f"def {plan.name}({', '.join([*parameters, *sizes])}):")
    for d in plan.dims:
        if not d.dynamic:
            lines.append(f"    SIZE_{d.name}: tl.constexpr = {d.size}")
        if d.block > 1:
            lines.append(f"    BLOCK_{d.name}: tl.constexpr = {d.block}")
    names = spelled(plan.values, _is_own, "v_")
    lines += [f"    {line}" for s in plan.statements for line in _statement(s, names)]
    options = [f"{COMPILED[name]}={x}" for name, x in plan.compiled]
    options += ["launch_pdl=can_overlap()"] * plan.waits + ["enable_fp_fusion=False"] * (not plan.fuses)
    boxes = tuple(d for _, d in plan.descriptors)
    source = "\n".join(lines) + "\n"
    factors = [f"-(-SIZE_{t.dim} // {t.tile})" if t.tile > 1 else f"SIZE_{t.dim}" for t in plan.tiles]
    programs = " * ".join([*factors, *[str(plan.programs)] * (plan.programs > 1 or not factors)])
    return KernelSource(
        name=plan.name,
        source=source,
        args=plan.args,
        descriptors=boxes,
        sizes=sizes,
        programs=programs,
        options=tuple(options),
        fetches=plan.fetches,
        shared_bits=plan.shared_bits,
    )


def _is_own(name: str) -> bool:
    """Whether the text of a kernel gives this name a meaning of its own."""
    return name in RESERVED or name.startswith(OWN_PREFIXES) or name.endswith(OWN_SUFFIXES)


def _statement(s: Statement, names: Names) -> Iterable[str]:
    return _STATEMENTS[type(s)](s, names)


def _instances(s: p.Instances, _: Names) -> Iterator[str]:
    if s.programs > 1 or s.grid:
        tiles = [n for _, n in s.grid if isinstance(n, scalars.Tiles)]
        yield "pid = tl.program_id(0)" + f" - {_instances_of(s.first, tiles)}" * bool(s.first)
    lines = [*_tile_numbers(s)]
    for d, n in s.grid:
        if isinstance(n, scalars.Tiles) and any(f"tiles_{d}" in line for line in lines):
            yield f"tiles_{d} = (SIZE_{d} + {n.tile - 1}) // {n.tile}" if n.tile > 1 else f"tiles_{d} = SIZE_{d}"
    yield from lines


def _instances_of(number: int, tiles: Sequence[scalars.Tiles]) -> str:
    """So many program instances for each tile along dimensions whose size is an argument."""
    return " * ".join([str(number), *map(tiles_text, tiles)])


def _beside(s: p.Beside, names: Names) -> Iterator[str]:
    last, end = len(s.bodies) - 1, 0
    for i, (programs, body) in enumerate(zip(s.programs, s.bodies, strict=True)):
        end += programs
        instances = next(x for x in body if isinstance(x, p.Instances))
        tiles = [n for _, n in instances.grid if isinstance(n, scalars.Tiles)]
        below = f"tl.program_id(0) < {_instances_of(end, tiles)}"
        yield f"if {below}:" if i == 0 else f"elif {below}:" if i < last else "else:"
        for x in body:
            yield from (f"    {line}" for line in _statement(x, names))


def _tile_numbers(s: p.Instances) -> Iterator[str]:
    if s.chunk is not None:
        each = _count(*(n for _, n in s.grid))
        yield f"chunk = pid // {each}" if s.chunk and each != "1" else "chunk = pid" if s.chunk else "chunk = 0"
        if s.chunk and each != "1":
            yield f"pid = pid % {each}"
    sides = {*s.near, *s.far}
    near, far = ([(d, n) for d, n in s.grid if d in side] for side in (s.near, s.far))
    rest = [(d, n) for d, n in s.grid if d not in sides]
    yield from _unravelled("pid", rest, whole=not near)
    if near:
        (a, *_), (b, *_) = s.near, s.far
        g, na, nb = s.group, [n for _, n in near], [n for _, n in far]
        shared = f"groups of {g} tiles of {', '.join(s.near)} share those of {', '.join(s.far)}"
        yield f"first_{a} = pid // {_count(g, *nb)} * {g}  # {shared}"
        yield f"rows_{a} = min({_count(*na)} - first_{a}, {g})"
        yield f"t_{a} = first_{a} + pid % {_count(g, *nb)} % rows_{a}"
        yield f"t_{b} = pid % {_count(g, *nb)} // rows_{a}"
        yield from _unravelled(f"t_{a}", near)
        yield from _unravelled(f"t_{b}", far)
    for d in s.backwards:
        n = dict(s.grid)[d]
        last = str(n - 1) if isinstance(n, int) else f"tiles_{d} - 1"
        yield f"t_{d} = {last} - t_{d}  # the longest loops first"


def _unravelled(number: str, grid: Sequence[tuple[str, scalars.Count]], whole: bool = True) -> Iterator[str]:
    """The tile along each dimension, of the number of a tile along all of them, whose last ones count fastest. whole:
    whether nothing is left of the number then."""
    for i, (d, n) in reversed([*enumerate(grid)]):
        if i or not whole:
            yield f"t_{d} = {number} % {_count(n)}"
            yield f"{number} = {number} // {_count(n)}"
        elif number != f"t_{d}":
            yield f"t_{d} = {number}"


def _count(*counts: scalars.Count) -> str:
    """The product of numbers of tiles."""
    number = math.prod(n for n in counts if isinstance(n, int))
    tiles = [f"tiles_{n.dim}" for n in counts if isinstance(n, scalars.Tiles)]
    texts = [*[str(number)] * (number > 1 or not tiles), *tiles]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def _positions(s: p.Positions, names: Names) -> Iterator[str]:
    start, lanes = start_text(s.start, names), f"tl.arange(0, BLOCK_{s.dim})"
    moves = not isinstance(s.start, scalars.AtZero) and start != "0"
    if s.wide and moves:
        start = f"{start if start.isidentifier() and not s.block else f'({start})'}.to(tl.int64)"
    elif s.wide:
        lanes += ".to(tl.int64)"
    yield f"i_{s.dim} = " + (" + ".join([start] * moves + [lanes]) if s.block else start)
    if s.padded:
        yield f"in_{s.dim} = i_{s.dim} < SIZE_{s.dim}"


def _set_mark(s: p.SetMark, names: Names) -> Iterator[str]:
    masks = ", ".join(names[m] for m in s.masks)
    note = MARK_NOTES.get(s.mark.kind, "").format(masks)
    yield f"{scalar_text(s.mark, names)} = {scalar_text(s.scalar, names)}" + (f"  # {note}" if note else "")


def _load(s: p.Load, names: Names) -> Iterator[str]:
    access = s.access
    if isinstance(access, addresses.Box):
        text = f"{access.value}_desc.load([{', '.join(corner_text(x, names) for x in access.starts)}])"
        if access.block != access.dims:
            text = f"tl.reshape({text}, {shape_text(access.block)})"
        text = permuted_text(text, access.block, access.axes)
    else:
        masks = [pointers_mask_text(s.mask, access, names)] * bool(s.mask)
        masks += [within_text(w, access.axes, names) for w in s.within]
        masks += [expression_text(s.when, names)] if s.when is not None else []
        if s.ahead is not None and s.ahead.reached is not None:
            masks.append(_reached(s.ahead.reached, names, bool(masks)))
        zero = number_text(nodes.Literal(s.outside)) if s.outside else "0.0" if s.float8 else "0"
        mask = f", mask={' & '.join(masks)}, other={zero}" if masks else ""
        hint = ', eviction_policy="evict_first"' if s.once else ""
        text = f"tl.load({pointers_text(access, names)}{mask}{hint})"
        text = _repeated(text, access.axes, s) if s.repeated else text
        text = text if s.part is None else of_words_text(s.part, text)
    whole = ".to(tl.int32)" * s.whole
    outs = names[s.out] + "_next" * (s.ahead is not None)
    if s.others:
        outs, text = ", ".join([outs, *(names[v] for v in s.others)]), _apart(text, s)
    yield f"{outs} = {text}{whole}{_note(s.axes)}"


SPLIT = {1: "tl.split", 2: "split_in_four", 3: "split_in_eight"}
"""What takes blocks apart, by how many axes of two elements say whose an element is."""


def _apart(text: str, s: p.Load) -> str:
    """A block of elements that lie in turns along one of its axes as several blocks."""
    x, axes = turns_of(s.access), s.axes
    assert x is not None, "pointers with turns"
    twos = x.count.bit_length() - 1
    shape = ", ".join(", ".join([extent_text(a), *["2"] * twos * (a == x.dim)]) for a in axes)
    behind = range(axes.index(x.dim) + 1, axes.index(x.dim) + 1 + twos)
    order = (*(i for i in range(len(axes) + twos) if i not in behind), *behind)
    text = f"tl.reshape({text}, [{shape}])"
    text = text if order == (*range(len(order)),) else f"tl.permute({text}, {order})"
    return f"{SPLIT[twos]}({text})"


def _repeated(text: str, loaded: Axes, s: p.Load) -> str:
    """A block with each element as often as it is repeated along its axes."""
    times = dict(s.repeated)
    places = ["None" if d not in loaded else ":, None" if d in times else ":" for d in s.axes]
    text = f"{text}[{', '.join(places)}]"
    shape = [f"BLOCK_{d} // {times[d]}, {times[d]}" if d in times and d in loaded else f"BLOCK_{d}" for d in s.axes]
    text = f"tl.broadcast_to({text}, [{', '.join(shape)}])"
    return f"tl.reshape({text}, {shape_text(s.axes)})" if times.keys() & {*loaded} else text


def _reached(x: scalars.Reached, names: Names, beside: bool) -> str:
    text = f"{start_text(x.start, names)} < {scalar_text(x.end, names)}"
    return f"({text})" if beside else text


def _take(s: p.Take, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {names[s.out]}_next"


def _let(s: p.Let, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {expression_text(s.expr, names)}{_note(s.expr.axes)}"


def _round(s: p.Round, names: Names) -> Iterator[str]:
    name = names[s.out]
    yield f"{name} = {cast_text(name, 'float32', s.dtype)}.to(tl.float32)  # as it is stored"


def _initialise(s: p.Initialise, names: Names) -> Iterator[str]:
    shape, kind = shape_text(s.axes) if s.axes else "()", TYPE[s.dtype]
    zero = s.axes and not s.number.value
    yield f"{names[s.out]} = " + (
        f"tl.zeros({shape}, {kind})" if zero else f"tl.full({shape}, {number_text(s.number)}, {kind})"
    )


def _accumulate(s: p.Accumulate, names: Names) -> Iterator[str]:
    acc, block = names[s.out], expression_text(s.block, names)
    nan = NAN_TOO if s.nan else ""
    text = f"{acc} += {block}" if s.op == "sum" else f"{acc} = {OPS[OPS[s.op].joins].triton.format(acc, block)}"
    if OPS[s.op].extremum:
        text = f"{acc} = tl.{s.op}imum({acc}, {block}{nan})"
    yield text + _note(s.block.axes)


def _advance(s: p.Advance, names: Names) -> Iterator[str]:
    m, nan = names[s.out], NAN_TOO if s.nan else ""
    yield f"{m}_next = tl.maximum({m}, {expression_text(s.block, names)}{nan})  # running maximum"
    finite = f'tl.where(tl.abs({m}_next) == float("inf"), 0.0, {m}_next)'
    yield f"{m}_shift = {finite}"
    yield f"{m}_scale = {exp_of_difference_text(m, f'{m}_shift', True, s.factor)}"
    if not s.exact:
        yield f"{m}_shift = {m}_shift * {s.factor * LOG2E!r}"
    yield f"{m} = {m}_next"


def _rescale(s: p.Rescale, names: Names) -> Iterator[str]:
    acc, factor = names[s.out], expression_text(s.factor, names)
    yield f"{acc} = " + (f"tl.where({acc} == 0.0, 0.0, {acc} / {factor})" if s.divided else f"{acc} * {factor}")


def _complete(s: p.Complete, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {expression_text(s.expr, names)}"


def _store(s: p.Store, names: Names) -> Iterator[str]:
    once = [f"t_{d} == 0" for d in s.once] + ["chunk == 0"] * s.one_chunk
    if once:
        yield f"if {' and '.join(once)}:  # the same for all of these instances: one of them stores"
    masks = [pointers_mask_text(s.mask, s.pointers, names)] * bool(s.mask)
    masks += [within_text(w, s.pointers.axes, names) for w in s.within]
    x, block = turns_of(s.pointers), expression_text(s.block, names)
    if x is not None and x.room > x.count:
        masks.append(
            spread_text(f"(tl.arange(0, BLOCK_{x.dim} * {x.room}) % {x.room} < {x.count})", (x.dim,), s.pointers.axes)
        )
    mask = f", mask={' & '.join(masks)}" if masks else ""
    indent = "    " * bool(once)
    if x is not None:
        block = _turned([block, *(expression_text(b, names) for b in s.others)], s.pointers.axes, x)
    yield f"{indent}tl.store({pointers_text(s.pointers, names)}, {block}{mask})"


def _turned(blocks: Sequence[str], axes: Axes, x: addresses.Turns) -> str:
    """Several blocks as one, whose elements along an axis are theirs in turns; where there is more room, those of the
    first again."""
    shape = ", ".join(f"BLOCK_{a} * {x.room}" if a == x.dim else f"BLOCK_{a}" for a in axes)
    whole = [*blocks, *[blocks[0]] * (x.room - x.count)]
    return f"tl.reshape({moved_last_text(joined_text(whole), axes, x.dim, x.room.bit_length() - 1)}, [{shape}])"


def _prefetch(s: p.Prefetch, names: Names) -> Iterator[str]:
    yield f"fetch({pointers_text(s.pointers, names)}, read={s.read}){_note(s.pointers.axes)}"


def _leave(s: p.Leave, names: Names) -> Iterator[str]:
    yield f"if {scalar_text(s.first, names)} >= {scalar_text(s.last, names)}:  # nothing to do, and nothing to store"
    yield "    return"


def _release_before(s: p.ReleaseBefore, names: Names) -> Iterator[str]:
    yield f"release_before({bound_text(s.last, names)} - s_{s.dim}, {s.most})"


def _loop(s: p.Loop, names: Names) -> Iterator[str]:
    hints = ", warp_specialize=True" * s.specialized + f", num_stages={s.stages}" * (s.stages is not None)
    kind = "tl.range" if hints else "range"
    match s.over:
        case p.Over(d, first, last, step, hidden):
            end = f"hidden_bound({scalar_text(last, names)})" if hidden else bound_text(last, names)
            yield f"for s_{d} in {kind}({bound_text(first, names)}, {end}, {step}{hints}):"
        case p.Together(dims, trips, _, p.Over(d, first, last, tile, hidden)):
            inner, kept = factors_text(trips), "hidden_bound" if hidden else "bound"
            begin, end = (f"{tiles_in_front_text(x, tile, names)} * {inner}" for x in (first, last))
            yield f"for step in {kind}(bound({begin}), {kept}({end}){hints}):  # tiles of {', '.join(dims)} together"
        case p.Together(dims, trips, split):
            count = factors_text(trips)
            if split is not None:
                d, length, tile = split
                each = length_text(length)
                yield f"t_{d} = (min(SIZE_{d} - chunk * {each}, {each}) + {tile - 1}) // {tile}  # tiles of this chunk"
                count = f"t_{d} * {count}"
            count = f"bound({count})" if split is not None or len(trips) > 1 else count
            yield f"for step in {kind}(0, {count}{hints}):  # tiles of {', '.join(dims)} together"
    for x in s.body:
        yield from (f"    {line}" for line in _statement(x, names))


_STATEMENTS: Mapping[type[Statement], Callable[..., Iterable[str]]] = {
    p.Instances: _instances,
    p.Positions: _positions,
    p.SetMark: _set_mark,
    p.Load: _load,
    p.Take: _take,
    p.Let: _let,
    p.Round: _round,
    p.Initialise: _initialise,
    p.Accumulate: _accumulate,
    p.Advance: _advance,
    p.Rescale: _rescale,
    p.Complete: _complete,
    p.Store: _store,
    p.Barrier: lambda *_: ["tl.debug_barrier()"],
    p.Prefetch: _prefetch,
    p.Wait: lambda *_: ["wait_for_data()"],
    p.Release: lambda *_: ["release_next()"],
    p.Leave: _leave,
    p.ReleaseBefore: _release_before,
    p.Loop: _loop,
    p.Beside: _beside,
}


def _note(axes: Axes) -> str:
    return f"  # [{', '.join(axes)}]"
