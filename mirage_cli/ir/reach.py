"""How far a loop has to go: masks on positions say which tiles change nothing, and which need no mask.

In causal attention, `where(index(s) <= index(q), A, -inf)`, tiles of s behind the last q of the block leave every
accumulator as it is: the maximum of -inf, sums of exp(-inf) = 0. Nothing here knows of attention: a mask is any
comparison that is linear in the loop's position, and what a false one leads to is worked out operator by operator; so
is what a true one does, in `where(index(s) > index(q), -inf, A)`. |s - x| <= y and s // n == x are two such comparisons
together, and x may be any integer that positions make, such as the nearest to q that is not at an edge. A mask that
does not depend on the loop's position, `where(index(m) < L, dot(A, B, k), 0)`, leaves all of the loop out of program
instances in which it holds nowhere.

A chunk of a split loop that masks leave nothing to do would store what its accumulators start with: the identities of
their reductions. It stores nothing, and kernels behind know its partial results by the same masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import combinations
from math import inf, isnan, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Atom, Index, Lookup, index, is_plain
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.beside import beside
from mirage_cli.ir.drawn import skewed
from mirage_cli.ir.mugraph import Kernel, MuGraph, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import Loop, place
from mirage_cli.ir.program import Arg, Eqn, Tensor, below, tensor_type

Leaf = tuple[str, str]
"""("index", d), the position along d; ("size", d), of the axis d; ("value", v), a loaded integer that does not change
in the loop; or ("made", v), an integer that positions make otherwise than as a sum."""
SAMPLES = 17
"""Positions along an axis, or integers of a tensor, that stand for all."""
MOST_SAMPLES = 17**3
"""Places that stand for all that several axes and integers have together: of more than three, each has fewer."""
MAX_INTEGER = 1 << 30
"""Of tables that declare no end: positions are counted in 32 bits."""


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum of coefficient · leaf, plus a constant."""

    terms: tuple[tuple[Leaf, int], ...]
    constant: int

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        terms = dict(self.terms)
        for leaf, c in other.terms:
            terms[leaf] = terms.get(leaf, 0) + factor * c
        kept = tuple((leaf, c) for leaf, c in terms.items() if c)
        return Linear(kept, self.constant + factor * other.constant)

    def scaled(self, factor: int) -> Linear:
        return Linear((), 0).plus(self, factor)


ONE = Linear((), 1)


@dataclass(frozen=True, slots=True)
class Made:
    """An integer that equations make of positions along one axis; the last is its own."""

    dim: str
    eqns: tuple[Eqn, ...]

    def at(self, sizes: Mapping[str, int], samples: int) -> NDArray[np.float64]:
        """The integers at so many positions."""
        size, known = sizes[self.dim], dict[str, NDArray[np.float64]]()
        for e in self.eqns:
            if e.place is not None:
                made = e.place.positions((self.dim,), {self.dim: (0, size)})
            elif e.op == "size":
                made = np.asarray(sizes[e.axes[0]])
            else:
                made = OPS[e.op].ref(*(known[a] if isinstance(a, str) else float(a) for a in e.args))
            known[e.out] = np.asarray(made, np.float64)
        every = np.broadcast_to(known[self.eqns[-1].out], (size,))
        return every[np.linspace(0, size - 1, samples).astype(np.int64)]


def made_by(kernel: Kernel, value: str) -> Made | None:
    """How a kernel makes an integer of positions along one axis; None where it does not."""
    eqns, found = {e.out: e for e in kernel.body}, dict[str, Eqn]()
    todo = [value]
    for v in todo:
        if v not in eqns:
            return None
        found[v] = eqns[v]
        todo += [x for x in eqns[v].values if x not in todo]
    dims = {d for e in found.values() for d in e.dims}
    return Made(dims.pop(), tuple(e for e in kernel.body if e.out in found)) if len(dims) == 1 else None


