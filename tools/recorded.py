"""What was measured, apart from the database: a file to study and to judge the tuner on where there is no GPU."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirage_cli.ir.beside import beside
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import NUMBERS, WORDS, KernelSchedule, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.search.cost.work import chunk_sizes
from mirage_cli.store.store import Database

VERSIONS = ("gpu", "driver", "torch", "triton", "mirage")
"""Columns of a key that figures depend on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One schedule of a μGraph: its median, or how it failed."""

    graph: str
    schedule: Schedule
    us: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that was measured of one program at one size. graphs: by id."""

    spec: str
    sizes: Mapping[str, int]
    dtype: str
    versions: Mapping[str, str]
    graphs: Mapping[str, MuGraph]
    measured: tuple[Measured, ...]


def load(path: Path) -> list[Recorded]:
    """From a database or a recorded file. Raises StoreError.

    Without schedules of kernels whose parts run side by side: when these were measured, parts shared one grid.
    """
    if path.suffix != ".gz":
        return read_store(path)
    found = read_recorded(path)
    return [replace(r, measured=tuple(m for m in r.measured if not side_by_side(r.graphs[m.graph], m))) for r in found]


def side_by_side(graph: MuGraph, m: Measured) -> bool:
    sizes = chunk_sizes(graph, m.schedule)
    kernels = ((k, m.schedule.kernels[k.name]) for k in graph.kernels if k.name in m.schedule.kernels)
    return any(len(beside(k, {d for d in k.with_role("grid") if sizes[d] > s.tile(d)})) > 1 for k, s in kernels)


def read_store(path: Path) -> list[Recorded]:
    """A schedule that was measured more than once has the median of its medians. Raises StoreError."""
    found: list[Recorded] = []
    with Database(path) as store:
        for entry in store.list():
            graphs = {g.id: parse_mugraph(g.text) for g in store.mugraphs(entry.key)}
            measured: list[Measured] = []
            for g in graphs:
                times: dict[str, list[tuple[Schedule, float | None, str | None]]] = {}
                for m in store.measurements(entry.key, g):
                    schedule = Schedule.from_json(m.schedule)
                    chain_us = statistics.median(m.samples_us) if m.samples_us else None
                    times.setdefault(str(schedule), []).append((schedule, chain_us, m.failure))
                for rows in times.values():
                    us = [t for _, t, _ in rows if t is not None]
                    measured.append(Measured(g, rows[0][0], statistics.median(us) if us else None, rows[-1][2]))
            versions = {name: str(getattr(entry.key, name)) for name in VERSIONS}
            if measured:
                key = entry.key
                found.append(Recorded(entry.spec, dict(key.dims), key.dtype, versions, graphs, tuple(measured)))
    return found


def read_recorded(path: Path) -> list[Recorded]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        data: list[Any] = json.load(file)
    return [
        Recorded(
            p["spec"],
            p["sizes"],
            p["dtype"],
            p["versions"],
            {g: parse_mugraph(entry["text"]) for g, entry in p["graphs"].items()},
            tuple(
                Measured(g, Schedule({name: _kernel_schedule(s) for name, s in kernels.items()}), us, failure)
                for g, entry in p["graphs"].items()
                for kernels, us, failure in entry["measured"]
            ),
        )
        for p in data
    ]


def _kernel_schedule(fields: Sequence[Any]) -> KernelSchedule:
    """From its JSON without names; what came last may be missing."""
    return KernelSchedule.from_json(dict(zip(("tiles", "order", *NUMBERS, *WORDS), fields, strict=False)))


def write_recorded(path: Path, problems: Iterable[Recorded]) -> None:
    """The same measurements make the same bytes."""
    data = [
        {
            **{name: getattr(p, name) for name in ("spec", "sizes", "dtype", "versions")},
            "graphs": {
                g: {"text": canonical_text(graph), "measured": [_row(m) for m in p.measured if m.graph == g]}
                for g, graph in p.graphs.items()
            },
        }
        for p in problems
    ]
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _row(m: Measured) -> tuple[Any, ...]:
    kernels = {name: (*s.to_json().values(),) for name, s in m.schedule.kernels.items()}
    return kernels, m.us if m.us is None else round(m.us, 3), m.failure
