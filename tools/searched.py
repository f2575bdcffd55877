"""Programs through search and tuning, one row each: what `tools.models` and `tools.large_problems` have in common.

Structural search runs ahead in processes of its own, which may die, hang or raise: that is a row, not the end. With a
GPU each program is tuned on it, and the winner is judged once more, on data that the tuner never saw; without one it
is planned for a target and judged in Triton's interpreter. Rows are written as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.keys import versions
from mirage_cli.pipeline.optimize import finish
from mirage_cli.pipeline.problem import floor_of, measured_problem
from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.results import Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target, driver_version, find_target, local_target
from mirage_cli.tune.child import Child, ChildDied
from mirage_cli.tune.interpreted import reduced_sizes
from mirage_cli.tune.measure import Candidate, Failure, MeasureError, Standard, Timing
from mirage_cli.tune.trials import Trial, Tuned
from mirage_cli.verify.facts import longest_sum

Row = dict[str, Any]
OVERTIME = 4
"""A search that takes so many times its budget is given up."""
ENTRY = "tools.searched"
CHECK_SEED = 1_000_003
"""Of the data on which the winner is judged once more."""


@dataclass(frozen=True)
class Job:
    """A program to be searched and tuned, with its spec's text."""

    name: str
    text: str
    program: Program


def job(text: str, small: bool = False) -> Job:
    """small: at reduced sizes, to try out the run itself."""
    spec = parse_spec(text)
    program = spec.at()
    return Job(spec.name, text, spec.at(reduced_sizes(program)) if small else program)


# -- structural search, ahead of tuning


class Searchers:
    """Processes that search, some programs at a time, in order. A context manager."""

    def __init__(self, count: int, target: Target, options: Options) -> None:
        self.target, self.options = target, options
        self.pool = ThreadPoolExecutor(count)
        self.own = threading.local()
        self.children: list[Child] = []

    def __enter__(self) -> Searchers:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in [*self.children]:  # a thread that waits for its answer is told that it died
            os.kill(child.pid, signal.SIGKILL)
        self.pool.shutdown()
        for child in self.children:
            child.kill()

    def submit(self, program: Program) -> Future[Found]:
        return self.pool.submit(self.search, program)

    def search(self, program: Program) -> Found:
        """In this thread's process, which is replaced where it fails."""
        child: Child | None = getattr(self.own, "child", None)
        if child is None:
            child = self.own.child = Child(ENTRY)
            self.children.append(child)
        try:
            child.send((program, self.target, self.options))
            answer = child.receive(OVERTIME * self.options.budget_s)
        except (TimeoutError, ChildDied):
            self.own.child = None
            self.children.remove(child)
            child.kill()
            raise
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer


def main(connection: Any) -> None:
    """A searching process: answers (program, target, options) with a `Found`, or with a traceback."""
    while True:
        question = connection.recv()
        try:
            answer: Found | str = search_program(*question)
        except Exception:  # the border of the process: whatever the search raises is this program's failure
            answer = traceback.format_exc()
        connection.send(answer)


# -- tuning


class Remembering(Session):
    """A session that remembers what tuning found."""

    tuned: Tuned | None = None

    def __init__(self, target: Target, options: Options, store: Database, measures: bool) -> None:
        super().__init__(target, options, store, measures, on_tuned=self.remember)

    def remember(self, tuned: Tuned) -> None:
        self.tuned = tuned

    def checked(self, program: Program) -> str | None:
        """What is wrong with the winner on data that the tuner never saw. What eager PyTorch overflows on too may
        overflow, as in the tuner."""
        assert self.tuned is not None and self.tuned.best is not None
        worker = self.worker()
        worker.set_problem(measured_problem(program, self.options.seed + CHECK_SEED))
        standard = Standard(program.tolerance, longest_sum(program), True)
        verdict = worker.judge(Candidate("winner", self.tuned.best.source), standard)
        return str(verdict) if isinstance(verdict, Failure) else verdict.problem


@dataclass(frozen=True)
class Means:
    """What a run works with."""

    target: Target
    options: Options
    measures: bool
    searchers: int

    @classmethod
    def of(cls, given: argparse.Namespace, runs: int = 1) -> Means:
        """runs: how many share the cores."""
        cores = len(os.sched_getaffinity(0)) // runs
        measures = given.target == "auto"
        target = local_target() if measures else find_target(given.target)
        if target is None or (measures and driver_version() is None):
            raise SystemExit("this machine has no GPU: plan for one with --target h200")
        searchers = given.searchers or (2 if cores > 4 else 1)
        workers = given.workers or max(cores - searchers, 1)
        return cls(target, Options(workers=workers, budget_s=given.budget, seed=given.seed), measures, searchers)


