"""The files of stored kernels: written when a best is found, and anew whenever one is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import ExportInfo, kernels_source
from mirage_cli.codegen.sized import Variant, any_source
from mirage_cli.errors import MirageError, StoredKernelError, TargetError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import mugraph_id, parse_mugraph
from mirage_cli.pipeline.kept import readable_graph
from mirage_cli.pipeline.keys import program_hash, versions
from mirage_cli.pipeline.serving import fastest, with_others
from mirage_cli.pipeline.session import Session
from mirage_cli.store.records import Best, Key, Shown
from mirage_cli.store.results import KernelResult, Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.verdict import Verdict


def keep_best(session: Session, program: Program, key: Key, graph: MuGraph, result: Result, over: Best | None) -> None:
    """Stores a result with its best kernel's source. over: the stored one that it was compared with, and replaces."""
    best = result.best
    assert best is not None, "a result without a kernel has none to keep"
    info = info_of(best, session.command, session.target.name)
    source = any_source(Variant(program, graph, best.schedule, info))
    keep_kernel(session.store, key, source, result, over)


def keep_kernel(store: Database, key: Key, source: str, result: Result, over: Best | None) -> None:
    """Stores a result, of whose best kernel this is the file. over: as of `keep_best`."""
    best = result.best
    assert best is not None, "a result without a kernel has none to keep"
    store.put_best(key, Best(best.id, best.status, best.us, best.schedule.to_json(), source, result), over=over)


def info_of(best: KernelResult, command: str, gpu: str) -> ExportInfo:
    """What an exported file says of a kernel."""
    return ExportInfo(
        command=command,
        target=gpu,
        versions=versions(),
        measured=best.times is not None,
        time_us=best.us,
        floor_us=best.floor_us,
        eager_us=best.eager_us,
        error=best.error,
        eager_error=best.eager_error,
        checked=best.checked,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """The file of a stored kernel, written by this version from its μGraph and schedule. The text that was stored is
    never run: it may be anybody's. differs: whether it was another than this, its header apart."""

    source: str
    graph: MuGraph
    schedule: Schedule
    verdict: Verdict
    differs: bool


def written_anew(store: Database, program: Program, key: Key, best: Best, seed: int = 0) -> Written:
    """A stored kernel, whose μGraph is verified anew. Raises StoredKernelError."""
    command = best.result.asked.command if best.result.asked else ""
    variant, verdict = checked_variant(store, program, key, best, command, seed)
    source = any_source(variant)
    differs = without_header(source) != without_header(best.source)
    if differs:  # its figures are of another text
        source = any_source(replace(variant, info=replace(variant.info, measured=False, time_us=None, error=None)))
    return Written(source, variant.graph, variant.schedule, verdict, differs)


def checked_variant(
    store: Database, program: Program, key: Key, best: Best, command: str, seed: int = 0
) -> tuple[Variant, Verdict]:
    """What a stored kernel is written from. Raises StoredKernelError where it is not there, does not compute the
    program, or cannot be written."""
    if best.result.best is None:
        raise StoredKernelError(program.name, best.mugraph, "is of a result without a kernel")
    info = info_of(best.result.best, command, key.gpu_name)
    variant = read_variant(store, program, key, best.mugraph, Schedule.from_json(best.schedule), info)
    return variant, checked(variant, seed)


def read_variant(
    store: Database, program: Program, key: Key, mugraph: str, schedule: Schedule, info: ExportInfo
) -> Variant:
    """A stored μGraph with a schedule of it. Raises StoredKernelError where it is not there."""
    graph = next((g for m in store.mugraphs(key) if m.id == mugraph and (g := readable_graph(m))), None)
    if graph is None:
        raise StoredKernelError(program.name, mugraph, "has no μGraph in the database that this version can read")
    if mugraph_id(graph) != mugraph or not schedule.fits(graph):
        problem = "is of another μGraph than the one that is stored under its id"
        raise StoredKernelError(program.name, mugraph, problem)
    return Variant(program, graph, schedule, info)


def checked(v: Variant, seed: int = 0) -> Verdict:
    """What the verifier says of it now. Raises StoredKernelError where it does not compute the program, or cannot be
    written."""
    verdict = check_equivalence(lower(v.program), v.graph, seed)
    if not verdict.ok:
        raise StoredKernelError(v.program.name, mugraph_id(v.graph), f"does not compute the program: {verdict}")
    try:
        kernels_source(v.graph, v.schedule)
    except (EmitError, ValueError) as error:
        problem = f"cannot be written by this version: {error}"
        raise StoredKernelError(v.program.name, mugraph_id(v.graph), problem) from None
    return verdict


def without_header(source: str) -> str:
    """The text behind the first docstring, which has times and versions."""
    return source.split('"""', 2)[-1]


def export_all(store: Database, found: Sequence[tuple[Program, Key, Best]], command: str) -> str:
    """One file of the best kernels of several sizes of a spec, all of one GPU, and of those that are kept for dynamic
    sizes near these as far as they are expected to bring anything. Raises MirageError."""
    bests = [checked_variant(store, *one, command)[0] for one in found]
    try:
        target = find_target(found[0][1].gpu_name)
    except TargetError:  # a GPU that has no figures of its own
        return any_source(*bests)
    others: list[Variant] = []
    for program, key, best in found:
        for x in best.result.nearby:
            info = ExportInfo(command, target.name, versions(), measured=True, time_us=x.time_us, checked=True)
            others.append(read_variant(store, program, key, x.id, x.schedule, info))
    chosen = with_others(bests, others, target) if others else bests
    for v in chosen[len(bests) :]:
        checked(v)
    return any_source(*chosen, serves=fastest(target))


def export_plan(found: Sequence[Shown], programs: Sequence[Program], id: str, command: str) -> tuple[Shown, str]:
    """The export of a stored μGraph, at its fastest measured schedule or the cost model's, of the first of these keys
    that is of one of the programs. Raises MirageError."""
    for s in found:
        program = next((p for p in programs if program_hash(p) == s.key.program_hash), None)
        if program is None:
            continue
        graph = parse_mugraph(s.mugraph.text)
        if not (verdict := check_equivalence(lower(program), graph, 0)).ok:
            raise StoredKernelError(program.name, s.mugraph.id, f"does not compute the program: {verdict}")
        timed = [m for m in s.measurements if m.median_us is not None and Schedule.from_json(m.schedule).fits(graph)]
        info = ExportInfo(command=command, target=s.key.gpu, versions=versions(), measured=bool(timed))
        if timed:
            best = min(timed, key=lambda m: m.median_us or 0.0)
            return s, any_source(Variant(program, graph, Schedule.from_json(best.schedule), info))
        schedules = first_schedules(graph, find_target(s.key.gpu.split()[0]), 1)
        if schedules:
            return s, any_source(Variant(program, graph, schedules[0], info))
    raise MirageError(f"no μGraph of this spec is stored under {id}; `mirage cache list` says what is")