@dataclass(frozen=True, slots=True)
class Limit:
    """Where `mask` is `holds`, the loop's position is at most `limit` (or at least, for a lower one). A mask that lets
    through holds there, and one that hides does not.

    dim: the dimension of the loop. Of a loop over several together, that is the outermost.
    unless: another one, beyond which the position has to be too for an iteration to change nothing: of
    `index(s) > index(q) - 512 or index(s) < 4`, say.
    steady: the mask does not depend on the position, and is `holds` where `limit` is at least 0.
    """

    mask: str
    dim: str
    lower: bool
    limit: Linear
    holds: bool = True
    unless: Limit | None = None
    steady: bool = False

    @property
    def all(self) -> tuple[Limit, ...]:
        """This one and the other."""
        return (self,) if self.unless is None else (self, self.unless)

    @property
    def leaves(self) -> frozenset[Leaf]:
        """What the limits depend on."""
        return frozenset(leaf for x in self.all for leaf, _ in x.limit.terms)

    @property
    def parts(self) -> bool:
        """Whether iterations change something in front of a gap, and behind it."""
        return self.unless is not None and self.lower != self.unless.lower


def limits(kernel: Kernel, loop: Loop) -> tuple[Limit, ...]:
    """The limits of a loop: iterations beyond any of them change nothing. What has a gap has a lower one, and an upper
    one that it is joined to. Of a loop over several dimensions together, those along the first that has any: it has no
    gap, and is not split."""
    if loop.stores or (len(loop.dims) > 1 and kernel.split in loop.dims):
        return ()
    if len(loop.dims) == 1:
        return _limits_along(kernel, loop, loop.dims[0])
    along = (_limits_along(kernel, loop, d) for d in loop.dims)
    plain = (tuple(x for x in found if x.unless is None and not x.steady) for found in along)
    return next(filter(None, plain), ())


def _limits_along(kernel: Kernel, loop: Loop, dim: str) -> tuple[Limit, ...]:
    reader = _Reader(kernel, dim)
    steps = [e for e in loop.steps if isinstance(e, Eqn)]
    some = [x for e in steps for holds in (True, False) for x in reader.limits(e, holds)]
    found = [x for x in some if idle(loop, {x.mask: not x.holds})]
    ordered = {e.out for e in steps if OPS[e.op].order}
    alone = {x for x, count in Counter((x.mask, x.holds) for x in some).items() if count == 1}
    others = [x for x in some if x.mask in ordered and (x.mask, x.holds) in alone and x not in found]
    others.sort(key=lambda x: not x.lower)
    pairs = [(x, y) for x, y in combinations(others, 2) if x.mask != y.mask]
    joined = [(x, y) for x, y in pairs if idle(loop, {x.mask: not x.holds, y.mask: not y.holds})]
    outside = [x for e in kernel.body if e not in steps for holds in (True, False) for x in reader.limits(e, holds)]
    kept_out = [x for x in outside if x.steady and _in_vain(kernel, loop, {x.mask: not x.holds})]
    return (*found, *(replace(x, unless=y) for x, y in joined), *kept_out)


def _in_vain(kernel: Kernel, loop: Loop, masks: Mapping[str, bool]) -> bool:
    """Whether a loop changes nothing where these masks are that everywhere, or nothing that is stored."""
    known = {mask: float(says) for mask, says in masks.items()}
    for e in kernel.body:
        if e.type == "bool" and e not in loop.steps and e.out not in known and (x := known_value(e, known)) is not None:
            known[e.out] = x
    says = {mask: bool(x) for mask, x in known.items()}
    return idle(loop, says) or _needed_of(kernel.body, {s.value for s in kernel.stores}, says).isdisjoint(
        name for name, _ in loop.accumulators
    )


