"""What search and tuning come to, as values: what commands print, the database keeps, and callers in Python get.

Each has a form in JSON, that of `mirage search --json` and of the database, and `from_json`, which reads it again and
is the one place that says what a document has to hold. A figure that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from mirage_cli.errors import DamagedResultError
from mirage_cli.ir.schedule import Schedule

T = TypeVar("T")
Read: TypeAlias = Callable[[object, str], T]
"""Makes a value of what a document holds. The text says where it stands. Raises DamagedResultError."""


# -- reading documents


def text(x: object, where: str) -> str:
    return _of(str, x, where)


def flag(x: object, where: str) -> bool:
    return _of(bool, x, where)


def whole(x: object, where: str) -> int:
    if isinstance(x, bool):
        raise _damaged(x, where)
    return _of(int, x, where)


def number(x: object, where: str) -> float:
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise _damaged(x, where)
    return x


def schedule(x: object, where: str) -> Schedule:
    try:
        return Schedule.from_json(Fields(x, where).data)
    except ValueError as error:
        raise DamagedResultError(f"{where}: {error}") from None


def each(read: Read[T]) -> Read[tuple[T, ...]]:
    def listed(x: object, where: str) -> tuple[T, ...]:
        items: list[object] = _of(list, x, where)
        return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(items))

    return listed


def by_name(read: Read[T]) -> Read[dict[str, T]]:
    return lambda x, where: {name: read(item, f"{where}.{name}") for name, item in Fields(x, where).data.items()}


class Fields:
    """An object of a document. where: its place, for messages."""

    def __init__(self, x: object, where: str) -> None:
        self.data: Mapping[str, object] = _of(dict, x, where)
        self.where = where

    def one(self, name: str, read: Read[T]) -> T:
        if name not in self.data:
            raise DamagedResultError(f"{self.where}.{name} is missing")
        return read(self.data[name], f"{self.where}.{name}")

    def maybe(self, name: str, read: Read[T]) -> T | None:
        """None where there is null, or nothing."""
        return None if self.data.get(name) is None else self.one(name, read)

    def null_or(self, name: str, read: Read[T]) -> T | None:
        """None where there is null."""
        return self.one(name, lambda x, where: None if x is None else read(x, where))

    def since(self, name: str, read: Read[T], before: T) -> T:
        """What documents of earlier versions lack, and what they mean by that."""
        return self.one(name, read) if name in self.data else before


def _of(kind: type[T], x: object, where: str) -> T:
    if not isinstance(x, kind):
        raise _damaged(x, where)
    return x


def _damaged(x: object, where: str) -> DamagedResultError:
    return DamagedResultError(f"{where} is {x!r:.40}")


# -- the values


@dataclass(frozen=True, slots=True)
class Times:
    """Medians and interquartile ranges of a call in each context. time_us, spread_us: of the context that counts."""

    context: str
    time_us: float
    spread_us: float
    chain_us: float
    chain_spread_us: float
    alone_us: float | None = None
    alone_spread_us: float | None = None

    @staticmethod
    def read(o: Fields) -> Times | None:
        """None where nothing was measured. Of a version that knew one context, all times are of the chain."""
        us = o.null_or("time_us", number)
        if us is None:
            return None
        spread_us = o.maybe("spread_us", number) or 0.0
        return Times(
            o.since("context", text, "chain"),
            us,
            spread_us,
            o.since("chain_us", number, us),
            o.since("chain_spread_us", number, spread_us),
            o.maybe("alone_us", number),
            o.maybe("alone_spread_us", number),
        )


@dataclass(frozen=True, slots=True)
class KernelResult:
    """A verified μGraph with the schedule that it was timed or ranked with.

    kernels: how many it launches. floor_us: what no kernel is expected to undercut. predicted_us: by the cost model,
    where nothing was measured. times, hot_us, eager: this kernel's and eager PyTorch's, in one run. error, eager_error:
    norms of the difference to float64 on ordinary data; checked: whether its numbers were looked at. bottlenecks: of
    each kernel by name, what it waits for and its µs, by the cost model. claim: what is known of its being right.
    """

    id: str
    kernels: int
    schedule: Schedule
    floor_us: float | None
    as_written: bool = False
    predicted_us: float | None = None
    times: Times | None = None
    hot_us: float | None = None
    method: str = ""
    eager: Times | None = None
    error: float | None = None
    eager_error: float | None = None
    checked: bool = False
    bottlenecks: Mapping[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    claim: str | None = None

    @property
    def status(self) -> Literal["measured", "predicted"]:
        return "predicted" if self.times is None else "measured"

    @property
    def us(self) -> float | None:
        """The measured time, or the predicted one where nothing was measured."""
        return self.times.time_us if self.times else self.predicted_us

    @property
    def eager_us(self) -> float | None:
        return self.eager.time_us if self.eager else None

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "as_written": self.as_written,
            "kernels": self.kernels,
            "status": self.status,
            **(asdict(self.times) if self.times else {"time_us": None}),
            "predicted_us": self.predicted_us,
            "hot_us": self.hot_us,
            "floor_us": self.floor_us,
            "eager_us": self.eager_us,
            "eager": self.eager and asdict(self.eager),
            "error_vs_float64": self.error,
            "eager_error_vs_float64": self.eager_error,
            "numerically_checked": self.checked,
            "schedule": self.schedule.to_json(),
            "bottlenecks": {name: list(b) for name, b in self.bottlenecks.items()},
            "method": self.method,
            "claim": self.claim,
        }

    @staticmethod
    def from_json(x: object, where: str = "the kernel") -> KernelResult:
        o = Fields(x, where)
        eager_us = o.maybe("eager_us", number)
        return KernelResult(
            id=o.one("id", text),
            kernels=o.one("kernels", whole),
            schedule=o.one("schedule", schedule),
            floor_us=o.null_or("floor_us", number),
            as_written=o.since("as_written", flag, False),
            predicted_us=o.maybe("predicted_us", number),
            times=Times.read(o),
            hot_us=o.maybe("hot_us", number),
            method=o.since("method", text, ""),
            eager=o.maybe("eager", lambda x, where: Times.read(Fields(x, where)))
            or (None if eager_us is None else Times("chain", eager_us, 0.0, eager_us, 0.0)),
            error=o.null_or("error_vs_float64", number),
            eager_error=o.null_or("eager_error_vs_float64", number),
            checked=o.since("numerically_checked", flag, True),
            bottlenecks=o.since("bottlenecks", by_name(_bottleneck), {}),
            claim=o.maybe("claim", text),
        )


def _bottleneck(x: object, where: str) -> tuple[str, float]:
    match x:
        case [what, us]:
            return text(what, where), number(us, where)
        case _:
            raise _damaged(x, where)


@dataclass(frozen=True, slots=True)
class Lost:
    """A plan that was faster than the best, by measurement or prediction, and why it was refused."""

    id: str
    kernels: int
    time_us: float | None
    problem: str | None
    predicted_us: float | None = None

    @property
    def us(self) -> float | None:
        return self.time_us if self.time_us is not None else self.predicted_us

    @staticmethod
    def from_json(x: object, where: str = "the plan") -> Lost:
        o = Fields(x, where)
        return Lost(
            o.one("id", text),
            o.one("kernels", whole),
            o.null_or("time_us", number),
            o.null_or("problem", text),
            o.maybe("predicted_us", number),
        )


@dataclass(frozen=True, slots=True)
class Searched:
    """The `search` object: what the structural search looked at, what it cut and why, and why it stopped."""

    classes: int
    nodes: int
    enumerated: int
    pruned: Mapping[str, int]
    verified: int
    rejected: int
    stopped: str
    seconds: float

    @staticmethod
    def from_json(x: object, where: str = "the search") -> Searched:
        o = Fields(x, where)
        return Searched(
            classes=o.one("classes", whole),
            nodes=o.since("nodes", whole, 0),
            enumerated=o.one("enumerated", whole),
            pruned=o.one("pruned", by_name(whole)),
            verified=o.one("verified", whole),
            rejected=o.one("rejected", whole),
            stopped=o.one("stopped", text),
            seconds=o.one("seconds", number),
        )


@dataclass(frozen=True, slots=True)
class Finalist:
    """What became of one contestant of the tuner's finals: its time, or the problem it has."""

    id: str
    time_us: float | None
    problem: str | None

    @staticmethod
    def from_json(x: object, where: str = "the finalist") -> Finalist:
        o = Fields(x, where)
        return Finalist(o.one("id", text), o.null_or("time_us", number), o.null_or("problem", text))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A schedule whose kernel was timed and then found to be wrong."""

    id: str
    schedule: Schedule
    problem: str | None

    def to_json(self) -> dict[str, object]:
        return {"id": self.id, "schedule": self.schedule.to_json(), "problem": self.problem}

    @staticmethod
    def from_json(x: object, where: str = "the schedule") -> Rejected:
        o = Fields(x, where)
        return Rejected(o.one("id", text), o.one("schedule", schedule), o.null_or("problem", text))


@dataclass(frozen=True, slots=True)
class Nearby:
    """A schedule that is right and is kept for dynamic sizes near the tuned ones. time_us: at the tuned sizes, as if
    it had been timed beside the best."""

    id: str
    schedule: Schedule
    time_us: float

    def to_json(self) -> dict[str, object]:
        return {"id": self.id, "schedule": self.schedule.to_json(), "time_us": self.time_us}

    @staticmethod
    def from_json(x: object, where: str = "the schedule") -> Nearby:
        o = Fields(x, where)
        return Nearby(o.one("id", text), o.one("schedule", schedule), o.one("time_us", number))


@dataclass(frozen=True, slots=True)
class Tuning:
    """The `tuning` object. found, stored: the best of this run and that of the database, as the finals timed them.

    phases: seconds of each kind of work; schedules are chosen while others are timed.
    """

    trials: int
    failures: Mapping[str, int]
    rejected: tuple[Rejected, ...]
    stopped: str
    seconds: float
    phases: Mapping[str, float]
    found: Finalist | None
    stored: Finalist | None

    def to_json(self) -> dict[str, object]:
        return {
            "trials": self.trials,
            "failures": dict(self.failures),
            "rejected": [r.to_json() for r in self.rejected],
            "stopped": self.stopped,
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "found": self.found and asdict(self.found),
            "stored": self.stored and asdict(self.stored),
        }

    @staticmethod
    def from_json(x: object, where: str = "the tuning") -> Tuning:
        o = Fields(x, where)
        return Tuning(
            trials=o.one("trials", whole),
            failures=o.one("failures", by_name(whole)),
            rejected=o.one("rejected", each(Rejected.from_json)),
            stopped=o.one("stopped", text),
            seconds=o.one("seconds", number),
            phases=o.since("phases", by_name(number), {}),
            found=o.maybe("found", Finalist.from_json),
            stored=o.maybe("stored", Finalist.from_json),
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for, so that a later one knows whether its result answers it too. command: with what command
    line."""

    seed: int
    top: int
    budget_s: float
    tune: bool
    context: str | None
    command: str = ""

    @staticmethod
    def from_json(x: object, where: str = "what was asked") -> Asked:
        o = Fields(x, where)
        return Asked(
            o.one("seed", whole),
            o.one("top", whole),
            o.one("budget_s", number),
            o.one("tune", flag),
            o.maybe("context", text),
            o.since("command", text, ""),
        )


