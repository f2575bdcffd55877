"""check_equivalence: structure first, then random tests in finite fields of the μGraph as scheduled, at reduced sizes.

What a passing verdict claims, and for which programs its bound is a theorem, is in docs/verification.md; `Verdict`
(verify/verdict.py) repeats it per result.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from mirage_cli.ir.access import (
    ENTRIES,
    FARTHEST,
    READ,
    apart,
    dims_of,
    is_injective,
    is_whole,
    large_enough,
    nested,
    of_positions,
    outside_tables,
    renames,
)
from mirage_cli.ir.drawn import PADDED
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store, split_axis
from mirage_cli.ir.ops import OPS, Type
from mirage_cli.ir.placement import InexpressibleError, place
from mirage_cli.ir.program import (
    Eqn,
    Program,
    Tensor,
    below,
    distinct_positions,
    equation,
    mixed,
    tensor_type,
    unmerged,
)
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.verify.degree import Claim, claim
from mirage_cli.verify.draws import Draw, blocks, run_draw, told
from mirage_cli.verify.interpret import run_mugraph, run_program
from mirage_cli.verify.proof import proved
from mirage_cli.verify.residues import LEVELS, NO_GUESSES, UNDEFINED, Levels, Value, aligned, compared_levels, same
from mirage_cli.verify.semantics import FloatSemantics, Named, ScheduleFailure
from mirage_cli.verify.squares import effort
from mirage_cli.verify.verdict import Verdict, accepted, refused

REDRAWS = 48
"""Draws in a row that may bring a test nothing, before it goes on at the least sizes, where fewer roots meet."""

LEAST_REDRAWS = 512
"""The same at the least sizes."""

ENOUGH = 8
"""Draws that tell something about an output, after which a μGraph that was never without doubt in it is refused."""

UNDEFINED_DRAWS = 8
"""Draws in which an element has no value in the program, a row that is masked out whole, say, after which it is let be.
"""

MASK_BITS = 24
"""Random bits behind every comparison in one test: tests of programs that compare are repeated until they are met."""


DYNAMIC_DRAWS = 3
"""Dynamic sizes that each test draws besides that of its other draws."""


DOUBTFUL = "signs under roots and logarithms were not checked"

IN_FLOAT64 = "what roots and logarithms left in doubt was compared in float64"

FLOAT64_DRAWS = 4
"""Draws in float64, every other of positive numbers alone."""

NEARLY = 1e-9
"""How far apart the results of one computation may be in float64, as a part of the largest."""


def check_equivalence(program: Program, graph: MuGraph, seed: int, tests: int = 2) -> Verdict:
    """Test a μGraph against its lowered program. Deterministic in the seed."""
    if problem := structure_problem(program, graph):
        return refused("structure", problem)
    proof = cache(lambda: proved(program, graph, same_axes(program, graph)))
    passed: list[Claim] = []
    for test in range(tests):
        for draw in range(1 + DYNAMIC_DRAWS * bool(graph.dynamic)):
            outcome = _test(program, graph, seed * 1009 + test, proof, draw)
            if isinstance(outcome, Verdict):
                return outcome
            passed.append(replace(outcome, bound=1.0) if draw else outcome)  # which may see less than the first draw
    return accepted(program, graph, passed, proof())


# -- one test


def _test(program: Program, graph: MuGraph, seed: int, proof: Callable[[], bool], draw: int) -> Verdict | Claim:
    """Run both on random inputs, again until draws have told something about every output and every comparison.

    Where roots meet, few draws have squares under all of them, and fewer the larger the sizes. Where none is found at
    the least sizes either, elements in doubt must agree; or, as they do not where a root is squared, say, all must in
    float64, if there is a proof of the algebra. draw: from the second on, at another dynamic size for the same tiles.
    """
    small = [small_instance(program, graph, seed, least=least) for least in (False, True)]
    if draw:
        small = [(sizes | dynamic_sizes(graph, s, seed)[draw - 1], s) for sizes, s in small]
    series = [Series(program, graph, *sizes_and_schedule, seed) for sizes_and_schedule in small]
    for s, idle in zip(series, (REDRAWS, LEAST_REDRAWS), strict=True):
        outcome = s.run(idle)
        if outcome is not None:
            return outcome
    if any(
        s.told[t.name] >= ENOUGH and not s.levels[t.name] and s.missing(t.name).any()
        for s in series
        for t in program.outputs
    ):
        return _refusal("roots and logarithms are never of squares where the program's are", f"seed {seed}")
    outcome = series[0].doubtful()
    return series[0].in_float64() if isinstance(outcome, Verdict) and proof() else outcome


class Series:
    """Draws at one choice of sizes and schedule.

    told: in how many draws the program told something about an output. unseen: its elements that were never compared.
    undefined: in how many draws each had no value. levels: the residues in which elements were compared. bits: the
    random bits behind the comparisons in the program, in draws that settled something, one of each block: `counted` is
    the last that gave an output any. entry_bits: of the entries of tables, in all these draws.
    """

    def __init__(self, program: Program, graph: MuGraph, sizes: dict[str, int], schedule: Schedule, seed: int) -> None:
        self.program, self.graph, self.schedule = program.resized(sizes), graph.resized(sizes), schedule
        self.seed, self.where = seed, f"seed {seed}, {_sizes(self.program)}, {_schedule(schedule)}".removesuffix(", ")
        self.told: Counter[str] = Counter()
        self.bits: Counter[str] = Counter()
        self.entry_bits: Counter[str] = Counter()
        self.counted: dict[str, range] = {}
        self.unseen = {t.name: np.ones([sizes[d] for d in t.dims], dtype=bool) for t in program.outputs}
        self.undefined = {name: np.zeros(x.shape, dtype=np.int64) for name, x in self.unseen.items()}
        self.levels: dict[str, set[Levels]] = {t.name: set() for t in program.outputs}

    def run(self, idle: int) -> Verdict | Claim | None:
        """A refusal, or what the test claims, or None after so many draws in a row that brought nothing, fewer where
        each takes long."""
        since, each = 0, effort(self.program.eqns, self.program.sizes)
        for block in blocks(self.program):
            if since >= idle:
                return None
            since += len(block) * each
            needed = frozenset(t.name for t in self.program.outputs if self.needs(t.name))
            certain = told(self.program, needed, self.seed, block)
            for n, draw in enumerate(block):
                useful = {name for name in needed if self.useful(name, certain[name][n], block)}
                self.told.update(useful)
                if not useful:
                    continue
                before = {name: self.left(name) for name in useful}
                run = run_draw(self.program, self.seed, block, draw)
                settled = self.compare(run, doubtful=False)
                if isinstance(settled, Verdict):
                    return settled
                for name in settled & useful:
                    self.entry_bits[name] += run.entry_bits
                    if self.counted.get(name) != block:
                        self.counted[name] = block
                        self.bits[name] += run.guesses
                    since = 0 if self.left(name) != before[name] else since
                if not any(self.needs(t.name) for t in self.program.outputs):
                    luck = ((run.guesses, self.bits), (run.entry_bits, self.entry_bits))
                    return self.claim(sum(2.0 ** -min(bits.values()) for n, bits in luck if n != NO_GUESSES))
        return None

    def missing(self, name: str) -> np.ndarray:
        """The elements of an output that a comparison may still settle."""
        return self.unseen[name] & (self.undefined[name] < UNDEFINED_DRAWS)

    def left(self, name: str) -> tuple[int, int, bool]:
        """What is left to learn of an output: elements, bits, and any level. A draw that changes nothing of it brings
        nothing: elements that the program settles and the μGraph leaves in doubt would be drawn for without end."""
        bits = min(self.bits[name], self.entry_bits[name], MASK_BITS)
        return int(self.missing(name).sum()), bits, bool(self.levels[name])

    def needs(self, name: str) -> bool:
        few = min(self.bits[name], self.entry_bits[name]) < MASK_BITS
        return bool(self.missing(name).any()) or not self.levels[name] or few

    def useful(self, name: str, certain: np.ndarray, block: range) -> bool:
        """Whether a draw with these elements without doubt says something that is still needed."""
        missing = self.missing(name)
        if missing.any():
            return bool((certain & missing).any())
        fresh = self.counted.get(name) != block or self.entry_bits[name] < MASK_BITS
        return self.needs(name) and fresh and bool(certain.any())

    def doubtful(self) -> Verdict | Claim:
        """One draw in which elements beyond roots of non-squares count too."""
        settled = self.compare(run_draw(self.program, self.seed, range(1), 0), doubtful=True)
        if isinstance(settled, Verdict):
            return settled
        if len(settled) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        claim = self.claim(0.0)
        return replace(claim, assumes=(*claim.assumes, DOUBTFUL))

    def in_float64(self) -> Verdict | Claim:
        """Whether both compute the same in float64, where positive numbers have roots. Of what a proof of the algebra
        leaves to tests (tiles, loops, maps, stores), no mistake is as small as rounding."""
        rng = np.random.default_rng(self.seed)
        sizes = self.program.sizes
        compared: set[str] = set()
        for n in range(FLOAT64_DRAWS):
            inputs = {t.name: Named(t.dims, _numbers(t, sizes, rng, positive=n % 2 > 0)) for t in self.program.inputs}
            semantics = FloatSemantics(sizes)
            results = run_program(self.program, inputs, semantics)
            try:
                found = run_mugraph(self.graph, self.schedule, inputs, semantics, self.seed, self.program)
            except ScheduleFailure as failure:
                return _refusal(str(failure), self.where)
            for t in self.program.outputs:
                got = found[t.name].data
                want = np.broadcast_to(aligned(results[t.name].data, results[t.name].dims, t.dims), got.shape)
                defined = np.isfinite(want)
                largest = np.abs(want[defined]).max(initial=0.0)
                with np.errstate(invalid="ignore"):  # of infinities, which are not compared
                    wrong = defined & ~(np.abs(got - want) <= NEARLY * largest)
                if wrong.any():
                    at = tuple(int(i) for i in np.argwhere(wrong)[0])
                    return _mismatch(t, at, f"{want[at]}", f"{got[at]}", f"in float64, {self.where}")
                compared |= {t.name} if defined.any() else set()
        if len(compared) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        claim = self.claim(0.0)
        return replace(claim, bound=1.0, assumes=(*claim.assumes, IN_FLOAT64))

    def claim(self, miss: float) -> Claim:
        """miss: bound on not seeing a wrong comparison."""
        found = claim(self.program, self.graph, [self.levels[t.name] for t in self.program.outputs])
        return replace(found, bound=min(1.0, found.bound + miss), at=self.where)

    def compare(self, run: Draw, *, doubtful: bool) -> Verdict | set[str]:
        """A refusal; or the outputs of which some element was compared."""
        try:
            found = run_mugraph(self.graph, self.schedule, run.inputs, run.semantics, self.seed, self.program)
        except ScheduleFailure as failure:
            return _refusal(str(failure), self.where)
        settled: set[str] = set()
        for t in self.program.outputs:
            want, got = run.want[t.name], found[t.name]
            if doubtful:
                want, got = replace(want, taint=None), replace(got, taint=None)
            want = _spread(t, want, got.shape)
            agree, sure = same(want, got)
            undefined = np.zeros(got.shape, dtype=bool) if want.flags is None else want.flags == UNDEFINED
            if (wrong := ~agree & sure & ~undefined).any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return _mismatch(t, at, _element(want, at), _element(got, at), self.where)
            if (sure & ~undefined).any():
                settled.add(t.name)
            self.levels[t.name] |= compared_levels(want, got, sure & ~undefined & self.unseen[t.name])
            self.unseen[t.name] &= ~sure | undefined
            self.undefined[t.name] += undefined
        return settled


def _spread(t: Tensor, x: Value, shape: tuple[int, ...]) -> Value:
    """A result of the program with the axes of its output, repeated along those that it lacks."""
    lead = 1 if x.kind == "field" else 0
    data = np.broadcast_to(aligned(x.data, x.dims, t.dims, lead), (*x.data.shape[:lead], *shape))
    flags = None if x.flags is None else np.broadcast_to(aligned(x.flags, x.dims, t.dims), shape)
    taint = None if x.taint is None else np.broadcast_to(aligned(x.taint, x.dims, t.dims, 1), (LEVELS, *shape))
    return replace(x, dims=t.dims, data=data, flags=flags, taint=taint)


def _refusal(detail: str, counterexample: str | None) -> Verdict:
    return refused("field", detail, counterexample)


def _mismatch(t: Tensor, at: tuple[int, ...], want: str, got: str, where: str) -> Verdict:
    element = f"{t.name}[{', '.join(f'{d}={i}' for d, i in zip(t.dims, at, strict=True))}]"
    return _refusal(f"computes another {t.name}", f"{element}: expected {want}, got {got}; {where}")


def _numbers(t: Tensor, sizes: Mapping[str, int], rng: np.random.Generator, *, positive: bool) -> np.ndarray:
    """Normal numbers, or their magnitudes; integers up to the largest size."""
    shape = [sizes[d] for d in t.dims]
    if tensor_type(t) == "int":
        most = below(t, sizes) or max(sizes.values()) + 1
        found = rng.choice(most, size=shape, replace=not t.distinct)
        return np.where(rng.integers(0, PADDED, size=shape) == 0, -1, found) if t.padded else found
    if tensor_type(t) == "bool":
        return rng.integers(0, 2, size=shape, dtype=np.bool_)
    x = rng.standard_normal(shape)
    return np.abs(x) if positive else x


def _element(x: Value, at: tuple[int, ...]) -> str:
    if x.flags is not None and x.flags[at]:
        return {1: "inf", -1: "-inf", 2: "undefined"}[int(x.flags[at])]
    if x.kind != "field":
        return str(x.data[at])
    residues = [str(int(x.data[(i, *at)])) for i, v in enumerate(x.valid) if v]
    return f"({', '.join(residues)})"


def _sizes(program: Program) -> str:
    return "sizes " + " ".join(f"{d}={n}" for d, n in program.dims)


def _schedule(schedule: Schedule) -> str:
    """The tile of every axis that a kernel cuts, and the number of its chunks."""
    kernels: list[str] = []
    for name, k in schedule.kernels.items():
        if k.tiles:
            chunks = f" and {k.split} chunks" if k.split > 1 else ""
            kernels.append(f"{name} in tiles of {' '.join(f'{d}={n}' for d, n in k.tiles)}{chunks}")
    return ", ".join(kernels)


# -- reduced sizes


class _Classes:
    """Axes that must have equal sizes, since one is loaded, stored or renamed as the other; or since they have, and
    nothing else says which axis of the program another one stands for."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def find(self, a: str) -> str:
        while self.parent.setdefault(a, a) != a:
            a = self.parent[a]
        return a

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)


