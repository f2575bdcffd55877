"""What people see: tables, and the text of `explain`. Everything here turns a result document into rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Document = Mapping[str, Any]


def figure(x: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if x is None else f"{x:.{digits}f}"


def sizes_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{d}={n}" for d, n in dims.items())


def results_table(results: Sequence[Document]) -> Table:
    """One line for each program: its best kernel."""
    table = Table(title="best kernels", title_justify="left")
    for name in (
        "spec",
        "dims",
        "dtype",
        "μGraph",
        "kernels",
        "µs",
        "floor",
        "eager",
        "status",
        "error / eager's",
        "search",
    ):
        table.add_column(name, justify="right" if name in ("kernels", "µs", "floor", "eager") else "left")
    for r in results:
        b = r["best"]
        stats = r["search"]
        search = f"{stats['stopped']} in {stats['seconds']:.1f} s"
        if b is None:
            table.add_row(r["spec"], sizes_text(r["dims"]), r["dtype"], "none", "", "", "", "", "", "", search)
            continue
        us = b["time_us"] if b["time_us"] is not None else b.get("predicted_us")
        errors = [b["error_vs_float64"], b["eager_error_vs_float64"]]
        shown = " / ".join("-" if e is None else f"{e:.1e}" for e in errors)
        table.add_row(
            r["spec"],
            sizes_text(r["dims"]),
            r["dtype"],
            b["id"],
            str(b["kernels"]),
            figure(us),
            figure(b["floor_us"]),
            figure(b["eager_us"]),
            b["status"],
            shown,
            search,
        )
    return table


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
        ]
        rows += [("rejected for accuracy", f"{x['id']}: {x['problem']}") for x in tuning["rejected"]]
        parts.append(mapping_table("tuned", rows))
    b = r["best"]
    if b is None:
        parts.append(Text("No kernel was found."))
        return parts
    us = b["time_us"] if b["time_us"] is not None else b.get("predicted_us")
    rows = [
        ("μGraph", f"{b['id']}, {b['kernels']} kernels"),
        ("time", f"{figure(us)} µs, {b['status']}"),
        ("floor", f"{figure(b['floor_us'])} µs" + (f", {b['floor_us'] / us:.0%} of it reached" if us else "")),
        ("eager PyTorch", f"{figure(b['eager_us'])} µs"),
        ("error against float64", f"{b['error_vs_float64']} (eager's {b['eager_error_vs_float64']})"),
    ]
    rows += [(f"schedule of {name}", schedule_text(k)) for name, k in b["schedule"].items()]
    parts.append(mapping_table("chosen", rows))
    return parts


def schedule_text(k: Mapping[str, Any]) -> str:
    tiles = " ".join(f"{d}={t}" for d, t in k["tiles"])
    order = ",".join(k["order"])
    return f"{tiles} order={order} warps={k['warps']} stages={k['stages']} split={k['split']} group={k['group']}"


def bench_table(rows: Sequence[Document]) -> Table:
    """Contestants side by side: medians of cold calls, with their interquartile range."""
    names = list(dict.fromkeys(name for r in rows for name in r["contestants"]))
    table = Table(title="cold, median µs ± interquartile range", title_justify="left")
    for name in ("spec", "dims", "floor", *names):
        table.add_column(name, justify="left" if name in ("spec", "dims") else "right")
    for r in rows:
        cells: list[str] = []
        for name in names:
            c = r["contestants"].get(name)
            if c is None or c["median_us"] is None:
                cells.append("fails" if c else "-")
            else:
                cells.append(f"{c['median_us']:.2f} ± {c['spread_us']:.2f}")
        table.add_row(r["spec"], sizes_text(r["dims"]), figure(r["floor_us"]), *cells)
    return table
