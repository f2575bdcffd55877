"""What the worker processes of a cluster import first, in tests: a GPU whose times are made up.

As soon as there is a file of the name in MADE_UP_LOST, the GPU of the first process that asks for one is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

from mirage_cli.target import gpus
from mirage_cli.tune import compilefarm, measure
from mirage_cli.tune.compilefarm import KernelResources
from mirage_cli.tune.measure import Candidate, Floor, Judged, MeasureError, Timing

EAGER_US = 50.0
LOST = "MADE_UP_LOST"


class Gpu:
    """A source takes what its text says, wherever it is timed."""

    def start(self) -> None:
        pass

    @property
    def device(self) -> str:
        """Raises MeasureError where it is lost."""
        if (file := Path(os.environ.get(LOST, "none"))).exists():
            with suppress(FileExistsError), file.with_suffix(".pid").open("x"):
                file.write_text(str(os.getpid()))
            if file.read_text() == str(os.getpid()):
                raise MeasureError("The measuring process does not start: made up")
        return "made up"

    def set_problem(self, problem: object) -> None:
        assert self.device

    def time(
        self,
        candidates: Sequence[Candidate],
        effort: object,
        persist: bool = True,
        meanwhile: Callable[[], object] = lambda: None,
        within_s: float = 0.0,
        best_us: float = 0.0,
    ) -> dict[str, Timing]:
        meanwhile()
        times = {c.id: EAGER_US if c.id == "eager" else 10.0 + sum(map(ord, c.source)) % 997 / 100 for c in candidates}
        return {id: Timing((us,), 1, 1, "made up", alone_samples_us=(us,), context="both") for id, us in times.items()}

    def prepare_judging(self, contracted: int) -> int:
        return 0

    def measure_floor(self, dtype: str) -> Floor:
        return Floor(4e12, 6e14, 1.0)

    def launch_overhead_us(self, exported: Candidate, function: str) -> None:
        return None

    def judge(self, candidate: Candidate, standard: object, anew: bool = False, within_s: float = 0.0) -> Judged:
        return Judged(True, 1e-3, 1e-3)


class Farm:
    """Compiles everything. ahead: what any of them was given while plans were still verified."""

    ahead: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.given: list[str] = []

    def start(self) -> None:
        pass

    def give(self, candidates: Sequence[Candidate], *_: object) -> None:
        self.given += [c.id for c in candidates]

    def give_ahead(self, candidates: Sequence[Candidate], *_: object) -> None:
        self.ahead.extend(c.source for c in candidates)

    @property
    def pending(self) -> int:
        return len(self.given)

    def take(self, wait: bool = True, within_s: float = 0.0) -> list[tuple[str, Any]]:
        done, self.given = self.given[:8], self.given[8:]
        return [(id, (KernelResources("k0", 1024, 64, 0, 4, ""),)) for id in done]

    def forget(self) -> list[str]:
        left, self.given = self.given, []
        return left

    def drop(self) -> None:
        self.given.clear()


def dies_once(file: Path) -> str:
    """An answer; the first worker that is asked dies instead."""
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def chosen_target(name: str) -> tuple[gpus.Target, bool]:
    return gpus.find_target("h200" if name == "auto" else name), name in ("auto", "h200")


def pretend(put: Callable[[object, str, object], None]) -> None:
    """From now on, this process has a GPU."""
    put(measure, "GpuWorker", lambda context, directory: nullcontext(Gpu()))
    put(compilefarm, "CompileFarm", lambda arch, workers, directory: nullcontext(Farm()))
    put(gpus, "chosen_target", chosen_target)


def dask_setup(_: object) -> None:
    """Dask calls it in each worker process."""
    pretend(setattr)
