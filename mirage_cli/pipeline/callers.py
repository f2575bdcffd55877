"""Kernels for callers in Python: what `Graph.search`, `mirage_cli.mi` and `mirage_cli.optimize` return.

with Kernels(Settings(budget=30.0)) as kernels:
    (kernel,) = kernels.of([graph])
y = kernel.run(x, w)
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any  # Any: torch's tensors; torch is imported when a kernel first runs

from mirage_cli.errors import NoKernelError, OptionError, StoredKernelError
from mirage_cli.ir.program import Program, Range
from mirage_cli.spec import graph as spec_graph
from mirage_cli.store.results import KernelResult, Result
from mirage_cli.target.files import write_text
from mirage_cli.target.knobs import MAX_SEED, MAX_WORKERS, WORKERS

if TYPE_CHECKING:
    from mirage_cli.store.records import Best, Key
    from mirage_cli.target.gpus import Target


@contextmanager
def without_main() -> Generator[None]:
    """Processes that are started meanwhile do not run the caller's script again, which may not look whether it is the
    main module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def runs_on(tensors: Sequence[Any]) -> bool:
    """Whether kernels run on these: on a GPU, or in Triton's interpreter."""
    return all(x.is_cuda for x in tensors) or (all(x.is_cuda or x.is_cpu for x in tensors) and interpreted())


def interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


@dataclass(frozen=True)
class Exported:
    """An exported file. name: of the function in it."""

    name: str
    source: str

    @cached_property
    def function(self) -> Callable[..., Any]:
        from mirage_cli.codegen.export import load_export

        return vars(load_export(self.source))[self.name]

    @property
    def operator(self) -> Any:
        """The custom operator that the file registers: the function's, without what it looks at first."""
        import torch

        _ = self.function  # loading the file registers the operator
        match = re.search(r"torch\.ops\.mirage\.(\w+)\(", self.source)
        assert match is not None, "an exported file calls its operator"
        operator = getattr(torch.ops.mirage, match[1]).default
        if torch.cuda.is_available():  # elsewhere PyTorch computes
            known_to_inductor(operator)
        return operator

    def __reduce__(self) -> Any:
        """Without the function, which the file makes."""
        return Exported, (self.name, self.source)


