"""What was found: `mirage export`, `show` and `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.shared import (
    DatabaseFile,
    Dims,
    Dtype,
    Json,
    OneSpec,
    TargetName,
    best_of,
    bests_of,
    command,
    command_line,
    out,
    print_text,
    read,
    reading_store,
    shown_for,
    tell_gpu,
    warn,
)
from mirage_cli.errors import NothingStoredError, TargetError, UnknownIdError
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mirage_cli.cli.layout import Sheet
    from mirage_cli.ir.mugraph import MuGraph
    from mirage_cli.ir.schedule import Schedule
    from mirage_cli.store.records import Shown
    from mirage_cli.store.store import Database
    from mirage_cli.target.gpus import Target


@command(
    "mirage export lora.yaml                       to stdout",
    "mirage export lora.yaml --dim m=16 -o lora.py",
    "mirage export lora.yaml --all -o lora.py      every size behind one function",
    "mirage export lora.yaml --kernel-only         the Triton functions and one launcher",
    "mirage export lora.yaml --layer W,A,B         with a module class that has these parameters",
)
def export(
    spec: OneSpec,
    _triton: Annotated[
        bool, typer.Option("--triton", help="as Triton: what is written unless another form is named")
    ] = True,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write here instead of to stdout")] = None,
    id: Annotated[str | None, typer.Option("--id", help="this μGraph instead of the best")] = None,
    all_sizes: Annotated[
        bool, typer.Option("--all", help="the best kernels of all sizes of the spec, behind one function")
    ] = False,
    kernel_only: Annotated[
        bool, typer.Option("--kernel-only", help="the Triton functions and one launcher, nothing else")
    ] = False,
    layer: Annotated[
        str | None, typer.Option("--layer", help="also a module class whose parameters are these inputs", metavar="W,G")
    ] = None,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
) -> None:
    """Write the best kernel as one Python file.

    It needs only torch and triton, and is written anew from the stored μGraph.
    """
    from mirage_cli.codegen.exported.bare import bare_source, layer_source
    from mirage_cli.pipeline.written import export_all, export_plan, written_anew

    if (kernel_only or layer) and (all_sizes or id is not None):
        raise typer.BadParameter("--kernel-only and --layer take the best kernel of one size")
    if all_sizes and id is not None:
        raise typer.BadParameter("--all takes the best kernel of each size, --id one μGraph: name one of them")
    with reading_store(db) as store:
        if all_sizes:
            source = export_all(store, bests_of(store, spec, dim, dtype, target), command_line())
        elif id is None:
            program, key, best = best_of(store, spec, dim, dtype, target)
            written = written_anew(store, program, key, best)
            source = written.source
            if written.differs:
                warn(f"{program.name}: the stored text is not what this version writes, and is left aside")
            source = bare_source(program, written.graph, written.schedule) if kernel_only else source
            source += f"\n\n{layer_source(program, layer.split(','))}" if layer else ""
        else:
            programs = [p for p, _ in read([spec], dim, dtype)]
            found = shown_for(store, id, target)
            taken, source = export_plan(found, programs, id, command_line())
            same = [s.key for s in found if s.key.program_hash == taken.key.program_hash]
            tell_gpu(taken.spec, taken.key, same, target)
    if output is None or str(output) == "-":
        print_text(source)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, source)
    out.print(str(output))


@command(
    "mirage show gqa.yaml",
    "mirage show gqa.yaml --dim h=16 --svg > gqa.svg",
    "mirage show c9906dc2e993                      by its id",
)
def show(
    what: Annotated[str, typer.Argument(help="a spec file, or the id of a μGraph", metavar="SPEC|ID")],
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
    as_svg: Annotated[bool, typer.Option("--svg", help="as a picture")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="as a page with picture, text and program")] = False,
    as_json: Json = False,
) -> None:
    """Print a plan (μGraph), as text or in another form."""
    from mirage_cli.cli.picture import svg
    from mirage_cli.ir.text import canonical_text, parse_mugraph, print_mugraph
    from mirage_cli.pipeline.profile import profile

    if as_svg + as_html + as_json > 1:
        raise typer.BadParameter("--svg, --html and --json are forms of the same: name one")
    with reading_store(db) as store:
        id = what
        if Path(what).suffix in (".yaml", ".yml"):
            _, key, best = best_of(store, Path(what), dim, dtype, target)
            id = best.mugraph
            shown = tuple(s for s in store.show(id) if s.key == key)
        elif shown := shown_for(store, id, target):
            tell_gpu(shown[0].spec, shown[0].key, [s.key for s in shown], target)
        if not shown:
            raise UnknownIdError(id)
        graph = parse_mugraph(shown[0].mugraph.text)
        if as_html:
            print_text(shown_page(store, shown[0], graph))
            return
        schedule, gpu = schedule_of(store, shown[0])
    if as_json:
        shape = {
            "id": shown[0].mugraph.id,
            "text": canonical_text(graph),
            "predicted_us": shown[0].mugraph.predicted_us,
            "verification": shown[0].mugraph.verification,
        }
        emit("show", [shape])
    elif as_svg:
        print_text(svg(graph, profile(graph, schedule, gpu)))
    else:
        print_text(print_mugraph(graph))


def schedule_of(store: Database, shown: Shown) -> tuple[Schedule | None, Target | None]:
    """The schedule that a stored μGraph is drawn with, and the GPU: the best's, where it is that; else its fastest."""
    from mirage_cli.ir.schedule import Schedule
    from mirage_cli.target.gpus import find_target

    best = store.best(shown.key)
    timed = [m for m in shown.measurements if m.median_us is not None]
    chosen = best.schedule if best and best.mugraph == shown.mugraph.id else None
    if chosen is None and timed:
        chosen = min(timed, key=lambda m: m.median_us or 0.0).schedule
    try:
        gpu = find_target(shown.key.gpu_name)
    except TargetError:
        gpu = None
    return (None if chosen is None else Schedule.from_json(chosen)), gpu


