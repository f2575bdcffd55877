"""The page of `mirage report`: each `Section` as the texts and figures that the template lays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from mirage_cli.cli import charts, picture
from mirage_cli.cli.charts import Point
from mirage_cli.cli.tables import error_text, schedule_text, sizes_text, telling_sizes
from mirage_cli.cli.units import bytes_text, flops_text, percent_text, us_text
from mirage_cli.ir.text import print_mugraph
from mirage_cli.pipeline.profile import KernelProfile
from mirage_cli.pipeline.reported import RIVALS, Contestant, Section, by_gpu
from mirage_cli.store.results import KernelResult, Result

TEMPLATE = Path(__file__).parent / "templates" / "report.html"
CONTEXTS = (
    ("chain", "in a chain", "calls follow each other, and may overlap"),
    ("alone", "alone", "behind a small kernel that knows nothing of overlap"),
)
SHOWN_PROBLEM = 240
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Bar:
    """kind: "mine", "floor" or "other". width: in percent."""

    name: str
    value: str
    width: float
    kind: str


@dataclass(frozen=True, slots=True)
class LostRow:
    """A plan that is not the best, and why."""

    id: str
    kernels: int | str
    time: str
    factor: str
    why: str


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel of the plan."""

    name: str
    moved: str
    computed: str
    predicted: str
    limit: str
    overlaps: str


@dataclass(frozen=True, slots=True)
class View:
    """A section as the template shows it."""

    anchor: str
    name: str
    sizes: str
    dtype: str
    gpu: str
    measured: bool
    id: str
    time: str
    floor: str
    reached: str
    speedup: str
    mark: str
    claim: str
    verdict_ok: bool
    headline: Sequence[tuple[str, str]]
    picture: str | None
    kernels: Sequence[KernelRow]
    contexts: Sequence[tuple[str, str, Sequence[Bar]]]
    missing: str
    roofline: str | None
    roofline_note: str
    history: Sequence[Bar]
    lost: Sequence[LostRow]
    searched: str
    pruned: Sequence[tuple[str, int]]
    verified: Sequence[str]
    texts: Sequence[tuple[str, str]]


def page(found: Sequence[Section], title: str, about: str) -> str:
    """The whole page. It asks for nothing: its Content-Security-Policy would refuse it."""
    views = [view(s) for s in found]
    numbered = {id(s): i for i, s in enumerate(found, 1)}
    overview = [(gpu, Markup(drawn)) for gpu, some in by_gpu(found).items() if (drawn := _overview(some, numbered))]
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    styles = Markup(picture.STYLE + charts.STYLE)
    varied = [_varied(s, found) for s in found]
    told = {"title": title, "about": about, "sections": views, "varied": varied, "gpus": len(by_gpu(found))}
    return template.render(**told, overview=overview, styles=styles) + "\n"


def _varied(s: Section, among: Sequence[Section]) -> str:
    """The sizes that tell a section from the others of its program; all of them, where there is no other."""
    dims = dict(s.key.dims)
    return telling_sizes(dims, (dict(x.key.dims) for x in among if x.name == s.name)) or sizes_text(dims)


def view(s: Section) -> View:
    r, best = s.result, s.result.best
    eager = next((c for c in s.contestants if c.name == "eager"), None)
    contexts = tuple(_contexts(s))
    return View(
        anchor=f"p-{s.key.id}",
        name=s.name,
        sizes=sizes_text(dict(s.key.dims)),
        dtype=s.key.dtype,
        gpu=s.gpu,
        measured=s.times is not None,
        id=s.best.mugraph,
        time=us_text(s.best.time_us),
        floor=us_text(best.floor_us if best else None),
        reached=_reached(best),
        speedup=_speedup(s, eager),
        mark=_mark(s),
        claim=_claim(s),
        verdict_ok=s.verdict is not None and s.verdict.ok,
        headline=tuple(_headline(s, eager)),
        picture=Markup(picture.svg(s.graph, s.profiles, style="")) if s.graph else None,
        kernels=[_kernel_row(p) for p in s.profiles],
        contexts=contexts,
        missing=_missing(s),
        roofline=Markup(drawn) if (drawn := _roofline(s)) else None,
        roofline_note=_roofline_note(s),
        history=tuple(_history(s)),
        lost=tuple(_lost(r)),
        searched=_searched(r),
        pruned=sorted(r.search.pruned.items(), key=lambda x: -x[1]),
        verified=tuple(_verified(s)),
        texts=tuple(_texts(s)),
    )


