"""A μGraph as a picture: kernels from top to bottom, and between them the tensors in device memory they exchange.

    MuGraph, KernelProfiles ─► lay_out ─► Row, Box, Row, Box, ..., Row ─► svg

A row has a chip for each tensor that the kernel above it writes or the kernel below it reads. Arrows lead from a box
to the row below it or from a row to the box below it, along one line for each, so none crosses a chip, a box or a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from math import prod

from mirage_cli.cli.units import bytes_text, flops_text, percent_text, us_text
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.placement import InexpressibleError, Loop, Straight, place
from mirage_cli.ir.program import DTYPE_BYTES, Tensor
from mirage_cli.ir.text import load_text, print_mugraph, store_text
from mirage_cli.pipeline.profile import KernelProfile, LoopProfile, profile

LINE, CHAR = 18, 7.25
"""Pixels: height of a line, width of a character of the 12 px monospaced font."""
PAD, GAP, BUS = 12, 14, 20
"""Pixels: inside a box, between chips, between a chip and the line that joins it to a kernel."""
MARGIN, WIDEST = 10, 860
"""Pixels: around the picture; chips that need more than the latter stand in several lines."""
STRIP = 8
"""Pixels: height of the strip that shows which part of a loop runs."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
STYLE = f"""
.mugraph {{ --ink: #1b1f24; --faint: #57606a; --ground: #fff; --box: #fff; --chip: #f3f4f6; --call: #fff8e5;
 --loop: #eaf3ff; --loop-edge: #4a7ab5; --run: #4a7ab5; background: var(--ground); }}
@media (prefers-color-scheme: dark) {{ .mugraph {{ --ink: #e6edf3; --faint: #9ea7b3; --ground: #0d1117; --box: #161b22;
 --chip: #21262d; --call: #2b2410; --loop: #13233a; --loop-edge: #79b0f0; --run: #79b0f0; }} }}
.mugraph text {{ font: 12px {FONT}; fill: var(--ink); white-space: pre; }}
.mugraph .title {{ font-weight: bold; }} .mugraph .note {{ fill: var(--faint); font-weight: normal; }}
.mugraph rect {{ stroke: var(--faint); fill: var(--chip); }}
.mugraph .buffer {{ stroke-dasharray: 4 3; }} .mugraph .output {{ stroke: var(--ink); stroke-width: 2; }}
.mugraph .kernel {{ fill: var(--box); stroke: var(--ink); stroke-width: 1.5; }}
.mugraph .library {{ fill: var(--call); stroke: var(--ink); stroke-width: 1.5; }}
.mugraph .loop {{ fill: var(--loop); stroke: var(--loop-edge); }}
.mugraph .run {{ fill: var(--run); stroke: none; }} .mugraph .skipped {{ fill: none; stroke: var(--run);
 stroke-dasharray: 2 3; }}
.mugraph .arrow {{ fill: none; stroke: var(--ink); stroke-width: 1.25; }}
.mugraph .head {{ fill: var(--ink); stroke: none; }}
"""


@dataclass(slots=True)
class Line:
    """A line of text, a note in a column of its own, and, of a loop that masks end, the part of it that runs."""

    text: str
    note: str = ""
    part: float | None = None
    y: float = 0.0


@dataclass(slots=True)
class Box:
    """A kernel, or a loop in it. heads: its first lines. kind: "kernel", "library" or "loop". y: its upper edge."""

    kind: str
    heads: list[Line]
    content: list[Line | Box] = field(default_factory=list["Line | Box"])
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def centre(self) -> float:
        return self.x + self.width / 2

    def lines(self) -> Iterator[Line]:
        """Those of the content, of inner boxes too."""
        for x in self.content:
            yield from x.lines() if isinstance(x, Box) else (x,)

    def columns(self, depth: int = 1) -> tuple[float, float]:
        """Where notes may begin, and the width: what the longest lines need, with room for the boxes around them."""
        both = [x for x in (*self.heads, *self.content) if isinstance(x, Line)]
        inset = depth * PAD
        texts = [inset + len(x.text) * CHAR for x in both if x.note]
        alone = [2 * inset + len(x.text) * CHAR for x in both if not x.note]
        notes = [len(x.note) * CHAR + inset for x in both if x.note]
        inner = [x.columns(depth + 1) for x in self.content if isinstance(x, Box)]
        column = max([*texts, *(c for c, _ in inner)], default=0.0)
        behind = max([*notes, *(w - c for c, w in inner)], default=0.0)
        return column, max([column + 2 * CHAR + behind, *alone, *(w for _, w in inner)])

    def place(self, x: float, y: float, width: float) -> float:
        """Gives everything inside its place; returns the lower edge."""
        self.x, self.y, self.width = x, y, width
        y += PAD / 2
        for line in self.heads:
            y = _below(line, y)
        y += PAD / 2
        for c in self.content:
            y = c.place(x + PAD, y + PAD / 2, width - 2 * PAD) + PAD / 2 if isinstance(c, Box) else _below(c, y)
        self.height = y + PAD / 2 - self.y
        return self.y + self.height