def add_arguments(parser: argparse.ArgumentParser, budget: float) -> None:
    parser.add_argument("page", type=Path)
    parser.add_argument("--json", type=Path, help="the rows, written as they come (default: beside the page)")
    parser.add_argument("--budget", type=float, default=budget, help="seconds of search and tuning for each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="auto", help="plan for this GPU instead of measuring on this machine's")
    parser.add_argument("--workers", type=int, help="processes that compile")
    parser.add_argument("--searchers", type=int, help="programs searched at a time, ahead of tuning")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after this long")
    parser.add_argument("--small", action="store_true", help="reduced sizes, to try out the run itself")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="make the page of these runs' JSON files, and run nothing"
    )


def rows(jobs: Sequence[Job], means: Means, seconds: float = float("inf")) -> Iterator[Row]:
    """One row for each program, in order, from an empty database."""
    begun = time.monotonic()
    searching = replace(means.options, workers=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Database(Path(folder) / "mirage.db") as store,
        Searchers(means.searchers, means.target, searching) as searchers,
    ):
        waiting = [searchers.submit(j.program) for j in jobs]
        session: Remembering | None = None
        try:
            for j, future in zip(jobs, waiting, strict=True):
                if time.monotonic() - begun > seconds:
                    return
                if session is None:
                    session = Remembering(means.target, means.options, store, means.measures)
                    session.prepare()
                row = about(j, means.target)
                try:
                    row |= one(j, future, session)
                except Exception as error:  # the border of the run: a program that fails is a row
                    row |= {"state": "failed", "problem": last_line(error)}
                    row["traceback"] = "".join(traceback.format_exception(error))
                    session.__exit__()
                    session = None
                yield row
        finally:
            if session is not None:
                session.__exit__()


def last_line(error: Exception) -> str:
    """The error in one line; of another process's traceback its last."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"


def about(j: Job, target: Target) -> Row:
    """What is known of a program before it is searched."""
    return {
        "name": j.name,
        "dtype": j.program.dtype,
        "dims": j.program.sizes,
        "operators": len(j.program.eqns),
        "text": j.text,
        "floor_us": floor_of(j.program, target),
    }


def one(j: Job, future: Future[Found], session: Remembering) -> Row:
    """What search and tuning found for one program. It waits for the search to end."""
    found = future.result()
    begun = time.monotonic()
    session.tuned = None
    finished = finish(session, j.program, j.text, found)
    took = time.monotonic() - begun
    if not isinstance(finished, Result):
        raise RuntimeError(finished.problem)
    row = result_row(finished, session.tuned if session.measures else None)
    row["seconds"] = {"search": found.seconds, "tune": took, "all": found.seconds + took}
    row["rejected_by_verifier"] = list(found.rejected)
    if session.measures and row["state"] == "right":
        try:
            problem = session.checked(j.program)
        except MeasureError as error:  # its figures stay
            return row | {"state": "failed", "problem": f"while the winner was checked: {error}"}
        row |= {"state": "wrong", "problem": problem} if problem is not None else {}
    return row


# -- rows


CONTEXTS = ("chain_us", "alone_us")


def result_row(found: Result, tuned: Tuned | None) -> Row:
    """The result's part of a row and, where there was tuning, what was timed and what was refused."""
    best = found.best
    times = best.times if best else None
    row: Row = {
        "state": "right" if best else "none",
        "stopped": {"search": found.search.stopped},
        "time_us": times and times.time_us,
        "spread_us": times and times.spread_us,
        "kernels": best and best.kernels,
        "as_written": best is not None and best.id == found.as_written,
        "predicted_us": best and best.predicted_us,
    }
    row |= {c: getattr(times, c) for c in CONTEXTS if times}
    if tuned is None:
        return row | ({} if best else {"problem": ", ".join(found.dropped) or "no plan"})
    row["stopped"]["tuning"] = tuned.stopped
    row["tuning"] = found.tuning and dict(found.tuning.phases)
    row["trials"], row["failures"] = len(tuned.trials), dict(tuned.failures)
    eager = tuned.baselines.get("eager")
    if isinstance(eager, Timing):
        row["eager_us"], row["eager_spread_us"] = eager.median_us, eager.spread_us
        row |= {f"eager_{c}": us for c in CONTEXTS if (us := getattr(eager, c, None)) is not None}
    else:
        row["eager_problem"] = str(eager)
    if best is None:
        row["problem"] = next((str(v.problem) for _, v in tuned.rejected), f"nothing ran: {row['failures']}")
    return row | lost(tuned)


