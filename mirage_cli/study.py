"""How good the cost model is: its predictions beside what was measured, with each of its terms switched off in turn.

`python -m mirage_cli.study MEASUREMENTS PAGE` writes the page. MEASUREMENTS is a database that `mirage` has tuned into,
or a file that `mirage_cli.recorded` has made of one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.program import DTYPE_BYTES
from mirage_cli.recorded import Recorded, load
from mirage_cli.report import sizes_text
from mirage_cli.search import cost
from mirage_cli.target import Target, find_target
from mirage_cli.tune.space import chunk_sizes, models

Array = NDArray[np.float64]
LEAST = 0.05
"""The table of sizes shows a term where it changes a figure by so much."""


def predicted_us(p: Recorded, target: Target, without: frozenset[str] = frozenset()) -> Array:
    """Of every measured schedule, as `tune.space.total_us` has it, with these of `cost.TERMS` switched off."""
    total = np.zeros(len(p.measured))
    for g, graph in p.graphs.items():
        by_name = models(graph)
        element = {name: DTYPE_BYTES[t.dtype] for name, t in graph.tensors().items()}
        alike: dict[tuple[tuple[str, int], ...], list[int]] = {}  # by sizes, those of the chunk axes among them
        for i, m in enumerate(p.measured):
            if m.graph == g:
                alike.setdefault(tuple(chunk_sizes(graph, m.schedule).items()), []).append(i)
        for axes, places in alike.items():
            sizes = dict(axes)
            for k in graph.kernels:
                if k.kind == "library":
                    total[places] += cost.library_us(k, sizes, element[k.stores[0].buffer], target)
                    continue
                batch = cost.Batch.of(by_name[k.name], [p.measured[i].schedule.kernels[k.name] for i in places], sizes)
                total[places] += cost.estimate(by_name[k.name], batch, sizes, target, without).us
    return total


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one problem: schedules that were timed and can be predicted, and how well their order is.

    correlation: Spearman's, of predicted and measured times. loss: the measured time of the predicted best over the
    best measured. place: of the best measured in the predicted order, from 0.
    offset: median of measured over predicted.
    """

    count: int
    correlation: float
    loss: float
    place: int
    offset: float


def figures(p: Recorded, target: Target, without: frozenset[str] = frozenset()) -> Figures:
    predicted = predicted_us(p, target, without)
    us = np.array([m.us or np.inf for m in p.measured])
    kept = np.isfinite(us) & np.isfinite(predicted)
    us, predicted = us[kept], predicted[kept]
    order = predicted.argsort(kind="stable")
    return Figures(
        len(us),
        float(np.corrcoef(ranks(us), ranks(predicted))[0, 1]),
        float(us[order[0]] / us.min()),
        int(us[order].argmin()),
        float(np.median(us / predicted)),
    )


def ranks(x: Array) -> Array:
    """Places in ascending order; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def summary(rows: Sequence[Figures]) -> tuple[float, float]:
    """Mean correlation, and geometric mean of the losses."""
    return statistics.fmean(f.correlation for f in rows), exp(statistics.fmean(log(f.loss) for f in rows))


# -- the page


def page(problems: Sequence[Recorded], command: str) -> str:
    """In Markdown. All problems were measured on one GPU."""
    versions = problems[0].versions
    target = find_target(versions["gpu"])
    whole = [figures(p, target) for p in problems]
    correlation, loss = summary(whole)
    lines = [
        f"# The cost model on {versions['gpu']}",
        "",
        f"`{command}`: {sum(f.count for f in whole)} schedules, timed with mirage {versions['mirage']}, torch "
        f"{versions['torch']}, triton {versions['triton']}, driver {versions['driver']}.",
        "",
        f"**Mean rank correlation {correlation:.3f}, geometric mean loss {loss:.3f}.**",
        "",
        "The schedules are those that the tuner chose to time, so most are near the best and hard to tell apart.",
        "What the model of that day held to be slow is rare among them: a term whose removal seems to gain a little",
        "may still be what keeps slow schedules away.",
        "",
        "Rank correlation: Spearman's, of predicted and measured times over all schedules of all μGraphs of a size.",
        "Loss: the measured time of the schedule that is predicted best, over the least measured. Place: of the least",
        "measured in the predicted order, counted from 0. Offset: the median of measured over predicted time.",
        "",
        "| spec | sizes | schedules | rank correlation | loss | place | offset |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {p.spec} | {sizes_text(p.sizes)} | {f.count} | {f.correlation:.2f} | {f.loss:.2f} | {f.place} "
        f"| {f.offset:.2f} |"
        for p, f in zip(problems, whole, strict=True)
    ]
    return "\n".join([*lines, "", *_terms(problems, target, whole)]) + "\n"


def _terms(problems: Sequence[Recorded], target: Target, whole: Sequence[Figures]) -> list[str]:
    """What each term is worth: over all sizes, then where it changes something."""
    off = {t: [figures(p, target, frozenset({t})) for p in problems] for t in cost.TERMS}
    correlation, loss = summary(whole)
    lines = [
        "## With one term switched off",
        "",
        "Better and worse: sizes whose rank correlation is higher or lower by 0.01 or more without the term.",
        "",
        "| without | what it says | mean rank correlation | geometric mean loss | better | worse |",
        "|---|---|---:|---:|---:|---:|",
        f"| nothing | | {correlation:.3f} | {loss:.3f} | | |",
    ]
    for t, rows in off.items():
        gain = [without.correlation - f.correlation for without, f in zip(rows, whole, strict=True)]
        mean, lost = summary(rows)
        counts = f"{sum(x >= 0.01 for x in gain)} | {sum(x <= -0.01 for x in gain)}"
        lines.append(f"| {t} | {cost.TERMS[t]} | {mean:.3f} | {lost:.3f} | {counts} |")
    lines += [
        "",
        f"Rank correlation and loss of each size without the term, where either changes by {LEAST} or more:",
        "",
        "| spec | sizes | nothing | " + " | ".join(off) + " |",
        "|---|---|---|" + "---|" * len(off),
    ]
    for i, (p, f) in enumerate(zip(problems, whole, strict=True)):
        cells = [_cell(rows[i]) if _differs(rows[i], f) else "" for rows in off.values()]
        lines.append(f"| {p.spec} | {sizes_text(p.sizes)} | {_cell(f)} | " + " | ".join(cells) + " |")
    return lines


def _cell(f: Figures) -> str:
    return f"{f.correlation:.2f}, {f.loss:.2f}"


def _differs(a: Figures, b: Figures) -> bool:
    return max(abs(a.correlation - b.correlation), abs(a.loss - b.loss)) >= LEAST


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m mirage_cli.study", description=__doc__)
    parser.add_argument("measurements", type=Path, help="a database, or a recorded file (.json.gz)")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    given = parser.parse_args(arguments)
    command = f"python -m mirage_cli.study {given.measurements} {given.page}"
    given.page.write_text(page(load(given.measurements), command), encoding="utf-8")


if __name__ == "__main__":
    main()