def shown_page(store: Database, shown: Shown, graph: MuGraph) -> str:
    """The report of one program, with this plan's picture. Raises NothingStoredError where no plan of it was kept."""
    from dataclasses import replace

    from mirage_cli.cli.reportpage import page
    from mirage_cli.pipeline.profile import profile
    from mirage_cli.pipeline.reported import sections

    found = sections(store, {shown.key.program_hash}, shown.key.gpu_name, warn)
    if not found:
        raise NothingStoredError(shown.spec, dict(shown.key.dims))
    section = found[0]
    if section.best.mugraph != shown.mugraph.id:
        section = replace(section, graph=graph, profiles=profile(graph, *schedule_of(store, shown)))
    return page([section], f"mirage: {shown.spec}", command_line())


@command("mirage explain gqa.yaml --dim h=16", "mirage help cuts                              what each reason means")
def explain(
    spec: OneSpec, dim: Dims = None, dtype: Dtype = None, target: TargetName = "auto", db: DatabaseFile = None
) -> None:
    """Say what was searched, cut and chosen, and why."""
    from mirage_cli.cli.layout import named
    from mirage_cli.cli.tables import explanation
    from mirage_cli.pipeline.kept import verdict_of

    with reading_store(db) as store:
        _, key, best = best_of(store, spec, dim, dtype, target)
        verdict = verdict_of(store, best.mugraph)
        graph = stored_graph(store, best.mugraph)
    for part in explanation(best.result):
        out.print(part)
    if graph is not None and best.result.best is not None:
        for part in predicted(graph, best.result.best.schedule, key.gpu_name):
            out.print(part)
    if verdict is not None:
        rows = [
            ("claim", verdict.claim),
            *([("merged axes", merged_axes(graph))] if graph is not None and graph.merged else []),
            *(("outside the theorem", x) for x in verdict.outside),
        ]
        out.print(named("verified", rows))


def stored_graph(store: Database, id: str) -> MuGraph | None:
    """The μGraph as it is stored, if it is."""
    from mirage_cli.ir.text import parse_mugraph

    try:
        return next((parse_mugraph(s.mugraph.text) for s in store.show(id)), None)
    except UnknownIdError:
        return None


def merged_axes(graph: MuGraph) -> str:
    """`cyx = c*y*x`: the axes that are several of the program's in this μGraph."""
    return ", ".join(f"{name} = {'*'.join(parts)}" for name, parts in graph.merged)


def predicted(graph: MuGraph, schedule: Schedule, gpu: str) -> Iterator[Sheet]:
    """For each generated kernel the named terms of its predicted time: what it is the sum of and, of the work, how long
    each part takes, of which one dominates. None where the cost model does not know the GPU."""
    from mirage_cli.cli.layout import named
    from mirage_cli.target.gpus import find_target
    from mirage_cli.tune.price import estimates

    try:
        target = find_target(gpu)
    except TargetError:
        return
    if not schedule.fits(graph):
        return
    for name, e in estimates(graph, schedule, target).items():
        terms = [*e.parts.items(), *((f"work: {term}", us) for term, us in e.busy.items())]
        rows = [(term, f"{us[0]:.2f} µs") for term, us in terms if abs(us[0]) >= 0.005]
        yield named(f"{name} by the cost model: {e.us[0]:.2f} µs", rows)