def _classes(program: Program, graph: MuGraph) -> _Classes:
    classes = _Classes()
    for d in (*program.order, *graph.sizes):
        classes.find(d)
    for e in (*program.eqns, *(e for k in graph.kernels for e in k.body)):
        for d, i in e.names.items():
            if i.axis is not None and renames(d, i, graph.sizes | program.sizes):
                classes.join(d, i.axis)
    for d, i in graph.accesses():
        if i.axis is not None and (d == i.axis or renames(d, i, graph.sizes)):
            classes.join(d, i.axis)
    known = {classes.find(d) for d in (*program.order, *(name for name, _ in graph.merged))}
    for made_up in [d for d in graph.sizes if classes.find(d) not in known]:  # positions alone: only its size ties it
        for d, n in program.dims:
            if n == graph.sizes[made_up]:
                classes.join(made_up, d)
    return classes


def same_axes(program: Program, graph: MuGraph) -> Callable[[str], str]:
    """A name for all axes that are one (`_Classes`)."""
    return _classes(program, graph).find


def small_instance(
    program: Program, graph: MuGraph, seed: int, *, least: bool = False
) -> tuple[dict[str, int], Schedule]:
    """Reduced sizes and a schedule: several tiles along every grid, loop and split dimension, the last one short, also
    where it follows from the parts of a merged axis.

    Axes of one class get one size, and axes whose size is a number of the program (`size`) get sizes of their own, so
    that one is not taken for another. Chunk axes get no size: the schedule's split is theirs.

    least: the smallest sizes for which that can be said, with two tiles.
    """
    rng = random.Random(seed)
    classes = _classes(program, graph)
    sizes, uneven = _reduced_sizes(program, graph, classes, rng, least)
    return sizes, _reduced_schedule(graph, sizes, lambda d: classes.find(d) in uneven, rng, least)