def _below(line: Line, y: float) -> float:
    line.y = y + LINE - 5
    return y + LINE + (STRIP + 4 if line.part is not None else 0)


@dataclass(slots=True)
class Chip:
    """A tensor in device memory. written, read: whether the kernel above it or the one below it does."""

    tensor: Tensor
    kind: str
    size: str
    written: bool
    read: bool
    x: float = 0.0
    y: float = 0.0

    HEIGHT = 2 * LINE + PAD

    @property
    def width(self) -> float:
        return max(len(str(self.tensor)), len(f"{self.kind} {self.size}")) * CHAR + 2 * PAD

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


@dataclass(slots=True)
class Row:
    """The tensors between two kernels, in lines of chips that are no wider than the picture."""

    chips: list[Chip]
    lines: list[list[Chip]] = field(default_factory=list[list[Chip]])
    y: float = 0.0
    height: float = 0.0

    def wrap(self, width: float) -> float:
        """Breaks the chips into lines; returns the width of the widest."""
        self.lines = [[]]
        for chip in self.chips:
            if self.lines[-1] and _line_width([*self.lines[-1], chip]) > width:
                self.lines.append([])
            self.lines[-1].append(chip)
        return max(_line_width(line) for line in self.lines) + (4 * GAP if len(self.lines) > 1 else 0)

    def place(self, centre: float, y: float) -> float:
        """Returns the lower edge. Above and below each line of chips is room for the line that joins them."""
        self.y = y
        for line in self.lines:
            y += BUS * any(c.written for c in line)
            x = centre - _line_width(line) / 2
            for chip in line:
                chip.x, chip.y = x, y
                x += chip.width + GAP
            y += Chip.HEIGHT + BUS * any(c.read for c in line)
        self.height = y - self.y
        return y


def _line_width(line: Sequence[Chip]) -> float:
    return sum(c.width for c in line) + GAP * (len(line) - 1)


# -- what there is to draw


def lay_out(graph: MuGraph, profiles: Sequence[KernelProfile] = ()) -> tuple[list[Row], list[Box]]:
    """The kernels, and the rows of tensors before, between and behind them: one more than there are kernels."""
    profiles = profiles or profile(graph, None, None)
    notes = _notes(graph)
    boxes = [_kernel_box(k, p, notes[k.name]) for k, p in zip(graph.kernels, profiles, strict=True)]
    sizes = graph.sizes | {name: n for p in profiles for name, n in p.chunks.items()}
    return [_row(graph, i, sizes) for i in range(len(graph.kernels) + 1)], boxes


def _row(graph: MuGraph, i: int, sizes: Mapping[str, int]) -> Row:
    """What kernel i - 1 writes, then what else kernel i reads."""
    tensors = graph.tensors()
    written = [s.buffer for s in graph.kernels[i - 1].stores] if i else []
    read = graph.kernels[i].read if i < len(graph.kernels) else ()
    kinds = {t.name: kind for kind in ("input", "buffer", "output") for t in getattr(graph, f"{kind}s")}
    chips: list[Chip] = []
    for name in dict.fromkeys((*written, *read)):
        t = tensors[name]
        kind = "changed input" if name in graph.changed and name in written else kinds[name]
        size = " × ".join(str(sizes.get(d, d)) for d in t.dims) or "one number"
        if all(d in sizes for d in t.dims):
            size += f", {bytes_text(prod(sizes[d] for d in t.dims) * DTYPE_BYTES[t.dtype])}"
        chips.append(Chip(t, kind, size, name in written, name in read))
    return Row(chips)


def _notes(graph: MuGraph) -> dict[str, dict[str, str]]:
    """What `print_mugraph` says behind each line of each kernel."""
    found: dict[str, dict[str, str]] = {}
    kernel: dict[str, str] = {}
    for line in print_mugraph(graph).splitlines():
        text, _, note = line.partition("# ")
        if text.startswith("kernel "):
            kernel = found.setdefault(text.split()[1], {"": note})
        elif text.strip():
            kernel[text.strip()] = note
    return found


