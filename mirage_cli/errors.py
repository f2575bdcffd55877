"""Every error that a user can meet, one class each, with its message template. Nothing else raises text at a user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class MirageError(Exception):
    """Base of all errors that are the input's or the machine's fault. The command line prints no traceback."""


class KnobError(MirageError):
    """An environment variable with a value that cannot be read."""

    def __init__(self, name: str, text: str, expected: str) -> None:
        super().__init__(f"the environment variable {name} is {text!r}; expected {expected}")


class TargetError(MirageError):
    """A GPU that mirage knows nothing of."""

    def __init__(self, text: object, names: Iterable[str]) -> None:
        super().__init__(f"no GPU is known as {text!r}; known are {', '.join(names)}")


class StoreError(MirageError):
    """A database that cannot be used as it is, with the remedy."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        super().__init__(f"the database {path} {problem}\n    {remedy}")


class ExchangeError(MirageError):
    """A file to import that is not as `mirage cache export` writes it. line: from 1, or 0 for none."""

    def __init__(self, path: object, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")


class EarlierBenchError(MirageError):
    """A file to compare with that is not as `mirage bench --json` writes it."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class LockFileError(MirageError):
    """A lock file that is not as `mirage lock` writes it."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}\n    `mirage lock SPEC...` writes it")


class LockError(MirageError):
    """Kernels that are not, or would not be, those of a lock file: a line for each."""

    def __init__(self, path: object, problems: Iterable[str]) -> None:
        lines = "\n".join(f"    {problem}" for problem in problems)
        super().__init__(f"{path} does not hold any more\n{lines}\n    `mirage lock SPEC...` writes it anew")


class OptionError(MirageError):
    """An option of a call in Python that has a wrong type, or is out of its range. meaning: what it has to be."""

    def __init__(self, meaning: str, given: object) -> None:
        super().__init__(f"{meaning}, and not {given!r}")


class ExecutorError(MirageError):
    """A cluster that cannot be used."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"--executor dask: {problem}")


class BaselineError(MirageError):
    """A baseline that is not known."""

    def __init__(self, names: Iterable[str], known: Iterable[str]) -> None:
        super().__init__(f"no baseline is called {', '.join(names)}; known are {', '.join(known)}")


class OtherGpuError(MirageError):
    """A GPU to measure on that this machine does not have. local: the one that it has."""

    def __init__(self, what: str, local: str | None, wanted: str) -> None:
        here = (
            f"the GPU of this machine is {local}, not {wanted}"
            if local
            else f"there is no GPU on this machine to {what} on"
        )
        super().__init__(f"{here}; `mirage doctor` says more")


class FewGpusError(MirageError):
    """More GPUs to run on than this machine has."""

    def __init__(self, wanted: int, there: int) -> None:
        super().__init__(f"{wanted} GPUs to run on, and this machine has {there}; `mirage roofline --gpus` needs none")


class UnknownIdError(MirageError):
    """An id, or the beginning of one, that nothing in the database has."""

    def __init__(self, id: str) -> None:
        problem = f"nothing is stored under {id}" if id else "an empty id names nothing"
        super().__init__(f"{problem}; `mirage cache list` says what is stored")


class NothingForGpuError(MirageError):
    """An id that is stored for other GPUs than the one that was named."""

    def __init__(self, id: str, gpu: str, others: Iterable[str]) -> None:
        super().__init__(f"nothing is stored under {id} for {gpu}, but for {', '.join(others)}")


class AmbiguousIdError(MirageError):
    """The beginning of several ids."""

    def __init__(self, id: str, among: Sequence[str]) -> None:
        shown = ", ".join(among[:4]) + (", ..." if len(among) > 4 else "")
        super().__init__(f"{len(among)} ids start with {id}: {shown}\n    give more of its digits")


class NotAKernelError(MirageError):
    """A file to be judged that is neither form that can be."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}\n    a μGraph begins with `mugraph NAME DTYPE`; a kernel is a file from `mirage export`, or "
            "Python that defines `launch(inputs, outputs, scratch)` and `make_scratch(device)`"
        )


class OtherInterfaceError(MirageError):
    """A kernel to be judged that was exported for other tensors than the spec's."""

    def __init__(self, made_for: str, wanted: Iterable[str]) -> None:
        super().__init__(f"this kernel is made for {made_for}\n    and the spec asks for {' or '.join(wanted)}")


