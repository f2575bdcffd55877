"""What the stages share while programs are worked on: the target, what was asked for, the database, the processes.

What is needed to ask a process is imported when it starts: an answer from the database needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from mirage_cli.pipeline.searching import Options
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target

if TYPE_CHECKING:
    from mirage_cli.tune.compilefarm import CompileFarm
    from mirage_cli.tune.interpreted import Interpreter
    from mirage_cli.tune.measure import GpuWorker
    from mirage_cli.tune.task import Means
    from mirage_cli.tune.trials import Tuned


class Progress(Protocol):
    """Told how far the work is."""

    def program(self, number: int, name: str) -> None:
        """The next program is at hand. number: from 1."""

    def doing(self, what: str, best_us: float | None = None) -> None:
        """What is being tried, and the best time so far where there is one."""


class Silence:
    """Progress that nobody is told of."""

    def program(self, number: int, name: str) -> None:
        pass

    def doing(self, what: str, best_us: float | None = None) -> None:
        pass


class Session:
    """Owns the processes that compile, interpret and measure: each starts when it is first asked for, and serves until
    the end.

    measures: whether kernels are timed, on this machine's GPU, or only predicted. on_tuning: told the name of each
    program whose tuning begins. on_tuned: told of each tuning.
    """

    def __init__(
        self,
        target: Target,
        options: Options,
        store: Database,
        has_gpu: bool,
        progress: Progress | None = None,
        command: str = "",
        on_tuned: Callable[[Tuned], None] = lambda _: None,
        on_tuning: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.on_tuned, self.on_tuning = on_tuned, on_tuning
        self.target, self.options, self.store, self.command = target, options, store, command
        self.progress = progress or Silence()
        self.measures = has_gpu and options.tune
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._means: Means | None = None
        self._interpreter: Interpreter | None = None
        self._farm: CompileFarm | None = None
        self._worker: GpuWorker | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def allow(self, budget_s: float, searching_s: float | None, until_s: float) -> None:
        """Sets the budget of each program from now on, as `Options` has it."""
        self.options = replace(self.options, budget_s=budget_s, searching_s=searching_s, until_s=until_s)

    def prepare(self) -> None:
        """Starts the processes that tuning needs: their seconds of imports pass while the search is at work."""
        if self.measures:
            self.worker().start()
            self.farm().start()

    def _modules(self) -> Path:
        """Where what one process has compiled lies for the other, which times it."""
        if self._directory is None:
            self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="mirage-")))
        return self._directory

    def farm(self) -> CompileFarm:
        """The processes that compile."""
        from mirage_cli.tune.compilefarm import CompileFarm

        if self._farm is None:
            self._farm = self._stack.enter_context(CompileFarm(self.target.sm, self.options.workers, self._modules()))
        return self._farm

    def worker(self) -> GpuWorker:
        """The process that owns the GPU."""
        from mirage_cli.tune.measure import GpuWorker

        if self._worker is None:
            self._worker = self._stack.enter_context(GpuWorker(context=self.options.context, directory=self._modules()))
        return self._worker

    def interpreter(self) -> Interpreter:
        """The process that runs kernels without a GPU."""
        from mirage_cli.tune.interpreted import Interpreter

        if self._interpreter is None:
            self._interpreter = self._stack.enter_context(Interpreter())
            self._interpreter.start()
        return self._interpreter

    def means(self) -> Means:
        """What the tuner works with."""
        from mirage_cli.codegen.export import kernels_source
        from mirage_cli.tune.task import Means

        if self._means is None:
            self._means = Means(self.worker(), self.farm(), self.target, kernels_source, self.tell)
        return self._means

    def tell(self, what: str, count: int, best_us: float | None) -> None:
        self.progress.doing(f"{what}: {count} schedules", best_us)
