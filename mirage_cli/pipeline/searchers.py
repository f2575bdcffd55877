"""The searches of several programs side by side: the first here, the others in worker processes. One that fails costs
the others nothing."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.processes import Interrupted, Processes
from mirage_cli.pipeline.searching import Chosen, Doing, Failed, Found, Options, search_program, unheard
from mirage_cli.target.gpus import Target
from mirage_cli.tune.child import ChildDied

NO_TIME = "it was not searched: the budget was spent"
LATE = "its search did not end in time"
LATE_S = 0.3
"""Seconds behind the time for searches that the answer of a process may take: the first of all processes may start
later than that."""
GRACE_S = 1.3
"""Seconds that a worker process has, once interrupted, to hand over what it has found."""


def search_all(
    programs: Sequence[Program],
    target: Target,
    options: Options,
    doing: Doing = unheard,
    chosen: Chosen = unheard,
) -> Iterator[Found | Failed]:
    """Search every program, in order: the first in this process, at once, and the others beside it in worker processes,
    which start later. Interrupted, it gives what the search at hand has found so far, as the last. doing, chosen: told
    of the search at hand, where it is in this process."""
    if options.workers <= 1 or len(programs) <= 1:
        for p in programs:
            yield search_or_fail(p, target, options, doing=doing, chosen=chosen)
        return
    first, *others = programs
    processes = min(options.workers, len(programs)) - 1
    each = replace(options, workers=options.workers // (processes + 1))
    with _Searchers(others, target, each, processes) as searchers:
        yield search_or_fail(first, target, each, doing=doing, chosen=chosen)
        for i in range(len(others)):
            yield searchers.result(i)


def search_or_fail(
    program: Program,
    target: Target,
    options: Options,
    interrupted: Callable[[], bool] = lambda: False,
    doing: Doing = unheard,
    chosen: Chosen = unheard,
) -> Found | Failed:
    """`search_program`, where a failure of one program must not cost the others their results, and which is not begun
    when time is up."""
    if time.monotonic() > options.until_s:
        return Failed(NO_TIME)
    try:
        return search_program(program, target, options, interrupted, doing, chosen)
    except Exception as error:  # named in the result: the other programs have theirs
        return Failed.of(error)


class _Searchers:
    """The processes that search several programs side by side. options: of each search.

    A search whose process was killed is made again alone, in a process of its own, and so is each that had not begun:
    what kills a process is most often that memory is short.
    """

    def __init__(self, programs: Sequence[Program], target: Target, options: Options, count: int) -> None:
        self.programs, self.target, self.options = programs, target, options
        self.processes = Processes(count)
        self.futures = [self.submit(p) for p in programs]

    def __enter__(self) -> _Searchers:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.close()

    def submit(self, program: Program) -> Future[Found | Failed]:
        return self.processes.submit(_search_there, program, self.target, self.options)

    def result(self, i: int) -> Found | Failed:
        """Of one program. Raises KeyboardInterrupt where its search does not end within GRACE_S of one."""
        try:
            try:
                return self.in_time(i)
            except (ChildDied, CancelledError):
                self.be_alone()
                self.futures[i] = self.submit(self.programs[i])
                return self.in_time(i)
        except ChildDied as error:
            how, _, _ = str(error).partition(":")
            return Failed(f"it was searched twice, the second time alone: {how}")
        except KeyboardInterrupt:
            self.processes.interrupt()
            with contextlib.suppress(TimeoutError, ChildDied, CancelledError):
                if isinstance(found := self.futures[i].result(GRACE_S), Found):
                    return found
            raise

    def in_time(self, i: int) -> Found | Failed:
        """Of one program. Others are not to wait for it behind the time for searches."""
        left_s = max(self.options.until_s - time.monotonic(), 0.0) + LATE_S
        try:
            return self.futures[i].result(left_s if math.isfinite(left_s) else None)
        except TimeoutError:
            return Failed(LATE)

    def be_alone(self) -> None:
        """Waits for the searches that have begun, and ends all processes."""
        wait([future for future in self.futures if not future.cancel()])
        self.processes.close()
        self.processes = Processes(1)


def _search_there(interrupted: Interrupted, program: Program, target: Target, options: Options) -> Found | Failed:
    found = search_or_fail(program, target, options, interrupted)
    return replace(found, stopped="interrupted") if isinstance(found, Found) and interrupted() else found
