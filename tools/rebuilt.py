"""A database made again from what is recorded: python -m tools.rebuilt BENCH.json RECORDED.json.gz SPECS... -o DB

BENCH.json is what `mirage bench --json` wrote, RECORDED.json.gz what `tools.record_measurements` did. The μGraphs that
were chosen are verified again; what was timed is put beside them. So a report of one machine can be made on another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any  # rows of a benchmark are JSON

from mirage_cli.codegen.sized import Variant, any_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import canonical_text, mugraph_id
from mirage_cli.pipeline.bench.benchmark import measurement_of
from mirage_cli.pipeline.keys import program_hash
from mirage_cli.pipeline.written import info_of
from mirage_cli.spec.reader import load_spec
from mirage_cli.store.records import Best, Key, Measurement, StoredMuGraph
from mirage_cli.store.results import About, KernelResult, Result, Searched, Times, Tuning
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.price import bottlenecks
from mirage_cli.verify.equivalence import check_equivalence
from tools.recorded import Measured, Recorded, load

TOP = 5


def rebuild(
    store: Database, rows: Iterable[Mapping[str, Any]], recorded: Sequence[Recorded], specs: Iterable[Path]
) -> int:
    """Puts every row whose μGraph is recorded into the database. Returns how many these were."""
    programs = {(p.name, p.dtype, p.dims): (p, s.text) for s in map(load_spec, specs) for p in s.programs(None, None)}
    count = 0
    for row in rows:
        found = programs.get((row["spec"], row["dtype"], tuple(row["dims"].items())))
        known = next((r for r in recorded if (r.spec, dict(r.sizes)) == (row["spec"], row["dims"])), None)
        if found is not None and known is not None and row["mugraph"] in known.graphs:
            _put(store, *found, row, known)
            count += 1
    return count


def _put(store: Database, program: Program, text: str, row: Mapping[str, Any], known: Recorded) -> None:
    versions = row["versions"]
    key = Key(program_hash(program), program.dims, program.dtype, row["gpu"], row["driver"] or "", **versions)
    fastest: dict[str, Measured] = {}
    for m in known.measured:
        if m.us is not None and m.us < getattr(fastest.get(m.graph), "us", float("inf")):
            fastest[m.graph] = m
    ranked = [row["mugraph"], *(g for g in sorted(fastest, key=lambda g: fastest[g].us or 0.0) if g != row["mugraph"])]
    verdicts = {g: check_equivalence(lower(program), known.graphs[g], 0) for g in ranked[:TOP]}
    kept = [g for g in verdicts if verdicts[g].ok]
    store.put_spec(key.program_hash, program.name, text)
    store.put_mugraphs(
        key,
        [
            StoredMuGraph(
                g, canonical_text(known.graphs[g]), i, len(known.graphs[g].kernels), None, asdict(verdicts[g])
            )
            for i, g in enumerate(kept)
        ],
    )
    about = About(program.name, program.sizes, program.dtype, 0)
    searched = Searched.from_json(row["search"])
    for name, contestant in row["contestants"].items():
        if contestant["median_us"] is not None:
            store.put_measurement(key, measurement_of(name, contestant))
    schedules = {g: fastest[g].schedule for g in kept if g in fastest} | {
        row["mugraph"]: Schedule.from_json(row["schedule"])
    }
    kernels = [_kernel(row, known.graphs[g], schedules[g], fastest.get(g)) for g in kept if g in schedules]
    result = Result(
        about,
        searched,
        None,
        None,
        kernels[0],
        tuple(kernels),
        tuning=row["tuning"] and Tuning.from_json(row["tuning"]),
    )
    for k in kernels[1:]:
        us = k.times.time_us if k.times else None
        store.put_measurement(key, Measurement(k.id, k.schedule.to_json(), (us,) if us else (), us, 0.0))
    graph = known.graphs[row["mugraph"]]
    info = info_of(kernels[0], "mirage bench", row["gpu"])
    source = any_source(Variant(program, graph, kernels[0].schedule, info))
    best = Best(mugraph_id(graph), kernels[0].status, kernels[0].us, row["schedule"], source, result)
    store.put_best(key, best)


def _kernel(row: Mapping[str, Any], graph: MuGraph, schedule: Schedule, measured: Measured | None) -> KernelResult:
    id = mugraph_id(graph)
    eager = row["contestants"].get("eager")
    times = _times(row["contestants"]["mirage"])
    if id != row["mugraph"]:
        times = Times("chain", measured.us, 0.0, measured.us, 0.0) if measured and measured.us else None
    errors = row["errors"] if id == row["mugraph"] else (None, None)
    return KernelResult(
        id=id,
        kernels=len(graph.kernels),
        schedule=schedule,
        floor_us=row["floor_us"],
        times=times,
        eager=_times(eager) if eager and eager["median_us"] is not None else None,
        error=errors[0],
        eager_error=errors[1],
        checked=True,
        bottlenecks=bottlenecks(graph, schedule, find_target(row["gpu"])),
    )


def _times(contestant: Mapping[str, Any]) -> Times:
    names = ("context", "chain_us", "chain_spread_us", "alone_us", "alone_spread_us")
    return Times(
        time_us=contestant["median_us"],
        spread_us=contestant["spread_us"],
        **{n: contestant[n] for n in names},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bench", type=Path)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("specs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    rows = json.loads(given.bench.read_text(encoding="utf-8"))
    with Database(given.output) as store:
        print(rebuild(store, rows, load(given.recorded), given.specs), "results")


if __name__ == "__main__":
    main()
