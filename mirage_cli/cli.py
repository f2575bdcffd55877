"""The command line: the only place that prints to the terminal or picks an exit code.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 the input or the machine is at fault,
2 wrong command line, 3 found nothing better than the baseline, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from mirage_cli import __version__
from mirage_cli.errors import MirageError, NothingStoredError, UsageError

app = typer.Typer(
    help="Search for the fastest verified Triton kernel of a tensor program.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
cache = typer.Typer(help="The database of what was found and measured.", no_args_is_help=True)
app.add_typer(cache, name="cache")

# Text is printed as it is: nothing in it is markup or an emoji, no path is broken. Tables have room in files and pipes.
WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
out = Console(soft_wrap=True, markup=False, emoji=False, highlight=False, width=WIDTH)
err = Console(soft_wrap=True, markup=False, emoji=False, highlight=False, stderr=True)

Specs = Annotated[list[Path], typer.Argument(help="spec files (YAML)", metavar="SPEC...")]
OneSpec = Annotated[Path, typer.Argument(help="a spec file (YAML)", metavar="SPEC")]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="size to use, NAME=SIZE; may be repeated")]
Dtype = Annotated[str | None, typer.Option(help="element type of inputs and outputs instead of the spec's")]
TargetName = Annotated[str, typer.Option("--target", help="GPU to plan for: auto, h200, h100, a100, ..., sm_90")]
Database = Annotated[
    Path | None, typer.Option("--db", help="the database [default: $MIRAGE_DB, else the cache directory]")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document and nothing else")]
Workers = Annotated[int | None, typer.Option(min=1, help="processes to search and compile with [default: the cores]")]
Budget = Annotated[float, typer.Option(min=0.0, help="seconds for each program, search and tuning together")]
Seed = Annotated[int, typer.Option(help="seed of every random choice")]
Fresh = Annotated[bool, typer.Option("--fresh", help="do not answer from the database")]
Top = Annotated[int, typer.Option(min=1, help="how many kernels to report for each program")]


def main() -> NoReturn:
    """Run the command line; errors of the input or the machine end in a message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the terminal's encoding has no μ
    try:
        code = app(prog_name="mirage", standalone_mode=False) or 0  # which returns the code of a typer.Exit
        sys.stdout.flush()
    except MirageError as error:
        err.print(f"error: {error}", style="red")
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:  # a reader that is gone, a full disk, a file that cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print would fail again
        if not isinstance(error, BrokenPipeError):
            err.print(f"error: {error.filename or 'output'}: {error.strerror or error}", style="red")
        code = 1
    except Exception as error:  # click's usage errors, which say what was expected
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        error.show()  # type: ignore[attr-defined]
        code = 2
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once more changes nothing
        err.print("interrupted")
    sys.exit(code)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Search for the fastest verified Triton kernel of a tensor program."""
    if version:
        out.print(__version__)
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        raise typer.Exit(2)


# -- what commands share


def overrides(dims: Sequence[str] | None) -> dict[str, int]:
    """`--dim` options as a mapping. Raises UsageError."""
    found: dict[str, int] = {}
    for text in dims or ():
        name, _, size = text.partition("=")
        if not name or not size.isdigit() or int(size) < 1:
            raise UsageError(f"--dim takes NAME=SIZE with a positive size, not {text!r}")
        found[name] = int(size)
    return found


def read(paths: Sequence[Path], dims: Sequence[str] | None, dtype: str | None) -> list[tuple[Any, str]]:
    """The programs of these specs, one for each instance, each with its spec's text. Warnings go to stderr."""
    from mirage_cli.spec import load_spec

    found: list[tuple[Any, str]] = []
    for path in paths:
        spec = load_spec(path)
        for warning in spec.warnings:
            err.print(str(warning), style="yellow")
        found += [(p, spec.text) for p in spec.programs(overrides(dims) or None, dtype)]
    return found


def open_store(db: Path | None) -> Any:
    from mirage_cli.store import Store, default_path

    return Store(db or default_path())


def choose_target(name: str) -> tuple[Any, bool]:
    """The target, and whether this machine's GPU is it."""
    from mirage_cli.target import driver_version, find_target, local_target

    local = local_target() if driver_version() is not None else None
    if name == "auto":
        return (local, True) if local is not None else (find_target("h100"), False)
    target = find_target(name)
    return target, local is not None and local.name == target.name


@contextmanager
def status(quiet: bool) -> Generator[Any]:
    """A line on stderr that says what is being tried; nothing where stderr is no terminal or `quiet`."""
    if quiet or not err.is_terminal:
        yield lambda text: None
        return
    with err.status("starting") as line:
        yield lambda text: line.update(text)


def emit_json(results: Sequence[Any], target: Any) -> None:
    from dataclasses import asdict

    document = {"mirage": __version__, "target": asdict(target), "results": list(results)}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def options(workers: int | None, **rest: Any) -> Any:
    from mirage_cli.knobs import WORKERS
    from mirage_cli.pipeline import Options

    return Options(workers=workers or WORKERS.value(), **rest)


def command_line() -> str:
    return "mirage " + " ".join(sys.argv[1:])