# -- figures


def _reached(best: KernelResult | None) -> str:
    """The part of the plan's time that the floor is."""
    return percent_text(best.floor_us / best.us) if best and best.floor_us and best.us else "-"


def _context_us(s: Section, context: str) -> float | None:
    t = s.times
    return None if t is None else t.chain_us if context == "chain" else t.alone_us


def _speedup(s: Section, eager: Contestant | None) -> str:
    ratios = [
        theirs / mine
        for context in ("chain", "alone")
        if eager and (theirs := getattr(eager, f"{context}_us")) and (mine := _context_us(s, context))
    ]
    return " / ".join(f"{x:.2f}" for x in ratios) or "-"


def _headline(s: Section, eager: Contestant | None) -> Iterator[tuple[str, str]]:
    best, b = s.result.best, s.bounds
    how = "measured" if s.times else "predicted by the cost model"
    both = s.times is not None and s.times.context == "both"
    yield us_text(s.best.time_us), f"a call, {how}" + ", the geometric mean of both contexts" * both
    if best and best.floor_us:
        yield _reached(best), f"of it is the floor, {us_text(best.floor_us)}"
    if (speedup := _speedup(s, eager)) != "-":
        yield f"{speedup} ×", "as fast as eager PyTorch, in a chain" + " / alone" * ("/" in speedup)
    if b:
        yield bytes_text(b.moved_bytes), f"and {flops_text(b.flops)} at least, bound by {b.limit.name}"


def _contexts(s: Section) -> Iterator[tuple[str, str, Sequence[Bar]]]:
    """Bars for each context that anything was timed in; the prediction, where nothing was."""
    floor = s.result.best.floor_us if s.result.best else None
    for context, name, explained in CONTEXTS:
        rows = [(_rival(c), getattr(c, f"{context}_us"), "other") for c in s.contestants]
        mine = _context_us(s, context)
        if s.times is None and context == "chain":
            name, explained = "predicted", "by the cost model"
            mine = s.best.time_us
        if mine is not None:
            yield name, explained, _bars([*rows, ("mirage", mine, "mine"), ("floor", floor, "floor")])


def _rival(c: Contestant) -> str:
    return f"{c.name} ({c.which})" if c.which else c.name


def _bars(rows: Iterable[tuple[str, float | None, str]]) -> list[Bar]:
    timed = [(name, us, kind) for name, us, kind in rows if us is not None]
    most = max(us for _, us, _ in timed)
    return [Bar(name, us_text(us), round(100 * us / most, 2) if most else 0.0, kind) for name, us, kind in timed]


def _missing(s: Section) -> str:
    there = {c.name for c in s.contestants}
    gone = [name for name in RIVALS[:3] if name not in there]
    if s.times is None:
        return "Nothing was measured: there was no GPU."
    return f"Not timed: {', '.join(gone)} (mirage bench --against {','.join(gone)} adds them)." if gone else ""


def _kernel_row(p: KernelProfile) -> KernelRow:
    return KernelRow(
        p.name,
        bytes_text(p.moved_bytes),
        flops_text(p.operations),
        us_text(p.predicted_us),
        p.limit or "-",
        "; ".join(p.overlaps) or "does nothing",
    )


def _history(s: Section) -> Iterator[Bar]:
    most = max((m.best.time_us or 0.0 for m in s.history), default=0.0)
    for m in s.history:
        k = m.key
        versions = f"mirage {k.mirage}, triton {k.triton}, torch {k.torch}" + f", driver {k.driver}" * bool(k.driver)
        us = m.best.time_us
        width = round(100 * us / most, 2) if us and most else 0.0
        yield Bar(f"{m.best.at[:10]}: {versions}", us_text(us), width, "mine" if m is s.history[-1] else "other")


def _lost(r: Result) -> Iterator[LostRow]:
    """The plans behind the best, then what was refused."""
    best_us = r.best.us if r.best else None

    def factor(us: float | None) -> str:
        return f"{us / best_us:.2f} ×" if us and best_us else "-"

    for k in r.top[1:]:
        yield LostRow(k.id, k.kernels, us_text(k.us), factor(k.us), f"slower ({k.status})")
    for x in r.lost:
        yield LostRow(x.id, x.kernels, us_text(x.us), factor(x.us), f"refused: {_short(x.problem)}")
    for x in r.tuning.rejected if r.tuning else ():
        yield LostRow(x.id, "-", "-", "-", f"a schedule was wrong: {_short(x.problem)}")
    for why, count in r.dropped.items():
        yield LostRow("-", "-", "-", "-", f"{count} × {_short(why)}")