def _kernel_box(k: Kernel, p: KernelProfile, notes: dict[str, str]) -> Box:
    try:
        segments = place(k).segments if k.kind == "generated" else ()
    except InexpressibleError:
        segments = ()
    loops = iter(p.loops)
    box = Box(k.kind if k.kind == "library" else "kernel", _heads(k, p, notes[""]))
    for segment in segments or (Straight((*k.loads, *k.body), k.stores),):
        steps = (*segment.steps, *segment.stores)
        lines: list[Line | Box] = [Line(rounded(_text_of(s)), _note(s, p, notes)) for s in steps]
        if isinstance(segment, Loop):
            box.content.append(Box("loop", _loop_heads(next(loops)), lines))
        else:
            box.content += lines
    return box


def _text_of(step: object) -> str:
    return load_text(step) if isinstance(step, Load) else store_text(step) if isinstance(step, Store) else str(step)


def rounded(text: str) -> str:
    """With fractions as decimals of four digits: the text beside the picture has the exact numbers."""
    return re.sub(r"(?<![\w.])-?\d+/\d+(?![\w.])", lambda m: f"{float(Fraction(m[0])):.4g}", text)


def _note(step: object, p: KernelProfile, notes: Mapping[str, str]) -> str:
    """The block and the maps of what is moved, and what an equation is to its loop; not that it stands in one."""
    said = notes.get(_text_of(step), "")
    place, _, role = said.partition(": ")
    if not isinstance(step, Load | Store):
        return role if place.startswith("loop over") else ""
    return "  ".join(x for x in (_tile(step, p), said) if x)


def _tile(step: object, p: KernelProfile) -> str:
    """The block of a load or a store, axis by axis."""
    if not isinstance(step, Load | Store) or not p.blocks or not step.dims:
        return ""
    return " × ".join(f"{p.blocks[d]}" for d in step.dims if d in p.blocks)


def _heads(k: Kernel, p: KernelProfile, note: str) -> list[Line]:
    """The kernel's name and shape, what it moves and computes, what it waits for, what overlaps."""
    if k.kind == "library":
        first = Line(f"{k.name}: one call of torch")
    else:
        tiles = " × ".join(f"{d} {p.blocks[d]}" for d in k.with_role("grid", "split") if p.blocks.get(d, 1) > 1)
        count = f"{p.instances:,} program instance{'s' * (p.instances != 1)}" if p.instances else ""
        shape = f"{count}, a tile of {tiles} each" if tiles else count or note
        first = Line(f"{k.name}: {shape}")
    work = f", {flops_text(p.flops)}" if p.flops else ""
    heads = [
        first,
        Line(f"reads {bytes_text(sum(p.read.values()))}, writes {bytes_text(sum(p.written.values()))}{work}"),
    ]
    if p.predicted_us is not None:
        waits = f", waits for {p.limit}" if p.limit and not p.library else ""
        heads.append(Line(f"predicted {us_text(p.predicted_us)}{waits}"))
    if p.instances:
        heads.append(Line(note))
    return [*heads, *(Line(x) for x in p.overlaps)]


def _loop_heads(loop: LoopProfile) -> list[Line]:
    count = f": {loop.iterations} iterations" if loop.iterations else ""
    heads = [Line(f"for each tile of {', '.join(loop.dims)}{count}")]
    if loop.visited < 1.0:
        text = f"masks end it early: {percent_text(loop.visited)} of them run"
        heads.append(Line(text + ", fewer where data say so" * loop.by_data, part=loop.visited))
    elif loop.by_data:
        heads.append(Line("masks of data end it early"))
    return heads


# -- drawing