# -- search and tune


@app.command()
def search(
    specs: Specs,
    workers: Workers = None,
    top: Top = 5,
    budget: Budget = 60.0,
    seed: Seed = 0,
    fresh: Fresh = False,
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
    """Find the best kernels: search, verify, and tune on this machine's GPU (or predict for the target)."""
    from mirage_cli.pipeline import Pipeline, search_all

    programs = read(specs, dim, dtype)
    chosen, here = choose_target(target)
    wanted = options(
        workers,
        top=top,
        budget_s=budget,
        seed=seed,
        fresh=fresh or no_prune or no_decompose,
        tune=not no_tune,
        prune=not no_prune,
        own_algebra_only=no_decompose,
    )
    results: list[Any] = []
    interrupted = False
    with (
        open_store(db) as store,
        status(as_json) as tell,
        Pipeline(chosen, wanted, store, here, tell, command_line()) as pipeline,
    ):
        known = {i: d for i, (p, _) in enumerate(programs) if (d := pipeline.stored(p)) is not None}
        todo = [i for i in range(len(programs)) if i not in known]
        found = search_all([programs[i][0] for i in todo], chosen, wanted)
        try:
            for i, (program, text) in enumerate(programs):
                if i not in known:
                    tell(f"searching {program.name}")
                    searched = next(found)
                    interrupted = searched.stopped == "interrupted"
                    known[i] = pipeline.finish(program, text, searched)
                results.append(known[i])
                if interrupted:
                    break
        except KeyboardInterrupt:
            interrupted = True
    finish(results, chosen, as_json, interrupted)


@app.command()
def tune(
    specs: Specs,
    workers: Workers = None,
    top: Top = 5,
    budget: Budget = 60.0,
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Time the stored μGraphs of the specs on this machine's GPU: search elsewhere, tune here."""
    from mirage_cli.pipeline import Pipeline, stored_search

    programs = read(specs, dim, dtype)
    chosen, here = choose_target("auto")
    if not here:
        raise MirageError("there is no GPU on this machine to tune on; `mirage doctor` says more")
    results: list[Any] = []
    interrupted = False
    wanted = options(workers, top=top, budget_s=budget, seed=seed)
    with (
        open_store(db) as store,
        status(as_json) as tell,
        Pipeline(chosen, wanted, store, here, tell, command_line()) as pipeline,
    ):
        try:
            for program, text in programs:
                found = stored_search(store, program)
                if found is None:
                    raise NothingStoredError(program.name, program.sizes)
                results.append(pipeline.finish(program, text, found))
        except KeyboardInterrupt:
            interrupted = True
    finish(results, chosen, as_json, interrupted)


def finish(results: Sequence[Any], target: Any, as_json: bool, interrupted: bool) -> None:
    """Print results and choose the exit code."""
    from mirage_cli.report import results_tables

    if as_json:
        emit_json(results, target)
    else:
        for table in results_tables(results):
            out.print(table)
    if interrupted:
        raise typer.Exit(130)
    if not any(better(r) for r in results):
        raise typer.Exit(3)


def better(r: Any) -> bool:
    """Whether a result beats what its user started from."""
    best = r["best"]
    if best is None:
        return False
    if best["time_us"] is not None and best["eager_us"] is not None:
        return best["time_us"] + best.get("spread_us", 0.0) < best["eager_us"]
    return best["id"] != r.get("as_written")


# -- bench


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


# -- what was found


def best_of(store: Any, path: Path, dims: Sequence[str] | None, dtype: str | None, target: str) -> tuple[Any, Any]:
    """(program, entry) of the best stored kernel for a spec: measured before predicted, the first size that has one.

    For the GPU that `target` names, or for any where it is "auto".
    """
    from mirage_cli.pipeline import program_hash
    from mirage_cli.target import find_target

    programs = read([path], dims, dtype)
    gpu = None if target == "auto" else find_target(target).name
    entries = [e for e in store.list() if gpu in (None, e.key.gpu.removesuffix(" (predicted)"))]
    for program, _ in programs:
        mine = [e for e in entries if e.key.program_hash == program_hash(program) and e.best is not None]
        if mine:
            return program, min(mine, key=lambda e: (e.best.status != "measured", e.best.time_us or 0.0))
    program = programs[0][0]
    raise NothingStoredError(program.name, program.sizes)


@app.command()
def export(
    spec: OneSpec,
    _triton: Annotated[
        bool, typer.Option("--triton", help="as Triton: what is written unless another form is named")
    ] = True,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write here instead of to stdout")] = None,
    id: Annotated[str | None, typer.Option("--id", help="this μGraph instead of the best")] = None,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
) -> None:
    """Write the best kernel (or the one named) as one Python file that needs only torch and triton."""
    from mirage_cli.pipeline import export_plan

    with open_store(db) as store:
        if id is None:
            _, entry = best_of(store, spec, dim, dtype, target)
            source = entry.best.source
        else:
            source = export_plan(store, [p for p, _ in read([spec], dim, dtype)], id, command_line())
    if output is None:
        sys.stdout.write(source)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(source, encoding="utf-8")
    out.print(str(output))


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="a spec file, or the id of a μGraph", metavar="SPEC|ID")],
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Print a μGraph as text, with its maps, loops, accumulators and epilogues."""
    from mirage_cli.ir.text import canonical_text, parse_mugraph, print_mugraph

    with open_store(db) as store:
        id = what
        if Path(what).suffix in (".yaml", ".yml"):
            id = best_of(store, Path(what), dim, dtype, target)[1].best.mugraph
        shown = store.show(id)
    if not shown:
        raise MirageError(f"no μGraph is stored under {id}; `mirage cache list` says what is")
    graph = parse_mugraph(shown[0].mugraph.text)
    if as_json:
        document = {
            "id": shown[0].mugraph.id,
            "text": canonical_text(graph),
            "predicted_us": shown[0].mugraph.predicted_us,
            "verification": shown[0].mugraph.verification,
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    sys.stdout.write(print_mugraph(graph))


@app.command()
def explain(
    spec: OneSpec, dim: Dims = None, dtype: Dtype = None, target: TargetName = "auto", db: Database = None
) -> None:
    """Say what was searched, what was cut and why, and what was chosen, against the hardware's floor."""
    from mirage_cli.report import explanation

    with open_store(db) as store:
        _, entry = best_of(store, spec, dim, dtype, target)
    for part in explanation(entry.best.document):
        out.print(part)