@dataclass(frozen=True, slots=True)
class About:
    """Which program a result is of."""

    spec: str
    dims: Mapping[str, int]
    dtype: str
    seed: int

    def to_json(self) -> dict[str, object]:
        return {"spec": self.spec, "dims": dict(self.dims), "dtype": self.dtype, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A program that has no result, and the problem that it met."""

    about: About
    problem: str

    def to_json(self) -> dict[str, object]:
        return {**self.about.to_json(), "error": self.problem, "best": None, "top": []}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one program: an element of `results` of `mirage search --json`.

    best: None where nothing passed. top: the best and those behind it. nearby: for dynamic sizes near these. variants:
    right too, and with kernels that overlap in another way, for models. in_model: whether the best was chosen, of these
    and of the fastest by itself, for the time that a model takes with it. lost: what was refused though it was faster.
    dropped: of plans that were checked without a GPU, how many failed and why. unchecked: how many plans there was no
    time to check so. complete: false where a run has ended
    before it had compared all that it wanted to. rejections: what the verifier refused; a right generator gives none.
    as_written: the plan that is the program as it was written. as_written_us: its time, by measurement or prediction as
    the best's. cached: it was read from the database.
    """

    about: About
    search: Searched
    asked: Asked | None
    as_written: str | None
    best: KernelResult | None = None
    top: tuple[KernelResult, ...] = ()
    nearby: tuple[Nearby, ...] = ()
    variants: tuple[KernelResult, ...] = ()
    in_model: bool = False
    lost: tuple[Lost, ...] = ()
    tuning: Tuning | None = None
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    unchecked: int = 0
    complete: bool = True
    rejections: tuple[str, ...] = ()
    as_written_us: float | None = None
    cached: bool = False

    @property
    def beats_what_was_given(self) -> bool:
        """Whether the best is faster than eager PyTorch beyond its spread; unmeasured, whether it is another program
        than the one that was written."""
        best = self.best
        if best is None:
            return False
        if best.times is not None and best.eager_us is not None:
            return best.times.time_us + best.times.spread_us < best.eager_us
        return best.id != self.as_written

    def claiming(self, claim: Callable[[str], str | None]) -> Result:
        """The same, where each kernel says what is known of its being right. claim: by the id of a μGraph."""

        def claimed(kernel: KernelResult) -> KernelResult:
            return replace(kernel, claim=claim(kernel.id))

        return replace(self, best=self.best and claimed(self.best), top=tuple(map(claimed, self.top)))

    def to_json(self) -> dict[str, object]:
        return {
            **self.about.to_json(),
            "search": asdict(self.search),
            "best": self.best and self.best.to_json(),
            "top": [k.to_json() for k in self.top],
            "nearby": [x.to_json() for x in self.nearby],
            "variants": [k.to_json() for k in self.variants],
            "in_model": self.in_model,
            "lost": [asdict(x) for x in self.lost],
            "tuning": self.tuning and self.tuning.to_json(),
            "dropped": dict(self.dropped),
            "unchecked": self.unchecked,
            "complete": self.complete,
            "asked": self.asked and asdict(self.asked),
            "as_written": self.as_written,
            "as_written_us": self.as_written_us,
            "rejections": list(self.rejections),
            "cached": self.cached,
        }

    @staticmethod
    def from_json(x: object, where: str = "its document") -> Result:
        """Raises DamagedResultError where this is no result's document."""
        o = Fields(x, where)
        return Result(
            about=About(o.one("spec", text), o.one("dims", by_name(whole)), o.one("dtype", text), o.one("seed", whole)),
            search=o.one("search", Searched.from_json),
            asked=o.maybe("asked", Asked.from_json),
            as_written=o.maybe("as_written", text),
            best=o.null_or("best", KernelResult.from_json),
            top=o.one("top", each(KernelResult.from_json)),
            nearby=o.since("nearby", each(Nearby.from_json), ()),
            variants=o.since("variants", each(KernelResult.from_json), ()),
            in_model=o.since("in_model", flag, False),
            lost=o.since("lost", each(Lost.from_json), ()),
            tuning=o.maybe("tuning", Tuning.from_json),
            dropped=o.since("dropped", by_name(whole), {}),
            unchecked=o.since("unchecked", whole, 0),
            complete=o.since("complete", flag, True),
            rejections=o.since("rejections", each(text), ()),
            as_written_us=o.maybe("as_written_us", number),
        )
