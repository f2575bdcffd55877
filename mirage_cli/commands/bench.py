"""`mirage bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage_cli.commands.shared import (
    Budget,
    Database,
    Dims,
    Dtype,
    Seed,
    Specs,
    Workers,
    app,
    choose_target,
    command_line,
    err,
    open_store,
    options,
    out,
    read,
    status,
)
from mirage_cli.errors import MirageError, UsageError


@app.command()
def bench(
    specs: Specs,
    against: Annotated[str, typer.Option(help="baselines, comma separated: eager, compile")] = "eager,compile",
    json_file: Annotated[Path | None, typer.Option("--json", help="also write all samples to this file")] = None,
    check: Annotated[Path | None, typer.Option("--check", help="fail where slower than in this earlier file")] = None,
    workers: Workers = None,
    budget: Budget = 60.0,
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    db: Database = None,
) -> None:
    """Compare the best kernels with baselines on this GPU: one process, cold inputs, one method, interleaved."""
    from mirage_cli.benchmark import run
    from mirage_cli.pipeline import Pipeline, search_all
    from mirage_cli.report import bench_table

    programs = read(specs, dim, dtype)
    chosen, here = choose_target("auto")
    if not here:
        raise MirageError("there is no GPU on this machine to measure on; `mirage doctor` says more")
    names = [n for n in against.split(",") if n]
    if unknown := set(names) - {"eager", "compile"}:
        raise UsageError(f"--against takes eager and compile, not {', '.join(sorted(unknown))}")
    wanted = options(workers, budget_s=budget, seed=seed)
    rows: list[Any] = []
    with (
        open_store(db) as store,
        status(False) as tell,
        Pipeline(chosen, wanted, store, here, tell, command_line()) as pipeline,
    ):
        todo = [p for p, _ in programs if pipeline.stored(p) is None]
        found = search_all(todo, chosen, wanted)
        for program, text in programs:
            if pipeline.stored(program) is None:
                pipeline.finish(program, text, next(found))
            tell(f"timing {program.name}")
            rows.append(run(pipeline, program, names))
            if json_file:
                json_file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    out.print(bench_table(rows))
    if check:
        slower = regressions(json.loads(check.read_text(encoding="utf-8")), rows)
        for line in slower:
            err.print(line, style="red")
        if slower:
            raise typer.Exit(1)


def regressions(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """Kernels that are slower than before by more than 5 % and both spreads."""
    old = {(r["spec"], json.dumps(r["dims"]), r["dtype"]): r["contestants"].get("mirage") for r in before}
    lines: list[str] = []
    for r in after:
        was, now = old.get((r["spec"], json.dumps(r["dims"]), r["dtype"])), r["contestants"].get("mirage")
        if was and now and now["median_us"] and was["median_us"]:
            limit = 1.05 * was["median_us"] + was["spread_us"] + now["spread_us"]
            if now["median_us"] > limit:
                lines.append(f"{r['spec']} {r['dims']}: {now['median_us']:.2f} µs, was {was['median_us']:.2f} µs")
    return lines
