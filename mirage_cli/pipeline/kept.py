"""What the database keeps of a program: what was searched, the best kernel with its source, and what answers again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import ExportInfo, kernels_source
from mirage_cli.codegen.sized import Variant, any_source
from mirage_cli.errors import MirageError, NothingStoredError, StoredKernelError, UnknownIdError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import MuGraphTextError, canonical_text, mugraph_id, parse_mugraph
from mirage_cli.pipeline.problem import key_of, program_hash, versions
from mirage_cli.pipeline.searching import Found, Options, Plan
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.records import Best, Key, Shown, StoredMuGraph, StoredSearch
from mirage_cli.store.results import Kernel, Result
from mirage_cli.store.store import Store
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.equivalence import Verdict, check_equivalence


def stored_result(session: Session, key: Key) -> Result | None:
    """The result of an earlier run that answers what is asked, if it is there and nothing asks for a new one."""
    best = session.store.best(key)
    if session.options.fresh or best is None or not answers(best.result, session.options, session.measures):
        return None
    return replace(claimed(session.store, best.result), cached=True)


def answers(result: Result, wanted: Options, measures: bool) -> bool:
    """Whether an earlier run was asked at least as much as this one, and came to its end."""
    was, stopped = result.asked, result.search.stopped
    if was is None or not result.complete or stopped == "interrupted":  # None: of a version that did not say
        return False
    in_time = stopped == "exhausted" or was.budget_s >= wanted.budget_s
    same = was.seed == wanted.seed and was.top == wanted.top and was.tune >= wanted.tune
    return in_time and same and (not measures or was.context == wanted.context)


def has_kernel(session: Session, program: Program) -> bool:
    """Whether there is a kernel, whatever was asked when it was found."""
    return session.store.best(key_of(program, session.target, session.measures)) is not None


def keep_search(session: Session, program: Program, text: str, found: Found) -> Key:
    """Stores what the search has found. text: the spec's."""
    key = key_of(program, session.target, session.measures)
    session.store.put_spec(key.program_hash, program.name, text)
    session.store.put_mugraphs(
        key,
        [
            StoredMuGraph(p.id, canonical_text(p.graph), i, len(p.graph.kernels), p.predicted_us, asdict(p.verdict))
            for i, p in enumerate(found.plans)
        ],
    )
    stats = asdict(found.stats)
    ids = [p.id for p in found.plans]
    session.store.put_search(key, StoredSearch(session.options.seed, ids, stats, found.stopped, found.seconds))
    return key


def keep_best(session: Session, program: Program, key: Key, graph: MuGraph, result: Result, over: Best | None) -> None:
    """Stores a result with its best kernel's source. over: the stored one that it was compared with, and replaces."""
    best = result.best
    assert best is not None, "a result without a kernel has none to keep"
    info = info_of(best, session.command, session.target.name)
    source = any_source(Variant(program, graph, best.schedule, info))
    schedule = best.schedule.to_json()
    row = Best(mugraph_id(graph), best.status, best.us, schedule, source, result)
    session.store.put_best(key, row, over=over)


def info_of(best: Kernel, command: str, gpu: str) -> ExportInfo:
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


def claimed(store: Store, result: Result) -> Result:
    """A result whose kernels say what is known of their being right, as `mirage verify` does."""

    def claim(id: str) -> str | None:
        verdict = verdict_of(store, id)
        return verdict and verdict.claim

    return result.claiming(claim)


def verdict_of(store: Store, id: str) -> Verdict | None:
    """What the verifier said when this μGraph was stored; None where it has been removed since."""
    try:
        found = [s.mugraph.verification for s in store.show(id) if s.mugraph.verification is not None]
    except UnknownIdError:
        return None
    return Verdict.from_json(found[0]) if found else None


def readable_graph(stored: StoredMuGraph) -> MuGraph | None:
    """The μGraph; None where it is of a version of other operators, or no μGraph."""
    try:
        return parse_mugraph(stored.text)
    except MuGraphTextError:
        return None


def stored_search(store: Store, program: Program) -> Found:
    """The μGraphs that some search stored for this program, on whatever machine, as a search result. Raises
    NothingStoredError."""
    stored = store.mugraphs_of(program_hash(program), program.dims, program.dtype)
    plans: dict[str, Plan] = {}
    for m in stored:
        if m.verification is not None and (graph := readable_graph(m)) is not None:
            verdict = Verdict.from_json(m.verification)
            plans.setdefault(m.id, Plan(m.id, graph, Schedule({}), m.predicted_us or 0.0, verdict))
    if not plans:
        raise NothingStoredError(program.name, program.sizes)
    return Found(tuple(plans.values()), "", 0, 0, 0, {}, (), "stored", 0.0)


@dataclass(frozen=True, slots=True)
class Written:
    """The file of a stored kernel, written by this version from its μGraph and schedule. The text that was stored is
    never run: it may be anybody's. differs: whether it was another than this, its header apart."""

    source: str
    graph: MuGraph
    schedule: Schedule
    verdict: Verdict
    differs: bool


def written_anew(store: Store, program: Program, key: Key, best: Best, seed: int = 0) -> Written:
    """A stored kernel, whose μGraph is verified anew. Raises StoredKernelError."""
    command = best.result.asked.command if best.result.asked else ""
    variant, verdict = checked_variant(store, program, key, best, command, seed)
    source = any_source(variant)
    differs = _without_header(source) != _without_header(best.source)
    if differs:  # its figures are of another text
        source = any_source(replace(variant, info=replace(variant.info, measured=False, time_us=None, error=None)))
    return Written(source, variant.graph, variant.schedule, verdict, differs)


def checked_variant(
    store: Store, program: Program, key: Key, best: Best, command: str, seed: int = 0
) -> tuple[Variant, Verdict]:
    """What a stored kernel is written from. Raises StoredKernelError where it is not there, does not compute the
    program, or cannot be written."""

    def refuse(problem: str) -> StoredKernelError:
        return StoredKernelError(program.name, best.mugraph, problem)

    graph = next((g for m in store.mugraphs(key) if m.id == best.mugraph and (g := readable_graph(m))), None)
    schedule = Schedule.from_json(best.schedule)
    if graph is None or best.result.best is None:
        raise refuse("has no μGraph in the database that this version can read")
    if mugraph_id(graph) != best.mugraph or not schedule.fits(graph):
        raise refuse("is of another μGraph than the one that is stored under its id")
    verdict = check_equivalence(lower(program), graph, seed)
    if not verdict.ok:
        raise refuse(f"does not compute the program: {verdict}")
    info = info_of(best.result.best, command, key.gpu.removesuffix(" (predicted)"))
    try:
        kernels_source(graph, schedule)
    except (EmitError, ValueError) as error:
        raise refuse(f"cannot be written by this version: {error}") from None
    return Variant(program, graph, schedule, info), verdict


def _without_header(source: str) -> str:
    """The text behind the first docstring, which has times and versions."""
    return source.split('"""', 2)[-1]


def export_all(store: Store, found: Sequence[tuple[Program, Key, Best]], command: str) -> str:
    """One file of the best kernels of several sizes of a spec. Raises MirageError."""
    return any_source(*(checked_variant(store, *one, command)[0] for one in found))


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


def stored_program(text: str, name: str, key: Key, warn: Callable[[str], None]) -> Program | None:
    """The program of a key, from its spec; None, with a warning, where this version cannot read that."""
    try:
        program = parse_spec(text, f"<stored {name}>").at(dict(key.dims), key.dtype)
    except MirageError as error:
        warn(str(error))
        return None
    return program if program_hash(program) == key.program_hash else None
