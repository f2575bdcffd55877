"""A μGraph as a picture: kernels as boxes from top to bottom, loops as boxes inside, buffers as arrows beside them.

`lay_out` turns a μGraph into `Box`es of lines and `Arrow`s between lines; `svg` draws them; `html` is a page around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.placement import InexpressibleError, Loop, Straight, place
from mirage_cli.ir.text import load_text, print_mugraph, store_text

LINE, CHAR = 18, 7.25
"""Pixels: height of a line, width of a character of the 12 px monospaced font."""
PAD, GAP, LANE = 10, 22, 26
"""Pixels: inside a box, between boxes, between arrows."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
STYLE = f"""
text {{ font: 12px {FONT}; fill: #1b1f24; white-space: pre; }}
.title {{ font-weight: bold; }} .note {{ fill: #59636e; }}
.memory {{ fill: #f3f4f6; stroke: #8c959f; }} .kernel {{ fill: #fff; stroke: #1b1f24; stroke-width: 1.5; }}
.library {{ fill: #fff8e5; stroke: #1b1f24; stroke-width: 1.5; }} .loop {{ fill: #eaf3ff; stroke: #4a7ab5; }}
.arrow {{ fill: none; stroke-width: 1.5; }}
"""
COLOURS = ("#0b5394", "#a64d79", "#38761d", "#b45f06", "#674ea7", "#134f5c", "#990000", "#7f6000")
PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><title>{title}</title>
<style>body {{ font-family: system-ui, sans-serif; margin: 2em; color: #1b1f24; }}
pre {{ font: 12px {font}; background: #f3f4f6; padding: 1em; }} pre, div {{ overflow-x: auto; }}</style></head>
<body><h1>{title}</h1>
<div>
{svg}</div>
<h2>The μGraph</h2><pre>{text}</pre>
<h2>The program</h2><pre>{program}</pre>
</body></html>
"""


@dataclass(slots=True)
class Line:
    """A line of text with a note behind it. y: its baseline, once it has been placed."""

    text: str
    note: str = ""
    y: float = 0.0


@dataclass(slots=True)
class Box:
    """A title, and lines and boxes inside. kind: "memory", "kernel", "library" or "loop". y: its upper edge."""

    kind: str
    title: Line
    content: list[Line | Box] = field(default_factory=list["Line | Box"])
    y: float = 0.0
    height: float = 0.0

    def place(self, y: float) -> float:
        """Gives everything inside its place; returns the lower edge."""
        self.y, self.title.y = y, y + LINE - 2
        y += LINE + PAD / 2
        for x in self.content:
            if isinstance(x, Box):
                y = x.place(y) + PAD / 2
            else:
                y += LINE
                x.y = y - 5
        self.height = y + PAD / 2 - self.y
        return y + PAD / 2

    def lines(self) -> Iterator[Line]:
        for x in self.content:
            yield from x.lines() if isinstance(x, Box) else (x,)

    def width(self, depth: int = 1) -> float:
        """What the longest line needs, with room at both sides for the boxes around it."""
        lines = [self.title, *(x for x in self.content if isinstance(x, Line))]
        own = max(len(x.text) + (len(x.note) + 3 if x.note else 0) for x in lines) * CHAR + 2 * depth * PAD
        return max([own, *(x.width(depth + 1) for x in self.content if isinstance(x, Box))])


@dataclass(frozen=True, slots=True)
class Arrow:
    """A tensor, from the lines that list or store it to those that load or list it. label: written beside it."""

    tensor: str
    label: str
    starts: tuple[Line, ...]
    ends: tuple[Line, ...]

    def heights(self) -> list[float]:
        return [x.y - 4 for x in (*self.starts, *self.ends)]

    def middle(self) -> float:
        return (min(self.heights()) + max(self.heights())) / 2


# -- what there is to draw


def lay_out(graph: MuGraph) -> tuple[list[Box], list[Arrow]]:
    """The boxes from top to bottom: inputs, kernels, outputs; and an arrow for each tensor that one gives another."""
    notes = _notes(graph)
    tensors = graph.tensors()
    starts: dict[str, list[Line]] = {name: [] for name in tensors}
    ends: dict[str, list[Line]] = {name: [] for name in tensors}
    sizes = " ".join(f"{d}={n}" for d, n in graph.dims)
    inputs, outputs = Box("memory", Line(f"inputs of {graph.name}", sizes)), Box("memory", Line("outputs"))
    for box, group, side in ((inputs, graph.inputs, starts), (outputs, graph.outputs, ends)):
        for t in group:
            box.content.append(line := Line(str(t)))
            side[t.name].append(line)
    kernels = [_kernel_box(k, notes[k.name]) for k in graph.kernels]
    for k, box in zip(graph.kernels, kernels, strict=True):
        loads, stores = {load_text(x): x.buffer for x in k.loads}, {store_text(s): s.buffer for s in k.stores}
        for line in box.lines():
            if line.text in loads:
                ends[loads[line.text]].append(line)
            elif line.text in stores:
                starts[stores[line.text]].append(line)
    arrows = [
        Arrow(str(t), str(t) if t in graph.buffers else "", tuple(starts[n]), tuple(ends[n]))
        for n, t in tensors.items()
        if starts[n] and ends[n]
    ]
    return [inputs, *kernels, outputs], arrows


def _notes(graph: MuGraph) -> dict[str, dict[str, str]]:
    """What `print_mugraph` says behind each line of each kernel; behind its first, under the empty text."""
    found: dict[str, dict[str, str]] = {}
    kernel: dict[str, str] = {}
    for line in print_mugraph(graph).splitlines():
        text, _, note = line.partition("# ")
        if text.startswith("kernel "):
            kernel = found.setdefault(text.split()[1], {"": note})
        elif text.strip():
            kernel[text.strip()] = note
    return found


def _kernel_box(k: Kernel, notes: dict[str, str]) -> Box:
    title = f"{k.name}: {'one call of torch' if k.kind == 'library' else notes['']}"
    roles = " ".join(f"{d}:{r}" for d, r in k.roles)
    box = Box("library" if k.kind == "library" else "kernel", Line(title, roles))
    try:
        segments = place(k).segments if k.kind == "generated" else ()
    except InexpressibleError:
        segments = ()
    for segment in segments or (Straight((*k.loads, *k.body), k.stores),):
        steps = (load_text(x) if isinstance(x, Load) else str(x) for x in segment.steps)
        texts = (*steps, *map(store_text, segment.stores))
        lines: list[Line | Box] = [Line(text, notes.get(text, "")) for text in texts]
        if isinstance(segment, Loop):
            box.content.append(Box("loop", Line(f"for each tile of {', '.join(segment.dims)}"), lines))
        else:
            box.content += lines
    return box


# -- drawing


def svg(graph: MuGraph) -> str:
    """The picture as a standalone SVG document."""
    boxes, arrows = lay_out(graph)
    y, width = float(GAP), max(b.width() for b in boxes)
    for b in boxes:
        y = b.place(y) + GAP
    right = GAP + width
    lanes = [right + LANE * n for n in _lanes(arrows)]
    size = f'width="{max([right, *lanes]) + 2 * LANE:.0f}" height="{y:.0f}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<title>{_safe(graph.name)}</title>"]
    parts += [f"<style>{STYLE}</style>", *(x for b in boxes for x in _draw_box(b, GAP, width))]
    for i, (arrow, lane) in enumerate(zip(arrows, lanes, strict=True)):
        parts.append(_draw_arrow(arrow, right, lane, COLOURS[i % len(COLOURS)]))
    parts += [_draw_label(arrow, lane) for arrow, lane in zip(arrows, lanes, strict=True) if arrow.label]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_box(b: Box, x: float, width: float) -> Iterator[str]:
    place = f'x="{x:.1f}" y="{b.y:.1f}" width="{width:.1f}" height="{b.height:.1f}"'
    yield f'<rect class="{b.kind}" {place} rx="5"/>'
    yield _text(b.title, x + PAD, "title")
    for inner in b.content:
        if isinstance(inner, Box):
            yield from _draw_box(inner, x + PAD, width - 2 * PAD)
        else:
            yield _text(inner, x + PAD, "line")


def _lanes(arrows: Sequence[Arrow]) -> list[int]:
    """For each arrow the first lane, from 1, in which it and its label have room."""
    taken: list[list[tuple[float, float]]] = []
    lanes: list[int] = []
    for a in arrows:
        half = len(a.label) * CHAR / 2
        low, high = min(*a.heights(), a.middle() - half) - 4, max(*a.heights(), a.middle() + half) + 4
        free = (i for i, spans in enumerate(taken) if all(high < x or low > y for x, y in spans))
        if (lane := next(free, len(taken))) == len(taken):
            taken.append([])
        taken[lane].append((low, high))
        lanes.append(lane + 1)
    return lanes


def _draw_arrow(a: Arrow, right: float, lane: float, colour: str) -> str:
    """Out of the boxes' right edge at each start, along its lane, and back in at each end."""
    path = f"M {lane:.1f} {min(a.heights()):.1f} V {max(a.heights()):.1f}"
    path += "".join(f" M {right:.1f} {x.y - 4:.1f} H {lane:.1f}" for x in a.starts)
    path += "".join(f" M {lane:.1f} {x.y - 4:.1f} H {right + 1:.1f} m 7 -4 l -7 4 l 7 4" for x in a.ends)
    return f'<path class="arrow" stroke="{colour}" d="{path}"><title>{_safe(a.tensor)}</title></path>'


def _draw_label(a: Arrow, lane: float) -> str:
    width = len(a.label) * CHAR
    place = f"translate({lane + 5:.1f} {a.middle():.1f}) rotate(90)"
    ground = f'<rect fill="#fff" x="{-width / 2:.1f}" y="-10" width="{width:.1f}" height="13"/>'
    return f'<g transform="{place}">{ground}<text class="note" text-anchor="middle">{_safe(a.label)}</text></g>'


def _text(line: Line, x: float, kind: str) -> str:
    note = f'<tspan class="note" dx="{2 * CHAR:.1f}">{_safe(line.note)}</tspan>' if line.note else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{line.y:.1f}">{_safe(line.text)}{note}</text>'


def html(graph: MuGraph, program: str) -> str:
    """A standalone page: the picture, the text, and the spec that it is for."""
    return PAGE.format(
        title=_safe(graph.name), font=FONT, svg=svg(graph), text=_safe(print_mugraph(graph)), program=_safe(program)
    )


def _safe(text: str) -> str:
    """Escaped, without the control characters that XML does not have."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text))