@dataclass(frozen=True)
class Kernel:
    """The best kernel of a program; of several sizes, all of them in one file. source: of the exported file. program,
    result, mugraph (its text): of the largest size.

    slow: the ranges of dynamic sizes at which it was not measured to be faster than eager PyTorch, though it was at
    others.
    """

    program: Program
    result: Result
    source: str
    mugraph: str
    slow: tuple[tuple[Range, ...], ...] = ()

    def run(self, *tensors: Any) -> Any:
        """The result, or a tuple of them, of tensors in the order of the inputs. Raises ValueError, TypeError.

        PyTorch computes where they are on a CPU, unless TRITON_INTERPRET=1 is set.
        """
        plain = all(hasattr(x, "is_cuda") for x in tensors)
        return (self.function if plain and runs_on(tensors) else self.in_pytorch)(*tensors)

    def export(self, path: str | Path | None = None) -> str:
        """The text of the file that needs only torch and triton, which is also written to a path. Raises OSError."""
        if path is not None:
            write_text(Path(path), self.source)
        return self.source

    def __repr__(self) -> str:
        return f"<Kernel {self.program.name}: {self.times}>"

    @property
    def best(self) -> KernelResult:
        """The μGraph and schedule that were chosen, with their times."""
        assert self.result.best is not None, "a kernel is of a result that has one"
        return self.result.best

    @property
    def times(self) -> str:
        """The time of a call and, where it was measured, eager PyTorch's."""
        eager = f", eager {self.best.eager_us:.2f} µs" if self.best.eager_us is not None else ""
        return f"{self.best.us:.2f} µs ({self.best.status}){eager}"

    def explain(self) -> str:
        """What was searched, and the schedule and the μGraph that were chosen."""
        best, search = self.best, self.result.search
        lines = [
            f"{self.program.name}: {self.times}, floor {best.floor_us:.2f} µs",
            f"searched: {search.enumerated} kernels in {search.seconds:.1f} s; stopped: {search.stopped}",
            f"right: {best.claim or 'never looked at'}",
            f"schedule: {best.schedule}",
            "",
            self.mugraph,
        ]
        return "\n".join(lines)

    @cached_property
    def exported(self) -> Exported:
        return Exported(self.program.name, self.source)

    @property
    def function(self) -> Callable[..., Any]:
        """The exported function."""
        return self.exported.function

    @property
    def operator(self) -> Any:
        """As of `Exported`."""
        return self.exported.operator

    def in_pytorch(self, *tensors: Any) -> Any:
        """The same by PyTorch's operators, in the types of the results: None where all are changes in place."""
        import torch

        self.check(tensors)
        made = self._reference(*tensors)
        if made is None:
            return None
        single = not isinstance(made, tuple)
        dtypes = [getattr(torch, t.dtype) for t in self.program.results]
        results = [y.to(dtype) for y, dtype in zip([made] if single else made, dtypes, strict=True)]
        return results[0] if single else tuple(results)

    def check(self, tensors: Sequence[Any]) -> None:
        """Raises TypeError or ValueError where tensors are no inputs of the program, as exported functions do."""
        import torch

        program = self.program
        if len(tensors) != len(program.inputs):
            raise TypeError(f"{program.name} takes {len(program.inputs)} tensors, and {len(tensors)} are given")
        ranges = {r.dim: range(r.least, r.most + 1) for r in program.dynamic}
        sizes = {d: range(n, n + 1) for d, n in program.dims} | ranges
        for t, x in zip(program.inputs, tensors, strict=True):
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{t.name} should be a tensor, not {type(x).__name__}")
            if str(x.dtype) != f"torch.{t.dtype}":
                raise TypeError(f"{t.name} should have the dtype torch.{t.dtype}, not {x.dtype}")
            if len(x.shape) != len(t.dims) or any(n not in sizes[d] for d, n in zip(t.dims, x.shape, strict=True)):
                wanted = ", ".join(d if d in ranges else str(program.sizes[d]) for d in t.dims)
                raise ValueError(f"{t.name} should have the shape ({wanted}), not {tuple(x.shape)}")
            sizes |= {d: range(n, n + 1) for d, n in zip(t.dims, x.shape, strict=True)}

    @cached_property
    def _reference(self) -> Callable[..., Any]:
        from mirage_cli.codegen.export import load_export
        from mirage_cli.codegen.torch_source import torch_source

        return load_export("import torch\n\n\n" + torch_source(self.program)).reference


def known_to_inductor(operator: Any) -> None:
    """Has Inductor call this operator as it calls those that it has no lowering for. For a log line about such an
    operator, PyTorch 2.11 writes down all that the arguments are made of, each value as often as it is read: 7 s for 4
    layers of Llama; 32 layers had not ended after 75 s."""
    with suppress(ImportError, AttributeError):  # no public names
        from torch._inductor import lowering
        from torch._library.utils import get_layout_constraint_tag

        if operator not in lowering.lowerings:
            layout = lowering.tag_to_layout_constraint(get_layout_constraint_tag(operator))
            lowering.make_fallback(operator, layout, warn=False)


@dataclass(frozen=True)
class Standing:
    """The text of a spec, and its program at each of its sizes."""

    text: str
    programs: tuple[Program, ...]


def parts_of(programs: Sequence[Program], wanted: Sequence[int]) -> list[float]:
    """How much time each size of a program has, of that of a program of one size. The sizes that are wanted have as
    much, and so have all others together; where none is wanted, all have."""
    at = [p for p in programs if sorted(p.arguments) == sorted(wanted)]
    if len(programs) == 1 or not at:
        return [1.0] * len(programs)
    return [1.0 if p in at else 1 / (len(programs) - len(at)) for p in programs]


def is_whole(given: object, least: int, most: int) -> bool:
    """Whether this is a whole number in this range, whatever a caller has given."""
    return isinstance(given, Integral) and least <= int(given) <= most


