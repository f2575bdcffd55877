"""What people see: tables, and the text of `explain`: results, and rows of a benchmark, as rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from mirage_cli.cli.layout import Column, Sheet, figures, named
from mirage_cli.ir.program import dims_text
from mirage_cli.ir.schedule import Schedule
from mirage_cli.store.results import About, Finalist, KernelResult, Lost, Result, Tuning

if TYPE_CHECKING:
    from mirage_cli.pipeline.bench.benchmark import Document


def figure(x: float | None) -> str:
    """A figure, or a dash where there is none."""
    return "-" if x is None else f"{x:.2f}"


def sizes_text(dims: Mapping[str, int]) -> str:
    return dims_text(dims.items())


def telling_sizes(dims: Mapping[str, int], others: Iterable[Mapping[str, int]]) -> str:
    """The sizes by which a program is told from the same one at others; empty where there is none."""
    among = list(others)
    return sizes_text({d: n for d, n in dims.items() if any(x.get(d) != n for x in among)})


def about_text(about: About) -> str:
    return f"{about.spec} {sizes_text(about.dims)}"


def results_tables(results: Sequence[Result], about: str) -> list[Sheet]:
    """A table for each spec, dtype and set of axes: a line for each size, with its best kernel. about: of all, for the
    titles."""
    groups = [list(rows) for _, rows in groupby(results, key=lambda r: (r.about.spec, r.about.dtype, [*r.about.dims]))]
    return [_group_table(rows, about) for rows in groups]


def _group_table(rows: Sequence[Result], about: str) -> Sheet:
    first = rows[0].about
    fixed = {d: n for d, n in first.dims.items() if all(r.about.dims[d] == n for r in rows)}
    if len(rows) == 1:
        fixed = {}
    title = f"{first.spec} {first.dtype} {sizes_text(fixed)}"
    numbers = figures("kernels", "µs", "floor", "eager", "error / eager's")
    columns = (Column("dims"), Column("μGraph"), *numbers, Column("status"))
    table = Sheet(title.strip() + f", {about}" * bool(about), columns)
    for r in rows:
        b = r.best
        dims = sizes_text({d: n for d, n in r.about.dims.items() if d not in fixed})
        if b is None:
            table.add(dims, "none", "", "", "", "", "", r.search.stopped)
            continue
        us = [figure(x) for x in (b.us, b.floor_us, b.eager_us)]
        table.add(dims, b.id, b.kernels, *us, error_text(b), status_text(r, b))
    return table


def contenders(r: Result) -> Sheet:
    """The plans of one program, the best first, each with its factor against the program as written, and why it lost;
    and those that were refused though they were faster."""
    written = f"; as written {figure(r.as_written_us)} µs" if r.as_written_us else ""
    title = f"{about_text(r.about)} {r.about.dtype}: {r.best.status if r.best else 'no'} times of its plans{written}"
    columns = (*figures("", "kernels", "µs", "× as written"), Column("μGraph"), Column("", prose=True))
    table = Sheet(title, columns)

    def factor(us: float | None) -> str:
        return f"{r.as_written_us / us:.2f}" if us and r.as_written_us else "-"

    for i, k in enumerate(r.top, 1):
        table.add(i, k.kernels, figure(k.us), factor(k.us), k.id, why_text(r, k))
    for x in r.lost:
        table.add("-", x.kernels, figure(x.us), factor(x.us), x.id, f"refused: {x.problem}")
    return table


def why_text(r: Result, k: KernelResult) -> str:
    """`best`, or how much slower than the best and what takes the time; and whether it is the program as written."""
    best = r.best
    said = ["as written"] if k.id == r.as_written else []
    if best is None or k is r.top[0] or not k.us or not best.us:
        return ", ".join(["best", *said])
    spread_us = best.times.spread_us if best.times else 0.0
    if best.times is not None and k.us - best.us <= spread_us:
        return ", ".join([*said, "no slower than the best beyond its spread"])
    why = [f"{k.us / best.us:.2f} times the best's"]
    if (more := k.kernels - best.kernels) > 0:
        why.append(f"{more} more kernel{'s' * (more > 1)} to launch")
    if k.bottlenecks:
        dearest, (limit, us) = max(k.bottlenecks.items(), key=lambda b: b[1][1])
        why.append(f"{dearest} waits for {limit}, about {us:.2f} µs")
    return ", ".join([*said, *why])


def status_text(r: Result, kernel: KernelResult) -> str:
    """`measured` or `predicted`, and whether it is the program as it was written."""
    return kernel.status + (", as written" if kernel.id == r.as_written else "")


def losses(results: Sequence[Result]) -> list[str]:
    """A line for each result than which something faster was refused."""
    return [f"{about_text(r.about)}: refused, though faster: {lost_text(r.lost[0], r.best)}" for r in results if r.lost]


def refusals(results: Sequence[Result]) -> list[str]:
    """A line for each result without a kernel: how many of its plans were refused, and why the first was, or what else
    stood in the way."""
    from mirage_cli.pipeline.budgets import why_none

    lines: list[str] = []
    for r in results:
        if r.best is None:
            whys = [*r.rejections, *r.dropped]
            count = f"{len(whys)} refusal{'s' * (len(whys) != 1)}"
            why = f"{count}, the first: {whys[0]}" if whys else why_none(r)
            lines.append(f"{about_text(r.about)}: no kernel was found; {why}")
    return lines


def lost_text(lost: Lost, best: KernelResult | None) -> str:
    best_us = best.us if best else None
    faster = f" ({best_us / lost.us:.2f} times as fast as the best)" if best_us and lost.us else ""
    kernels = f"{lost.kernels} kernel{'s' * (lost.kernels != 1)}"
    return f"{lost.id}, {kernels}, {figure(lost.us)} µs{faster}: {lost.problem}"


def error_text(kernel: KernelResult) -> str:
    """The error against float64, in multiples of eager PyTorch's own unless that is none."""
    if not kernel.checked:
        return "unchecked"
    if kernel.error is None or kernel.eager_error is None:
        return "-"
    return f"{kernel.error / kernel.eager_error:.2f}" if kernel.eager_error else f"{kernel.error:.1e}"


