"""The roofline as a picture: operations a second over operations a byte, both logarithmic, a point for each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from mirage_cli.cli.picture import FONT, safe
from mirage_cli.pipeline.roofline import Level, roofs
from mirage_cli.target.gpus import Target

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 62, 24, 16, 48
"""Units of the picture, and what of them lies around the axes."""
LABEL = 7.4
"""Width of a character."""
LINE, CIRCLE = 13.0, 7.0
"""What a label needs above the one below it, and half of what a point needs."""
STYLE = f"""
.roofline {{ --ink: #1b1f24; --faint: #57606a; --grid: #d8dee4; --ground: #fff; --roof: #0b57d0; --point: #9a3412;
 background: var(--ground); }}
@media (prefers-color-scheme: dark) {{ .roofline {{ --ink: #e6edf3; --faint: #9ea7b3; --grid: #30363d;
 --ground: #0d1117; --roof: #8ab4f8; --point: #ffb77c; }} }}
.roofline text {{ font: 12px {FONT}; fill: var(--faint); }}
.roofline .grid {{ stroke: var(--grid); stroke-width: 1; }}
.roofline .roof {{ stroke: var(--roof); stroke-width: 2; fill: none; }} .roofline .roof-text {{ fill: var(--roof); }}
.roofline .roof-text, .roofline .point-text {{ paint-order: stroke; stroke: var(--ground); stroke-width: 4px; }}
.roofline .second {{ stroke-dasharray: 6 4; }}
.roofline .point {{ fill: var(--point); stroke: var(--ground); stroke-width: 1.5; }}
.roofline .bound {{ fill: none; stroke: var(--point); stroke-width: 2; }}
.roofline .point-text {{ fill: var(--ink); }}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Something that runs: operations a byte, operations in a microsecond. bound: it is no kernel but a program at the
    least time that it can take, and is drawn hollow."""

    label: str
    intensity: float
    flops_per_us: float
    title: str
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis, from one power of ten to another."""

    low: int
    high: int
    start: float
    length: float

    def __call__(self, value: float) -> float:
        at = (log10(max(value, 1e-30)) - self.low) / (self.high - self.low)
        return self.start + self.length * min(max(at, 0.0), 1.0)

    def powers(self) -> range:
        return range(self.low, self.high + 1)


def roofline(target: Target, dtype: str, points: Sequence[Point], style: str = STYLE) -> str:
    """The roofs of a GPU with these points under them, as SVG. style: empty where a page around it has `STYLE`."""
    top, arithmetic, l2, memory = roofs(target, dtype)
    shown = [p for p in points if p.intensity > 0 and p.flops_per_us > 0]
    ridge = top.per_us / memory.per_us
    x = _axis([ridge * 4, ridge / 100, *(p.intensity for p in shown)], LEFT, WIDTH - LEFT - RIGHT)
    y = _axis(
        [top.per_us * 1.5, top.per_us / 300, *(p.flops_per_us for p in shown)],
        HEIGHT - BOTTOM,
        -(HEIGHT - BOTTOM - TOP),
    )
    name = safe(f"Roofline of {target.name}, {dtype}: {', '.join(p.title for p in shown) or 'no points'}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="roofline" role="img" aria-label="{name}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<title>{name}</title>",
    ]
    if style:
        parts.append(f"<style>{style}</style>")
    parts += [*_grid(x, y), *_slope(x, y, top, memory, "", 0), *_slope(x, y, top, l2, " second", 1)]
    parts += [*_flat(x, y, top, memory, ""), *_flat(x, y, arithmetic, l2, " second")]
    parts += _points(x, y, shown)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(values: Sequence[float], start: float, length: float) -> Axis:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return Axis(low, max(high, low + 1), start, length)


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    low, high = HEIGHT - BOTTOM, TOP
    for n in x.powers():
        at = x(10.0**n)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{low}" y2="{high}"/>'
        yield f'<text x="{at:.1f}" y="{low + 16}" text-anchor="middle">{10.0**n:g}</text>'
    for n in y.powers():
        at = y(10.0**n)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** (n - 6):g}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">operations a byte</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">TFLOP/s</text>'


def _slope(x: Axis, y: Axis, top: Level, moved: Level, kind: str, row: int) -> Iterator[str]:
    """What is moved, up to the matrix units' rate. Its name is at the lower right, where no roof is: points lie along
    the slopes. row: of the names, from below."""
    left, right = max(10.0**x.low, 10.0**y.low / moved.per_us), top.per_us / moved.per_us
    x1, y1, x2, y2 = x(left), y(left * moved.per_us), x(right), y(top.per_us)
    yield f'<path class="roof{kind}" d="M {x1:.1f} {y1:.1f} L {x2:.1f} {y2:.1f}"/>'
    text = f"{moved.name} {moved.per_us / 1e6:.3g} TB/s"
    end, line = WIDTH - RIGHT - 6, HEIGHT - BOTTOM - 8 - 18 * row
    yield f'<path class="roof{kind}" d="M {end - LABEL * len(text) - 30:.1f} {line - 4} h 24"/>'
    yield f'<text class="roof-text" x="{end}" y="{line}" text-anchor="end">{text}</text>'


def _flat(x: Axis, y: Axis, rate: Level, moved: Level, kind: str) -> Iterator[str]:
    left, at = x(rate.per_us / moved.per_us), y(rate.per_us)
    yield f'<path class="roof{kind}" d="M {left:.1f} {at:.1f} H {WIDTH - RIGHT}"/>'
    text = f"{rate.name} {rate.per_us / 1e6:.3g} TFLOP/s"
    yield f'<text class="roof-text" x="{WIDTH - RIGHT}" y="{at - 5:.1f}" text-anchor="end">{text}</text>'


def _points(x: Axis, y: Axis, points: Sequence[Point]) -> Iterator[str]:
    """Each with its label, which moves down where another, or a point, stands in its place."""
    places = [(x(p.intensity), y(p.flops_per_us)) for p in points]
    taken = [(at - CIRCLE, at + CIRCLE, height + 4) for at, height in places]
    for p in sorted(points, key=lambda p: (not p.bound, -p.flops_per_us)):
        at = x(p.intensity), y(p.flops_per_us)
        width = len(p.label) * LABEL
        left = at[0] + 9 if at[0] + 9 + width < WIDTH else at[0] - 9 - width
        height = at[1] + 4
        while any(abs(height - h) < LINE and left < r and left + width > q for q, r, h in taken):
            height += LINE / 2
        taken.append((left, left + width, height))
        kind = "bound" if p.bound else "point"
        yield f'<g><title>{safe(p.title)}</title><circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5"/>'
        if height != at[1] + 4:
            edge = left if left > at[0] else left + width
            yield f'<line class="grid" x1="{at[0]:.1f}" y1="{at[1]:.1f}" x2="{edge:.1f}" y2="{height - 4:.1f}"/>'
        yield f'<text class="point-text" x="{left:.1f}" y="{height:.1f}">{safe(p.label)}</text></g>'