@app.command()
def verify(
    spec: OneSpec,
    file: Annotated[Path, typer.Argument(help="a μGraph in text form, or an exported kernel", metavar="FILE")],
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Judge a hand-written μGraph or an exported kernel against a spec."""
    from mirage_cli.pipeline import judge_file

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MirageError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from None
    programs = [p for p, _ in read([spec], dim, dtype)]
    try:
        answer = judge_file(programs, text, seed)
    except MirageError as error:
        raise MirageError(f"{file}: {error}") from None
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    else:
        out.print(answer["detail"])
    if not answer["ok"]:
        raise typer.Exit(1)


# -- the database and the machine


@cache.command("list")
def cache_list(db: Database = None, as_json: Json = False) -> None:
    """List what is stored."""
    from rich.table import Column, Table

    from mirage_cli.report import figure

    with open_store(db) as store:
        entries = store.list()
    if as_json:
        rows = [
            {
                "id": e.key.id,
                "spec": e.spec,
                "dims": dict(e.key.dims),
                "dtype": e.key.dtype,
                "gpu": e.key.gpu,
                "mugraphs": e.mugraphs,
                "measurements": e.measurements,
                "best": e.best.mugraph if e.best else None,
                "status": e.best.status if e.best else None,
                "time_us": e.best.time_us if e.best else None,
            }
            for e in entries
        ]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    best_column = Column("best", min_width=12)  # whole, to be copied
    table = Table("spec", "dims", "dtype", "GPU", "μGraphs", "measurements", best_column, "µs")
    for e in entries:
        dims = " ".join(f"{d}={n}" for d, n in e.key.dims)
        best = e.best.mugraph if e.best else "-"
        us = figure(e.best.time_us) if e.best else "-"
        table.add_row(e.spec, dims, e.key.dtype, e.key.gpu, str(e.mugraphs), str(e.measurements), best, us)
    out.print(table)


@cache.command("show")
def cache_show(
    id: Annotated[str, typer.Argument(help="id of a μGraph, or its first digits")], db: Database = None
) -> None:
    """Show a stored μGraph with its measurements."""
    with open_store(db) as store:
        shown = store.show(id)
    if not shown:
        raise MirageError(f"nothing is stored under {id}; `mirage cache list` says what is")
    for s in shown:
        out.print(f"{s.spec} on {s.key.gpu}", style="bold")
        out.print(s.mugraph.text)
        for m in sorted(s.measurements, key=lambda m: m.median_us or float("inf"))[:10]:
            result = m.failure or f"{m.median_us:.2f} ± {m.spread_us:.2f} µs"
            out.print(f"  {result}  {json.dumps(m.schedule)}")


@cache.command("remove")
def cache_remove(id: Annotated[str, typer.Argument(help="id of a μGraph or of a key")], db: Database = None) -> None:
    """Remove what is stored under an id."""
    with open_store(db) as store:
        count = store.remove(id)
    if not count:
        raise MirageError(f"nothing is stored under {id}; `mirage cache list` says what is")
    out.print(f"removed {count}")


@app.command()
def doctor(db: Database = None, as_json: Json = False) -> None:
    """Say what this machine has, what is missing, and what that rules out."""
    from dataclasses import asdict

    from rich.table import Table

    from mirage_cli.doctor import examine

    checks = examine(db)
    if as_json:
        sys.stdout.write(json.dumps([asdict(c) for c in checks], indent=1) + "\n")
    else:
        table = Table("", "what", "found", "remedy")
        for c in checks:
            table.add_row("ok" if c.ok else "--", c.name, c.detail, "" if c.ok else c.remedy)
        out.print(table)
    if any(not c.ok and c.required for c in checks):
        raise typer.Exit(1)