def lost(tuned: Tuned) -> Row:
    """How far the chosen plan is from the fastest that was timed, and why faster ones were not taken.

    fastest_us: as timed in the finals where the plan came so far, as in the exploration otherwise. quick_ratio: by the
    exploration's timings alone, where clocks are as warm for one plan as for the other.
    """
    careful = {identity(t): t for t in tuned.finalists}
    timed = [careful.get(identity(t), t) for t in tuned.trials if t.timing]
    fastest = min((t.us for t in timed), default=None)
    found: Row = {"fastest_us": fastest, "refused": []}
    best = tuned.best
    limit = best.us if best else float("inf")
    why = {identity(t): (t, str(v.problem)) for t, v in tuned.rejected}
    explored = {identity(t): t for t in tuned.trials if t.timing}
    faster = sorted(((t.us, t, p) for t, p in why.values() if t.us < limit), key=lambda x: x[0])
    found["refused"] = [{"us": us, "id": t.mugraph, "schedule": str(t.schedule), "problem": p} for us, t, p in faster]
    if best is None or fastest is None:
        return found
    found["ratio"] = min(fastest / best.us, 1.0)
    if (own := explored.get(identity(best))) is not None:
        found["quick_ratio"] = min(min(t.us for t in explored.values()) / own.us, 1.0)
    found["reason"] = reason(min(timed, key=lambda t: t.us), tuned, {k: p for k, (_, p) in why.items()})
    return found


def identity(t: Trial) -> str:
    return f"{t.mugraph} {t.schedule}"


def reason(fastest: Trial, tuned: Tuned, problems: Mapping[str, str]) -> str | None:
    """Why the fastest plan that was timed is not the chosen one."""
    if tuned.best is not None and identity(fastest) == identity(tuned.best):
        return None
    if (own := problems.get(identity(fastest))) is not None:
        return f"refused: {own}"
    same = [v.problem for t, v in tuned.rejected if t.mugraph == fastest.mugraph]
    if same:
        return f"not judged: of the same μGraph {len(same)} schedules were refused: {same[0]}"
    if any(identity(t) == identity(fastest) for t in tuned.finalists):
        return "a finalist of a greater mean, or wrong on data drawn anew"
    return "timed once, by few samples, and no finalist"


# -- files and pages


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: a run that is killed leaves what it wrote last."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def run_document(means: Means, found: Sequence[Row]) -> dict[str, Any]:
    return {
        "command": " ".join(["python", "-m", *sys.orig_argv[2:]]),
        "gpu": means.target.name if means.measures else f"{means.target.name} (predicted)",
        "driver": (driver_version() or "") if means.measures else "",
        "versions": versions(),
        "budget_s": means.options.budget_s,
        "seed": means.options.seed,
        "rows": list(found),
    }


def run_rows(jobs: Sequence[Job], means: Means, given: argparse.Namespace) -> dict[str, Any]:
    """The run's document, which is also written after every row."""
    path: Path = given.json or given.page.with_suffix(".json")
    found: list[Row] = []
    document = run_document(means, found)
    for row in rows(jobs, means, given.seconds):
        found.append(row)
        document = run_document(means, found)
        write_json(path, document)
        print(f"{len(found)}/{len(jobs)} {line(row)}", flush=True)
    return document


def line(row: Row) -> str:
    """A row on one line of a terminal."""
    parts = [row["name"], row["dtype"], row["state"]]
    if row.get("time_us") is not None:
        parts.append(f"{row['time_us']:.2f} µs, eager {number(row.get('eager_us'))}, floor {row['floor_us']:.2f}")
    if "ratio" in row:
        parts.append(f"ratio {row['ratio']:.3f}")
    if "seconds" in row:
        parts.append(f"{row['seconds']['all']:.1f} s")
    if row.get("problem"):
        parts.append(row["problem"])
    return ", ".join(parts)


def merged(paths: Iterable[Path]) -> dict[str, Any]:
    """One document of several runs; of rows of one name the last."""
    documents = [json.loads(p.read_text(encoding="utf-8")) for p in paths]
    found = {row["name"]: row for d in documents for row in d["rows"]}
    commands = " ; ".join(dict.fromkeys(d["command"] for d in documents))
    return documents[0] | {"command": commands, "rows": list(found.values())}


def slower_than_eager(row: Row) -> bool:
    """Whether eager PyTorch is faster by more than the larger spread, in any context that was timed."""
    spread = max(row.get("spread_us") or 0.0, row.get("eager_spread_us") or 0.0)
    pairs = [(row.get(c), row.get(f"eager_{c}")) for c in CONTEXTS] + [(row.get("time_us"), row.get("eager_us"))]
    return any(us is not None and eager is not None and us > eager + spread for us, eager in pairs)


def mean_of(values: Iterable[float | None]) -> str:
    """The geometric mean."""
    known = [v for v in values if v]
    return f"{statistics.geometric_mean(known):.3f}" if known else "–"


def number(x: float | None, digits: int = 2) -> str:
    return "–" if x is None else f"{x:.{digits}f}"


def sizes(row: Row) -> str:
    return " ".join(f"{d}={n}" for d, n in row["dims"].items())


def table(head: Sequence[str], body: Iterable[Sequence[object]], words: int = 1) -> list[str]:
    """words: how many of the first columns are text."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |" for cells in (head, rule, *body)]


def heading(title: str, document: Mapping[str, Any]) -> list[str]:
    v = document["versions"]
    where = f"{document['gpu']}, torch {v['torch']}, triton {v['triton']}"
    return [f"# {title}", "", f"`{document['command']}`: {where}, {document['budget_s']:g} s each.", ""]
