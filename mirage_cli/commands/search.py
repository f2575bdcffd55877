"""`mirage search` and `mirage tune`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from mirage_cli.commands.found import verdict_of
from mirage_cli.commands.shared import (
    Budget,
    Context,
    Contexts,
    Database,
    Dims,
    Dtype,
    Fresh,
    Json,
    Seed,
    Specs,
    TargetName,
    Top,
    Workers,
    app,
    choose_target,
    command_line,
    emit_json,
    err,
    local_gpu,
    open_store,
    options,
    out,
    read,
    status,
)
from mirage_cli.errors import NothingStoredError


@app.command()
def search(
    specs: Specs,
    workers: Workers = None,
    top: Top = 5,
    budget: Budget = 60.0,
    seed: Seed = 0,
    fresh: Fresh = False,
    context: Context = Contexts.both,
    no_tune: Annotated[
        bool, typer.Option("--no-tune", help="search and verify only: compile and time nothing")
    ] = False,
    no_prune: Annotated[bool, typer.Option("--no-prune", help="cut nothing by cost (an ablation)")] = False,
    no_decompose: Annotated[
        bool, typer.Option("--no-decompose", help="only the program's own algebra (an ablation)")
    ] = False,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Find the best kernels: search, verify, and tune on this machine's GPU (or predict for the target).

    What an ablation finds is printed, with what it took, and not kept.
    """
    from mirage_cli.pipeline import Pipeline
    from mirage_cli.structural import Failed, search_all

    programs = read(specs, dim, dtype)
    chosen, here = choose_target(target)
    ablation = no_prune or no_decompose
    wanted = options(
        workers,
        top=top,
        budget_s=budget,
        seed=seed,
        fresh=fresh or ablation,
        tune=not no_tune,
        context=context.value,
        prune=not no_prune,
        own_algebra_only=no_decompose,
    )
    results: list[Any] = []
    interrupted = False
    with (
        passing_store() if ablation else open_store(db) as store,
        status(as_json) as tell,
        Pipeline(chosen, wanted, store, here, tell, command_line()) as pipeline,
    ):
        known = {i: d for i, (p, _) in enumerate(programs) if (d := pipeline.stored(p)) is not None}
        todo = [i for i in range(len(programs)) if i not in known]
        if todo:
            pipeline.prepare()
        found = search_all([programs[i][0] for i in todo], chosen, wanted)
        try:
            for i, (program, text) in enumerate(programs):
                if i not in known:
                    tell(f"searching {program.name}")
                    searched = next(found)
                    interrupted = not isinstance(searched, Failed) and searched.stopped == "interrupted"
                    known[i] = finished(pipeline, program, text, searched)
                results.append(with_claims(store, known[i]))
                if interrupted:
                    break
        except KeyboardInterrupt:
            interrupted = True
    if ablation and not as_json:
        for r in results:
            if "error" not in r:
                out.print(effort(r))
    finish(results, chosen, as_json, interrupted, predicted_for(chosen, here, target))


def finished(pipeline: Any, program: Any, text: str, searched: Any) -> dict[str, Any]:
    """The result of one program, or what kept it from having one: the others' results do not depend on it."""
    from mirage_cli.structural import Failed

    if isinstance(searched, Failed):
        return pipeline.failed(program, searched)
    try:
        return pipeline.finish(program, text, searched)
    except Exception as error:
        return pipeline.failed(program, Failed.of(error))


@contextmanager
def passing_store() -> Generator[Any]:
    """A database for one run: what a worse search found takes no better result's place."""
    with TemporaryDirectory() as folder, open_store(Path(folder) / "mirage.db") as store:
        yield store


def effort(r: Mapping[str, Any]) -> str:
    """What a search took."""
    from mirage_cli.report import sizes_text

    stats = r["search"]
    end = f"{stats['stopped']} after {stats['seconds']:.2f} s"
    return f"{r['spec']} {sizes_text(r['dims'])}: {stats['enumerated']} kernels looked at, {end}"


@app.command()
def tune(
    specs: Specs,
    workers: Workers = None,
    top: Top = 5,
    budget: Budget = 60.0,
    seed: Seed = 0,
    context: Context = Contexts.both,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Time the stored μGraphs of the specs on this machine's GPU: search elsewhere, tune here."""
    from mirage_cli.pipeline import Pipeline, stored_search

    programs = read(specs, dim, dtype)
    gpu = local_gpu(target, "tune")
    results: list[Any] = []
    interrupted = False
    wanted = options(workers, top=top, budget_s=budget, seed=seed, context=context.value)
    with (
        open_store(db) as store,
        status(as_json) as tell,
        Pipeline(gpu, wanted, store, True, tell, command_line()) as pipeline,
    ):
        pipeline.prepare()
        try:
            for program, text in programs:
                found = stored_search(store, program)
                if found is None:
                    raise NothingStoredError(program.name, program.sizes)
                results.append(with_claims(store, finished(pipeline, program, text, found)))
        except KeyboardInterrupt:
            interrupted = True
    finish(results, gpu, as_json, interrupted)


def with_claims(store: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    """A result document that says of each kernel what is known about its being right, as `mirage verify` does."""

    def claimed(row: Mapping[str, Any]) -> dict[str, Any]:
        verdict = verdict_of(store, row["id"])
        return {**row, "claim": verdict and verdict.claim}

    best = result["best"]
    return {**result, "best": best and claimed(best), "top": [claimed(row) for row in result["top"]]}


def predicted_for(target: Any, here: bool, named: str) -> str:
    """What a table of predictions says of the GPU that was planned for; nothing where it is this machine's."""
    return "" if here else f"predicted for {target.name}" + " (no GPU here)" * (named == "auto")


def finish(results: Sequence[Any], target: Any, as_json: bool, interrupted: bool, about: str = "") -> None:
    """Print results, and what was lost or failed, and choose the exit code."""
    from mirage_cli.report import losses, refusals, results_tables, sizes_text

    failed = [r for r in results if "error" in r]
    found = [r for r in results if "error" not in r]
    if as_json:
        emit_json(results, target)
    else:
        for table in results_tables(found, about):
            out.print(table)
        for line in [*losses(found), *refusals(found)]:
            out.print(line, soft_wrap=True, markup=False)
    for r in failed:
        err.print(f"error: {r['spec']} {sizes_text(r['dims'])}: {r['error']}", style="red")
    if interrupted:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)
    if not any(better(r) for r in found):
        raise typer.Exit(3)


def better(r: Any) -> bool:
    """Whether a result beats what its user started from."""
    best = r["best"]
    if best is None:
        return False
    if best["time_us"] is not None and best["eager_us"] is not None:
        return best["time_us"] + best.get("spread_us", 0.0) < best["eager_us"]
    return best["id"] != r.get("as_written")
