"""How good the cost model is: its predictions beside what was measured, with each of its terms switched off in turn.

`python -m tools.study --drawn SAMPLE --tuned MEASUREMENTS PAGE` writes the page. SAMPLE holds schedules that were
drawn at random (`tools.record_sample`), MEASUREMENTS those that tuning chose: each a database that `mirage` has tuned
into, or a file that `tools.recorded` has made of one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mirage_cli.cli.tables import sizes_text
from mirage_cli.search.cost import model
from mirage_cli.target.gpus import Target, find_target
from mirage_cli.tune.price import totals_us
from tools.recorded import Recorded, load

Array = NDArray[np.float64]
LEAST = 0.05
"""The table of sizes shows a term where it changes a figure by so much."""


def predicted_us(p: Recorded, target: Target, without: frozenset[str] = frozenset()) -> Array:
    """Of every measured schedule, as `tune.price.total_us` has it, with these of `model.TERMS` switched off."""
    total = np.zeros(len(p.measured))
    for g, graph in p.graphs.items():
        places = [i for i, m in enumerate(p.measured) if m.graph == g]
        schedules = [p.measured[i].schedule for i in places]
        total[places] = totals_us(graph, schedules, target, without)
    return total


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one problem: what was timed and can be predicted, schedules or μGraphs, and how well it is ordered.

    correlation: Spearman's, of predicted and measured times. loss: the measured time of the predicted best over the
    best measured; loss10: of the best among the ten that are predicted best. place: of the best measured in the
    predicted order, from 0. offset: median of measured over predicted.
    """

    count: int
    correlation: float
    loss: float
    loss10: float
    place: int
    offset: float


def figures(p: Recorded, target: Target, without: frozenset[str] = frozenset()) -> Figures:
    predicted = predicted_us(p, target, without)
    us = np.array([m.us or np.inf for m in p.measured])
    kept = np.isfinite(us) & np.isfinite(predicted)
    return _figures(us[kept], predicted[kept])


def of_candidates(p: Recorded, target: Target) -> Figures:
    """Of μGraphs, each with the least that was measured and the least that is predicted of its schedules."""
    predicted = predicted_us(p, target)
    least: dict[str, tuple[float, float]] = {}
    for m, x in zip(p.measured, predicted, strict=True):
        us, before = least.get(m.graph, (np.inf, np.inf))
        least[m.graph] = min(us, m.us or np.inf), min(before, float(x))
    us, best = np.array([x for x in least.values() if np.isfinite(x).all()]).T
    return _figures(us, best)


