"""What people see: tables, and the text of `explain`: results, and rows of a benchmark, as rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mirage_cli.ir.schedule import Schedule
from mirage_cli.store.results import About, Finalist, Kernel, Lost, Result, Tuning

if TYPE_CHECKING:
    from mirage_cli.pipeline.benchmark import Document


def figure(x: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if x is None else f"{x:.{digits}f}"


def sizes_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{d}={n}" for d, n in dims.items())


def about_text(about: About) -> str:
    return f"{about.spec} {sizes_text(about.dims)}"


def results_tables(results: Sequence[Result], about: str = "") -> list[Table]:
    """A table for each spec and dtype: a line for each size, with its best kernel. about: of all, for the titles."""
    groups = [list(rows) for _, rows in groupby(results, key=lambda r: (r.about.spec, r.about.dtype))]
    return [_group_table(rows, about) for rows in groups]


def _group_table(rows: Sequence[Result], about: str) -> Table:
    first = rows[0].about
    fixed = {d: n for d, n in first.dims.items() if all(r.about.dims[d] == n for r in rows)}
    if len(rows) == 1:
        fixed = {}
    title = f"{first.spec} {first.dtype} {sizes_text(fixed)}"
    title = title.strip() + f", {about}" * bool(about)
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("dims")
    table.add_column("μGraph", no_wrap=True)
    for name in ("kernels", "µs", "floor", "eager", "error / eager's"):
        table.add_column(name, justify="right", no_wrap=name != "error / eager's")
    table.add_column("status", no_wrap=True)
    for r in rows:
        b = r.best
        dims = sizes_text({d: n for d, n in r.about.dims.items() if d not in fixed})
        if b is None:
            table.add_row(dims, "none", "", "", "", "", "", r.search.stopped)
            continue
        us = [figure(x) for x in (b.us, b.floor_us, b.eager_us)]
        table.add_row(dims, b.id[:8], str(b.kernels), *us, error_text(b), status_text(r, b))
    return table


def status_text(r: Result, kernel: Kernel) -> str:
    """`measured` or `predicted`, and whether it is the program as it was written."""
    return kernel.status + (", as written" if kernel.id == r.as_written else "")


def losses(results: Sequence[Result]) -> list[str]:
    """A line for each result than which something faster was refused."""
    return [f"{about_text(r.about)}: refused, though faster: {lost_text(r.lost[0], r.best)}" for r in results if r.lost]


def refusals(results: Sequence[Result]) -> list[str]:
    """A line for each result without a kernel, whose plans were refused: how many, and why the first was."""
    lines: list[str] = []
    for r in results:
        whys = [*r.rejections, *r.dropped] if r.best is None else []
        if whys:
            count = f"{len(whys)} refusal{'s' * (len(whys) != 1)}"
            lines.append(f"{about_text(r.about)}: no kernel was found; {count}, the first: {whys[0]}")
    return lines


def lost_text(lost: Lost, best: Kernel | None) -> str:
    best_us = best.us if best else None
    faster = f" ({best_us / lost.us:.2f} times as fast as the best)" if best_us and lost.us else ""
    kernels = f"{lost.kernels} kernel{'s' * (lost.kernels != 1)}"
    return f"{lost.id[:8]}, {kernels}, {figure(lost.us)} µs{faster}: {lost.problem}"


def error_text(kernel: Kernel) -> str:
    """The error against float64, in multiples of eager PyTorch's own unless that is none."""
    if not kernel.checked:
        return "unchecked"
    if kernel.error is None or kernel.eager_error is None:
        return "-"
    return f"{kernel.error / kernel.eager_error:.2f}" if kernel.eager_error else f"{kernel.error:.1e}"


