"""`mirage bench`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.shared import (
    Budget,
    Context,
    Contexts,
    Database,
    Dims,
    Dtype,
    Seed,
    TargetName,
    Workers,
    app,
    command_line,
    err,
    local_gpu,
    open_store,
    out,
    overrides,
    read,
    status,
    worker_count,
)
from mirage_cli.errors import BaselineError, EmptyStoreError, MirageError
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.pipeline.benchmark import Document
    from mirage_cli.store.store import Store

REGRESSED = 4
"""The exit code of `--check` where a row is worse than before."""


@app.command()
def bench(
    specs: Annotated[
        list[Path] | None,
        typer.Argument(help="spec files (YAML) [default: all that the database has a kernel for]", metavar="[SPEC]..."),
    ] = None,
    against: Annotated[
        str, typer.Option(help="baselines, comma separated: eager, compile, sdpa, cudnn, library (the fastest of all)")
    ] = "eager,compile",
    json_file: Annotated[Path | None, typer.Option("--json", help="also write all samples to this file")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="also write a page with a table, and a chart beside it as SVG")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="exit with 4 where a kernel is slower than in this file, wrong or missing"),
    ] = None,
    workers: Workers = None,
    budget: Budget = 60.0,
    seed: Seed = 0,
    context: Context = Contexts.both,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
) -> None:
    """Compare the best kernels with baselines on this GPU: one process, cold inputs, one method, interleaved."""
    from mirage_cli.cli import benchpage
    from mirage_cli.cli.tables import about_text, bench_table, remarks
    from mirage_cli.pipeline.benchmark import AGAINST, asked_for, read_rows, regressions, run
    from mirage_cli.pipeline.kept import has_kernel
    from mirage_cli.pipeline.optimize import finish
    from mirage_cli.pipeline.searching import Options, search_all
    from mirage_cli.pipeline.session import Session
    from mirage_cli.store.results import Unfinished

    programs = read(specs or (), dim, dtype)
    names = list(dict.fromkeys(n.strip() for n in against.split(",") if n.strip()))
    if unknown := [n for n in names if n not in AGAINST]:
        raise BaselineError(unknown, AGAINST)
    gpu = local_gpu(target, "measure")
    before = read_rows(check, gpu.name, context.value) if check else None
    wanted = Options(worker_count(workers), budget_s=budget, seed=seed, context=context.value)
    rows: list[Document] = []
    failures: list[str] = []
    with (
        open_store(db) as store,
        status(False) as tell,
        Session(gpu, wanted, store, True, tell, command_line()) as session,
    ):
        programs = programs or stored_programs(store, overrides(dim), dtype)
        todo = [p for p, _ in programs if not has_kernel(session, p)]
        if todo:
            session.prepare()
        found = search_all(todo, gpu, wanted)
        for program, text in programs:
            if not has_kernel(session, program):
                result = finish(session, program, text, next(found))
                if isinstance(result, Unfinished):
                    failures.append(f"{about_text(result.about)}: {result.problem}")
                    continue
            tell(f"timing {program.name}")
            rows.append(run(session, program, names))
            if json_file:
                write_text(json_file, json.dumps(rows, indent=1))
            if markdown:
                benchpage.write(markdown, rows, command_line())
    out.print(bench_table(rows))
    for line in remarks(rows):
        err.print(line)
    for problem in failures:
        err.print(f"error: {problem}", style="red")
    named = {p.name for p, _ in programs} if specs else set[str]()
    worse = [] if before is None else regressions(asked_for(before, named, overrides(dim), dtype), rows)
    for line in worse:
        err.print(line, style="red")
    if worse or failures:
        raise typer.Exit(REGRESSED if worse else 1)


def stored_programs(store: Store, dims: Mapping[str, int], dtype: str | None) -> list[tuple[Program, str]]:
    """Every program that a kernel is stored for, on any GPU, with its spec's text; those of these sizes and this type.

    Raises EmptyStoreError where there is none. A spec that this version cannot read is a warning.
    """
    from mirage_cli.pipeline.problem import program_hash
    from mirage_cli.spec.reader import parse_spec

    found: dict[str, tuple[Program, str]] = {}
    for e in store.list():
        key, sizes = e.key, dict(e.key.dims)
        spec = store.spec(key.program_hash)
        if e.best is None or spec is None or key.program_hash in found:
            continue
        if dtype not in (None, key.dtype) or any(sizes.get(d) != n for d, n in dims.items()):
            continue
        try:
            program = parse_spec(spec[1], f"<stored {spec[0]}>").at(sizes, key.dtype)
        except MirageError as error:
            err.print(f"warning: {error}", style="yellow")
            continue
        if program_hash(program) == key.program_hash:
            found[key.program_hash] = program, spec[1]
    if not found:
        raise EmptyStoreError
    return list(found.values())