@dataclass(frozen=True, slots=True)
class Settings:
    """What callers may set. target: as of `mirage search`. budget: seconds for all programs together. workers: by
    default those of MIRAGE_WORKERS, or else the cores. db: the database's path."""

    target: str = "auto"
    budget: float = 60.0
    seed: int = 0
    workers: int | None = None
    db: str | Path | None = None

    def gpu(self) -> tuple[Target, bool]:
        """As of `chosen_target`. Raises TargetError, OptionError: callers ask before they trace anything."""
        from mirage_cli.target.gpus import chosen_target

        if not isinstance(self.budget, Real) or not float(self.budget) >= 0:
            raise OptionError("a budget is a number of seconds, 0 or more", self.budget)
        if not is_whole(self.seed, 0, MAX_SEED):
            raise OptionError(f"a seed is a whole number, 0 to {MAX_SEED}", self.seed)
        if not (self.workers is None or is_whole(self.workers, 1, MAX_WORKERS)):
            raise OptionError(f"workers are a whole number, 1 to {MAX_WORKERS}", self.workers)
        return chosen_target(self.target)

    @property
    def path(self) -> Path:
        """Of the database."""
        from mirage_cli.store.store import default_path

        return Path(self.db) if self.db else default_path()


class Kernels:
    """Searches and tunes programs for callers, as `mirage search` does: a context manager. Raises TargetError,
    OptionError.

    in_model: whether kernels that overlap in other ways are kept too, for a model to choose from. in_time: whether a
    program has no kernel for which the budget leaves no time, as PyTorch computes it then. on_tuning: told the name of
    each program whose tuning begins.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        in_model: bool = False,
        in_time: bool = False,
        on_tuning: Callable[[str], None] = lambda _: None,
    ) -> None:
        from mirage_cli.pipeline.searching import Options

        s = settings
        self.target, self.measures = s.gpu()
        workers = s.workers or WORKERS.value()
        self.options = Options(workers, budget_s=s.budget, seed=s.seed, in_model=in_model)
        self.path = s.path
        self.stack = ExitStack()
        self.in_time, self.on_tuning = in_time, on_tuning

    def __enter__(self) -> Kernels:
        from mirage_cli.pipeline.session import Session
        from mirage_cli.store.store import Database

        self.stack.enter_context(without_main())
        self.store = self.stack.enter_context(Database(self.path))
        session = Session(
            self.target, self.options, self.store, self.measures, command="mirage_cli", on_tuning=self.on_tuning
        )
        self.session = self.stack.enter_context(session)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def of(
        self,
        graphs: Sequence[spec_graph.Graph],
        calls: Sequence[int] = (),
        examples: Sequence[Mapping[str, int]] = (),
    ) -> list[Kernel | NoKernelError]:
        """The best kernel of each graph, or why there is none. Equal graphs are searched once.

        calls: how often each is called, where that differs: the budget goes where most may be gained. examples: of the
        sizes that each is tuned for, those that matter most.
        """
        from mirage_cli.pipeline.budgets import optimize_together

        standing = self.standing(graphs)
        distinct = {x.text: x for x in standing}
        times = Counter[str]()
        wanted: dict[str, list[int]] = {}
        for x, n, example in zip(standing, calls or [1] * len(standing), examples or [{}] * len(standing), strict=True):
            times[x.text] += n
            wanted.setdefault(x.text, [*example.values()])
        programs = [(p, text) for text, x in distinct.items() for p in x.programs]
        each = [times[text] for _, text in programs]
        parts = [part for text, x in distinct.items() for part in parts_of(x.programs, wanted[text])]
        found = optimize_together(self.session, programs, each, self.options.budget_s, parts, self.in_time)
        problems = {t: problem for (_, t), r in zip(programs, found, strict=True) if (problem := self.problem(r))}
        made = {text: self.stored(x.programs, problems.get(text, "")) for text, x in distinct.items()}
        return [made[x.text] for x in standing]

    def known(self, graphs: Sequence[spec_graph.Graph]) -> list[Kernel | NoKernelError]:
        """What the database has for each graph."""
        return [self.stored(x.programs) for x in self.standing(graphs)]

    def standing(self, graphs: Sequence[spec_graph.Graph]) -> list[Standing]:
        """What each graph is searched and known as: the first that was stored, or else stands here, under its name and
        computes the same."""
        from mirage_cli.errors import MirageError
        from mirage_cli.pipeline.computed import computed_hash
        from mirage_cli.spec.reader import parse_spec

        first: dict[tuple[str, ...], Standing] = {}
        keys: dict[str, tuple[str, ...]] = {}  # of texts that were read

        def add(text: str, path: str) -> tuple[str, ...]:
            if text not in keys:
                programs = tuple(parse_spec(text, path).programs())
                keys[text] = programs[0].name, *map(computed_hash, programs)
                first.setdefault(keys[text], Standing(text, programs))
            return keys[text]

        for text in (t for name in dict.fromkeys(g.name for g in graphs) for t in self.store.specs_named(name)):
            with suppress(MirageError):  # of a version of other operators
                add(text, "<stored spec>")
        return [first[add(g.text(), f"<graph {g.name}>")] for g in graphs]

    def problem(self, result: object) -> str:
        """Why a search has no kernel; nothing where it has one."""
        if not isinstance(result, Result):
            return str(getattr(result, "problem", "the search failed"))
        if result.best is None:
            from mirage_cli.pipeline.budgets import why_none

            return why_none(result)
        return ""

    def stored(self, programs: Sequence[Program], problem: str = "") -> Kernel | NoKernelError:
        """What the database has for the sizes of a program. problem: why it may have none."""
        from mirage_cli.pipeline.keys import key_of

        keys = [(p, key_of(p, self.target, self.measures)) for p in programs]
        found = [(p, key, best) for p, key in keys if (best := self.store.best(key)) is not None]
        made = self.written(programs[0].name, found, problem)
        if isinstance(made, Kernel) and made.program.dynamic and self.measures:
            return replace(made, slow=slow(programs, [p for p, _, best in found if faster_than_eager(best)]))
        return made

    def written(
        self, name: str, stored: Sequence[tuple[Program, Key, Best]], problem: str = ""
    ) -> Kernel | NoKernelError:
        """The kernel of what is stored for the sizes of a program, from the smallest on."""
        from mirage_cli.ir.text import canonical_text
        from mirage_cli.pipeline.kept import claimed
        from mirage_cli.pipeline.written import export_all, written_anew

        found = [(p, key, best) for p, key, best in stored if best.result.best is not None]
        if not found:
            return NoKernelError(name, problem or "the database has none")
        program, key, best = found[-1]
        try:
            written = written_anew(self.store, program, key, best)
            source = written.source if len(found) == 1 else export_all(self.store, found, "mirage_cli")
        except StoredKernelError as error:
            return NoKernelError(program.name, str(error))
        return Kernel(program, claimed(self.store, best.result), source, canonical_text(written.graph))


def faster_than_eager(best: Best) -> bool:
    """Whether it has a kernel that is, as far as that was measured."""
    own = best.result.best
    return own is not None and (own.us is None or own.eager_us is None or own.us < own.eager_us)


def slow(programs: Sequence[Program], fast: Sequence[Program]) -> tuple[tuple[Range, ...], ...]:
    """The ranges of dynamic sizes for which those of `fast` are not tuned. programs: at all sizes that were to be."""
    from mirage_cli.codegen.sized import nearest

    cells = nearest(programs).cells(programs[0].dynamic)
    return tuple(ranges for i, ranges in cells if programs[i] not in fast)


class Graph(spec_graph.Graph):
    """A program built in Python, which can be searched."""

    def search(
        self,
        target: str = "auto",
        *,
        budget: float = 60.0,
        seed: int = 0,
        workers: int | None = None,
        db: str | Path | None = None,
    ) -> Kernel:
        """The best kernel for a GPU. budget: seconds of search and tuning. Raises SpecError, NoKernelError."""
        with Kernels(Settings(target, budget, seed, workers, db)) as kernels:
            (found,) = kernels.of([self])
        if isinstance(found, NoKernelError):
            raise found
        return found