def mapping_table(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def explanation(r: Result) -> list[Table | Text]:
    """What was searched, what was cut and why, what was chosen, against the floor."""
    about, stats = r.about, r.search
    parts: list[Table | Text] = [Text(f"{about.spec} ({sizes_text(about.dims)}, {about.dtype})", style="bold")]
    rows: list[tuple[str, object]] = [
        ("classes of equal values", stats.classes),
        ("ways to make one with a last operator", stats.nodes),
        ("kernels looked at", stats.enumerated),
        ("μGraphs verified / rejected", f"{stats.verified} / {stats.rejected}"),
        ("stopped", f"{stats.stopped} after {stats.seconds:.2f} s"),
    ]
    parts.append(mapping_table("searched", rows))
    pruned = sorted(stats.pruned.items(), key=lambda x: -x[1])
    if pruned:
        parts.append(mapping_table("cut, and why", pruned))
    if r.tuning:
        parts.append(mapping_table("tuned", tuning_rows(r.tuning)))
    if r.lost:
        parts.append(mapping_table("refused, though faster", ((x.id, lost_text(x, r.best)) for x in r.lost)))
    parts.append(mapping_table("chosen", chosen_rows(r, r.best)) if r.best else Text("No kernel was found."))
    return parts


def tuning_rows(tuning: Tuning) -> list[tuple[str, object]]:
    failed = ", ".join(f"{n} × {reason}" for reason, n in tuning.failures.items()) or "none"
    return [
        ("schedules tried", tuning.trials),
        ("failed", failed),
        ("stopped", f"{tuning.stopped} after {tuning.seconds} s"),
        ("of that", ", ".join(f"{name} {s} s" for name, s in tuning.phases.items()) or "-"),
        *(("rejected for accuracy", f"{x.id}: {x.problem}") for x in tuning.rejected),
        *((name, finalist_text(t)) for name, t in (("found", tuning.found), ("stored", tuning.stored)) if t),
    ]


def chosen_rows(r: Result, best: Kernel) -> list[tuple[str, object]]:
    us, floor_us = best.us, best.floor_us
    reached = f", {floor_us / us:.0%} of it reached" if us and floor_us is not None else ""
    rows: list[tuple[str, object]] = [
        ("μGraph", f"{best.id}, {best.kernels} kernels"),
        ("time", f"{figure(us)} µs, {status_text(r, best)}"),
        ("floor", f"{figure(floor_us)} µs{reached}"),
        ("eager PyTorch", f"{figure(best.eager_us)} µs"),
        ("error against float64", f"{best.error} (eager's {best.eager_error})"),
    ]
    for name, k in best.schedule.kernels.items():
        rows.append((f"schedule of {name}", k))
        if name in best.bottlenecks:
            limit, predicted = best.bottlenecks[name]
            rows.append((f"{name} waits for", f"{limit}, by the cost model, which expects {predicted:.2f} µs"))
    return rows


def finalist_text(t: Finalist) -> str:
    """What became of one contestant of the finals."""
    return f"{t.id}, " + (t.problem or f"{figure(t.time_us)} µs")


def schedule_text(k: Mapping[str, object]) -> str:
    return str(Schedule.from_json({"": k}).kernels[""])


def remarks(rows: Sequence[Document]) -> list[str]:
    """A line for each contestant without figures, and for each call of a library, which says why; and for each kernel
    that is wrong."""
    return [
        f"{r['spec']} {sizes_text(r['dims'])}: {name}: {why}"
        for r in rows
        for contestant, c in r["contestants"].items()
        for name, why in {contestant: c["failure"] or wrong_text(c), **c.get("failures", {})}.items()
        if why
    ]


def wrong_text(c: Document) -> str | None:
    return f"wrong: {c['wrong']}" if c.get("wrong") else None


def bench_contexts(rows: Sequence[Document]) -> tuple[str, ...]:
    """The contexts that a benchmark's rows have figures of; earlier versions timed the chain alone."""
    both = any(c.get("alone_us") is not None for r in rows for c in r["contestants"].values())
    return ("chain", "alone") if both else ("chain",)


def bench_time(c: Document | None, context: str) -> tuple[float, float] | None:
    """A contestant's median and interquartile range in a context; an earlier version's only figures are the chain's."""
    if c is None or c["median_us"] is None:
        return None
    if context == "chain" and "chain_us" not in c:
        return c["median_us"], c["spread_us"]
    us = c.get(f"{context}_us")
    return None if us is None else (us, c[f"{context}_spread_us"])


def bench_figure(c: Document | None, context: str) -> str:
    found = bench_time(c, context)
    if c is None or found is None:
        return "-"
    which = f" ({c['which']})" if c.get("which") else ""
    return f"{found[0]:.2f} ± {found[1]:.2f}{which}"


def bench_table(rows: Sequence[Document]) -> Table:
    """Contestants side by side in each context: medians of cold calls, with their interquartile range. `remarks` says
    what is amiss."""
    names = list(dict.fromkeys(name for r in rows for name in r["contestants"]))
    contexts = bench_contexts(rows)
    columns = [(context, name) for context in contexts for name in names]
    title = "cold, median µs ± interquartile range"
    if "alone" in contexts:
        title += "; chain: calls follow each other; alone: behind a small kernel, its time subtracted"
    table = Table(title=title, title_justify="left")
    table.add_column("spec")
    table.add_column("dims")
    table.add_column("floor", justify="right")
    for context, name in columns:
        table.add_column(f"{name}\n{context}" if "alone" in contexts else name, justify="right")
    for r in rows:
        cells = [bench_figure(r["contestants"].get(name), context) for context, name in columns]
        table.add_row(r["spec"], sizes_text(r["dims"]), figure(r["floor_us"]), *cells)
    return table
