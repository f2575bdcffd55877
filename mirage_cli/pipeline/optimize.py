"""From programs to their best kernels: THE FILE TO READ FIRST.

    Program ─► Found: verified μGraphs ─► Result: the best kernel, timed or predicted ─► SQLite, an exported file
        searching                    tuning, or predicting                       kept

Each stage is a module of this package; what they share is a `Session`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.kept import claimed, keep_search, stored_result, stored_search
from mirage_cli.pipeline.keys import key_of, keys_of
from mirage_cli.pipeline.searchers import search_all
from mirage_cli.pipeline.searching import Failed, Found
from mirage_cli.pipeline.session import Session
from mirage_cli.store.results import About, Asked, Result, Unfinished


def optimize(
    session: Session, programs: Sequence[tuple[Program, str]], began: float | None = None
) -> Iterator[Result | Unfinished]:
    """The result of each program, in order; each comes with the text of its spec.

    A program that the database answers is not searched again. The others are searched ahead, side by side in worker
    processes, while they are tuned one after the other. After an interrupt, the result of the current program is
    yielded with the plans found so far, unchecked, and KeyboardInterrupt follows. began: when work on the first program
    began, in `time.monotonic()`; by default now. A program's budget includes the time spent waiting for its search, and
    thus the start of processes.
    """
    at_hand = time.monotonic() if began is None else began
    for (program, text), found in zip(programs, searched(session, programs), strict=True):
        if isinstance(found, Result):
            yield found
            continue
        spent_s = max(found.seconds if isinstance(found, Found) else 0.0, time.monotonic() - at_hand)
        try:
            result = finish(session, program, text, found, session.options.tuning_s(spent_s))
        except KeyboardInterrupt:
            if isinstance(found, Failed):
                raise
            found = replace(found, stopped="interrupted")
            result = finish(session, program, text, found, 0.0)
        yield result
        at_hand = time.monotonic()
        if was_interrupted(found):
            raise KeyboardInterrupt


def searched(session: Session, programs: Sequence[tuple[Program, str]]) -> Iterator[Result | Found | Failed]:
    """What the database answers, and what the searches of the others find, in order. The processes that tuning needs
    start meanwhile. Raises StoreError, before any work, where nothing can be kept."""
    keys = keys_of([p for p, _ in programs], session.target, session.measures)
    known = {i: r for i, key in enumerate(keys) if (r := stored_result(session, key)) is not None}
    left = [p for i, (p, _) in enumerate(programs) if i not in known]
    if left:
        session.progress.doing("opening the database")
        session.store.check_writable()
        session.prepare()
    found = search_all(left, session.target, session.options, session.progress.doing, partial(compile_ahead, session))
    for i, (program, _) in enumerate(programs):
        if i in known:
            yield known[i]
            continue
        session.progress.program(i + 1, program.name)
        session.progress.doing("searching")
        yield next(found)


def compile_ahead(session: Session, program: Program, graphs: Mapping[str, MuGraph], as_written: str) -> None:
    """Has the first kernels compiled that tuning is going to ask for, where it does, while other work is done. What it
    raises, tuning would raise too: it is told in the program's result, as what a search raises is."""
    from mirage_cli.pipeline.tuning import first_kernels

    if session.measures:
        first_kernels(session, program, graphs, as_written)


def was_interrupted(found: Found | Failed) -> bool:
    return isinstance(found, Found) and found.stopped == "interrupted"


def tune(session: Session, programs: Sequence[tuple[Program, str]]) -> Iterator[Result | Unfinished]:
    """The result of each program from the plans that an earlier search has stored. Raises NothingStoredError, before
    any work, if a program has none, and StoreError where nothing can be kept."""
    searched = [stored_search(session.store, program) for program, _ in programs]
    session.progress.doing("opening the database")
    session.store.check_writable()
    session.prepare()
    for i, ((program, text), found) in enumerate(zip(programs, searched, strict=True), 1):
        session.progress.program(i, program.name)
        yield finish(session, program, text, found)


def tune_on(session: Session, program: Program, result: Result, more_s: float) -> Result | Unfinished:
    """The result after `more_s` more seconds of tuning, which go on from the trials in the database."""
    from mirage_cli.pipeline.tuning import tuned_result

    found = replace(stored_search(session.store, program), as_written=result.as_written or "")
    asked = result.asked and replace(result.asked, budget_s=result.asked.budget_s + more_s)
    empty = replace(result, asked=asked, best=None, top=(), lost=(), tuning=None)
    key = key_of(program, session.target, session.measures)
    return _claimed(session, result.about, lambda: tuned_result(session, program, key, found, empty, more_s))


def finish(
    session: Session, program: Program, text: str, found: Found | Failed, left_s: float | None = None
) -> Result | Unfinished:
    """From verified μGraphs to the result: they are kept, timed on this GPU or predicted, and the best is kept.
    left_s: for that; by default what the search has left of the budget."""
    from mirage_cli.pipeline.predicting import predicted_result
    from mirage_cli.pipeline.tuning import tuned_result

    o, own = session.options, about(session, program)
    if isinstance(found, Failed):
        return Unfinished(own, found.problem)
    asked = Asked(o.seed, o.top, o.budget_s, o.tune, o.context, session.command)
    seconds = o.tuning_s(found.seconds) if left_s is None else left_s
    empty = Result(own, found.stats, asked, found.as_written, rejections=found.rejected)
    measures = session.measures and found.stopped != "interrupted"

    def made() -> Result:
        key = keep_search(session, program, text, found)
        return (tuned_result if measures else predicted_result)(session, program, key, found, empty, seconds)

    return _claimed(session, own, made)


def about(session: Session, program: Program) -> About:
    return About(program.name, program.sizes, program.dtype, session.options.seed)


def _claimed(session: Session, about: About, made: Callable[[], Result]) -> Result | Unfinished:
    """The result, or why there is none: a program that fails costs the others nothing."""
    try:
        return claimed(session.store, made())
    except Exception as error:  # told in the result: later programs still get theirs
        return Unfinished(about, Failed.of(error).problem)