def _short(text: str | None) -> str:
    text = text or "for no reason that was kept"
    return text if len(text) <= SHOWN_PROBLEM else text[: SHOWN_PROBLEM - 1] + "…"


def _searched(r: Result) -> str:
    s = r.search
    told = f"The search looked at {s.enumerated:,} kernels in {s.seconds:.1f} s and stopped: {s.stopped}."
    if r.tuning:
        t = r.tuning
        told += f" The tuner tried {t.trials:,} schedules in {t.seconds:.1f} s and stopped: {t.stopped}."
    return told


# -- being right


def _mark(s: Section) -> str:
    if s.verdict is None:
        return "no verdict is stored"
    if not s.verdict.ok:
        return "refused"
    return "proved and tested" if s.verdict.proved else "tested"


def _claim(s: Section) -> str:
    best = s.result.best
    if best is None:
        return ""
    error = error_text(best)
    against = (
        "numbers were not compared with float64"
        if error == "unchecked"
        else f"error against float64, over eager's: {error}"
    )
    return f"{s.verdict.claim if s.verdict else ''}; {against}.".removeprefix("; ")


def _verified(s: Section) -> Iterator[str]:
    best, v = s.result.best, s.verdict
    if v is not None:
        yield v.detail
        yield from (f"test: {x}" for x in v.tests)
        yield from (f"assumed: {x}" for x in v.assumes)
        yield from (f"outside the theorem: {x}" for x in v.outside)
    if best is not None and best.checked:
        yield f"error against float64: {best.error}, eager PyTorch's: {best.eager_error}"


# -- the roofline


def _kernel_points(s: Section) -> Iterator[Point]:
    """Each kernel at its share of the measured time, as the cost model divides it; at its prediction without one."""
    total = sum(p.predicted_us or 0.0 for p in s.profiles)
    scale = s.best.time_us / total if s.times and s.best.time_us and total else 1.0
    for p in s.profiles:
        if p.predicted_us and p.operations:
            us = p.predicted_us * scale
            rate = p.operations / us
            title = f"{p.name}: {p.intensity:.3g} operations a byte, {rate / 1e6:.3g} TFLOP/s in {us_text(us)}"
            yield Point(p.name, p.intensity, rate, title)


def _plan_point(s: Section, label: str) -> Point | None:
    """All kernels of the plan as one."""
    moved, work = sum(p.moved_bytes for p in s.profiles), sum(p.operations for p in s.profiles)
    if not moved or not work or not s.best.time_us:
        return None
    rate = work / s.best.time_us
    title = f"{s.name} {sizes_text(dict(s.key.dims))}: {work / moved:.3g} operations a byte, {rate / 1e6:.3g} TFLOP/s"
    return Point(label, work / moved, rate, title)


def _roofline(s: Section) -> str | None:
    if s.target is None or not s.profiles:
        return None
    points = list(_kernel_points(s))
    if s.bounds and s.bounds.flops:
        rate = s.bounds.flops / s.bounds.us
        title = f"at the bound: {s.bounds.intensity:.3g} operations a byte, {rate / 1e6:.3g} TFLOP/s"
        points.append(Point("bound", s.bounds.intensity, rate, title, bound=True))
    return charts.roofline(s.target, s.key.dtype, points, style="")


def _roofline_note(s: Section) -> str:
    how = "the measured time, divided as the cost model predicts" if s.times else "the predicted time"
    return f"Points are kernels, at {how}. The circle is the program at the time that no plan undercuts."


def _overview(some: Sequence[Section], numbered: dict[int, int]) -> str | None:
    points = [p for s in some if (p := _plan_point(s, str(numbered[id(s)]))) is not None]
    target = some[0].target
    return charts.roofline(target, some[0].key.dtype, points, style="") if target and points else None


def _texts(s: Section) -> Iterator[tuple[str, str]]:
    yield "The program", s.text
    if s.graph:
        yield "The μGraph as text", print_mugraph(s.graph)
    lines = [f"{name}: {schedule_text(k)}" for name, k in s.best.schedule.items()]
    yield "The schedule", "\n".join(lines) or "library calls alone"
    if s.source:
        yield "The kernels' source (`mirage export` writes the whole file)", s.source
