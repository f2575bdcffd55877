"""What search and tuning come to, as values: what commands print, the database keeps, and callers in Python get.

Each has a form in JSON, that of `mirage search --json` and of the database, and `from_json`, which reads it again. A
figure that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from mirage_cli.errors import DamagedResultError
from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.measure import Times

Json: TypeAlias = Mapping[str, Any]
"""An object of a JSON document: Any is whatever the document holds, until `from_json` has read it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kernel:
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

    def to_json(self) -> dict[str, Any]:
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
    def from_json(data: Json) -> Kernel:
        return Kernel(
            id=_text(data["id"]),
            kernels=int(data.get("kernels", 0)),
            schedule=Schedule.from_json(data["schedule"]),
            floor_us=_number(data.get("floor_us")),
            as_written=bool(data.get("as_written", False)),
            predicted_us=_number(data.get("predicted_us")),
            times=_times(data),
            hot_us=_number(data.get("hot_us")),
            method=_text(data.get("method", "")),
            eager=_maybe(_times, data.get("eager")) or _times({"time_us": data.get("eager_us")}),
            error=_number(data.get("error_vs_float64")),
            eager_error=_number(data.get("eager_error_vs_float64")),
            checked=bool(data.get("numerically_checked", True)),
            bottlenecks={name: (_text(what), float(us)) for name, (what, us) in data.get("bottlenecks", {}).items()},
            claim=_maybe(_text, data.get("claim")),
        )


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
    def from_json(data: Json) -> Lost:
        times = _number(data["time_us"]), _maybe(_text, data["problem"]), _number(data.get("predicted_us"))
        return Lost(_text(data["id"]), int(data["kernels"]), *times)


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
    def from_json(data: Json) -> Searched:
        return Searched(
            classes=int(data.get("classes", 0)),
            nodes=int(data.get("nodes", 0)),
            enumerated=int(data.get("enumerated", 0)),
            pruned={_text(reason): int(n) for reason, n in data["pruned"].items()},
            verified=int(data["verified"]),
            rejected=int(data["rejected"]),
            stopped=_text(data["stopped"]),
            seconds=float(data["seconds"]),
        )


@dataclass(frozen=True, slots=True)
class Finalist:
    """What became of one contestant of the tuner's finals: its time, or the problem it has."""

    id: str
    time_us: float | None
    problem: str | None

    @staticmethod
    def from_json(data: Json) -> Finalist:
        return Finalist(_text(data["id"]), _number(data["time_us"]), _maybe(_text, data["problem"]))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A schedule whose kernel was timed and then found to be wrong."""

    id: str
    schedule: Schedule
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "schedule": self.schedule.to_json(), "problem": self.problem}

    @staticmethod
    def from_json(data: Json) -> Rejected:
        return Rejected(_text(data["id"]), Schedule.from_json(data["schedule"]), _maybe(_text, data["problem"]))


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

    def to_json(self) -> dict[str, Any]:
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
    def from_json(data: Json) -> Tuning:
        return Tuning(
            trials=int(data["trials"]),
            failures={_text(reason): int(n) for reason, n in data["failures"].items()},
            rejected=tuple(map(Rejected.from_json, data["rejected"])),
            stopped=_text(data["stopped"]),
            seconds=float(data["seconds"]),
            phases={_text(name): float(s) for name, s in data.get("phases", {}).items()},
            found=_maybe(Finalist.from_json, data.get("found")),
            stored=_maybe(Finalist.from_json, data.get("stored")),
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for, so that a later one knows whether its result answers it too."""

    seed: int
    top: int
    budget_s: float
    tune: bool
    context: str | None

    @staticmethod
    def from_json(data: Json) -> Asked:
        context = _maybe(_text, data.get("context"))
        return Asked(int(data["seed"]), int(data["top"]), float(data["budget_s"]), bool(data["tune"]), context)


@dataclass(frozen=True, slots=True)
class About:
    """Which program a result is of."""

    spec: str
    dims: Mapping[str, int]
    dtype: str
    seed: int

    def to_json(self) -> dict[str, Any]:
        return {"spec": self.spec, "dims": dict(self.dims), "dtype": self.dtype, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A program that has no result, and the problem that it met."""

    about: About
    problem: str

    def to_json(self) -> dict[str, Any]:
        return {**self.about.to_json(), "error": self.problem, "best": None, "top": []}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one program: an element of `results` of `mirage search --json`.

    best: None where nothing passed. top: the best and those behind it. lost: what was refused though it was faster.
    dropped: of plans that were checked without a GPU, how many failed and why. complete: false where a run has ended
    before it had compared all that it wanted to. rejections: what the verifier refused; a right generator gives none.
    """

    about: About
    search: Searched
    asked: Asked | None
    as_written: str | None
    best: Kernel | None = None
    top: tuple[Kernel, ...] = ()
    lost: tuple[Lost, ...] = ()
    tuning: Tuning | None = None
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    complete: bool = True
    rejections: tuple[str, ...] = ()

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

        def claimed(kernel: Kernel) -> Kernel:
            return replace(kernel, claim=claim(kernel.id))

        return replace(self, best=self.best and claimed(self.best), top=tuple(map(claimed, self.top)))

    def to_json(self) -> dict[str, Any]:
        return {
            **self.about.to_json(),
            "search": asdict(self.search),
            "best": self.best and self.best.to_json(),
            "top": [k.to_json() for k in self.top],
            "lost": [asdict(x) for x in self.lost],
            "tuning": self.tuning and self.tuning.to_json(),
            "dropped": dict(self.dropped),
            "complete": self.complete,
            "asked": self.asked and asdict(self.asked),
            "as_written": self.as_written,
            "rejections": list(self.rejections),
        }

    @staticmethod
    def from_json(data: Json) -> Result:
        """Raises DamagedResultError where this is no result's document."""
        try:
            return Result(
                about=About(
                    _text(data["spec"]),
                    {_text(d): int(n) for d, n in data["dims"].items()},
                    _text(data["dtype"]),
                    int(data["seed"]),
                ),
                search=Searched.from_json(data["search"]),
                asked=_maybe(Asked.from_json, data.get("asked")),
                as_written=_maybe(_text, data.get("as_written")),
                best=_maybe(Kernel.from_json, data["best"]),
                top=tuple(map(Kernel.from_json, data["top"])),
                lost=tuple(map(Lost.from_json, data.get("lost", []))),
                tuning=_maybe(Tuning.from_json, data.get("tuning")),
                dropped={_text(reason): int(n) for reason, n in data.get("dropped", {}).items()},
                complete=bool(data.get("complete", True)),
                rejections=tuple(map(_text, data.get("rejections", []))),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedResultError(f"{type(error).__name__}: {error}") from None


def _times(data: Json) -> Times | None:
    """Of a version that knew one context, all times are of the chain."""
    us = _number(data["time_us"])
    if us is None:
        return None
    spread_us = _number(data.get("spread_us")) or 0.0
    chain_us, chain_spread_us = _number(data.get("chain_us", us)), _number(data.get("chain_spread_us", spread_us))
    alone = _number(data.get("alone_us")), _number(data.get("alone_spread_us"))
    return Times(_text(data.get("context", "chain")), us, spread_us, chain_us or us, chain_spread_us or 0.0, *alone)


def _maybe(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _number(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"{value!r} is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
