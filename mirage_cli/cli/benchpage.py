"""The page of a benchmark: a Markdown table with what was chosen, and a chart of the speedups as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from mirage_cli.cli.tables import bench_contexts, bench_figure, bench_time, schedule_text, sizes_text
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    from mirage_cli.pipeline.bench.benchmark import Document

BAR, LABEL, HEIGHT = 420, 380, 22
ALONE = """\
`chain` is that. `alone` is the same call behind a small elementwise kernel of PyTorch, which overlaps with nothing; the
kernel's own time is subtracted, and nothing of the call can run while another call drains."""
COLOUR = {"eager": "#9aa5b1", "compile": "#4c78a8", "sdpa": "#72b7b2", "cudnn": "#54a24b"}


def write(path: Path, rows: Sequence[Document], command: str) -> None:
    """The page at `path`, the chart beside it with the suffix .svg."""
    chart_path = path.with_suffix(".svg")
    write_text(path, page(rows, command, chart_path.name))
    write_text(chart_path, chart(rows))


def page(rows: Sequence[Document], command: str, chart_name: str) -> str:
    names, contexts = baselines(rows), bench_contexts(rows)
    columns = [(context, n) for context in contexts for n in (*names, "mirage")]
    titles = [f"{n}, {context}" if "alone" in contexts else n for context, n in columns]
    first = rows[0]
    versions = ", ".join(f"{k} {v}" for k, v in first["versions"].items())
    method = next((c["method"] for r in rows for c in r["contestants"].values() if c["method"]), "")
    lines = [
        f"# Benchmark on {first['gpu']}",
        "",
        f"`{command}`, {versions}, driver {first.get('driver') or 'unknown'}.",
        "",
        f"Microseconds a call: median ± interquartile range of {method} replays, over inputs that hold at least",
        "8 times the L2 cache together, all contestants interleaved in one process. Calls follow each other in the",
        "graph: a kernel that is launched to overlap with the one before may start, and fetch into the L2, while that",
        "one drains, also across calls; it waits for it before it uses anything that it reads, and before it writes.",
        *(ALONE.splitlines() if "alone" in contexts else ()),
        "`floor` is the larger of bytes over the rates of reading and writing and operations over the matmul rate. All",
        "samples are in the JSON file beside this page.",
        *ceilings(rows),
        "",
        f"![speedups]({chart_name})",
        "",
        "| spec | sizes | " + " | ".join(titles) + " | floor | error / eager's |",
        "|---|---|" + "---:|" * (len(titles) + 2),
    ]
    for r in rows:
        cells = [bench_figure(r["contestants"].get(n), context) for context, n in columns]
        mine, eager = r["errors"] or (None, None)
        error = f"{mine / eager:.2f}" if mine is not None and eager else "-"
        lines.append(
            f"| {r['spec']} | {sizes_text(r['dims'])} | " + " | ".join(cells) + f" | {r['floor_us']:.2f} | {error} |"
        )
    for context in contexts:
        where = f", {context}" if "alone" in contexts else ""
        lines += ["", f"Geometric means of the speedups, where both ran{where}: {', '.join(means(rows, context))}."]
    lines.append("")
    failures = [
        f"- {r['spec']} {sizes_text(r['dims'])}: {n}: {c['failure']}".splitlines()[0]
        for r in rows
        for n, c in r["contestants"].items()
        if c["failure"] and "does not apply" not in str(c["failure"])
    ]
    if failures:
        lines += ["Without figures:", "", *failures, ""]
    lines += ["## What was chosen", "", "| spec | sizes | μGraph | tuning | schedule |", "|---|---|---|---:|---|"]
    for r in rows:
        if r["mugraph"] is None:
            continue
        tuning = r["tuning"] or {}
        cost = f"{tuning['seconds']:.0f} s, {tuning['trials']} schedules" if tuning else "-"
        text = "<br>".join(f"{k}: {schedule_text(s)}" for k, s in r["schedule"].items()) or "library calls"
        lines.append(f"| {r['spec']} | {sizes_text(r['dims'])} | `{r['mugraph']}` | {cost} | {text} |")
    return "\n".join(lines) + "\n"


def ceilings(rows: Sequence[Document]) -> list[str]:
    """What the GPU reached in this process, by element type; nothing of earlier versions' rows."""
    by_type = {r["dtype"]: c for r in rows if (c := r.get("ceilings"))}
    return [
        f"This GPU, at the start of the same process: a copy {c['copy_tb_per_s']:.2f} TB/s, a {dtype} matmul "
        f"{c['matmul_tflop_per_s']:.0f} TFLOP/s (less when it is hot), an empty kernel {c['empty_us']:.2f} µs."
        for dtype, c in by_type.items()
    ]


def baselines(rows: Sequence[Document]) -> list[str]:
    return [n for n in dict.fromkeys(n for r in rows for n in r["contestants"]) if n != "mirage"]


def speedup(r: Document, name: str, context: str) -> float | None:
    """How many times as long as the kernel the baseline takes; None where one of them did not run."""
    mine, theirs = (bench_time(r["contestants"].get(n), context) for n in ("mirage", name))
    return theirs[0] / mine[0] if mine and theirs else None


def means(rows: Sequence[Document], context: str) -> list[str]:
    found: list[str] = []
    for n in baselines(rows):
        ratios = [x for r in rows if (x := speedup(r, n, context))]
        if ratios:
            mean = exp(sum(map(log, ratios)) / len(ratios))
            found.append(f"{mean:.2f} over {n} ({len(ratios)} sizes)")
    return found


def chart(rows: Sequence[Document]) -> str:
    """Bars of time over the kernel's, one for each baseline, on a logarithmic scale from 0.5 to 32.

    They are those of calls alone, where these were timed.
    """
    names, context = baselines(rows), bench_contexts(rows)[-1]
    low, high = log(0.5), log(32.0)

    def x(ratio: float) -> float:
        return LABEL + BAR * (min(max(log(ratio), low), high) - low) / (high - low)

    parts: list[str] = []
    y = 30
    for r in rows:
        label = escape(f"{r['spec']} {sizes_text(r['dims'])}")
        parts.append(f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        for i, n in enumerate(names):
            ratio = speedup(r, n, context)
            if ratio is None:
                continue
            top, thick = y + i * (HEIGHT - 4) / len(names), (HEIGHT - 4) / len(names) - 1
            left, right = sorted((x(1.0), x(ratio)))
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}" height="{thick:.1f}" '
                f'fill="{COLOUR.get(n, "#bbbbbb")}"><title>{escape(n)}: {ratio:.2f} times</title></rect>'
            )
        y += HEIGHT
    for tick in (0.5, 1, 2, 4, 8, 16, 32):
        parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="24" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{y + 16}" text-anchor="middle">{tick:g}×</text>')
    for i, n in enumerate(names):
        left = LABEL + i * 110
        parts.append(f'<rect x="{left}" y="6" width="12" height="12" fill="{COLOUR.get(n, "#bbbbbb")}"/>')
        parts.append(f'<text x="{left + 16}" y="16">{escape(n)} / mirage</text>')
    width, height = LABEL + BAR + 30, y + 28
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    return head + 'font-size="11">\n' + "\n".join(parts) + "\n</svg>\n"
