"""What was found: `mirage export`, `show` and `explain`; and `mirage verify`, which judges what somebody else wrote."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.gatefiles import Case, Summary, tell_github, write_junit
from mirage_cli.cli.shared import (
    Database,
    Dims,
    Dtype,
    Json,
    OneSpec,
    Seed,
    ShardOption,
    TargetName,
    best_of,
    bests_of,
    command,
    command_line,
    gpu_of,
    out,
    print_text,
    read,
    reading_store,
    shown_for,
    tell_gpu,
    warn,
)
from mirage_cli.errors import MirageError, NothingStoredError, TargetError, UnknownIdError
from mirage_cli.target.files import read_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mirage_cli.cli.layout import Sheet
    from mirage_cli.cli.verifyall import Answer
    from mirage_cli.ir.mugraph import MuGraph
    from mirage_cli.ir.schedule import Schedule
    from mirage_cli.store.records import Shown
    from mirage_cli.store.store import Store
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
    db: Database = None,
) -> None:
    """Write the best kernel as one Python file.

    It needs only torch and triton, and is written anew from the stored μGraph.
    """
    from mirage_cli.codegen.bare import bare_source, layer_source
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
    db: Database = None,
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


def schedule_of(store: Store, shown: Shown) -> tuple[Schedule | None, Target | None]:
    """The schedule that a stored μGraph is drawn with, and the GPU: the best's, where it is that; else its fastest."""
    from mirage_cli.ir.schedule import Schedule
    from mirage_cli.target.gpus import find_target

    best = store.best(shown.key)
    timed = [m for m in shown.measurements if m.median_us is not None]
    chosen = best.schedule if best and best.mugraph == shown.mugraph.id else None
    if chosen is None and timed:
        chosen = min(timed, key=lambda m: m.median_us or 0.0).schedule
    try:
        gpu = find_target(gpu_of(shown.key))
    except TargetError:
        gpu = None
    return (None if chosen is None else Schedule.from_json(chosen)), gpu


def shown_page(store: Store, shown: Shown, graph: MuGraph) -> str:
    """The report of one program, with this plan's picture. Raises NothingStoredError where no plan of it was kept."""
    from dataclasses import replace

    from mirage_cli.cli.reportpage import page
    from mirage_cli.pipeline.profile import profile
    from mirage_cli.pipeline.reported import sections

    found = sections(store, {shown.key.program_hash}, gpu_of(shown.key), warn)
    if not found:
        raise NothingStoredError(shown.spec, dict(shown.key.dims))
    section = found[0]
    if section.best.mugraph != shown.mugraph.id:
        section = replace(section, graph=graph, profiles=profile(graph, *schedule_of(store, shown)))
    return page([section], f"mirage: {shown.spec}", command_line())


@command("mirage explain gqa.yaml --dim h=16", "mirage help cuts                              what each reason means")
def explain(
    spec: OneSpec, dim: Dims = None, dtype: Dtype = None, target: TargetName = "auto", db: Database = None
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
        for part in predicted(graph, best.result.best.schedule, gpu_of(key)):
            out.print(part)
    if verdict is not None:
        rows = [
            ("claim", verdict.claim),
            *([("merged axes", merged_axes(graph))] if graph is not None and graph.merged else []),
            *(("outside the theorem", x) for x in verdict.outside),
        ]
        out.print(named("verified", rows))


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


@command(
    "mirage verify lora.yaml lora.py --dim m=16    an exported kernel, or one that was changed since",
    "mirage verify lora.yaml plan.txt              a μGraph that was written by hand",
    "mirage verify --all --junit verify.xml        every stored kernel",
    "mirage verify --all lora.yaml --exported kernels/",
)
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="a spec, and what is judged: a μGraph as text, an exported kernel, or a stored id; with --all, specs "
            "alone",
            metavar="SPEC FILE|ID",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="judge every stored kernel, of these specs or of all, anew")
    ] = False,
    exported: Annotated[
        Path | None, typer.Option("--exported", help="with --all: the exported kernels of this folder instead")
    ] = None,
    summary: Annotated[
        Summary | None, typer.Option("--summary", help="with --all: a summary, and annotations, for this service")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="with --all: also write tests of JUnit's XML")] = None,
    part: ShardOption = None,
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Judge a μGraph or a kernel against a spec.

    A kernel is a program, and is run.

    With --target, a kernel is also compiled for that GPU.
    """
    from mirage_cli.cli.verifyall import MAX_KERNEL_BYTES, judge_all
    from mirage_cli.pipeline.judging import judge_file
    from mirage_cli.target.gpus import find_target

    gpu = None if target == "auto" else find_target(target)
    given = what or []
    if every:
        with reading_store(db) as store:
            answers = judge_all(store, [Path(x) for x in given], exported, part, seed, dim, dtype, gpu)
        tell_all(answers, summary, junit, as_json)
        return
    if len(given) != 2:
        raise typer.BadParameter("name a spec and what is to be judged, or --all")
    spec, file = given
    if Path(spec).suffix == ".py" and Path(file).suffix in (".yaml", ".yml"):
        raise typer.BadParameter("the spec comes first: mirage verify SPEC FILE")
    programs = [p for p, _ in read([Path(spec)], dim, dtype)]
    if re.fullmatch("[0-9a-f]{4,12}", file) and not Path(file).exists():
        with reading_store(db) as store:
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
        emit("verify", [answer])
    else:
        print_verdict(answer)
    if not answer["ok"]:
        raise typer.Exit(1)


def tell_all(answers: Sequence[Answer], summary: Summary | None, junit: Path | None, as_json: bool) -> None:
    """A line for each kernel that was judged, and what a CI system reads of it."""
    from mirage_cli.cli.layout import Column, Sheet

    cases = [Case(a.name, (a.id, a.gpu, a.claim if a.ok else "refused"), None if a.ok else a.claim) for a in answers]
    if as_json:
        emit("verify", (asdict(a) for a in answers))
    else:
        table = Sheet("", (Column("kernel"), Column("μGraph"), Column("GPU"), Column("", prose=True)))
        for a in answers:
            table.add(a.name, a.id, a.gpu, ("" if a.ok else "refused: ") + a.claim)
        out.print(table)
    if junit:
        write_junit(junit, "mirage verify", cases)
    if summary and not as_json:
        tell_github("mirage verify", ("μGraph", "GPU", "verdict"), cases)
    if not all(a.ok for a in answers):
        raise typer.Exit(1)


def print_verdict(answer: Mapping[str, object]) -> None:
    """What is known of a kernel in a line; of one that was refused, a line for each distribution of its data."""
    from mirage_cli.cli.layout import named

    tests = answer.get("distributions")
    if answer["ok"] or not isinstance(tests, dict) or not tests:
        out.print(answer["detail"])
        return
    out.print(f"{answer['claim']}: {sum(x is not None for x in tests.values())} of {len(tests)} distributions fail")
    out.print(named("", ((name, problem or "passes") for name, problem in tests.items())))
