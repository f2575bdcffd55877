"""The printer: a `KernelPlan` -> the source of a `@triton.jit` function. Nothing is decided here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mirage_cli.codegen import axisnames, nodes
from mirage_cli.codegen import plan as p
from mirage_cli.codegen.access import Around, Descriptor, around
from mirage_cli.codegen.check import check
from mirage_cli.codegen.helpers import HELPERS
from mirage_cli.codegen.nodes import Axes, Expr, Place, Scalar, Start
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.codegen.planner import plan_one
from mirage_cli.codegen.writing import spelled
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.ops import OPS, power_of_two
from mirage_cli.ir.program import FLOAT8, number_type
from mirage_cli.ir.schedule import KernelSchedule, Schedule

TYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float8_e4m3fn": "tl.float8e4nv",
    "float8_e5m2": "tl.float8e5",
    "int8": "tl.int8",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "bool": "tl.int1",
}
ROUNDED = {"bfloat16", *FLOAT8}
"""Types that helpers round to, from float32."""
LOG2E = math.log2(math.e)
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
        plan.name, source, plan.args, boxes, sizes, programs, tuple(options), plan.fetches, plan.shared_bits
    )


def _is_own(name: str) -> bool:
    """Whether the text of a kernel gives this name a meaning of its own."""
    return name in RESERVED or name.startswith(OWN_PREFIXES) or name.endswith(OWN_SUFFIXES)


Names = Mapping[str, str]
"""What each value is called."""


# -- statements


def _statement(s: Statement, names: Names) -> Iterable[str]:
    return _STATEMENTS[type(s)](s, names)


def _instances(s: p.Instances, _: Names) -> Iterator[str]:
    if s.programs > 1 or s.grid:
        tiles = [n for _, n in s.grid if isinstance(n, nodes.Tiles)]
        yield "pid = tl.program_id(0)" + f" - {_instances_of(s.first, tiles)}" * bool(s.first)
    lines = [*_tile_numbers(s)]
    for d, n in s.grid:
        if isinstance(n, nodes.Tiles) and any(f"tiles_{d}" in line for line in lines):
            yield f"tiles_{d} = (SIZE_{d} + {n.tile - 1}) // {n.tile}" if n.tile > 1 else f"tiles_{d} = SIZE_{d}"
    yield from lines


def _instances_of(number: int, tiles: Sequence[nodes.Tiles]) -> str:
    """So many program instances for each tile along dimensions whose size is an argument."""
    return " * ".join([str(number), *map(_tiles, tiles)])


def _beside(s: p.Beside, names: Names) -> Iterator[str]:
    last, end = len(s.bodies) - 1, 0
    for i, (programs, body) in enumerate(zip(s.programs, s.bodies, strict=True)):
        end += programs
        instances = next(x for x in body if isinstance(x, p.Instances))
        tiles = [n for _, n in instances.grid if isinstance(n, nodes.Tiles)]
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
    many = [*s.grid]
    while many and not (len(many) == 2 and s.group > 1):
        d, n = many.pop()
        yield f"t_{d} = pid % {_count(n)}" if many else f"t_{d} = pid"
        if many:
            yield f"pid = pid // {_count(n)}"
    if many:
        (a, na), (b, nb) = many
        g = s.group
        yield f"first_{a} = pid // {_count(g, nb)} * {g}  # groups of {g} tiles of {a} share those of {b}"
        yield f"rows_{a} = min({_count(na)} - first_{a}, {g})"
        yield f"t_{a} = first_{a} + pid % {_count(g, nb)} % rows_{a}"
        yield f"t_{b} = pid % {_count(g, nb)} // rows_{a}"
    for d in s.backwards:
        n = dict(s.grid)[d]
        last = str(n - 1) if isinstance(n, int) else f"tiles_{d} - 1"
        yield f"t_{d} = {last} - t_{d}  # the longest loops first"


def _count(*counts: nodes.Count) -> str:
    """The product of numbers of tiles."""
    number = math.prod(n for n in counts if isinstance(n, int))
    tiles = [f"tiles_{n.dim}" for n in counts if isinstance(n, nodes.Tiles)]
    texts = [*[str(number)] * (number > 1 or not tiles), *tiles]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def _positions(s: p.Positions, names: Names) -> Iterator[str]:
    start, lanes = _start(s.start, names), f"tl.arange(0, BLOCK_{s.dim})"
    moves = not isinstance(s.start, nodes.AtZero) and start != "0"
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
    yield f"{_scalar(s.mark, names)} = {_scalar(s.scalar, names)}" + (f"  # {note}" if note else "")


def _load(s: p.Load, names: Names) -> Iterator[str]:
    access = s.access
    if isinstance(access, nodes.Box):
        text = f"{access.value}_desc.load([{', '.join(_corner(x, names) for x in access.starts)}])"
        if access.block != access.dims:
            text = f"tl.reshape({text}, {_shape(access.block)})"
        text = _permuted(text, access.block, access.axes)
    else:
        masks = [_mask_of(s.mask, access, names)] * bool(s.mask) + [_within(w, access.axes, names) for w in s.within]
        masks += [_expr(s.when, names)] if s.when is not None else []
        if s.ahead is not None and s.ahead.reached is not None:
            masks.append(_reached(s.ahead.reached, names, bool(masks)))
        zero = number_text(nodes.Literal(s.outside)) if s.outside else "0.0" if s.float8 else "0"
        mask = f", mask={' & '.join(masks)}, other={zero}" if masks else ""
        hint = ', eviction_policy="evict_first"' if s.once else ""
        text = f"tl.load({_pointers(access, names)}{mask}{hint})"
        text = _repeated(text, access.axes, s) if s.repeated else text
        text = text if s.part is None else _of_words(s.part, text)
    whole = ".to(tl.int32)" * s.whole
    outs = names[s.out] + "_next" * (s.ahead is not None)
    if s.others:
        outs, text = ", ".join([outs, *(names[v] for v in s.others)]), _apart(text, s)
    yield f"{outs} = {text}{whole}{_note(s.axes)}"


SPLIT = {1: "tl.split", 2: "split_in_four", 3: "split_in_eight"}
"""What takes blocks apart, by how many axes of two elements say whose an element is."""


def _apart(text: str, s: p.Load) -> str:
    """A block of elements that lie in turns along one of its axes as several blocks."""
    x, axes = _turns_of(s.access), s.axes
    assert x is not None, "pointers with turns"
    twos = x.count.bit_length() - 1
    shape = ", ".join(", ".join([_extent(a), *["2"] * twos * (a == x.dim)]) for a in axes)
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
    return f"tl.reshape({text}, {_shape(s.axes)})" if times.keys() & {*loaded} else text


def _reached(x: nodes.Reached, names: Names, beside: bool) -> str:
    text = f"{_start(x.start, names)} < {_scalar(x.end, names)}"
    return f"({text})" if beside else text


def _take(s: p.Take, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {names[s.out]}_next"


def _let(s: p.Let, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {_expr(s.expr, names)}{_note(s.expr.axes)}"


def _round(s: p.Round, names: Names) -> Iterator[str]:
    name = names[s.out]
    yield f"{name} = {_cast(name, 'float32', s.dtype)}.to(tl.float32)  # as it is stored"


def _initialise(s: p.Initialise, names: Names) -> Iterator[str]:
    shape, kind = _shape(s.axes) if s.axes else "()", TYPE[s.dtype]
    zero = s.axes and not s.number.value
    yield f"{names[s.out]} = " + (
        f"tl.zeros({shape}, {kind})" if zero else f"tl.full({shape}, {number_text(s.number)}, {kind})"
    )


def _accumulate(s: p.Accumulate, names: Names) -> Iterator[str]:
    acc, block = names[s.out], _expr(s.block, names)
    nan = NAN_TOO if s.nan else ""
    text = f"{acc} += {block}" if s.op == "sum" else f"{acc} = {OPS[OPS[s.op].joins].triton.format(acc, block)}"
    if OPS[s.op].extremum:
        text = f"{acc} = tl.{s.op}imum({acc}, {block}{nan})"
    yield text + _note(s.block.axes)


def _advance(s: p.Advance, names: Names) -> Iterator[str]:
    m, nan = names[s.out], NAN_TOO if s.nan else ""
    yield f"{m}_next = tl.maximum({m}, {_expr(s.block, names)}{nan})  # running maximum"
    finite = f'tl.where(tl.abs({m}_next) == float("inf"), 0.0, {m}_next)'
    yield f"{m}_shift = {finite}"
    yield f"{m}_scale = {_exp_of_difference(m, f'{m}_shift', True, s.factor)}"
    if not s.exact:
        yield f"{m}_shift = {m}_shift * {s.factor * LOG2E!r}"
    yield f"{m} = {m}_next"


def _rescale(s: p.Rescale, names: Names) -> Iterator[str]:
    acc, factor = names[s.out], _expr(s.factor, names)
    yield f"{acc} = " + (f"tl.where({acc} == 0.0, 0.0, {acc} / {factor})" if s.divided else f"{acc} * {factor}")


def _complete(s: p.Complete, names: Names) -> Iterator[str]:
    yield f"{names[s.out]} = {_expr(s.expr, names)}"


def _store(s: p.Store, names: Names) -> Iterator[str]:
    once = [f"t_{d} == 0" for d in s.once] + ["chunk == 0"] * s.one_chunk
    if once:
        yield f"if {' and '.join(once)}:  # the same for all of these instances: one of them stores"
    masks = [_mask_of(s.mask, s.pointers, names)] * bool(s.mask)
    masks += [_within(w, s.pointers.axes, names) for w in s.within]
    x, block = _turns_of(s.pointers), _expr(s.block, names)
    if x is not None and x.room > x.count:
        masks.append(
            _spread(f"(tl.arange(0, BLOCK_{x.dim} * {x.room}) % {x.room} < {x.count})", (x.dim,), s.pointers.axes)
        )
    mask = f", mask={' & '.join(masks)}" if masks else ""
    indent = "    " * bool(once)
    if x is not None:
        block = _turned([block, *(_expr(b, names) for b in s.others)], s.pointers.axes, x)
    yield f"{indent}tl.store({_pointers(s.pointers, names)}, {block}{mask})"


def _turned(blocks: Sequence[str], axes: Axes, x: nodes.Turns) -> str:
    """Several blocks as one, whose elements along an axis are theirs in turns; where there is more room, those of the
    first again."""
    shape = ", ".join(f"BLOCK_{a} * {x.room}" if a == x.dim else f"BLOCK_{a}" for a in axes)
    whole = [*blocks, *[blocks[0]] * (x.room - x.count)]
    return f"tl.reshape({_moved_last(_joined(whole), axes, x.dim, x.room.bit_length() - 1)}, [{shape}])"


def _joined(blocks: Sequence[str]) -> str:
    """With axes of two elements behind, which say whose it is."""
    return blocks[0] if len(blocks) == 1 else f"tl.join({_joined(blocks[::2])}, {_joined(blocks[1::2])})"


def _moved_last(text: str, axes: Axes, dim: str, twos: int) -> str:
    """A block with so many axes behind its own moved behind one of these."""
    before = range(axes.index(dim) + 1)
    order = (*before, *range(len(axes), len(axes) + twos), *range(len(before), len(axes)))
    return text if order == (*range(len(order)),) else f"tl.permute({text}, {order})"


def _prefetch(s: p.Prefetch, names: Names) -> Iterator[str]:
    yield f"fetch({_pointers(s.pointers, names)}, read={s.read}){_note(s.pointers.axes)}"


def _leave(s: p.Leave, names: Names) -> Iterator[str]:
    yield f"if {_scalar(s.first, names)} >= {_scalar(s.last, names)}:  # nothing to do, and nothing to store"
    yield "    return"


def _release_before(s: p.ReleaseBefore, names: Names) -> Iterator[str]:
    yield f"release_before({_bound(s.last, names)} - s_{s.dim}, {s.most})"


def _loop(s: p.Loop, names: Names) -> Iterator[str]:
    hints = ", warp_specialize=True" * s.specialized + f", num_stages={s.stages}" * (s.stages is not None)
    kind = "tl.range" if hints else "range"
    match s.over:
        case p.Over(d, first, last, step, hidden):
            end = f"hidden_bound({_scalar(last, names)})" if hidden else _bound(last, names)
            yield f"for s_{d} in {kind}({_bound(first, names)}, {end}, {step}{hints}):"
        case p.Together(dims, trips, _, p.Over(d, first, last, tile, hidden)):
            inner, kept = _factors(trips), "hidden_bound" if hidden else "bound"
            begin, end = (f"{_tiles_in_front(x, tile, names)} * {inner}" for x in (first, last))
            yield f"for step in {kind}(bound({begin}), {kept}({end}){hints}):  # tiles of {', '.join(dims)} together"
        case p.Together(dims, trips, split):
            count = _factors(trips)
            if split is not None:
                d, length, tile = split
                each = _length(length)
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


# -- integers that all lanes share


def _scalar(x: Scalar, names: Names) -> str:
    match x:
        case nodes.Number(value):
            return str(value)
        case nodes.Size(d):
            return f"SIZE_{d}"
        case nodes.TileAt(d, tile, last):
            start = f"t_{d} * {tile}" if tile > 1 else f"t_{d}"
            return f"{start} + {tile - 1}" if last and tile > 1 else start
        case nodes.ChunkAt(length, end):
            each = _length(length)
            return f"chunk * {each} + {each}" if end else f"chunk * {each}"
        case nodes.Mark(kind, d):
            return f"{kind}_{d}"
        case nodes.Extreme(value, largest, axes):
            return f"tl.{'max' if largest else 'min'}({names[value]})" if axes else names[value]
        case nodes.Sum(constant, terms):
            parts = [str(constant)] * bool(constant)
            parts += [text if c == 1 else f"{c} * ({text})" for c, s in terms for text in [_scalar(s, names)]]
            return " + ".join(parts) or "0"
        case nodes.Plus(start, more):
            return f"{_scalar(start, names)} + {more}"
        case nodes.Aligned(position, tile):
            return f"({_scalar(position, names)}) // {tile} * {tile}"
        case nodes.Bound(largest, of):
            return f"{'max' if largest else 'min'}({', '.join(_scalar(s, names) for s in of)})"


def _bound(x: Scalar, names: Names) -> str:
    """A bound of a loop, which is a constant or for `bound` (helpers.py)."""
    text = _scalar(x, names)
    constant = isinstance(x, nodes.Number) or (isinstance(x, nodes.Size) and not x.given)
    return text if constant else f"bound({text})"


def _tiles_in_front(x: Scalar, tile: int, names: Names) -> str:
    """The number of tiles in front of a position. Where a part of a loop ends within a tile, the next begins behind."""
    return f"(({_scalar(x, names)} + {tile - 1}) // {tile})" if tile > 1 else f"({_scalar(x, names)})"


def _length(x: nodes.Length) -> str:
    """Of a chunk."""
    if isinstance(x, int):
        return str(x)
    tiles = f"(SIZE_{x.dim} + {x.chunks * x.tile - 1}) // {x.chunks * x.tile}"
    return f"({tiles} * {x.tile})" if x.tile > 1 else f"({tiles})"


def _tiles(n: nodes.Tiles) -> str:
    return f"((SIZE_{n.dim} + {n.tile - 1}) // {n.tile})" if n.tile > 1 else f"SIZE_{n.dim}"


def _factors(counts: Sequence[nodes.Count]) -> str:
    """A product of a number and of what follows from arguments."""
    texts = [_tiles(n) if isinstance(n, nodes.Tiles) else str(n) for n in counts]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def _start(x: Start, names: Names) -> str:
    match x:
        case nodes.AtZero():
            return "0"
        case nodes.AtTile(d, tile):
            return f"t_{d} * BLOCK_{d}" if tile > 1 else f"t_{d}"
        case nodes.AtStep(d):
            return f"s_{d}"
        case nodes.AtFirst(_, first):
            return _scalar(first, names)
        case nodes.AtNext(d, step):
            return f"s_{d} + {step}"
        case nodes.AtJointStep(inner, trips, tile, chunk):
            start = f"(step // {_factors(inner)}{'' if trips is None else f' % {_factors((trips,))}'}) * {tile}"
            return start if chunk is None else f"chunk * {_length(chunk)} + {start}"
        case nodes.AtDivided(of, by, remainder):
            return f"({_corner(of, names)}) {'%' if remainder else '//'} {by}"


def _corner(x: nodes.Corner, names: Names) -> str:
    starts = [(start, c) for start, c in x.terms if not isinstance(start, nodes.AtZero)]
    texts = [_start(start, names) if c == 1 else f"({_start(start, names)}) * {c}" for start, c in starts]
    texts += [str(x.offset)] if x.offset or not texts else []
    return " + ".join(texts).replace("+ -", "- ")


# -- memory


def _turns_of(x: nodes.Pointers | nodes.Box) -> nodes.Turns | None:
    """The positions along which elements of several blocks lie in turns, if any do."""
    return next((p for p, _ in x.terms if isinstance(p, nodes.Turns)), None) if isinstance(x, nodes.Pointers) else None


def _pointers(x: nodes.Pointers, names: Names) -> str:
    """Offsets from the start of a buffer."""
    pointer = f"{x.buffer}_ptr" + (f".to(tl.pointer_type(tl.int{x.bits}))" if x.bits else "")
    return f"{pointer} + {_position(x.terms, x.start, x.axes, names, x.starts)}"


def _position(
    terms: Iterable[tuple[Place, nodes.Stride]],
    start: int,
    want: Axes,
    names: Names,
    starts: Iterable[nodes.Times] = (),
) -> str:
    texts = [_place(place, want, names) + (f" * {_stride(n)}" if n != 1 else "") for place, n in terms]
    texts += [_stride(n) for n in starts]
    texts += [str(start)] if start or not texts else []
    return " + ".join(texts)


def _stride(n: nodes.Stride) -> str:
    if isinstance(n, int):
        return str(n)
    texts = [*(f"SIZE_{d}" for d in n.dims), *[str(n.number)] * (n.number != 1)]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def _within(x: nodes.Within, want: Axes, names: Names) -> str:
    position = _position(x.terms, x.start, want, names)
    low = f"({position} >= 0)" if x.below else ""
    high = f"({position} < {x.size})" if x.size is not None else ""
    return " & ".join(filter(None, (low, high)))


def _place(x: Place, want: Axes, names: Names) -> str:
    match x:
        case nodes.ChunkNumber():
            return "chunk"
        case nodes.Lanes(d, block):
            return _spread(f"i_{d}", (d,) if block else (), want)
        case nodes.Picked(d, block, start, wide, every, clamped):
            text = f"i_{d}" if start is None else _start(start, names)
            if every is not None:
                text += f" + {_every(every)}"
            if clamped:
                text = f"tl.minimum({text}, SIZE_{d} - 1)"
            if wide and text != "0":
                text = f"({text}).to(tl.int64)"
            return _spread(f"({text})", (d,) if block else (), want)
        case nodes.Divided(terms, start, by, rest, axes, wide):
            inside = _position(terms, start, axes, names)
            inside = f"({inside})" if " " in inside else inside
            text = f"{inside} {'%' if rest else '//'} {by}"
            return _spread(f"({text})" + ".to(tl.int64)" * wide, axes, want)
        case nodes.Turns(d, count, start, wide):
            lanes, first, room = f"tl.arange(0, BLOCK_{d} * {x.room})", _start(start, names), x.room
            lanes = lanes if room == count else f"({lanes} // {room} * {count} + {lanes} % {room})"
            first = f"({first})" if " + " in first or wide else first
            first = f"{first}{'.to(tl.int64)' * wide} * {count} + " if not isinstance(start, nodes.AtZero) else ""
            return _spread(f"({first}{lanes}{'.to(tl.int64)' * (wide and not first)})", (d,), want)
        case nodes.SharedNumbers(d, start, count):
            own = f"BLOCK_{d} // {count}"
            first = f"t_{d} * ({own})" if isinstance(start, nodes.AtTile) else f"({_start(start, names)}) // {count}"
            return _spread(f"({first} + tl.arange(0, {own}))", (axisnames.shared(d, count),), want)
        case nodes.MergedLanes(d, axis, start, wide):
            text = _merged_lanes(d, axisnames.apart((axis,)))
            text = text if isinstance(start, nodes.AtZero) else f"{_start(start, names)} + {text}"
            return _spread(f"({text})" + ".to(tl.int64)" * wide, (axis,), want)
        case nodes.Looked(value, axes, wide):
            return _spread(names[value] + ".to(tl.int64)" * wide, axes, want)


def _merged_lanes(dim: str, axes: Axes) -> str:
    """How far each position of an axis that is merged from these is along one of them."""
    place = axes.index(dim)
    inner = " * ".join(f"BLOCK_{d}" for d in axes[place + 1 :])
    text = f"tl.arange(0, {_extent('*'.join(axes))})"
    text += f" // ({inner})" if " " in inner else f" // {inner}" if inner else ""
    return text + f" % BLOCK_{dim}" * (place > 0)


def _every(x: nodes.Every) -> str:
    lanes, step = f"tl.arange(0, {x.count * x.blocks})", x.step
    if x.count == 1:
        step = x.block
    elif x.blocks > 1 and x.count * step < x.block:
        lanes = f"{lanes} // {x.count} * {x.block} + {lanes} % {x.count}"
    return f"{lanes} * {step}" if step > 1 else lanes


def _mask(dims: Axes, want: Axes) -> str:
    """Which lanes exist along all of these dimensions."""
    return _all_of([_spread(f"in_{d}", (d,), want) for d in dims])


def _mask_of(dims: Axes, x: nodes.Pointers, names: Names) -> str:
    """Which pointers are to what exists along all of these dimensions."""
    inside: dict[str, str] = {}
    for place, _ in x.terms:
        if isinstance(place, nodes.Turns):
            inside[place.dim] = f"{_place(place, x.axes, names)} < SIZE_{place.dim} * {place.count}"
        elif isinstance(place, nodes.MergedLanes):
            inside[place.dim] = f"{_place(place, x.axes, names)} < SIZE_{place.dim}"
    parts = [inside[d] if d in inside else _spread(f"in_{d}", (d,), x.axes) for d in dims]
    return _all_of(parts, always=bool({*dims} & {*inside}))


def _all_of(parts: Sequence[str], always: bool = False) -> str:
    return " & ".join(f"({x})" if len(parts) > 1 or always else x for x in parts)


# -- blocks


def _expr(x: Expr, names: Names) -> str:
    return _EXPRESSIONS[type(x)](x, names)


def _apply(x: nodes.Apply, names: Names) -> str:
    row = OPS[x.op]
    by = x.args[-1]
    if row.of_powers and x.whole and isinstance(by, nodes.Literal) and (n := power_of_two(by.value)) is not None:
        return row.of_powers.format(*(_expr(a, names) for a in x.args), (1 << n) - 1, n)
    exact = row.by_few if row.by_few and _of_few(by, x.axes) else row.triton
    text = row.of_integers if x.whole else exact if x.exact else row.nearly or row.triton
    few = isinstance(by, nodes.Literal) and text == row.by_few  # a helper takes blocks, or one element
    last = f"tl.full((), {_expr(by, names)}, tl.float32)" if few else _expr(by, names)
    return text.format(*(_expr(a, names) for a in x.args[:-1]), last)


def _of_few(x: Expr, axes: Axes) -> bool:
    """Whether several elements of a block with these axes meet one of x."""
    own = x.x.axes if isinstance(x, nodes.Spread) else x.axes
    return len(own) < len(axes)


def _reduce(x: nodes.Reduce, names: Names) -> str:
    text, axes = _expr(x.x, names), x.x.axes
    template = f"tl.{x.op}({{0}}, axis={{1}})" if OPS[x.op].extremum and not x.nan else OPS[x.op].triton
    for i in reversed([axes.index(d) for d in x.over]):
        text = template.format(text, i)
    return text


def _scan(x: nodes.Scan, names: Names) -> str:
    place = x.x.axes.index(x.over)
    if x.decay is not None:
        return f"recurrence({_expr(x.x, names)}, {_expr(x.decay, names)}, {place}, {x.back})"
    if x.relative:
        return f"running_exponentials({_expr(x.x, names)}, {place}, {x.back})"
    return OPS[x.op].scan.format(_expr(x.x, names), place, x.back)


def _dot(x: nodes.Dot, names: Names) -> str:
    added = [names[x.accumulator]] if isinstance(x.accumulator, str) else []
    added += [_dot(x.accumulator, names)] if isinstance(x.accumulator, nodes.Dot) else []
    if isinstance(x.precision, int):
        return " + ".join([*added, f"dot_float8({_expr(x.left, names)}, {_expr(x.right, names)}, {x.precision})"])
    if isinstance(x.precision, nodes.InParts):
        side, part = x.precision.side, x.precision.part
        return " + ".join([*added, f"dot_in_{part}({_expr(x.left, names)}, {_expr(x.right, names)}, {side})"])
    if x.precision == "int8":
        product = f"tl.dot({_expr(x.left, names)}, {_expr(x.right, names)}, out_dtype=tl.int32)"
        return " + ".join([*added, f"{product}.to(tl.float32)"])
    precision = [f'input_precision="{x.precision}"'] if x.precision is not None else []
    return f"tl.dot({', '.join([_expr(x.left, names), _expr(x.right, names), *added, *precision])})"


def _byte_bits(x: nodes.ByteBits, names: Names) -> str:
    return f"byte_bits({_expr(x.x, names)}, {x.shift}, {x.mask}, {x.sign}, {_less(x, names)}{', True' * x.pure})"


def _pair_bits(x: nodes.PairBits, names: Names) -> str:
    return f"pair_bits({_expr(x.x, names)}, {x.shift + 8 * x.second}, {x.mask}, {x.sign}, {_less(x, names)})"


def _of_words(x: nodes.OfWords, words: str) -> str:
    bits, own = nodes.WORD_BITS // x.room, f"BLOCK_{x.dim}" + (f" // {x.count}" if x.count > 1 else "")
    at = f"tl.arange(0, {own}) % {x.room // x.count} * {x.count * bits}" if x.count < x.room else ""
    shift = " + ".join(filter(None, (at, str(x.place * bits) if x.place else "")))
    part = f"({words} >> ({shift}))" if shift else words
    return f"{part}.to(tl.int{bits})" + (f".to({TYPE[x.dtype]}, bitcast=True)" if x.dtype != f"int{bits}" else "")


def _less(x: nodes.ByteBits | nodes.PairBits, names: Names) -> str:
    """What is subtracted, in the type of the result."""
    if not isinstance(x.less, nodes.Literal):
        return _expr(x.less, names)
    dtype = "MATRIX_TYPE" if x.dtype == "bfloat16" else TYPE[x.dtype]
    return f"tl.full((), {_expr(x.less, names)}, {dtype})"


def _in_turns(x: nodes.InTurns, names: Names) -> str:
    text = _joined([_expr(x.first, names), _expr(x.second, names)])
    return f"tl.reshape({_moved_last(text, x.axes, x.dim, 1)}, {_shape(x.axes)})"


def _entries(x: nodes.Entries, names: Names) -> str:
    shape = _shape(x.axes)
    flat = f"tl.reshape({_expr(x.x, names)}, [{shape[1:-1].replace(', ', ' * ')}])"
    return f"tl.reshape(tl.gather({_expr(x.table, names)}, {flat}, 0), {shape})"


def _exp_of_difference(x: str, shift: str, exact: bool, factor: float) -> str:
    if not exact:
        return f"tl.exp2({x} * {factor * LOG2E!r} - {shift})"
    return f"tl.exp2(({x} - {shift}) * {factor * LOG2E!r})"


def _power(x: str, exponent: Fraction, exact: bool) -> str:
    """x ** exponent: products for small integers, roots for halves, else through the logarithm.

    exact: with quotients and roots that are rounded correctly."""
    sqrt = "tl.sqrt_rn" if exact else "tl.sqrt"
    if exponent < 0 and exponent != Fraction(-1, 2):
        inverse = _power(x, -exponent, exact)
        return f"tl.div_rn(1.0, {inverse})" if exact else f"(1.0 / {inverse})"
    if exponent.denominator == 1 and exponent <= 16:
        return "(" + " * ".join([x] * int(exponent)) + ")" if exponent else f"({x} * 0.0 + 1.0)"
    if exponent == Fraction(1, 2):
        return f"{sqrt}({x})"
    if exponent == Fraction(-1, 2):
        return f"tl.rsqrt({x})"
    if exponent.denominator == 2:
        return f"({_power(x, exponent - Fraction(1, 2), exact)} * {sqrt}({x}))"
    if exponent.denominator == 1:
        size = f"tl.exp2({float(exponent)!r} * tl.log2(tl.abs({x})))"
        return f"tl.where({x} < 0.0, -{size}, {size})" if exponent % 2 else size
    return f"tl.exp2({float(exponent)!r} * tl.log2({x}))"


LEAST_FLOAT32, MOST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The normal numbers."""
_EXPRESSIONS: Mapping[type[Expr], Callable[..., str]] = {
    nodes.Value: lambda x, names: names[x.name],
    nodes.Shift: lambda x, names: f"{names[x.maximum]}_shift",
    nodes.Factor: lambda x, names: f"{names[x.maximum]}_scale",
    nodes.Literal: lambda x, _: number_text(x),
    nodes.Placed: lambda x, names: f"({_position(x.terms, x.start, x.axes, names)})",
    nodes.Extent: lambda x, _: f"SIZE_{x.dim}.to(tl.float32)",
    nodes.Position: lambda x, _: f"i_{x.dim}" if x.axes else f"(i_{x.dim} + 0)",
    nodes.Full: lambda x, _: f"tl.full({_shape(x.axes) if x.axes else '()'}, {number_text(x.number)}, {TYPE[x.dtype]})",
    nodes.Cast: lambda x, names: _cast(_expr(x.x, names), x.old, x.new),
    nodes.ByteBits: _byte_bits,
    nodes.PairBytes: lambda x, names: f"pair_bytes({_expr(x.x, names)}, {x.second})",
    nodes.Entries: lambda x, names: _entries(x, names),
    nodes.HalfWord: lambda x, names: f"({_expr(x.x, names)}{' >> 16' * x.first}).to(tl.int16)",
    nodes.OfWords: lambda x, names: _of_words(x, _expr(x.x, names)),
    nodes.PairBits: _pair_bits,
    nodes.EverySecond: lambda x, names: f"every_second({_expr(x.x, names)}, {x.second})",
    nodes.InTurns: _in_turns,
    nodes.MatrixType: lambda x, names: f"{_expr(x.x, names)}.to(MATRIX_TYPE)",
    nodes.Spread: lambda x, names: _spread(_expr(x.x, names), x.x.axes, x.axes),
    nodes.Repeated: lambda x, names: f"tl.broadcast_to({_expr(x.x, names)}, {_shape(x.axes)})",
    nodes.Permuted: lambda x, names: _permuted(_expr(x.x, names), x.x.axes, x.axes),
    nodes.Reshaped: lambda x, names: f"tl.reshape({_expr(x.x, names)}, {_shape(x.axes)})",
    nodes.Masked: lambda x, names: f"tl.where({_mask(x.dims, x.axes)}, {_expr(x.x, names)}, {number_text(x.number)})",
    nodes.Apply: _apply,
    nodes.Scaled: lambda x, names: f"({_expr(x.x, names)} * {number_text(nodes.Literal(x.factor))})",
    nodes.Power: lambda x, names: _power(_expr(x.x, names), x.exponent, x.exact),
    nodes.AddedLast: lambda x, names: f"tl.fma({_expr(x.a, names)}, 1.0, {_expr(x.b, names)})",
    nodes.ExpDifference: lambda x, names: _exp_of_difference(
        _expr(x.x, names), _expr(x.shift, names), x.exact, x.factor
    ),
    nodes.Product: lambda x, names: f"{_expr(x.a, names)} * {_expr(x.b, names)}",
    nodes.Reduce: _reduce,
    nodes.Scan: _scan,
    nodes.Along: lambda x, names: _expr(x.x, names),
    nodes.Dot: _dot,
    nodes.Ended: lambda x, names: f"ended({_expr(x.x, names)})",
    nodes.Added: lambda x, names: f"{names[x.accumulator]} + {_expr(x.x, names)}",
}