def dynamic_sizes(graph: MuGraph, schedule: Schedule, seed: int) -> list[dict[str, int]]:
    """Sizes of the dynamic axes for these tiles: 1, about a tile, and several tiles with a short one last."""
    rng = random.Random(seed)
    some: dict[str, tuple[int, ...]] = {}
    for r in graph.dynamic:
        tile = max((dict(s.tiles).get(r.dim, 1) for s in schedule.kernels.values()), default=1)
        many = tile * rng.randint(2, 4) + rng.randint(1, max(1, tile - 1))
        some[r.dim] = 1, max(1, tile + rng.choice((-1, 0, 1))), many
    return mixed(some)


def _reduced_sizes(
    program: Program, graph: MuGraph, classes: _Classes, rng: random.Random, least: bool
) -> tuple[dict[str, int], set[str]]:
    """The sizes, and the classes of those that follow from others: from parts, or from what is read of an axis."""
    roles: dict[str, set[str]] = {}
    for k in graph.kernels:
        for d, role in k.roles:
            roles.setdefault(classes.find(d), set()).add(role)
    counted = {
        classes.find(e.axes[0]) for e in (*program.eqns, *(e for k in graph.kernels for e in k.body)) if e.op == "size"
    }
    size: dict[str, int] = {}
    for c in sorted({classes.find(d) for d in (*program.order, *graph.sizes)}):
        has = roles.get(c, set())
        cut = bool(has & {"split", "loop", "grid"})
        choices = [7, 5] if "split" in has else [5, 7] if "loop" in has else [3, 5, 7] if "grid" in has else [2, 3, 4]
        pick = choices[0] if cut else rng.choice(choices)
        if least:
            pick = 3 if cut else 2
        while c in counted and pick in (size[o] for o in counted if o in size):
            pick += 2
        size[c] = pick
    for name, parts in graph.merged:
        size[classes.find(name)] = prod(size[classes.find(p)] for p in parts)
    of_parts = {classes.find(name) for name, _ in graph.merged}
    whole = graph.sizes | program.sizes
    read = [(d, i) for d, i in (*program.accesses(), *graph.accesses()) if d in whole and not renames(d, i, whole)]
    for d in {a for of, i in read for a in (of, *i.dims)}:  # none longer than in the program: what is read is there
        size[classes.find(d)] = min(size[classes.find(d)], whole[d])
    sizes = {d: size[classes.find(d)] for d in (*program.order, *graph.sizes)}
    entries = READ if least else ENTRIES
    short, sizes = sizes, large_enough(sizes, read, whole, classes.find, entries, distinct_positions(program.inputs))
    return sizes, of_parts | {classes.find(d) for d, n in sizes.items() if n > short[d]}


