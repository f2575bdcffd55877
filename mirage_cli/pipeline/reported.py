"""What a report tells of each program that the database has a kernel for.

Database ─► Section for each program and GPU: the newest result, its kernels, its rivals, its history
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.export import kernels_source
from mirage_cli.errors import TargetError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.kept import readable_graph, stored_program
from mirage_cli.pipeline.profile import KernelProfile, profile
from mirage_cli.pipeline.roofline import Roofline, bounds
from mirage_cli.store.records import PREDICTED, Best, Key, Measurement, StoredMuGraph
from mirage_cli.store.results import Result, Times
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target, find_target
from mirage_cli.verify.verdict import Verdict

RIVALS = ("eager", "compile", "library", "sdpa", "cudnn")
"""What `mirage bench` times beside the kernel, in the order in which a report shows it."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A call that does what the kernel does. which: the fastest of several; times are µs, None where not timed."""

    name: str
    chain_us: float | None
    alone_us: float | None
    which: str | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What one version of the software found."""

    key: Key
    best: Best


@dataclass(frozen=True, slots=True)
class Section:
    """One program on one GPU.

    history: oldest first; the last is what the rest is of. graph, program, bounds, target: None where this version
    cannot read them, or does not know the GPU. contestants: the kernel is not among them.
    """

    history: tuple[Moment, ...]
    name: str
    text: str
    program: Program | None
    target: Target | None
    graph: MuGraph | None
    profiles: tuple[KernelProfile, ...]
    bounds: Roofline | None
    verdict: Verdict | None
    contestants: tuple[Contestant, ...]
    source: str

    @property
    def key(self) -> Key:
        return self.history[-1].key

    @property
    def best(self) -> Best:
        return self.history[-1].best

    @property
    def result(self) -> Result:
        return self.best.result

    @property
    def gpu(self) -> str:
        return self.key.gpu_name

    @property
    def times(self) -> Times | None:
        """The kernel's, where it was measured."""
        return self.result.best.times if self.result.best else None


def sections(store: Database, wanted: Collection[str], gpu: str | None, warn: Callable[[str], None]) -> list[Section]:
    """Every program that is stored, in the order of the specs' names, then as they were found.

    wanted: hashes of programs; all, where there is none. gpu: of this one alone. What was predicted for a GPU is left
    out where it was measured there.
    """
    kept: dict[tuple[str, str], list[Moment]] = {}
    names: dict[str, str] = {}
    for e in store.list():
        if e.best is None or (wanted and e.key.program_hash not in wanted) or gpu not in (None, e.key.gpu_name):
            continue
        kept.setdefault((e.key.program_hash, e.key.gpu), []).append(Moment(e.key, e.best))
        names[e.key.program_hash] = e.spec
    chosen = {
        k: moments
        for k, moments in kept.items()
        if (k[0], k[1].removesuffix(PREDICTED)) not in kept or PREDICTED not in k[1]
    }
    ordered = sorted(chosen, key=lambda k: names[k[0]])
    found: list[Section] = []
    for which in ordered:
        moments = sorted(chosen[which], key=lambda m: m.best.at)
        found.append(_section(store, tuple(moments), names[which[0]], warn))
    return found


def _section(store: Database, history: tuple[Moment, ...], name: str, warn: Callable[[str], None]) -> Section:
    key, best = history[-1].key, history[-1].best
    spec = store.spec(key.program_hash)
    text = spec[1] if spec else ""
    program = stored_program(text, name, key, warn) if spec else None
    stored = next((m for m in store.mugraphs(key) if m.id == best.mugraph), None)
    graph = readable_graph(stored) if stored else None
    target = _target(key)
    schedule = best.result.best.schedule if best.result.best else None
    return Section(
        history=history,
        name=name,
        text=text,
        program=program,
        target=target,
        graph=graph,
        profiles=profile(graph, schedule, target) if graph else (),
        bounds=bounds(program, target) if program and target else None,
        verdict=_verdict(stored),
        contestants=tuple(_contestants(store, key, best)),
        source=kernels_source(graph, schedule) if graph and schedule and schedule.fits(graph) else "",
    )


def _target(key: Key) -> Target | None:
    try:
        return find_target(key.gpu_name)
    except TargetError:
        return None


def _verdict(stored: StoredMuGraph | None) -> Verdict | None:
    return Verdict.from_json(stored.verification) if stored and stored.verification else None


def _contestants(store: Database, key: Key, best: Best) -> Iterable[Contestant]:
    """What was timed last under each name; eager PyTorch also by the tuner, beside the kernel."""
    eager = best.result.best.eager if best.result.best else None
    for name in RIVALS:
        timed = [m for m in store.measurements(key, name) if m.median_us is not None]
        if timed:
            yield _contestant(name, timed)
        elif name == "eager" and eager is not None:
            yield Contestant(name, eager.chain_us, eager.alone_us)


def _contestant(name: str, timed: Sequence[Measurement]) -> Contestant:
    last = timed[-1]
    chain, alone = (statistics.median(x) if x else None for x in (last.samples_us, last.alone_samples_us))
    return Contestant(name, chain, alone, last.kernel)


def by_gpu(found: Iterable[Section]) -> Mapping[str, list[Section]]:
    groups: dict[str, list[Section]] = {}
    for s in found:
        groups.setdefault(s.gpu, []).append(s)
    return groups
