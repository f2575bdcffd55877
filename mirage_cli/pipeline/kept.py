"""What the database keeps of a program: what was searched, and what answers again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from mirage_cli.errors import MirageError, NothingStoredError, UnknownIdError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import MuGraphTextError, canonical_text, parse_mugraph
from mirage_cli.pipeline.keys import key_of, program_hash
from mirage_cli.pipeline.searching import Found, Options, Plan
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.records import Key, StoredMuGraph
from mirage_cli.store.results import Result
from mirage_cli.store.store import Database
from mirage_cli.verify.verdict import Verdict


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
    tuning = result.tuning.stopped if measures and result.tuning else "exhausted"
    nothing_left = stopped == tuning == "exhausted" and not (wanted.tune and result.unchecked)
    in_time = nothing_left or was.budget_s >= wanted.budget_s
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
    return key


def claimed(store: Database, result: Result) -> Result:
    """A result whose kernels say what is known of their being right, as `mirage verify` does."""

    def claim(id: str) -> str | None:
        verdict = verdict_of(store, id)
        return verdict and verdict.claim

    return result.claiming(claim)


def verdict_of(store: Database, id: str) -> Verdict | None:
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


def stored_search(store: Database, program: Program) -> Found:
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
    return Found(
        plans=tuple(plans.values()),
        as_written="",
        classes=0,
        nodes=0,
        enumerated=0,
        pruned={},
        rejected=(),
        stopped="stored",
        seconds=0.0,
    )


def stored_program(text: str, name: str, key: Key, warn: Callable[[str], None]) -> Program | None:
    """The program of a key, from its spec; None, with a warning, where this version cannot read that."""
    try:
        program = parse_spec(text, f"<stored {name}>").at(dict(key.dims), key.dtype)
    except MirageError as error:
        warn(str(error))
        return None
    return program if program_hash(program) == key.program_hash else None