def _reduced_schedule(
    graph: MuGraph, sizes: Mapping[str, int], uneven: Callable[[str], bool], rng: random.Random, least: bool
) -> Schedule:
    """Several tiles along every dimension, the last one short also where its size is `uneven`."""
    splits: dict[str, int] = {}
    kernels: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.kind == "library":
            continue
        if k.split:
            splits[k.split] = splits.get(k.split) or (2 if least else rng.choice((2, 2, 3)))
        tiles: list[tuple[str, int]] = []
        for d in k.with_role("grid", "split", "loop"):
            chunked = next((s for s in splits if split_axis(s) == d), None)
            if chunked is not None:
                tiles.append((d, 1 if splits[chunked] == 2 else 2))
            elif uneven(d):
                tiles.append((d, short_tile(sizes[d])))
            elif k.role(d) == "split":
                tiles.append((d, 1 if least else 2))
            else:
                tiles.append((d, 2 if sizes.get(d, 3) < 5 else rng.choice((2, 2, 3))))
        order = tuple(d for d, _ in k.roles)
        kernels[k.name] = KernelSchedule(tuple(tiles), order, split=splits[k.split] if k.split else 1)
    return Schedule(kernels)


def short_tile(size: int) -> int:
    """A tile of which a size takes two or more, up to about five, and the last of them short."""
    return next(t for t in range(max(2, size // 4), size) if size % t)


# -- structure


def structure_problem(program: Program, graph: MuGraph) -> str | None:
    """Why this μGraph cannot be a plan for the program, whatever it computes; None if it can."""
    try:
        _check_interface(program, graph)
        _check_buffers(program, graph)
        for k in graph.kernels:
            _check_kernel(k, graph)
        _check_changed(graph)
        _check_dynamic(program, graph)
    except _ProblemError as problem:
        return str(problem)
    return None


class _ProblemError(Exception):
    pass


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise _ProblemError(problem)


def _check_interface(program: Program, graph: MuGraph) -> None:
    parts = [p for _, parts in graph.merged for p in parts]
    made_up = {name for name, _ in graph.merged}
    _require(len({*parts}) == len(parts) and {*parts} <= {*program.order}, "an axis is merged twice, or not there")
    _require(not made_up & {*program.order}, "a merged axis is called like one of the program")
    inputs = {(t.name, t.dims, t.dtype, t.below, t.padded, t.distinct, t.own_strides) for t in program.inputs}
    for t in graph.inputs:
        own = (s for d, s in zip(t.dims, t.own_strides, strict=True) for s in _of_parts(d, s, graph))
        as_given = t.name, unmerged(t.dims, graph.merged), t.dtype, t.below, t.padded, t.distinct, tuple(own)
        _require(as_given in inputs, f"input {t} is not one of the program")
    want = [(t.name, t.dims, t.dtype) for t in program.results]
    got = [(t.name, unmerged(t.dims, graph.merged), t.dtype) for t in graph.outputs]
    _require(sorted(want) == sorted(got), "the outputs are not the program's")
    for d, n in program.dims:
        _require(graph.sizes.get(d, n) == n, f"{d} has another size than in the program")
    names = [t.name for t in (*graph.inputs, *graph.outputs, *graph.buffers)]
    _require(len(set(names)) == len(names), "two tensors have one name")
    _require(len({k.name for k in graph.kernels}) == len(graph.kernels), "two kernels have one name")


def _of_parts(d: str, stride: int | None, graph: MuGraph) -> tuple[int | None, ...]:
    """The strides of the axes that are merged in one: neighbours along the others are what those behind them take."""
    return (*[None] * (len(unmerged((d,), graph.merged)) - 1), stride)


def _check_dynamic(program: Program, graph: MuGraph) -> None:
    """Sizes that are arguments are those of the program. No block holds such an axis whole, and indices are the axis
    itself."""
    _require({*graph.dynamic} == {*program.dynamic}, "the dynamic axes are not the program's")
    dynamic, tensors = {r.dim for r in graph.dynamic}, graph.tensors()
    for k in graph.kernels:
        for d in sorted(dynamic & {*k.with_role("tile")}):
            raise _ProblemError(f"{k.name} holds the dynamic axis {d} whole")
        for e in k.body:
            _require(e.op != "rename" or not dynamic & e.acts_on, f"{k.name}: {e} reads elsewhere along a dynamic axis")
        for x in k.loads:
            pairs = zip(tensors[x.buffer].dims, x.access, strict=True)
            for a, i in nested(pairs, {name: t.dims for name, t in tensors.items()}):
                own = i.axis == a or not dynamic & {a, *outside_tables(i)}
                _require(own, f"{k.name} reads {x.buffer} along the dynamic axis {a} by {i}")
        for s in k.stores:
            for a, i in zip(tensors[s.buffer].dims, s.access, strict=True):
                own = i.axis == a or not dynamic & {a, *i.dims}
                _require(own, f"{k.name} stores along the dynamic axis {a} by {i}")


def _check_buffers(program: Program, graph: MuGraph) -> None:
    """Every buffer is written once before it is read, and every output as often as it has parts."""
    tensors = graph.tensors()
    given = {t.name for t in graph.inputs}
    writes = Counter(s.buffer for k in graph.kernels for s in k.stores)
    parts = Counter(p.tensor.name for p in program.parts)
    for name in (*(t.name for t in (*graph.outputs, *graph.buffers)), *program.changed):
        times = parts.get(name, 1)
        _require(writes[name] > 0, f"nothing writes {name}")
        _require(writes[name] >= times, f"only {writes[name]} of the {times} parts of {name} are written")
        _require(writes[name] == times, f"{name} is written {writes[name]} times")
    for x in (x for k in graph.kernels for x in k.loads if x.buffer in parts):
        _require(x.buffer in program.changed, f"{x.buffer} is written in parts, and read")
    for k in graph.kernels:
        for b in k.read:
            _require(b in tensors, f"{k.name} loads {b}, which does not exist")
            _require(b in given, f"{k.name} loads {b} before it is stored")
        _check_lookups(k, graph)
        for s in k.stores:
            _require(s.buffer in tensors, f"{k.name} stores {s.buffer}, which does not exist")
            overwritten = s.buffer in {t.name for t in graph.inputs} - program.changed
            _require(not overwritten, f"{k.name} overwrites the input {s.buffer}")
        given |= {s.buffer for s in k.stores}


def _check_changed(graph: MuGraph) -> None:
    """Tensors that are changed in place are not read where they are written."""
    stores = [s for k in graph.kernels for s in k.stores if s.buffer in graph.changed]
    for x in (x for k in graph.kernels for x in k.loads):
        own = (s for s in stores if s.buffer == x.buffer)
        meet = (s for s in own if not apart(x.access, s.access, graph.sizes, graph.distinct))
        _require(next(meet, None) is None, f"{x.buffer} is read where it is written")


def _check_kernel(k: Kernel, graph: MuGraph) -> None:
    tensors = graph.tensors()
    known: dict[str, Tensor | Eqn] = {}
    _require(len({d for d, _ in k.roles}) == len(k.roles), f"{k.name} gives a dimension two roles")
    _require(len(k.with_role("split")) <= 1, f"{k.name} splits two dimensions")
    chunk = split_axis(k.split) if k.split else None
    for x in k.loads:
        _check_axes(k, x, graph, None)
        _require(x.out not in known, f"{k.name} defines {x.out} twice")
        known[x.out] = Tensor(x.out, x.dims, tensors[x.buffer].dtype)
    order = tuple(d for d, _ in k.roles) or tuple(graph.sizes)
    for e in k.body:
        _require(e.out not in known, f"{k.name} defines {e.out} twice")
        _require(all(a in known for a in e.values), f"{k.name} uses {e.values} before they are known")
        _require(e.op in OPS, f"{k.name} has no operator {e.op}")
        try:
            again = equation(e.out, e.op, e.args, e.axes, known, order)
        except (ValueError, KeyError) as error:
            raise _ProblemError(f"{k.name}: {error}") from error
        _require((again.dims, again.type) == (e.dims, e.type), f"{k.name}: {e} should have the axes {again.dims}")
        _require(len(set(e.dims)) == len(e.dims), f"{k.name}: {e} has an axis twice")
        types = [_type(known[a]) if isinstance(a, str) else "float" for a in e.args]
        _require(all(types[i] == "bool" for i in OPS[e.op].masks), f"{k.name}: {e} needs a mask")
        known[e.out] = e
    placed = {a for e in k.body for a in e.acts_on if OPS[e.op].kind == "leaf"}
    used = {d for x in known.values() for d in x.dims} | placed
    if k.kind == "generated":
        roles = {d for d, _ in k.roles}
        leaves = {a for e in k.body if e.op == "size" for a in e.axes}
        _require(used - leaves <= roles, f"{k.name} gives no role to {', '.join(sorted(used - leaves - roles))}")
    for s in k.stores:
        _check_axes(k, s, graph, chunk)
        _require(s.value in known, f"{k.name} stores {s.value}, which it does not compute")
        value = known[s.value]
        repeated = set(s.dims) - set(value.dims) - {chunk}
        fits = set(value.dims) - {chunk} <= set(s.dims) and repeated <= set(k.with_role("grid", "tile"))
        _require(fits, f"{k.name} stores {s.value}[{', '.join(value.dims)}] as [{', '.join(s.dims)}]")
        _require(
            _type(value) != "float" or tensor_type(tensors[s.buffer]) == "float",
            f"{k.name} stores a float in {tensors[s.buffer]}",
        )
    if k.kind == "generated":
        try:
            place(k)
        except InexpressibleError as error:
            raise _ProblemError(f"{k.name} has no placement: {error.reason}") from error


def _check_lookups(k: Kernel, graph: MuGraph) -> None:
    """Tables are inputs of integers. Beyond their end they hold 0, as all tensors do."""
    inputs, sizes = {t.name: t for t in graph.inputs}, graph.sizes
    merging = {d for name, parts in graph.merged for d in (name, *parts)}
    for a in k.lookups:
        _require(a.table not in graph.changed, f"{k.name} looks up {a.table}, which is changed")
        t = inputs.get(a.table)
        known_table = t is not None and tensor_type(t) == "int" and (t.below, t.padded) == (a.below, a.padded)
        _require(known_table, f"{k.name} looks up {a}, which is no table of such integers")
        dims = t.dims if t is not None else ()
        _require(len(dims) == len(a.access), f"{k.name} gives {a.table} {len(a.access)} axes, not {len(dims)}")
        known = {*dims, *dims_of(a.access), *([a.below] if isinstance(a.below, str) else [])}
        _require(known <= {*sizes} and not known & merging, f"{k.name} looks up {a}")
        near = all(max(-low, high) <= FARTHEST for low, high in (i.bounds(sizes) for i in a.access))
        _require(near, f"{k.name} reads {a.table} far beyond its end")


def _check_axes(k: Kernel, x: Load | Store, graph: MuGraph, chunk: str | None) -> None:
    axes, access, does = graph.tensors()[x.buffer].dims, x.access, "reads" if isinstance(x, Load) else "stores"
    merging = {d for name, parts in graph.merged for d in (name, *parts)}
    _require(len(axes) == len(access), f"{k.name} gives {x.buffer} {len(access)} axes, not {len(axes)}")
    for a, i in zip(axes, access, strict=True):
        b = i.axis
        if b is None or ({a, b} <= {*graph.sizes} and graph.sizes[a] != graph.sizes[b]):
            _require({*i.dims, a} <= {*graph.sizes} and not {*i.dims, a} & merging, f"{k.name} {does} {a} by {i}")
            low, high = (i if isinstance(x, Load) else of_positions(i)).bounds(graph.sizes)
            near = max(-low, high) <= FARTHEST if isinstance(x, Load) else low >= 0 and high < graph.sizes[a]
            _require(near, f"{k.name} {does} {x.buffer} along {a} from {low} to {high}")
            continue
        sizes = graph.sizes.get(a), graph.sizes.get(b)
        fits = sizes[0] == sizes[1] if None not in sizes else sizes == (None, None) and a == b
        fits = fits and (a == b or not {a, b} <= merging)
        _require(fits, f"{k.name} takes the axis {a} of {x.buffer} for {b}")
        _require(b in graph.sizes or b == chunk or isinstance(x, Load), f"{k.name} stores along {b}")
    if isinstance(x, Store):
        known = graph.sizes | dict.fromkeys({*x.dims} - {*graph.sizes}, 1)
        _require(is_injective(access, known, graph.distinct), f"{k.name} stores elements of {x.buffer} twice")
    whole = is_whole(access, axes, graph.sizes)
    _require(whole or k.kind == "generated", f"{k.name} {does} {x.buffer} by indices, which no library does")


def _type(value: Tensor | Eqn) -> Type:
    return value.type if isinstance(value, Eqn) else tensor_type(value)
