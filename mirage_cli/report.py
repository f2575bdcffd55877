"""What people see: tables, and the text of `explain`. Everything here turns a result document into rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mirage_cli.ir.schedule import Schedule

Document = Mapping[str, Any]


def figure(x: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if x is None else f"{x:.{digits}f}"


def sizes_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{d}={n}" for d, n in dims.items())


def results_tables(results: Sequence[Document], about: str = "") -> list[Table]:
    """A table for each spec and dtype: a line for each size, with its best kernel. about: of all, for the titles."""
    groups = [list(rows) for _, rows in groupby(results, key=lambda r: (r["spec"], r["dtype"]))]
    return [_group_table(rows, about) for rows in groups]


def _group_table(rows: Sequence[Document], about: str) -> Table:
    fixed = {d: n for d, n in rows[0]["dims"].items() if all(r["dims"][d] == n for r in rows)}
    if len(rows) == 1:
        fixed = {}
    title = f"{rows[0]['spec']} {rows[0]['dtype']} {sizes_text(fixed)}"
    title = title.strip() + f", {about}" * bool(about)
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("dims")
    table.add_column("μGraph", no_wrap=True)
    for name in ("kernels", "µs", "floor", "eager", "error / eager's"):
        table.add_column(name, justify="right", no_wrap=name != "error / eager's")
    table.add_column("status", no_wrap=True)
    for r in rows:
        b = r["best"]
        dims = sizes_text({d: n for d, n in r["dims"].items() if d not in fixed})
        if b is None:
            table.add_row(dims, "none", "", "", "", "", "", r["search"]["stopped"])
            continue
        us = [figure(x) for x in (time_of(b), b["floor_us"], b["eager_us"])]
        table.add_row(dims, b["id"][:8], str(b["kernels"]), *us, error_text(b), status_text(r))
    return table


def status_text(r: Document) -> str:
    """`measured` or `predicted`, and whether it is the program as it was written."""
    return r["best"]["status"] + (", as written" if r["best"]["id"] == r.get("as_written") else "")


def losses(results: Sequence[Document]) -> list[str]:
    """A line for each result than which something faster was refused."""
    return [
        f"{r['spec']} {sizes_text(r['dims'])}: refused, though faster: {lost_text(r['lost'][0], r['best'])}"
        for r in results
        if r.get("lost")
    ]


def refusals(results: Sequence[Document]) -> list[str]:
    """A line for each result without a kernel, whose plans were refused: how many, and why the first was."""
    lines: list[str] = []
    for r in results:
        whys = [*r.get("rejections", ()), *r.get("dropped", ())] if r["best"] is None else []
        if whys:
            count = f"{len(whys)} refusal{'s' * (len(whys) != 1)}"
            lines.append(f"{r['spec']} {sizes_text(r['dims'])}: no kernel was found; {count}, the first: {whys[0]}")
    return lines


def lost_text(lost: Document, best: Document | None) -> str:
    us, best_us = time_of(lost), time_of(best) if best else None
    faster = f" ({best_us / us:.2f} times as fast as the best)" if best_us and us else ""
    kernels = f"{lost['kernels']} kernel{'s' * (lost['kernels'] != 1)}"
    return f"{lost['id'][:8]}, {kernels}, {figure(us)} µs{faster}: {lost['problem']}"


def time_of(best: Document) -> float | None:
    """Microseconds: the measured time, or the predicted one where nothing was measured."""
    return best["time_us"] if best["time_us"] is not None else best.get("predicted_us")


def error_text(best: Document) -> str:
    """The error against float64, in multiples of eager PyTorch's own unless that is none."""
    if best.get("numerically_checked") is False:
        return "unchecked"
    error, eager = best["error_vs_float64"], best["eager_error_vs_float64"]
    if error is None or eager is None:
        return "-"
    return f"{error / eager:.2f}" if eager else f"{error:.1e}"


def mapping_table(title: str, rows: Iterable[tuple[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def explanation(r: Document) -> list[Table | Text]:
    """What was searched, what was cut and why, what was chosen, against the floor."""
    stats = r["search"]
    parts: list[Table | Text] = [Text(f"{r['spec']} ({sizes_text(r['dims'])}, {r['dtype']})", style="bold")]
    rows: list[tuple[str, Any]] = [
        ("classes of equal values", stats["classes"]),
        ("ways to make one with a last operator", stats.get("nodes", "-")),
        ("kernels looked at", stats["enumerated"]),
        ("μGraphs verified / rejected", f"{stats['verified']} / {stats['rejected']}"),
        ("stopped", f"{stats['stopped']} after {stats['seconds']:.2f} s"),
    ]
    parts.append(mapping_table("searched", rows))
    pruned = sorted(stats["pruned"].items(), key=lambda x: -x[1])
    if pruned:
        parts.append(mapping_table("cut, and why", pruned))
    tuning = r.get("tuning")
    if tuning:
        failed = ", ".join(f"{n} × {reason}" for reason, n in tuning["failures"].items()) or "none"
        rows = [
            ("schedules tried", tuning["trials"]),
            ("failed", failed),
            ("stopped", f"{tuning['stopped']} after {tuning['seconds']} s"),
            ("of that", ", ".join(f"{name} {s} s" for name, s in tuning.get("phases", {}).items()) or "-"),
        ]
        rows += [("rejected for accuracy", f"{x['id']}: {x['problem']}") for x in tuning["rejected"]]
        rows += [(name, finalist_text(t)) for name in ("found", "stored") if (t := tuning.get(name))]
        parts.append(mapping_table("tuned", rows))
    b = r["best"]
    if r.get("lost"):
        parts.append(mapping_table("refused, though faster", ((x["id"], lost_text(x, b)) for x in r["lost"])))
    if b is None:
        parts.append(Text("No kernel was found."))
        return parts
    us = time_of(b)
    rows = [
        ("μGraph", f"{b['id']}, {b['kernels']} kernels"),
        ("time", f"{figure(us)} µs, {status_text(r)}"),
        ("floor", f"{figure(b['floor_us'])} µs" + (f", {b['floor_us'] / us:.0%} of it reached" if us else "")),
        ("eager PyTorch", f"{figure(b['eager_us'])} µs"),
        ("error against float64", f"{b['error_vs_float64']} (eager's {b['eager_error_vs_float64']})"),
    ]
    for name, k in b["schedule"].items():
        rows.append((f"schedule of {name}", schedule_text(k)))
        if name in b.get("bottlenecks", {}):
            limit, predicted = b["bottlenecks"][name]
            rows.append((f"{name} waits for", f"{limit}, by the cost model, which expects {predicted:.2f} µs"))
    parts.append(mapping_table("chosen", rows))
    return parts


def finalist_text(t: Mapping[str, Any]) -> str:
    """What became of one contestant of the finals."""
    return f"{t['id']}, " + (t["problem"] or f"{figure(t['time_us'])} µs")


def schedule_text(k: Mapping[str, Any]) -> str:
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
    for name in ("spec", "dims", "floor"):
        table.add_column(name, justify="right" if name == "floor" else "left")
    for context, name in columns:
        table.add_column(f"{name}\n{context}" if "alone" in contexts else name, justify="right")
    for r in rows:
        cells = [bench_figure(r["contestants"].get(name), context) for context, name in columns]
        table.add_row(r["spec"], sizes_text(r["dims"]), figure(r["floor_us"]), *cells)
    return table