def number_text(x: nodes.Literal) -> str:
    """A number as Triton reads it; a whole one stays an integer. One that is no normal number of float32 would be read
    as float64, and all that it meets with it."""
    value = x.value
    if isinstance(value, int):
        return str(value)
    exact = isinstance(value, Fraction)
    if exact and x.whole and number_type(value) == "int":
        return str(value.numerator) if value >= 0 else f"({value.numerator})"
    number = float(value)
    if not abs(number) <= MOST_FLOAT32:
        return f'float("{"nan" if number != number else "inf" if number > 0 else "-inf"}")'
    if 0 < abs(number) < LEAST_FLOAT32:
        return f"tl.full((), {number!r}, tl.float32)"
    return f"({number!r})" if exact and number < 0 else repr(number)


def _shape(axes: Axes) -> str:
    return f"[{', '.join(map(_extent, axes))}]"


def _extent(axis: str) -> str:
    """Elements along an axis of a block."""
    whole, count = axisnames.shares(axis)
    return " * ".join(f"BLOCK_{d}" for d in axisnames.apart((whole,))) + f" // {count}" * (count > 1)


def _spread(text: str, have: Axes, want: Axes) -> str:
    if have == want or not have:
        return text
    return text + "[" + ", ".join(":" if d in have else "None" for d in want) + "]"


def _cast(text: str, old: str, new: str) -> str:
    if new not in ROUNDED or old == new:
        return f"{text}.to({TYPE[new]})"
    return f"to_{new}({text})" if old == "float32" else f"to_{new}({text}.to(tl.float32))"


def _permuted(text: str, have: Axes, want: Axes) -> str:
    return text if have == want else f"tl.permute({text}, ({', '.join(str(have.index(d)) for d in want)}))"


def _note(axes: Axes) -> str:
    return f"  # [{', '.join(axes)}]"
