"""What pruning, the algebra and several workers are worth: structural search with each of them switched off.

`python -m tools.ablation PAGE` writes the page; `make ablation` writes results/ablation.md. It needs no GPU.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Found, Options, search_all, search_program
from mirage_cli.search.cuts import Bounds
from mirage_cli.spec.reader import load_spec
from mirage_cli.target.gpus import find_target

SPECS = Path(__file__).parents[1] / "search_specs"
TARGET = find_target("h200")
BUDGET_S = 60.0
FULL = Options(budget_s=BUDGET_S)
VARIANTS: Mapping[str, Options] = {
    "full": FULL,
    "without pruning by cost": replace(FULL, prune=False),
    "without decomposition": replace(FULL, own_algebra_only=True),
}
EQUATIONS = (5, 6, 7, 8, 9, 10, 11)
"""Operators in one kernel, as in the paper's table 5."""
REPEATS = 3

PAPER = """\
Mirage's own figures, from table 5 of its paper (OSDI '25), are for RMSNorm with up to 11 operators in a block graph:
28 s with 8 threads, 183 s with one, and more than 10 hours without abstract expressions. They are of another machine
and of a space that is cut differently (tile sizes are no part of a structure here), so they say what kind of thing
pays, and are no race. There, abstract expressions throw away what cannot lead to the program. Here, the decomposition
makes nothing else, and what it would be without it, no switch can show; `tests/bruteforce.py` enumerates programs on
tiny spaces. `--no-decompose` is another thing: no algebra but the program's own equations."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in lines] + [""]


@dataclass(frozen=True, slots=True)
class Run:
    """A search and the CPU time that it took."""

    found: Found
    seconds: float

    def cells(self) -> list[object]:
        """States, seconds and the best predicted time; where the search ran out of time, it says so."""
        ran_out = "" if self.found.stopped == "exhausted" else " (ran out)"
        best = min((p.predicted_us for p in self.found.plans), default=float("nan"))
        return [f"{self.found.enumerated:,}{ran_out}", f"{self.seconds:.2f}", f"{best:.2f}"]


def run(program: Program, options: Options) -> Run:
    start = time.process_time()
    found = search_program(program, TARGET, options)
    return Run(found, time.process_time() - start)


def quickest(program: Program, options: Options) -> Run:
    """The shortest of a few runs of one search, or the only one of a long search."""
    first = run(program, options)
    again = range(REPEATS - 1) if first.seconds < 1 else ()
    return min([first, *(run(program, options) for _ in again)], key=lambda r: r.seconds)


def ablations(programs: Sequence[Program]) -> list[str]:
    found = {v: [quickest(p, options) for p in programs] for v, options in VARIANTS.items()}
    head = ["", *(f"{v}: {what}" for v in VARIANTS for what in ("states", "s", "best µs"))]
    rows = [[p.name, *(c for v in VARIANTS for c in found[v][i].cells())] for i, p in enumerate(programs)]
    total = ["all"]
    for runs in found.values():
        total += [f"{sum(r.found.enumerated for r in runs):,}", f"{sum(r.seconds for r in runs):.2f}", ""]
    return table(head, [*rows, total])


def operators(program: Program) -> list[str]:
    """The shape of the paper's table: the seconds by the number of operators that a kernel may have."""
    rows: list[list[object]] = []
    for n in EQUATIONS:
        options = [replace(o, bounds=replace(Bounds(), equations=n)) for o in VARIANTS.values()]
        rows.append([n, *(c for o in options for c in quickest(program, o).cells())])
    return table(["operators", *(f"{v}: {what}" for v in VARIANTS for what in ("states", "s", "best µs"))], rows)


def workers(programs: Sequence[Program], counts: Iterable[int]) -> list[str]:
    """Wall time of all searches together, the start of the processes with it."""
    rows: list[list[object]] = []
    for n in counts:
        times: list[float] = []
        states = 0
        for _ in range(REPEATS):
            start = time.perf_counter()
            states = sum(
                f.enumerated for f in search_all(programs, TARGET, replace(FULL, workers=n)) if isinstance(f, Found)
            )
            times.append(time.perf_counter() - start)
        rows.append([n, f"{states:,}", f"{min(times):.2f}"])
    return table(["workers", "states", "s"], rows)


def page(programs: Sequence[Program]) -> str:
    rmsnorm = next(p for p in programs if p.name.startswith("rmsnorm"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        "# What the search's parts are worth",
        "",
        "Structural search alone, with verification of what it found: every spec of `search_specs/` at its first",
        f"sizes, planned for the {TARGET.name}. States are kernels enumerated, with their roles. Seconds are the",
        "processor's, so that other work on the machine does not count; a search is one thread. Of what takes less",
        f"than one, it is the shortest of {REPEATS} runs. Each search has {BUDGET_S:g} s by the clock; where it *ran",
        "out* of them, states and best time are what it had reached and verified by then.",
        "",
        f"{platform.machine()}, {cores} cores; Python {platform.python_version()}. `make ablation` writes this page.",
        "",
        *ablations(programs),
        f"## {rmsnorm.name}, by the number of operators that one kernel may have",
        "",
        *operators(rmsnorm),
        PAPER,
        "",
        "## Workers",
        "",
        "All specs together, by the clock, the start of the processes included, the shortest of as many runs. A",
        "program is searched by one process, so that the longest search bounds what more of them can gain.",
        "",
        *workers(programs, (1, 2)),
        f"The machine's load was {os.getloadavg()[0]:.1f} by then; where that is well above the number",
        "of workers, other work had its share of the cores.",
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    specs = [load_spec(p) for p in sorted(SPECS.glob("*.yaml"))]
    Path(sys.argv[1]).write_text(page([next(iter(s.programs(None, None))) for s in specs]), encoding="utf-8")
