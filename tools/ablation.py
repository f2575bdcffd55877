"""What pruning and the algebra are worth: structural search with each of them switched off.

`python -m tools.ablation PAGE` writes the page; `make ablation` writes results/ablation.md, in about two minutes. It
needs no GPU.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.search.cuts import Bounds
from mirage_cli.spec.reader import load_spec
from mirage_cli.target.gpus import find_target

SPECS = Path(__file__).parents[1] / "search_specs"
TARGET = find_target("h200")
NAMES = ("gated_mlp", "gqa", "gqa_decode", "gqa_prefill", "lora", "ntrans", "qknorm_gqa", "rmsnorm_linear")
"""The programs of Mirage's paper, and attention at the sizes of a model."""
BUDGET_S = 20.0
"""Processor seconds of a search."""
FULL = Options(budget_s=float("inf"))
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


def run(program: Program, options: Options, budget_s: float = BUDGET_S) -> Run:
    start = time.process_time()
    found = search_program(program, TARGET, options, lambda: time.process_time() > start + budget_s)
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


def page(programs: Sequence[Program]) -> str:
    rmsnorm = next(p for p in programs if p.name.startswith("rmsnorm"))
    lines = [
        "# What the search's parts are worth",
        "",
        "Structural search alone, with verification of what it found: the programs of Mirage's paper, and attention",
        f"at the sizes of a model, planned for the {TARGET.name}. States are kernels enumerated, with their roles.",
        "Seconds are the processor's, so that other work on the machine does not count; a search is one thread.",
        f"Of what takes less than one, it is the shortest of {REPEATS} runs. Each search has {BUDGET_S:g} of them;",
        "where it *ran out*, states and best time are what it had reached and verified by then.",
        "",
        f"{platform.machine()}; Python {platform.python_version()}. `make ablation` writes this page.",
        "",
        *ablations(programs),
        f"## {rmsnorm.name}, by the number of operators that one kernel may have",
        "",
        *operators(rmsnorm),
        PAPER,
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    specs = [load_spec(SPECS / f"{name}.yaml") for name in NAMES]
    Path(sys.argv[1]).write_text(page([next(iter(s.programs(None, None))) for s in specs]), encoding="utf-8")