def _figures(us: Array, predicted: Array) -> Figures:
    order = predicted.argsort(kind="stable")
    return Figures(
        len(us),
        float(np.corrcoef(ranks(us), ranks(predicted))[0, 1]),
        float(us[order[0]] / us.min()),
        float(us[order[:10]].min() / us.min()),
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

SECTIONS = {
    "drawn": """\
## Schedules drawn at random

Every choice drawn uniformly, for the μGraphs that are predicted fastest: what the model is asked to order.""",
    "tuned": """\
## Schedules that tuning chose

Most are near the best, many no further apart than two measurements of one schedule, and what the model of that day held
to be slow is rare among them: a term whose removal seems to gain a little here may be what keeps slow ones away.""",
}

CANDIDATES = """\
## Candidates as tuned

The μGraphs of the section above, each as its fastest schedule, predicted by the least that the model has for any of
those that were timed: which candidate to take."""


def page(sets: Mapping[str, Sequence[Recorded]], command: str) -> str:
    """In Markdown. sets: problems by the name of their section; all were measured on one GPU."""
    versions = next(iter(sets.values()))[0].versions
    lines = [
        f"# The cost model on {versions['gpu']}",
        "",
        f"`{command}`: torch {versions['torch']}, triton {versions['triton']}, driver {versions['driver']}.",
        "",
        "Rank correlation: Spearman's, of predicted and measured times over all schedules of all μGraphs of a size, or",
        "over its μGraphs in the section on candidates.",
        "Loss: the measured time of what is predicted best, over the least measured; of ten: that of the",
        "best among the ten that are predicted best. Place: of the least measured in the predicted order, from 0.",
        "Offset: the median of measured over predicted time.",
        "",
    ]
    for name, problems in sets.items():
        target = find_target(versions["gpu"])
        whole = [figures(p, target) for p in problems]
        lines += [SECTIONS[name], "", *_sizes(problems, whole, "schedules"), *_terms(problems, target, whole)]
        if name == "tuned":
            of_each = [of_candidates(p, target) for p in problems]
            lines += [CANDIDATES, "", *_sizes(problems, of_each, "μGraphs")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _sizes(problems: Sequence[Recorded], whole: Sequence[Figures], what: str) -> list[str]:
    correlation, loss = summary(whole)
    specs = {
        p.spec: [f.correlation for q, f in zip(problems, whole, strict=True) if q.spec == p.spec] for p in problems
    }
    means = ", ".join(f"{spec} {statistics.fmean(c):.2f}" for spec, c in specs.items())
    lines = [
        f"{sum(f.count for f in whole)} {what}. **Mean rank correlation {correlation:.3f}, geometric mean loss "
        f"{loss:.3f}**; the least measured is among the ten predicted best at {sum(f.place < 10 for f in whole)} of "
        f"{len(whole)} sizes. Mean rank correlation of each spec: {means}.",
        "",
        f"| spec | sizes | {what} | rank correlation | loss | loss of ten | place | offset |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {p.spec} | {sizes_text(p.sizes)} | {f.count} | {f.correlation:.2f} | {f.loss:.2f} | {f.loss10:.2f} "
        f"| {f.place} | {f.offset:.2f} |"
        for p, f in zip(problems, whole, strict=True)
    ]
    return [*lines, ""]


def _terms(problems: Sequence[Recorded], target: Target, whole: Sequence[Figures]) -> list[str]:
    """What each term is worth: over all sizes, then where it changes something."""
    off = {t: [figures(p, target, frozenset({t})) for p in problems] for t in model.TERMS}
    correlation, loss = summary(whole)
    lines = [
        "With one term switched off. Better, worse: sizes whose rank correlation is higher or lower by at least 0.01.",
        "",
        "| without | what it says | mean rank correlation | geometric mean loss | better | worse |",
        "|---|---|---:|---:|---:|---:|",
        f"| nothing | | {correlation:.3f} | {loss:.3f} | | |",
    ]
    for t, rows in off.items():
        gain = [without.correlation - f.correlation for without, f in zip(rows, whole, strict=True)]
        mean, lost = summary(rows)
        counts = f"{sum(x >= 0.01 for x in gain)} | {sum(x <= -0.01 for x in gain)}"
        lines.append(f"| {t} | {model.TERMS[t]} | {mean:.3f} | {lost:.3f} | {counts} |")
    lines += [
        "",
        f"Rank correlation and loss of each size, and without the terms that change either by {LEAST} or more:",
        "",
        "| spec | sizes | nothing | without |",
        "|---|---|---|---|",
    ]
    for i, (p, f) in enumerate(zip(problems, whole, strict=True)):
        cells = ", ".join(f"{t} {_cell(rows[i])}" for t, rows in off.items() if _differs(rows[i], f))
        lines.append(f"| {p.spec} | {sizes_text(p.sizes)} | {_cell(f)} | {cells} |")
    return [*lines, ""]


def _cell(f: Figures) -> str:
    return f"{f.correlation:.2f}/{f.loss:.2f}"


def _differs(a: Figures, b: Figures) -> bool:
    return max(abs(a.correlation - b.correlation), abs(a.loss - b.loss)) >= LEAST


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.study", description=__doc__)
    for name in SECTIONS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="a database, or a recorded file (.json.gz)")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    given = parser.parse_args(arguments)
    files = {name: path for name in SECTIONS if (path := getattr(given, name))}
    if not files:
        parser.error("give --drawn or --tuned")
    command = " ".join(["python -m tools.study", *(f"--{n} {path}" for n, path in files.items()), str(given.page)])
    given.page.write_text(page({n: load(path) for n, path in files.items()}, command), encoding="utf-8")


if __name__ == "__main__":
    main()