class Visited(NamedTuple):
    """The part of a loop that its limits leave: in the mean over the positions and integers that they depend on, and
    the most; and where it begins and ends for each of them, as parts of the loop."""

    mean: float = 1.0
    most: float = 1.0
    begins: NDArray[np.float64] = np.zeros(1)
    ends: NDArray[np.float64] = np.ones(1)

    def touched(self, count: int) -> float:
        """The part that so many of these positions and integers visit together, each its own."""
        return min(float(self.ends.max() - self.begins.min()), 1.0 - (1.0 - self.mean) ** count)

    def in_work(self, chunks: int) -> float:
        """The part of so many chunks of the loop that have any of it."""
        touched = np.ceil(self.ends * chunks) - np.floor(self.begins * chunks)
        return float(np.where(self.ends > self.begins, touched, 0.0).mean() / chunks)


def visited(
    found: Sequence[Limit],
    sizes: Mapping[str, int],
    integers: Mapping[str, Tensor | Made],
    rows: Mapping[str, int] | None = None,
    tile: int = 1,
) -> Visited:
    """integers: of values that are loaded, the tensors; of others, how they are made. A limit by one that may have any
    integers counts as none. rows: of those that are loaded, the integers of one tile, where these are several: the loop
    goes as far as one of them asks for.
    And of axes, the positions of one tile, for masks that leave out all of a loop. tile: of the loop."""
    leaves = sorted({leaf for x in found for leaf in x.leaves})
    many = rows or {}
    tables = {y: t.name for y in leaves if isinstance(t := integers.get(y[1]), Tensor) and t.drawn == "sorted"}
    read = Counter(tables.values())
    along = {y: ("index", t.dim) for y in leaves if isinstance(t := integers.get(y[1]), Made)}
    group = {y: tables.get(y) or along.get(y, y) for y in leaves}
    each = max(2, min(SAMPLES, int(MOST_SAMPLES ** (1 / max(len({*group.values()}), 1)) + 1e-9)))
    drawn = ((y, _samples(y, sizes, integers, many.get(y[1], 1), each, read[tables.get(y, "")] > 1)) for y in leaves)
    samples = {y: s for y, s in drawn if s is not None}
    known = [x for x in found if all(leaf in samples for leaf in x.leaves)]
    if not known:
        return Visited()
    size = sizes[known[0].dim]
    counts = {group[y]: len(least) for y, (least, _) in samples.items()}
    shape = tuple(counts.values())
    places = dict(zip(counts, np.indices(shape), strict=True))
    at = {y: (least[places[group[y]]], most[places[group[y]]]) for y, (least, most) in samples.items()}
    first, last = np.zeros(shape), np.full(shape, size)
    gap: tuple[NDArray[np.float64], ...] = ()
    for x in known:
        ends = [_extreme(y, at, many if x.steady else {}) for y in x.all]
        if x.steady:
            last = np.where(ends[0] < 0, 0, last)
        elif x.parts:
            gap = gap or (ends[1] + 1, ends[0])
        elif x.lower:
            first = np.maximum(first, reduce(np.minimum, ends))
        else:
            last = np.minimum(last, reduce(np.maximum, ends) + 1)
    if tile > 1:  # integers that are drawn are no whole numbers here
        whole = np.minimum((np.floor((last - 1) / tile) + 1) * tile, size)
        first, last = np.floor(first / tile) * tile, np.where(last > first, whole, 0)
    work = np.clip(last - first, 0, size)
    if gap:
        work = work - np.clip(np.minimum(gap[1], last) - np.maximum(gap[0], first), 0, work)
    begins, ends = (np.clip(x, 0, size) / size for x in np.broadcast_arrays(first, last))
    return Visited(float((work / size).mean()), float((work / size).max()), begins, ends)


Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Of the tiles that stand for all, the least and the most that a leaf is in each."""


def _extreme(x: Limit, at: Mapping[Leaf, Samples], tiles: Mapping[str, int]) -> NDArray[np.float64]:
    """The least that a lower limit is in each tile, and the most that an upper one is. tiles: how many positions of an
    axis each has."""
    terms = (c * at[leaf][(c > 0) != x.lower] for leaf, c in x.limit.terms)
    ahead = sum(c * (tiles.get(name, 1) - 1) for (kind, name), c in x.limit.terms if kind == "index" and c > 0)
    return np.asarray(x.limit.constant + sum(terms) + ahead, np.float64)


def _samples(
    leaf: Leaf,
    sizes: Mapping[str, int],
    integers: Mapping[str, Tensor | Made],
    rows: int,
    samples: int,
    beside: bool,
) -> Samples | None:
    """So many of what a leaf can be, each as likely as any other. Of several integers that are drawn evenly between 0
    and 1, the least is 1 / (rows + 1) in the mean; of sorted ones, a tile has neighbours. beside: of which the next
    counts too, as another leaf."""
    kind, name = leaf
    if kind == "size":
        size = np.asarray([sizes[name]], np.float64)
        return size, size
    if kind == "index":
        positions = np.linspace(0, max(sizes[name] - rows, 0), samples)
        return positions, positions
    t = integers.get(name)
    if isinstance(t, Made):
        made = t.at(sizes, samples)
        return made, made
    most = below(t, sizes) if t is not None else None
    if t is None or most is None:
        return None
    count = prod(sizes[d] for d in t.dims)
    if count == 1:
        only = np.asarray([most - 1], np.float64)  # as `verify.testdata` has it where figures of speed count
        return only, only
    drawn = skewed(samples, most) if t.drawn == "skewed" else np.linspace(0, most - 1, samples)
    spread = min(1.0, (rows - 1 + beside) / (count if t.drawn == "sorted" else rows + 1))
    places = np.linspace(0, 1, samples)
    least, most_of = (np.interp(places * (1 - spread) + more, places, np.sort(drawn)) for more in (0, spread))
    return least, most_of


def idle(loop: Loop, masks: Mapping[str, bool]) -> bool:
    """Whether an iteration in which these masks are that everywhere leaves every accumulator as it is.

    Zero times anything is taken as zero: that the anything may be infinite where the mask says so is no use of it.
    """
    known = {mask: float(says) for mask, says in masks.items()}
    accumulators = dict(loop.accumulators)
    for e in loop.steps:
        if not isinstance(e, Eqn) or e.out in known:
            continue
        value = known_value(e, known)
        if e.out in accumulators:
            if value != OPS[e.op].identity:
                return False
        elif value is not None:
            known[e.out] = value
    return bool(accumulators)


def settled(loop: Loop, masks: Mapping[str, bool]) -> Mapping[str, bool]:
    """These masks, and those of a loop that follow from them."""
    known = {mask: float(says) for mask, says in masks.items()}
    for e in loop.steps:
        if isinstance(e, Eqn) and e.type == "bool" and e.out not in known and (x := known_value(e, known)) is not None:
            known[e.out] = x
    return {mask: bool(x) for mask, x in known.items()}


def known_value(e: Eqn, known: Mapping[str, float]) -> float | None:
    """What an equation gives, where that follows from the values that are known."""
    args = [known.get(a) if isinstance(a, str) else float(a) for a in e.args]
    row = OPS[e.op]
    if e.op == "where":
        return None if args[0] is None else args[1] if args[0] else args[2]
    if row.zero == "either" and 0.0 in args:
        return 0.0
    if e.op == "or" and 1.0 in args:
        return 1.0
    if row.shift and args[0] == -inf:
        return 0.0
    if any(a == -inf and c > 0 for a, c in zip(args, row.linear, strict=False)):
        return -inf
    if any(a is None for a in args):
        return None
    if row.kind == "elementwise":
        with np.errstate(all="ignore"):
            value = float(row.ref(*args))
        return None if isnan(value) else value
    if row.extremum or (e.op == "sum" and args[0] == 0.0):
        return args[0]
    return None


def needed(
    loop: Loop,
    masks: Mapping[str, bool],
    also: Collection[str] = (),
    read: Callable[[Eqn], Sequence[str]] = lambda e: e.values,
) -> frozenset[str]:
    """The steps of a loop that still matter where these masks are that everywhere. also: values that do anyway. read:
    what is needed for an equation."""
    need = {name for name, _ in loop.accumulators} | {s.value for s in loop.stores} | {*also}
    return _needed_of([s for s in loop.steps if isinstance(s, Eqn)], need, masks, read)


def _needed_of(
    body: Sequence[Eqn],
    roots: Collection[str],
    masks: Mapping[str, bool],
    read: Callable[[Eqn], Sequence[str]] = lambda e: e.values,
) -> frozenset[str]:
    """What these values are made of where the masks are that everywhere."""
    need = {*roots}
    for e in reversed(body):
        if e.out in need:
            branch = kept(e, masks)
            need |= {branch} if isinstance(branch, str) else set() if branch is not None else set(read(e))
    return frozenset(need)


def kept(e: Eqn, masks: Mapping[str, bool]) -> str | Fraction | float | None:
    """The one argument that an equation comes to where these masks are that; None where it stays what it is."""
    known = [masks.get(a) if isinstance(a, str) else None for a in e.args]
    if e.op == "where" and known[0] is not None:
        return e.args[1] if known[0] else e.args[2]
    if e.op in ("and", "or") and (neutral := e.op == "and") in known:
        return e.args[0] if known[1] is neutral else e.args[1]
    return None


# -- chunks without work


@dataclass(frozen=True, slots=True)
class Left:
    """Partial results that a split kernel does not store for chunks that its masks leave nothing to do.

    kernel: the split one. dim: that it splits. chunk: the axis of its chunks. most: what the position along dim is at
    most where there is work, all in axes of the partial results. steady: what is not negative there. reduction: what
    the accumulator comes from.
    """

    kernel: str
    dim: str
    chunk: str
    most: tuple[Index, ...]
    steady: tuple[Index, ...]
    reduction: Eqn

    def identity(self, whole: bool) -> float:
        """What the accumulator starts with, as a floating-point number or as int32."""
        return OPS[self.reduction.op].neutral(whole)

    def live(self, length: int, size: int) -> tuple[Index, ...]:
        """A chunk of this length stores where none of these is negative. size: of the split dimension."""
        chunk: dict[Atom, int] = {self.chunk: -length}
        before_most = (index(dict(i.terms) | chunk, i.offset) for i in (*self.most, Index((), size - 1)))
        return *before_most, *self.steady


@lru_cache(maxsize=256)
def left_out(graph: MuGraph) -> Mapping[str, Left]:
    """The partial results that are not stored where there is no work, by their buffers.

    Limits are what loads and positions say that all readers have too: upper ones, of inputs and axes of the buffers.
    How long chunks are is known beforehand: their axis is not dynamic.
    """
    found: dict[str, Left] = {}
    dynamic = {r.dim for r in graph.dynamic}
    for k in graph.kernels:
        if k.split is None or k.split in dynamic or len(beside(k, k.with_role("grid"))) > 1:
            continue
        loops = place(k).loops
        if len(loops) != 1 or loops[0].dims != (k.split,):
            continue
        ends = limits(k, loops[0])
        if not ends or any(x.unless or x.lower for x in ends):
            continue
        started = {name: e for e in k.body for name, _ in loops[0].accumulators if e.out == name}
        known = [(i, x.steady) for x in ends if (i := _index_of(x.limit, k, graph)) is not None]
        says = [i for i, _ in known]
        if len(known) == len(ends) and all(_says(s, says, k, graph) and s.value in started for s in k.stores):
            most, steady = (tuple(i for i, x in known if x is of) for of in (False, True))
            found |= {s.buffer: Left(k.name, k.split, k.chunk, most, steady, started[s.value]) for s in k.stores}
    return found


def _index_of(limit: Linear, kernel: Kernel, graph: MuGraph) -> Index | None:
    """A limit as an index, its values looked up in inputs; None where they are no such integers."""
    loads, dynamic = {x.out: x for x in kernel.loads}, {r.dim for r in graph.dynamic}
    inputs = {t.name: t for t in graph.inputs if tensor_type(t) == "int" and t.name not in graph.changed}
    terms: dict[Atom, int] = {}
    constant = limit.constant
    for (kind, name), c in limit.terms:
        if kind == "index":
            terms[name] = c
            continue
        if kind == "size" and name not in dynamic:
            constant += c * graph.sizes[name]
            continue
        if kind == "size":
            return None
        x = loads.get(name)
        if x is None or x.buffer not in inputs:
            return None
        t = inputs[x.buffer]
        terms[Lookup(x.buffer, x.access, below(t, graph.sizes) or MAX_INTEGER, t.padded)] = c
    return index(terms, constant)


def _says(s: Store, most: Sequence[Index], split: Kernel, graph: MuGraph) -> bool:
    """Whether all kernels that read a partial result know where it was stored: they have the axes of the limits."""
    assert split.split is not None
    readers = [(k, x) for k in graph.kernels for x in k.loads if x.buffer == s.buffer]
    known = all(k.kind == "generated" and x.access == s.access for k, x in readers)
    return known and is_plain(s.access) and {split.chunk, *(d for i in most for d in i.dims)} <= {*s.dims}


class _Reader:
    """Reads integer equations as linear expressions."""

    def __init__(self, kernel: Kernel, dim: str) -> None:
        self.dim = dim
        self.loops = set(kernel.with_role("loop", "split"))
        self.grid = set(kernel.with_role("grid"))
        self.dims = kernel.value_dims
        self.eqns = {e.out: e for e in kernel.body}
        self.loaded = {x.out for x in kernel.loads}

    def limits(self, e: Eqn, holds: bool) -> Iterator[Limit]:
        """Where a comparison has this value, as limits of the loop's position: one of an order, two of equals."""
        order, equal = OPS[e.op].order, OPS[e.op].equal
        if order is None and equal is not holds:
            return
        left, right = (linear(a, self.eqns, self.known) for a in e.args)
        if left is None or right is None:
            return
        if order is not None and order.turned:
            left, right = right, left
        difference = left.plus(right, -1)
        if order is None:
            bounded = [difference, difference.scaled(-1)]
        else:
            zero_at_most = difference.plus(ONE) if order.strict else difference
            bounded = [zero_at_most if holds else ONE.plus(zero_at_most, -1)]  # not x <= 0: 1 - x <= 0
        opened = [x for y in bounded for x in self.opened(y)]
        found = [x for y in opened if (x := self.limit(e, holds, y)) is not None]
        if len(found) == len(opened) and len({x.steady for x in found}) == 1:  # all together are the mask
            yield from found

    def opened(self, zero_at_most: Linear) -> Iterator[Linear]:
        """What is 0 at most where this is, all of it: without what the loop's position is in otherwise than in a sum,
        as far as it can be told. |x| + y <= 0: x + y <= 0 and y - x <= 0; x // n + y <= 0: x + n·y <= n - 1."""
        inner = next(((leaf, c) for leaf, c in zero_at_most.terms if leaf[0] == "made" and not self.steady(leaf)), None)
        if inner is None:
            yield zero_at_most
            return
        (leaf, c), e = inner, self.eqns[inner[0][1]]
        rest = zero_at_most.plus(Linear(((leaf, c),), 0), -1)
        args = [linear(a, self.eqns, self.known) for a in e.args]
        x, y = (*args, None)[:2]
        apart: list[Linear] = []
        if x is not None and OPS[e.op].unsigned and c > 0:
            apart = [rest.plus(x, c), rest.plus(x, -c)]
        elif x is not None and y is not None and e.op == ("maximum" if c > 0 else "minimum"):
            apart = [rest.plus(x, c), rest.plus(y, c)]
        elif (
            x is not None
            and y is not None
            and e.op == "floor_divide"
            and not y.terms
            and y.constant > 0
            and abs(c) == 1
        ):
            apart = [x.scaled(c).plus(rest, y.constant).plus(ONE, 1 - y.constant if c > 0 else 0)]
        if not apart:
            yield zero_at_most  # `limit` makes nothing of it
        for z in apart:
            yield from self.opened(z)

    def limit(self, e: Eqn, holds: bool, zero_at_most: Linear) -> Limit | None:
        """The limit by which this is 0 at most, if it is one."""
        factor = dict(zero_at_most.terms).get(("index", self.dim), 0)
        if not factor:
            by_tile = zero_at_most.terms and all(map(self.by_tile, dict(zero_at_most.terms)))
            return Limit(e.out, self.dim, False, zero_at_most.scaled(-1), holds, steady=True) if by_tile else None
        if abs(factor) != 1 or not all(map(self.steady, dict(zero_at_most.terms))):
            return None
        rest = zero_at_most.plus(Linear(((("index", self.dim), factor),), 0), -1)
        return Limit(e.out, self.dim, factor < 0, rest.scaled(-factor), holds)

    def by_tile(self, leaf: Leaf) -> bool:
        """Whether it follows from the tile of the program instance: along an axis that is held whole, such as one of a
        window, masks mostly hold somewhere."""
        kind, name = leaf
        own = {*((name,) if kind == "index" else self.dims.get(name, ()))}
        return kind == "size" or (kind != "made" and own <= self.grid)

    def known(self, leaf: Leaf) -> bool:
        """Whether it is steady, or may be opened."""
        return self.steady(leaf) or (leaf[0] == "made" and self.positional(leaf[1]))

    def positional(self, value: str) -> bool:
        """Whether an integer is made of nothing but positions, sizes and numbers."""
        e = self.eqns.get(value)
        if e is None or e.type != "int" or (e.place is not None and not e.place.affine):
            return False
        return OPS[e.op].kind in ("leaf", "elementwise") and all(map(self.positional, e.values))

    def steady(self, leaf: Leaf) -> bool:
        """Whether it is the loop's position, or stays what it is while the loop goes on."""
        kind, name = leaf
        if kind == "size":
            return True
        if kind == "index":
            return name == self.dim or name not in self.loops
        if kind == "made":
            return not set(self.dims[name]) & self.loops and self.positional(name)
        return name in self.loaded and not set(self.dims[name]) & self.loops


