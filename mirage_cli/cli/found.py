"""What was found: `mirage export`, `show` and `explain`; and `mirage verify`, which judges what somebody else wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.shared import (
    Database,
    Dims,
    Dtype,
    Json,
    OneSpec,
    Seed,
    TargetName,
    app,
    best_of,
    command_line,
    gpu_of,
    open_store,
    out,
    print_text,
    read,
    shown_for,
    tell_gpu,
)
from mirage_cli.errors import MirageError, TargetError, UnknownIdError
from mirage_cli.target.files import read_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from mirage_cli.ir.mugraph import MuGraph
    from mirage_cli.ir.schedule import Schedule
    from mirage_cli.store.store import Store

MAX_KERNEL_BYTES = 1 << 24


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
    from mirage_cli.pipeline.kept import export_plan

    with open_store(db) as store:
        if id is None:
            _, best = best_of(store, spec, dim, dtype, target)
            source = best.source
        else:
            programs = [p for p, _ in read([spec], dim, dtype)]
            found = shown_for(store, id, target)
            taken, source = export_plan(found, programs, id, command_line())
            same = [s.key for s in found if s.key.program_hash == taken.key.program_hash]
            tell_gpu(taken.spec, taken.key, same, target)
    if output is None:
        print_text(source)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, source)
    out.print(str(output))


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="a spec file, or the id of a μGraph", metavar="SPEC|ID")],
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_svg: Annotated[bool, typer.Option("--svg", help="as a picture")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="as a page with picture, text and program")] = False,
    as_json: Json = False,
) -> None:
    """Print a μGraph as text, with its maps, loops, accumulators and epilogues; or in another form."""
    from mirage_cli.cli.picture import html, svg
    from mirage_cli.ir.text import canonical_text, parse_mugraph, print_mugraph

    if as_svg + as_html + as_json > 1:
        raise typer.BadParameter("--svg, --html and --json are forms of the same: name one")
    with open_store(db) as store:
        id = what
        if Path(what).suffix in (".yaml", ".yml"):
            key, best = best_of(store, Path(what), dim, dtype, target)
            id = best.mugraph
            shown = tuple(s for s in store.show(id) if s.key == key)
        elif shown := shown_for(store, id, target):
            tell_gpu(shown[0].spec, shown[0].key, [s.key for s in shown], target)
        if not shown:
            raise UnknownIdError(id)
        spec = store.spec(shown[0].key.program_hash)
    graph = parse_mugraph(shown[0].mugraph.text)
    if as_json:
        document = {
            "id": shown[0].mugraph.id,
            "text": canonical_text(graph),
            "predicted_us": shown[0].mugraph.predicted_us,
            "verification": shown[0].mugraph.verification,
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    elif as_svg:
        print_text(svg(graph))
    elif as_html:
        print_text(html(graph, spec[1] if spec else ""))
    else:
        print_text(print_mugraph(graph))


@app.command()
def explain(
    spec: OneSpec, dim: Dims = None, dtype: Dtype = None, target: TargetName = "auto", db: Database = None
) -> None:
    """Say what was searched, what was cut and why, and what was chosen, against the hardware's floor."""
    from mirage_cli.cli.tables import explanation, mapping_table
    from mirage_cli.pipeline.kept import verdict_of

    with open_store(db) as store:
        key, best = best_of(store, spec, dim, dtype, target)
        verdict = verdict_of(store, best.mugraph)
        graph = stored_graph(store, best.mugraph)
    for part in explanation(best.result):
        out.print(part)
    if graph is not None and best.result.best is not None:
        for part in predicted(graph, best.result.best.schedule, gpu_of(key)):
            out.print(part)
    if verdict is not None:
        rows = [
            ("claim", verdict.claim),
            *([("merged axes", merged_axes(graph))] if graph is not None and graph.merged else []),
            *(("outside the theorem", x) for x in verdict.outside),
        ]
        out.print(mapping_table("verified", rows))


def stored_graph(store: Store, id: str) -> MuGraph | None:
    """The μGraph as it is stored, if it is."""
    from mirage_cli.ir.text import parse_mugraph

    try:
        return next((parse_mugraph(s.mugraph.text) for s in store.show(id)), None)
    except UnknownIdError:
        return None


def merged_axes(graph: MuGraph) -> str:
    """`cyx = c*y*x`: the axes that are several of the program's in this μGraph."""
    return ", ".join(f"{name} = {'*'.join(parts)}" for name, parts in graph.merged)


def predicted(graph: MuGraph, schedule: Schedule, gpu: str) -> Iterator[Table]:
    """For each generated kernel the named terms of its predicted time: what it is the sum of and, of the work, how long
    each part takes, of which one dominates. None where the cost model does not know the GPU."""
    from mirage_cli.cli.tables import mapping_table
    from mirage_cli.target.gpus import find_target
    from mirage_cli.tune.space import estimates

    try:
        target = find_target(gpu)
    except TargetError:
        return
    if not schedule.fits(graph):
        return
    for name, e in estimates(graph, schedule, target).items():
        terms = [*e.parts.items(), *((f"work: {term}", us) for term, us in e.busy.items())]
        rows = [(term, f"{us[0]:.2f} µs") for term, us in terms if abs(us[0]) >= 0.005]
        yield mapping_table(f"{name} by the cost model: {e.us[0]:.2f} µs", rows)


@app.command()
def verify(
    spec: OneSpec,
    file: Annotated[
        str,
        typer.Argument(help="a μGraph as text, an exported kernel, or a stored id", metavar="FILE|ID"),
    ],
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Judge a hand-written μGraph or an exported kernel against a spec. A kernel is a program, and is run.

    With --target, a kernel is also compiled for that GPU.
    """
    from mirage_cli.pipeline.judging import judge_file
    from mirage_cli.target.gpus import find_target

    gpu = None if target == "auto" else find_target(target)
    programs = [p for p, _ in read([spec], dim, dtype)]
    if re.fullmatch("[0-9a-f]{4,12}", file) and not Path(file).exists():
        with open_store(db) as store:
            text = "".join(s.mugraph.text for s in store.show(file)[:1])
    else:
        try:
            text = read_bytes(Path(file), MAX_KERNEL_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            raise MirageError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from None
    try:
        answer = judge_file(programs, text, seed, gpu)
    except MirageError as error:
        raise MirageError(f"{file}: {error}") from None
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    else:
        out.print(answer["detail"])
    if not answer["ok"]:
        raise typer.Exit(1)