def explanation(r: Result) -> list[Sheet | Text]:
    """What was searched, what was cut and why, what was chosen, against the floor."""
    about, stats, more = r.about, r.search, ": a larger --budget looks at more"
    parts: list[Sheet | Text] = [Text(f"{about.spec} ({sizes_text(about.dims)}, {about.dtype})", style="bold")]
    rows: list[tuple[str, object]] = [
        ("classes of equal values", stats.classes),
        ("ways to make one with a last operator", stats.nodes),
        ("kernels looked at", stats.enumerated),
        ("μGraphs verified / rejected", f"{stats.verified} / {stats.rejected}"),
        ("stopped", f"{stats.stopped} after {stats.seconds:.2f} s" + more * (stats.stopped == "budget")),
    ]
    if r.unchecked:
        rows.append(("plans not checked in time", f"{r.unchecked}{more}"))
    parts.append(named("searched", rows))
    pruned = sorted(stats.pruned.items(), key=lambda x: -x[1])
    if pruned:
        parts.append(named("cut, and why (`mirage help cuts` explains each)", pruned))
    if r.tuning:
        parts.append(named("tuned", tuning_rows(r.tuning)))
    if r.lost:
        parts.append(named("refused, though faster", ((x.id, lost_text(x, r.best)) for x in r.lost)))
    parts.append(named("chosen", chosen_rows(r, r.best)) if r.best else Text("No kernel was found."))
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


def chosen_rows(r: Result, best: KernelResult) -> list[tuple[str, object]]:
    us, floor_us = best.us, best.floor_us
    reached = f", {floor_us / us:.0%} of it reached" if us and floor_us is not None else ""
    rows: list[tuple[str, object]] = [
        ("μGraph", f"{best.id}, {best.kernels} kernel{'s' * (best.kernels != 1)}"),
        ("time", f"{figure(us)} µs, {status_text(r, best)}"),
        ("floor", f"{figure(floor_us)} µs{reached}"),
        ("eager PyTorch", "not measured" if best.eager_us is None else f"{figure(best.eager_us)} µs"),
        ("error against float64", errors_text(best)),
    ]
    for name, k in best.schedule.kernels.items():
        rows.append((f"schedule of {name}", k))
        if name in best.bottlenecks:
            limit, predicted = best.bottlenecks[name]
            rows.append((f"{name} waits for", f"{limit}, by the cost model, which expects {predicted:.2f} µs"))
    return rows


def errors_text(kernel: KernelResult) -> str:
    """The error against float64, and eager PyTorch's."""
    if not kernel.checked:
        return "unchecked: `mirage search` without --no-tune compares with float64"
    if kernel.error is None:
        return "infinite where float64 is not, as in eager PyTorch"
    return f"{kernel.error:.2e}" + ("" if kernel.eager_error is None else f" (eager's {kernel.eager_error:.2e})")


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


def bench_table(rows: Sequence[Document]) -> Sheet:
    """Contestants side by side in each context: medians of cold calls, with their interquartile range. `remarks` says
    what is amiss."""
    names = list(dict.fromkeys(name for r in rows for name in r["contestants"]))
    contexts = bench_contexts(rows)
    cells_of = [(context, name) for context in contexts for name in names]
    title = "cold, median µs ± interquartile range"
    if "alone" in contexts:
        title += "; chain: calls follow each other; alone: behind a small kernel, its time subtracted"
    titles = [f"{name}, {context}" if "alone" in contexts else name for context, name in cells_of]
    table = Sheet(title, (Column("spec"), Column("dims"), *figures("floor", *titles)))
    for r in rows:
        cells = [bench_figure(r["contestants"].get(name), context) for context, name in cells_of]
        table.add(r["spec"], sizes_text(r["dims"]), figure(r["floor_us"]), *cells)
    return table
