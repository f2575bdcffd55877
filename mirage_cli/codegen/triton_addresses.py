"""Positions, bounds of loops, pointers and masks of a plan as Triton text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mirage_cli.codegen import addresses, axisnames, scalars
from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.nodes import Axes
from mirage_cli.codegen.scalars import Scalar, Start

Names = Mapping[str, str]
"""What each value is called."""


def scalar_text(x: Scalar, names: Names) -> str:
    match x:
        case scalars.Number(value):
            return str(value)
        case scalars.Size(d):
            return f"SIZE_{d}"
        case scalars.TileAt(d, tile, last):
            start = f"t_{d} * {tile}" if tile > 1 else f"t_{d}"
            return f"{start} + {tile - 1}" if last and tile > 1 else start
        case scalars.ChunkAt(length, end):
            each = length_text(length)
            return f"chunk * {each} + {each}" if end else f"chunk * {each}"
        case scalars.Mark(kind, d):
            return f"{kind}_{d}"
        case scalars.Extreme(value, largest, axes):
            return f"tl.{'max' if largest else 'min'}({names[value]})" if axes else names[value]
        case scalars.Sum(constant, terms):
            parts = [str(constant)] * bool(constant)
            parts += [text if c == 1 else f"{c} * ({text})" for c, s in terms for text in [scalar_text(s, names)]]
            return " + ".join(parts) or "0"
        case scalars.Plus(start, more):
            return f"{scalar_text(start, names)} + {more}"
        case scalars.Aligned(position, tile):
            return f"({scalar_text(position, names)}) // {tile} * {tile}"
        case scalars.Bound(largest, of):
            return f"{'max' if largest else 'min'}({', '.join(scalar_text(s, names) for s in of)})"


def bound_text(x: Scalar, names: Names) -> str:
    """A bound of a loop, which is a constant or for `bound` (helpers.py)."""
    text = scalar_text(x, names)
    constant = isinstance(x, scalars.Number) or (isinstance(x, scalars.Size) and not x.given)
    return text if constant else f"bound({text})"


def tiles_in_front_text(x: Scalar, tile: int, names: Names) -> str:
    """The number of tiles in front of a position. Where a part of a loop ends within a tile, the next begins behind."""
    return f"(({scalar_text(x, names)} + {tile - 1}) // {tile})" if tile > 1 else f"({scalar_text(x, names)})"


def length_text(x: scalars.Length) -> str:
    """Of a chunk."""
    if isinstance(x, int):
        return str(x)
    tiles = f"(SIZE_{x.dim} + {x.chunks * x.tile - 1}) // {x.chunks * x.tile}"
    return f"({tiles} * {x.tile})" if x.tile > 1 else f"({tiles})"


def tiles_text(n: scalars.Tiles) -> str:
    return f"((SIZE_{n.dim} + {n.tile - 1}) // {n.tile})" if n.tile > 1 else f"SIZE_{n.dim}"


def factors_text(counts: Sequence[scalars.Count]) -> str:
    """A product of a number and of what follows from arguments."""
    texts = [tiles_text(n) if isinstance(n, scalars.Tiles) else str(n) for n in counts]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def start_text(x: Start, names: Names) -> str:
    match x:
        case scalars.AtZero():
            return "0"
        case scalars.AtTile(d, tile):
            return f"t_{d} * BLOCK_{d}" if tile > 1 else f"t_{d}"
        case scalars.AtStep(d):
            return f"s_{d}"
        case scalars.AtFirst(_, first):
            return scalar_text(first, names)
        case scalars.AtNext(d, step):
            return f"s_{d} + {step}"
        case scalars.AtJointStep(inner, trips, tile, chunk):
            start = f"(step // {factors_text(inner)}{'' if trips is None else f' % {factors_text((trips,))}'}) * {tile}"
            return start if chunk is None else f"chunk * {length_text(chunk)} + {start}"
        case scalars.AtDivided(of, by, remainder):
            return f"({corner_text(of, names)}) {'%' if remainder else '//'} {by}"


def corner_text(x: scalars.Corner, names: Names) -> str:
    starts = [(start, c) for start, c in x.terms if not isinstance(start, scalars.AtZero)]
    texts = [start_text(start, names) if c == 1 else f"({start_text(start, names)}) * {c}" for start, c in starts]
    texts += [str(x.offset)] if x.offset or not texts else []
    return " + ".join(texts).replace("+ -", "- ")


def turns_of(x: addresses.Pointers | addresses.Box) -> addresses.Turns | None:
    """The positions along which elements of several blocks lie in turns, if any do."""
    return (
        next((p for p, _ in x.terms if isinstance(p, addresses.Turns)), None)
        if isinstance(x, addresses.Pointers)
        else None
    )


def pointers_text(x: addresses.Pointers, names: Names) -> str:
    """Offsets from the start of a buffer."""
    pointer = f"{x.buffer}_ptr" + (f".to(tl.pointer_type(tl.int{x.bits}))" if x.bits else "")
    return f"{pointer} + {position_text(x.terms, x.start, x.axes, names, x.starts)}"


def position_text(
    terms: Iterable[tuple[Place, scalars.Stride]],
    start: int,
    want: Axes,
    names: Names,
    starts: Iterable[scalars.Times] = (),
) -> str:
    texts = [_place(place, want, names) + (f" * {_stride(n)}" if n != 1 else "") for place, n in terms]
    texts += [_stride(n) for n in starts]
    texts += [str(start)] if start or not texts else []
    return " + ".join(texts)


def _stride(n: scalars.Stride) -> str:
    if isinstance(n, int):
        return str(n)
    texts = [*(f"SIZE_{d}" for d in n.dims), *[str(n.number)] * (n.number != 1)]
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def within_text(x: addresses.Within, want: Axes, names: Names) -> str:
    position = position_text(x.terms, x.start, want, names)
    low = f"({position} >= 0)" if x.below else ""
    high = f"({position} < {x.size})" if x.size is not None else ""
    return " & ".join(filter(None, (low, high)))


def _place(x: Place, want: Axes, names: Names) -> str:
    match x:
        case addresses.ChunkNumber():
            return "chunk"
        case addresses.Lanes(d, block):
            return spread_text(f"i_{d}", (d,) if block else (), want)
        case addresses.Picked(d, block, start, wide, every, clamped):
            text = f"i_{d}" if start is None else start_text(start, names)
            if every is not None:
                text += f" + {_every(every)}"
            if clamped:
                text = f"tl.minimum({text}, SIZE_{d} - 1)"
            if wide and text != "0":
                text = f"({text}).to(tl.int64)"
            return spread_text(f"({text})", (d,) if block else (), want)
        case addresses.Divided(terms, start, by, rest, axes, wide):
            inside = position_text(terms, start, axes, names)
            inside = f"({inside})" if " " in inside else inside
            text = f"{inside} {'%' if rest else '//'} {by}"
            return spread_text(f"({text})" + ".to(tl.int64)" * wide, axes, want)
        case addresses.Turns(d, count, start, wide):
            lanes, first, room = f"tl.arange(0, BLOCK_{d} * {x.room})", start_text(start, names), x.room
            lanes = lanes if room == count else f"({lanes} // {room} * {count} + {lanes} % {room})"
            first = f"({first})" if " + " in first or wide else first
            first = f"{first}{'.to(tl.int64)' * wide} * {count} + " if not isinstance(start, scalars.AtZero) else ""
            return spread_text(f"({first}{lanes}{'.to(tl.int64)' * (wide and not first)})", (d,), want)
        case addresses.SharedNumbers(d, start, count):
            own = f"BLOCK_{d} // {count}"
            first = (
                f"t_{d} * ({own})" if isinstance(start, scalars.AtTile) else f"({start_text(start, names)}) // {count}"
            )
            return spread_text(f"({first} + tl.arange(0, {own}))", (axisnames.shared(d, count),), want)
        case addresses.MergedLanes(d, axis, start, wide):
            text = _merged_lanes(d, axisnames.apart((axis,)))
            text = text if isinstance(start, scalars.AtZero) else f"{start_text(start, names)} + {text}"
            return spread_text(f"({text})" + ".to(tl.int64)" * wide, (axis,), want)
        case addresses.Looked(value, axes, wide):
            return spread_text(names[value] + ".to(tl.int64)" * wide, axes, want)


def _merged_lanes(dim: str, axes: Axes) -> str:
    """How far each position of an axis that is merged from these is along one of them."""
    place = axes.index(dim)
    inner = " * ".join(f"BLOCK_{d}" for d in axes[place + 1 :])
    text = f"tl.arange(0, {extent_text('*'.join(axes))})"
    text += f" // ({inner})" if " " in inner else f" // {inner}" if inner else ""
    return text + f" % BLOCK_{dim}" * (place > 0)


def _every(x: addresses.Every) -> str:
    lanes, step = f"tl.arange(0, {x.count * x.blocks})", x.step
    if x.count == 1:
        step = x.block
    elif x.blocks > 1 and x.count * step < x.block:
        lanes = f"{lanes} // {x.count} * {x.block} + {lanes} % {x.count}"
    return f"{lanes} * {step}" if step > 1 else lanes


def mask_text(dims: Axes, want: Axes) -> str:
    """Which lanes exist along all of these dimensions."""
    return _all_of([spread_text(f"in_{d}", (d,), want) for d in dims])


def pointers_mask_text(dims: Axes, x: addresses.Pointers, names: Names) -> str:
    """Which pointers are to what exists along all of these dimensions."""
    inside: dict[str, str] = {}
    for place, _ in x.terms:
        if isinstance(place, addresses.Turns):
            inside[place.dim] = f"{_place(place, x.axes, names)} < SIZE_{place.dim} * {place.count}"
        elif isinstance(place, addresses.MergedLanes):
            inside[place.dim] = f"{_place(place, x.axes, names)} < SIZE_{place.dim}"
    parts = [inside[d] if d in inside else spread_text(f"in_{d}", (d,), x.axes) for d in dims]
    return _all_of(parts, always=bool({*dims} & {*inside}))


def _all_of(parts: Sequence[str], always: bool = False) -> str:
    return " & ".join(f"({x})" if len(parts) > 1 or always else x for x in parts)


def extent_text(axis: str) -> str:
    """Elements along an axis of a block."""
    whole, count = axisnames.shares(axis)
    return " * ".join(f"BLOCK_{d}" for d in axisnames.apart((whole,))) + f" // {count}" * (count > 1)


def spread_text(text: str, have: Axes, want: Axes) -> str:
    if have == want or not have:
        return text
    return text + "[" + ", ".join(":" if d in have else "None" for d in want) + "]"
