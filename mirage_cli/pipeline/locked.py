"""A lock file: for each program the kernel that was chosen, and what its choice depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.errors import DamagedResultError, LockError, LockFileError
from mirage_cli.ir.program import Program, title
from mirage_cli.ir.schedule import Schedule
from mirage_cli.pipeline.keys import key_of
from mirage_cli.store.records import Best, Key, identity
from mirage_cli.store.results import Fields, Result, by_name, each, schedule, text, whole
from mirage_cli.store.store import Database
from mirage_cli.target.files import read_bytes, write_text
from mirage_cli.target.gpus import Target

FORMAT = 1
MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Pin:
    """The kernel of one program. program: its hash, which changes with its text. versions: of mirage, torch, triton and
    the driver."""

    spec: str
    dims: Mapping[str, int]
    dtype: str
    program: str
    gpu: str
    status: str
    versions: Mapping[str, str]
    mugraph: str
    schedule: Schedule

    @property
    def name(self) -> str:
        return title(self.spec, self.dtype, self.dims.items())

    def changes(self, key: Key) -> list[str]:
        """What of this pin a search under this key would have otherwise."""
        depends = [("the GPU", self.gpu, key.gpu)]
        depends += [(n, self.versions.get(n, ""), version) for n, version in _versions(key).items()]
        found = [f"{n} is {now or 'none'}, locked {was or 'none'}" for n, was, now in depends if was != now]
        return [*["the program has changed"] * (self.program != key.program_hash), *found]

    def to_json(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in ("spec", "dtype", "program", "gpu", "status", "mugraph")}
        mappings = {"dims": dict(self.dims), "versions": dict(self.versions)}
        return {**plain, **mappings, "schedule": self.schedule.to_json()}

    @staticmethod
    def from_json(x: object, where: str = "the kernel") -> Pin:
        o = Fields(x, where)
        plain = {name: o.one(name, text) for name in ("spec", "dtype", "program", "gpu", "status", "mugraph")}
        sizes, versions = o.one("dims", by_name(whole)), o.one("versions", by_name(text))
        return Pin(**plain, dims=sizes, versions=versions, schedule=o.one("schedule", schedule))


def pinned(store: Database, program: Program, target: Target, here: bool) -> Pin | None:
    """The kernel that a search with these versions would answer with: measured on this GPU, or else predicted. None
    where there is none."""
    for measured in (True, False) if here else (False,):
        key = key_of(program, target, measured)
        if (best := store.best(key)) is not None:
            return _pin(program.name, key, best)
    return None


def _pin(spec: str, key: Key, best: Best) -> Pin:
    versions = _versions(key)
    plan = Schedule.from_json(best.schedule)
    return Pin(
        spec=spec,
        dims=dict(key.dims),
        dtype=key.dtype,
        program=key.program_hash,
        gpu=key.gpu,
        status=best.status,
        versions=versions,
        mugraph=best.mugraph,
        schedule=plan,
    )


def _versions(key: Key) -> dict[str, str]:
    return {"mirage": key.mirage, "torch": key.torch, "triton": key.triton, "driver": key.driver}


def write_lock(path: Path, pins: Sequence[Pin]) -> None:
    """Writes the file whole: one kernel after another, each value on a line of its own, so that changes can be read.
    Raises OSError."""
    ordered = sorted(pins, key=lambda p: (p.spec, p.dtype, sorted(p.dims.items())))
    document = {"mirage_lock": FORMAT, "kernels": [p.to_json() for p in ordered]}
    write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def read_lock(path: Path) -> tuple[Pin, ...]:
    """Raises LockFileError."""
    try:
        o = Fields(json.loads(read_bytes(path, MAX_BYTES).decode("utf-8")), "the file")
        form = o.one("mirage_lock", whole)
        if form > FORMAT:
            raise LockFileError(path, f"a newer mirage wrote it: its format is {form}, and this one knows {FORMAT}")
        return o.one("kernels", each(Pin.from_json))
    except OSError as error:
        raise LockFileError(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise LockFileError(path, f"not JSON: {error}") from None
    except DamagedResultError as error:
        raise LockFileError(path, str(error)) from None


class Lock:
    """What `mirage search --locked` compares with. Raises LockFileError where the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pins = {identity(p.spec, p.dims, p.dtype): p for p in read_lock(path)}

    def check_before(self, programs: Sequence[Program], keys: Sequence[Key]) -> None:
        """What is known before any work: the programs, the GPU and the versions. Raises LockError with all that
        differs."""
        problems: list[str] = []
        for program, key in zip(programs, keys, strict=True):
            pin = self.pins.get(identity(program.name, program.sizes, program.dtype))
            if pin is None:
                problems.append(f"{title(program.name, program.dtype, program.dims)}: not in the lock file")
            else:
                problems += [f"{pin.name}: {change}" for change in pin.changes(key)]
        if problems:
            raise LockError(self.path, problems)

    def check(self, results: Sequence[Result]) -> None:
        """Raises LockError with all results that are other kernels than the locked ones."""
        found: list[str] = []
        for r in results:
            pin = self.pins[identity(r.about.spec, r.about.dims, r.about.dtype)]
            if r.best is None:
                found.append(f"{pin.name}: no kernel was found, locked {pin.mugraph}")
            elif r.best.id != pin.mugraph:
                found.append(f"{pin.name}: the kernel is {r.best.id}, locked {pin.mugraph}")
            elif r.best.schedule.to_json() != pin.schedule.to_json():
                found.append(f"{pin.name}: the schedule is {r.best.schedule}, locked {pin.schedule}")
        if found:
            raise LockError(self.path, found)