def linear(a: Arg, eqns: Mapping[str, Eqn], allowed: Callable[[Leaf], bool]) -> Linear | None:
    """An integer as a sum of leaves that are allowed; None where it is none."""
    if not isinstance(a, str):
        whole = isinstance(a, Fraction) and a.denominator == 1
        return Linear((), int(a)) if whole and isinstance(a, Fraction) else None
    e = eqns.get(a)
    if e is not None and e.op == "size":
        leaf = "size", e.axes[0]
        return Linear(((leaf, 1),), 0) if allowed(leaf) else None
    if e is None or e.op == "index":
        position = None if e is None else parse_index(e.axes[0])
        if position is not None and not position.affine:
            return None
        leaves = [(("index", str(d)), c) for d, c in position.terms] if position else [(("value", a), 1)]
        offset = position.offset if position else 0
        return Linear(tuple(leaves), offset) if all(allowed(leaf) for leaf, _ in leaves) else None
    if e.type != "int":
        return None
    return _sum_of(e, [linear(x, eqns, allowed) for x in e.args]) or (
        Linear(((leaf, 1),), 0) if allowed(leaf := ("made", e.out)) else None
    )


def _sum_of(e: Eqn, parts: Sequence[Linear | None]) -> Linear | None:
    """What an equation makes of linear expressions, as one; None where it is none."""
    if e.op in ("add", "sub") and parts[0] is not None and parts[1] is not None:
        return parts[0].plus(parts[1], 1 if e.op == "add" else -1)
    if e.op == "neg" and parts[0] is not None:
        return parts[0].scaled(-1)
    if e.op == "mul" and parts[0] is not None and parts[1] is not None:
        x, y = parts[0], parts[1]
        return x.scaled(y.constant) if not y.terms else y.scaled(x.constant) if not x.terms else None
    return None
