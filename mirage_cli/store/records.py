"""What the database keeps, as values. Plain ones: strings, numbers, and JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias  # JSON, and rows of SQLite

from mirage_cli import __version__
from mirage_cli.store.results import Result

Json: TypeAlias = Any
"""Whatever `json` writes and reads."""
Row: TypeAlias = dict[str, Any]
Shape: TypeAlias = Any
"""What a JSON value has to be: a type, or a union of types; `{"name": S, "other?": S}`, an object with these keys and
perhaps more, of which those with `?` may be missing; `{...: S}`, an object with any keys; `[S]`, a list; `(None, S)`,
null or S."""

NUMBER = int | float
MAYBE = int | float | None
VERDICT: Shape = {
    "ok": bool,
    "net": str,
    "bound": NUMBER,
    "detail": str,
    "counterexample": str | None,
    "assumes": [str],
    "claim?": str,
    "proved?": bool,
    "tests?": [str],
    "outside?": [str],
}
"""What is read of what the verifier says of a μGraph, by this version and of earlier ones; it may hold more."""


PREDICTED = " (predicted)"
"""Behind the name of a GPU that results are predicted for."""


@dataclass(frozen=True, slots=True)
class Key:
    """All that a result depends on. `dims`: every axis with its size.

    gpu: the device's name where results are measured, the target's and PREDICTED where they are predicted; `driver` is
    then empty.
    """

    program_hash: str
    dims: tuple[tuple[str, int], ...]
    dtype: str
    gpu: str
    driver: str = ""
    torch: str = ""
    triton: str = ""
    mirage: str = __version__

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits."""
        return digest(dump(list(self.row().values())))

    @property
    def gpu_name(self) -> str:
        """The GPU that results were measured on, or predicted for."""
        return self.gpu.removesuffix(PREDICTED)

    def row(self) -> Row:
        """The columns of `keys`, but for the id."""
        return {**asdict(self), "dims": dims_json(self.dims)}

    @staticmethod
    def from_row(row: Row) -> Key:
        columns = {name: row[name] for name in ("program_hash", "dtype", "gpu", "driver", "torch", "triton", "mirage")}
        return Key(dims=Key.dims_of(row), **columns)

    @staticmethod
    def dims_of(row: Row) -> tuple[tuple[str, int], ...]:
        return tuple((str(d), int(n)) for d, n in json.loads(row["dims"]))


@dataclass(frozen=True, slots=True)
class StoredMuGraph:
    """`id` is the hash of the canonical text; `rank` counts from 0, the best by the cost model; `kernels`: how many."""

    id: str
    text: str
    rank: int
    kernels: int
    predicted_us: float | None = None
    verification: Json = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timing of a μGraph (or, where `kernel` names it, of one of its kernels) with one schedule, or its failure.

    mugraph: an id; a baseline is measured under its own name, such as "eager".
    samples_us: of calls that follow each other. alone_samples_us: of calls behind a kernel that knows nothing of
        overlap, in the same rounds; empty where these were not asked for. median_us, spread_us: in the context that
        was asked for.
    cold: inputs came from device memory, not from the L2. method: how it was timed. `at` is the store's to set.
    """

    mugraph: str
    schedule: Json
    samples_us: tuple[float, ...] = ()
    median_us: float | None = None
    spread_us: float | None = None
    cold: bool = True
    method: str = ""
    kernel: str | None = None
    accuracy: Json = None
    failure: str | None = None
    at: str = ""
    alone_samples_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Best:
    """The best for a key, with the source to export. `result`: all that is told of it."""

    mugraph: str
    status: Literal["measured", "predicted"]
    time_us: float | None
    schedule: Json
    source: str
    result: Result
    at: str = ""

    def beats(self, other: Best) -> bool:
        """A measured time beats a predicted one; between two of a kind, the smaller."""
        if self.status != other.status:
            return self.status == "measured"
        return other.time_us is None or (self.time_us is not None and self.time_us <= other.time_us)


@dataclass(frozen=True, slots=True)
class Winner:
    """The best of some program at some sizes: which μGraph, with which schedule. key: the id of what it is stored
    under."""

    key: str
    dims: tuple[tuple[str, int], ...]
    mugraph: str
    schedule: Json


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list of what is stored. at: when a time or a result was last added."""

    key: Key
    spec: str
    mugraphs: int
    measurements: int
    best: Best | None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A μGraph and all that belongs to it under one key."""

    key: Key
    spec: str
    mugraph: StoredMuGraph
    measurements: tuple[Measurement, ...]
    sources: tuple[str, ...] = field(default=())


def misfit(value: Json, shape: Shape, where: str) -> str | None:
    """The first part of a value that does not have its shape, in words; None where all have."""
    if isinstance(shape, tuple):
        return None if value is None else misfit(value, shape[1], where)
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kind):
        return f"{where} is {value!r:.40}"
    parts: list[tuple[str, Json, Shape]] = []
    if isinstance(shape, list):
        parts = [(f"{where}[{i}]", x, shape[0]) for i, x in enumerate(value)]
    elif isinstance(shape, dict):
        for name, inner in shape.items():
            key = name if name is ... else name.removesuffix("?")
            if name is ...:
                parts += [(f"{where}.{k}", x, inner) for k, x in value.items()]
            elif key in value:
                parts.append((f"{where}.{key}", value[key], inner))
            elif key == name:
                return f"{where}.{key} is missing"
    return next((problem for part in parts if (problem := misfit(part[1], part[2], part[0]))), None)


Identity = tuple[str, frozenset[tuple[str, int]], str]
"""Which program something is of: its spec, sizes and dtype."""


def identity(spec: str, dims: Mapping[str, int], dtype: str) -> Identity:
    return spec, frozenset(dims.items()), dtype


def dims_json(dims: Sequence[tuple[str, int]]) -> str:
    return dump([list(d) for d in dims])


def dump(value: Json) -> str:
    """The one text of a JSON value. The order of a mapping's keys is kept: kernels of a schedule run in order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