class EmptyStoreError(MirageError):
    """A command about everything stored, or in a folder of exported files, where nothing fits."""

    def __init__(self, folder: object = None) -> None:
        where, first = ("stored", "search") if folder is None else (f"in {folder}", "export")
        super().__init__(f"no kernel of such a size and type is {where}\n    run `mirage {first}` first, or name specs")


class DamagedResultError(MirageError):
    """A document that should be a result's, and is none. The message says what is amiss."""


class StoredKernelError(MirageError):
    """A stored kernel that cannot be written anew from its μGraph."""

    def __init__(self, name: str, id: str, problem: str) -> None:
        super().__init__(
            f"the stored kernel {id} of {name} {problem}\n    search it again with --fresh, or remove it with "
            f"`mirage cache remove {id}`"
        )


class NothingStoredError(MirageError):
    """A command that needs an earlier search's result, which is not there: for the GPU that was named, where one was.
    others: GPUs for which there is one. elsewhere: other sizes of the spec for which there is one, as text."""

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        gpu: str = "",
        others: Sequence[str] = (),
        elsewhere: Sequence[str] = (),
    ) -> None:
        at = " ".join(f"{d}={n}" for d, n in sizes.items()) + (f" on {gpu}" if gpu else "")
        remedy = "run `mirage search` on the spec first"
        remedy += f", or take what is stored for {', '.join(others)} (--target)" if others else ""
        remedy += f", or take what is stored at {'; '.join(elsewhere)} (--dim)" if elsewhere else ""
        super().__init__(f"nothing is stored for {name} at {at}\n    {remedy}")


class NothingToLockError(MirageError):
    """Programs to pin that have no kernel, each with its sizes."""

    def __init__(self, gpu: str, names: Iterable[str]) -> None:
        lines = "\n".join(f"    {name}" for name in names)
        remedy = "run `mirage search` on them first, or name another GPU with --target"
        super().__init__(f"no kernel for {gpu} is stored for\n{lines}\n    {remedy}")


class NumberError(MirageError):
    """A program whose numbers make one that float64 does not have, with which no kernel can be written."""

    def __init__(self, result: str) -> None:
        super().__init__(f"the numbers that make {result} come to one beyond float64 (2.2e-308 to 1.8e308)")


class GraphError(MirageError):
    """Python that builds a graph of what is no expression of the spec language."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake in a spec: where it is, what is wrong, and the nearest valid name where one is close.

    line, column: from 1. source: the line itself.
    """

    path: str
    line: int
    column: int
    source: str
    message: str
    suggestion: str | None = None
    severity: str = "error"

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message}"
        if self.source:
            text += f"\n    {self.source}\n    {' ' * (self.column - 1)}^"
        if self.suggestion:
            text += f"\n    help: did you mean `{self.suggestion}`?"
        return text


class ChangeError(MirageError):
    """A size or a dtype that a spec was asked for and cannot have: whoever asks is wrong, not the spec."""

    def __init__(self, path: object, change: str, problem: str, suggestion: str | None) -> None:
        hint = f"\n    help: did you mean `{suggestion}`?" if suggestion else ""
        super().__init__(f"{path} at {change}: {problem}{hint}")


class TraceError(MirageError):
    """What is to be traced cannot be."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class PackageError(MirageError):
    """Kernels that cannot be written as a package."""

    def __init__(self, what: object, why: str) -> None:
        super().__init__(f"{what}: {why}")


class UnknownTopicError(MirageError):
    """Something to be explained that is not known. near: the known name that was probably meant."""

    def __init__(self, what: str, name: str, near: str | None, known: Iterable[str]) -> None:
        hint = f"did you mean `{near}`?" if near else f"known are {', '.join(known)}"
        super().__init__(f"no {what} is called {name}\n    {hint}")


class NoKernelError(MirageError):
    """A program for which nothing was found."""

    def __init__(self, name: str, why: str) -> None:
        self.why = why
        super().__init__(f"{name} has no kernel: {why}")


class SpecError(MirageError):
    """A spec with mistakes, all of them."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: (d.line, d.column)))
        count = len(self.diagnostics)
        heading = f"the spec has {count} mistake{'s' if count > 1 else ''}"
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))