def svg(graph: MuGraph, profiles: Sequence[KernelProfile] = (), style: str = STYLE) -> str:
    """The picture as a standalone SVG document. style: empty where a page around it has `STYLE`."""
    rows, boxes = lay_out(graph, profiles)
    widths = [b.columns()[1] for b in boxes]
    width = max(min(max(_line_width(r.chips) for r in rows), WIDEST), *widths)
    width = max(width, *(r.wrap(width) for r in rows))
    centre, y = MARGIN + width / 2, float(MARGIN)
    for i, row in enumerate(rows):
        y = row.place(centre, y)
        if i < len(boxes):
            y = boxes[i].place(centre - widths[i] / 2, y + BUS, widths[i]) + BUS
    size = width + 2 * MARGIN, y + MARGIN
    name = safe(f"The μGraph of {graph.name}, {len(boxes)} kernel{'s' * (len(boxes) != 1)}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="mugraph" role="img" aria-label="{name}" '
        f'viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" width="{size[0]:.0f}" height="{size[1]:.0f}">',
        f"<title>{name}</title>",
    ]
    if style:
        parts.append(f"<style>{style}</style>")
    for i, row in enumerate(rows):
        parts += _draw_arrows(row, boxes[i - 1] if i else None, boxes[i] if i < len(boxes) else None)
    parts += [x for b in boxes for x in _draw_box(b, b.columns()[0])]
    parts += [x for r in rows for c in r.chips for x in _draw_chip(c)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_box(b: Box, column: float, left: float | None = None) -> Iterator[str]:
    """column: where notes begin, from the left edge of the outermost box."""
    left = b.x if left is None else left
    yield _rect(b.kind, b.x, b.y, b.width, b.height)
    for i, line in enumerate(b.heads):
        yield _text(line.text, b.x + PAD, line.y, "note" if i else "title")
        if line.part is not None:
            whole = b.width - 2 * PAD
            yield _rect("skipped", b.x + PAD, line.y + 6, whole, STRIP, 2)
            yield _rect("run", b.x + PAD, line.y + 6, max(whole * line.part, 1), STRIP, 2)
    for inner in b.content:
        if isinstance(inner, Box):
            yield from _draw_box(inner, column, left)
        else:
            yield _text(inner.text, b.x + PAD, inner.y, "line")
            if inner.note:
                yield _text(inner.note, left + column + 2 * CHAR, inner.y, "note")


def _draw_chip(c: Chip) -> Iterator[str]:
    yield _rect(c.kind.split()[-1], c.x, c.y, c.width, Chip.HEIGHT)
    yield _text(str(c.tensor), c.x + PAD, c.y + LINE, "title")
    yield _text(f"{c.kind} {c.size}", c.x + PAD, c.y + 2 * LINE, "note")


def _draw_arrows(row: Row, above: Box | None, below: Box | None) -> Iterator[str]:
    """From the kernel above to what it writes, and from what the kernel below reads to it."""
    if above:
        lines = [[c for c in line if c.written] for line in row.lines]
        start = above.y + above.height
        ys = [(line[0].y - BUS / 2 if line else 0.0) for line in lines]
        spine = max((c.x + c.width for c in row.chips), default=0.0) + GAP
        path = _joint([(y, line) for y, line in zip(ys, lines, strict=True) if line], above.centre, start, spine)
        heads = [_head(c.centre, c.y) for line in lines for c in line]
        path += "".join(
            f" M {c.centre:.1f} {y:.1f} V {c.y - 5:.1f}" for y, line in zip(ys, lines, strict=True) for c in line
        )
        yield _arrow(path, heads, "writes " + ", ".join(c.tensor.name for line in lines for c in line))
    if below and any(c.read for c in row.chips):
        lines = [[c for c in line if c.read] for line in row.lines]
        ys = [(line[0].y + Chip.HEIGHT + BUS / 2 if line else 0.0) for line in lines]
        spine = min(c.x for c in row.chips) - GAP
        path = _joint([(y, line) for y, line in zip(ys, lines, strict=True) if line], below.centre, below.y - 5, spine)
        path += "".join(
            f" M {c.centre:.1f} {c.y + Chip.HEIGHT:.1f} V {y:.1f}"
            for y, line in zip(ys, lines, strict=True)
            for c in line
        )
        yield _arrow(
            path, [_head(below.centre, below.y)], "reads " + ", ".join(c.tensor.name for x in lines for c in x)
        )


def _joint(lines: Sequence[tuple[float, Sequence[Chip]]], x: float, y: float, spine: float) -> str:
    """The line between (x, y) at a kernel and a horizontal one at each line of chips; several are joined by a spine
    beside them. The one next to the kernel goes straight to it."""
    near = min(lines, key=lambda line: abs(line[0] - y))
    path = f"M {x:.1f} {y:.1f} V {near[0]:.1f}"
    for bus, chips in lines:
        ends = [c.centre for c in chips] + ([x] if bus == near[0] else []) + ([spine] if len(lines) > 1 else [])
        path += f" M {min(ends):.1f} {bus:.1f} H {max(ends):.1f}"
    if len(lines) > 1:
        path += f" M {spine:.1f} {min(b for b, _ in lines):.1f} V {max(b for b, _ in lines):.1f}"
    return path


def _head(x: float, y: float) -> str:
    return f'<path class="head" d="M {x:.1f} {y:.1f} l -4 -7 h 8 z"/>'


def _arrow(path: str, heads: Sequence[str], title: str) -> str:
    return f'<g><title>{safe(title)}</title><path class="arrow" d="{path}"/>{"".join(heads)}</g>'


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: int = 5) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place} rx="{radius}"/>'


def _text(text: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{safe(text)}</text>'


def safe(text: str) -> str:
    """Escaped, without the control characters that XML does not have."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text))
