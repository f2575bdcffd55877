"""What a plan must hold whatever made it.

Names are defined before they are used, and not after the loop that they belong to. Axes of blocks agree. Where an axis
reaches past its end, what touches memory has a mask, and what is summed or compared is neutral out there, which is
worked out anew here. Nothing is stored, and nothing awaited is read, before the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import isfinite, prod

from mirage_cli.codegen import addresses, axisnames, nodes, plan, scalars
from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.axisnames import apart
from mirage_cli.codegen.nodes import Axes, Expr
from mirage_cli.codegen.plan import KernelPlan, Statement, statement_text
from mirage_cli.codegen.scalars import Scalar, Start
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.schedule import MIN_COLUMNS, MIN_DOT
from mirage_cli.ir.turns import LOADED

NOWHERE = frozenset[str]()


class PlanError(Exception):
    """A plan that must not be run: what is wrong, with the statement and those in front of it."""


def check(p: KernelPlan) -> None:
    """Raises PlanError."""
    checker = _Checker(p)
    try:
        checker.statements(p.statements)
        _must(checker.waited == p.waits, "the kernel never waits")
        stored = {s.pointers.buffer for s, _ in plan.walk(p.statements) if isinstance(s, plan.Store)}
        _must(not stored & p.shared_bits.keys(), "what is stored into may be a copy, for several to be read at a time")
    except _Wrong as e:
        near = "\n".join(f"  {statement_text(s)}" for s in checker.seen[-4:])
        raise PlanError(f"plan {p.name}: {e}\n{near}") from None


class _Wrong(Exception):
    """A rule is broken."""


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Wrong(otherwise)


class _Checker:
    """What is known before the next statement.

    chunks: how many there are. axes: of every value. zero, neutral: padded dimensions along which a value is zero past
    their end, and along which an accumulator is what its operator leaves as it is. maxima: those that have moved in
    this iteration. over: the loop. at_start: where positions start. ahead: the iteration that a load is for, if that is
    another. begun, taken, coming: what has been loaded for the first iteration of a loop, is taken in this one, and has
    been loaded for the next.
    """

    def __init__(self, p: KernelPlan) -> None:
        self.plan = p
        self.dims = {d.name: d for d in p.dims}
        self.padded = {d.name for d in p.dims if d.padded}
        self.boxes = dict(p.descriptors)
        self.seen: list[Statement] = []
        self.tiled: set[str] = set()
        self.walked: list[str] = []
        self.waited = self.released = False
        self.chunks: int | None = None
        self.marks: dict[scalars.Mark, Scalar] = {}
        self.positions: set[str] = set()
        self.axes: dict[str, Axes] = {}
        self.zero: dict[str, frozenset[str]] = {}
        self.neutral: dict[str, frozenset[str]] = {}
        self.maxima: set[str] = set()
        self.over: plan.Over | None = None
        self.at_start: dict[str, Start] = {}
        self.ahead: scalars.AtFirst | scalars.AtNext | None = None
        self.begun: dict[str, plan.Load] = {}
        self.taken: set[str] = set()
        self.coming: set[str] = set()

    # -- statements

    def statements(self, some: tuple[Statement, ...]) -> None:
        for s in some:
            self.seen.append(s)
            _STATEMENTS[type(s)](self, s)

    def instances(self, s: plan.Instances) -> None:
        self.tiled = {d for d, _ in s.grid}
        _must(set(s.backwards) <= self.tiled, "an axis of one tile goes backwards")
        sides = [*s.near, *s.far]
        _must({*sides} <= self.tiled and len({*sides}) == len(sides), "an axis of one tile, or twice one, is in groups")
        _must(bool(s.near) == bool(s.far) and (bool(s.near) or s.group == 1), "a group has one side")
        each = prod(n for _, n in s.grid if isinstance(n, int))
        for d, n in s.grid:
            dim = self.dims[d]
            _must(n == self.tiles_of(dim), f"{d} has another number of tiles")
        for x in self.dims.values():
            _must(not x.dynamic or x.padded == (x.block > 1), f"{x.name} has no mask, and may end within a tile")
        _must(s.programs == self.plan.programs and s.programs % each == 0, "the number of instances is another")
        self.chunks = None if s.chunk is None else s.programs // each

    def place(self, s: plan.Positions) -> None:
        d = self.dims[s.dim]
        self.ahead = s.start if isinstance(s.start, scalars.AtFirst | scalars.AtNext) else None
        self.start(s.start)
        self.ahead, self.at_start[s.dim] = None, s.start
        moves = not isinstance(s.start, scalars.AtZero)
        _must(moves or not d.dynamic, f"{s.dim} is one tile, and its size is an argument")
        _must(s.block == (d.block > 1), f"{s.dim} is a block of another size")
        _must(s.padded == d.padded, f"which positions along {s.dim} exist is not noted")
        self.positions.add(s.dim)

    def mark(self, s: plan.SetMark) -> None:
        self.scalar(s.scalar)
        self.marks[s.mark] = s.scalar

    def load(self, s: plan.Load) -> None:
        access = s.access
        self.ahead = s.ahead.start if s.ahead is not None else None
        _must(self.waited or access.buffer not in self.plan.awaited, f"{access.buffer} is read before the wait")
        if isinstance(access, addresses.Pointers):
            self.pointers(access, s.mask)
            self.places((term for w in s.within for term in w.terms), access.axes)
            few = {d for d, _ in s.repeated}
            _must(
                {*access.axes} | few == {*s.axes} and not few & self.padded, f"{s.out} has other axes than are loaded"
            )
        else:
            box = self.boxes[access.value]
            _must(box.buffer == access.buffer, "a box of another buffer")
            _must(
                all(
                    n == scalars.Times(1, (d,))
                    for axis, n in zip(box.dims, box.shape, strict=True)
                    for d in apart((axis,))
                    if self.dims[d].dynamic
                ),
                f"a box for {s.out} has an end that is not the size of the call",
            )
            _must(sorted(access.block) == sorted(access.axes), "a box with other axes than the block")
            _must(apart(access.block) == apart(box.block), "a box with axes merged that are no neighbours in it")
            for start, _ in (term for corner in access.starts for term in corner.terms):
                self.start(start)
        self.ahead = None
        bits = access.bits if isinstance(access, addresses.Pointers) else 0
        if s.part is not None:
            self.shape(s.part)
            _must(s.part.axes == s.axes and bits == nodes.WORD_BITS, f"{s.out} is no part of words")
        if s.when is not None:
            self.expr(s.when)
            alike = isinstance(access, addresses.Pointers) and (not s.when.axes or s.when.axes == access.axes)
            _must(alike and s.ahead is None, f"{s.out} has a mask of another block")
        if s.ahead is not None:
            self.load_ahead(s, s.ahead)
        _must(len(s.others) + 1 in (1, *LOADED), f"{s.out} is loaded in turns with {len(s.others)} others")
        for out in (s.out, *s.others) if s.ahead is None else ():
            self.define(out, s.axes, NOWHERE if s.outside else frozenset(self.padded & {*apart(s.axes)}))
        self.turns(access, s.within, len(s.others))
        _must(not s.others or not (s.repeated or s.ahead), f"{s.out} is loaded in turns, and not as it is")

    def load_ahead(self, s: plan.Load, ahead: scalars.Ahead) -> None:
        """Nothing is loaded where there is no such iteration, and nothing that changes meanwhile."""
        _must(s.access.buffer not in self.stored(self.plan.statements), f"{s.access.buffer} changes, and is read ahead")
        if ahead.reached is not None:
            _must(ahead.reached.start == ahead.start, f"{s.out} is loaded for another iteration than is asked for")
            self.scalar(ahead.reached.end)
        if isinstance(ahead.start, scalars.AtFirst):
            self.begun[s.out] = s
        else:
            _must(s.out in self.taken, f"{s.out} is loaded for the next iteration before it is taken")
            end = self.over.last if self.over is not None else None
            ends = ahead.reached is not None and ahead.reached.end == end
            _must(ends, f"{s.out} is loaded for an iteration too many")
            self.coming.add(s.out)

    def stored(self, some: tuple[Statement, ...]) -> set[str]:
        """The buffers that are written."""
        return {s.pointers.buffer for s, _ in plan.walk(some) if isinstance(s, plan.Store)}

    def take(self, s: plan.Take) -> None:
        x, over = self.begun.get(s.out), self.over
        _must(x is not None and over is not None and s.out not in self.taken, f"{s.out} is not loaded ahead")
        assert x is not None and x.ahead is not None and over is not None, "as there is one"
        reached, first = x.ahead.reached, over.first
        _must(x.ahead.start == scalars.AtFirst(over.dim, first), f"{s.out} is loaded for another loop")
        sure = self.runs(first, over.last) if reached is None else reached.end == over.last
        _must(sure, f"{s.out} is loaded for a loop that may have no iteration")
        self.define(s.out, x.axes, NOWHERE if x.outside else frozenset(self.padded & {*apart(x.axes)}))
        self.taken.add(s.out)

    def runs(self, first: Scalar, last: Scalar) -> bool:
        """Whether a loop surely has an iteration."""
        whole = first == scalars.Number(0) and isinstance(last, scalars.Size)
        chunk = isinstance(first, scalars.ChunkAt) and isinstance(last, scalars.ChunkAt) and last.end > first.end
        return whole or chunk

    def let(self, s: plan.Let) -> None:
        self.expr(s.expr)
        self.define(s.out, s.expr.axes, self.zeros(s.expr))

    def complete(self, s: plan.Complete) -> None:
        self.let(plan.Let(s.out, s.expr))
        self.zero[s.out] = NOWHERE

    def round(self, s: plan.Round) -> None:
        self.known(s.out)

    def initialise(self, s: plan.Initialise) -> None:
        self.define(s.out, s.axes, NOWHERE)
        self.neutral[s.out] = frozenset(self.padded)

    def accumulate(self, s: plan.Accumulate) -> None:
        self.expr(s.block)
        self.agree(s.out, s.block.axes)
        self.neutral[s.out] = frozenset(d for d in self.neutral[s.out] if self.is_neutral(s.block, d, s.op))

    def advance(self, s: plan.Advance) -> None:
        self.expr(s.block)
        self.agree(s.out, s.block.axes)
        self.maxima.add(s.out)

    def rescale(self, s: plan.Rescale) -> None:
        self.expr(s.factor)
        _must(s.factor.axes in ((), self.known(s.out)), f"the factor of {s.out} has other axes")

    def store(self, s: plan.Store) -> None:
        _must(self.waited or not self.plan.waits, f"{s.pointers.buffer} is written before the wait")
        _must(set(s.once) <= self.tiled and (self.chunks is not None or not s.one_chunk), "one of one instance stores")
        self.expr(s.block)
        _must(s.block.axes in ((), s.pointers.axes), f"{s.pointers.buffer} is written with other axes")
        self.pointers(s.pointers, (*s.mask, *(d for d, _ in s.room)))
        self.places((term for w in s.within for term in w.terms), s.pointers.axes)
        self.turns(s.pointers, s.within, len(s.others))
        for block in (s.block, *s.others) if s.others else ():
            self.expr(block)
            _must(block.axes == s.pointers.axes, f"{s.pointers.buffer} is written in turns with other axes")
        _must(not s.others or not s.room, f"{s.pointers.buffer} is written in turns in rows with more room")

    def turns(self, x: addresses.Pointers | addresses.Box, within: Iterable[addresses.Within], others: int) -> None:
        """What is loaded or stored in turns has as many blocks as elements of one are apart: 1 from each to the next.
        The axis is counted in no other term, and no bound depends on it."""
        terms = x.terms if isinstance(x, addresses.Pointers) else ()
        found = [(p, n) for p, n in terms if isinstance(p, addresses.Turns)]
        _must(len(found) == bool(others), f"{x.buffer} is not accessed in turns by all that lies in them")
        for p, step in found:
            _must(step == 1 and p.count == others + 1, f"{p.count} blocks of {x.buffer} in turns, {others + 1} of them")
            once = [q for q, _ in terms if p.dim in addresses.lanes_of(q)] == [p]
            bounds = [q for w in within for q, _ in w.terms if p.dim in addresses.lanes_of(q)]
            _must(once and not bounds, f"{p.dim} is counted more than once")

    def prefetch(self, s: plan.Prefetch) -> None:
        _must(self.plan.waits and not self.waited, "a prefetch that nothing waits behind")
        self.places(s.pointers.terms, s.pointers.axes)

    def wait(self, _: plan.Wait) -> None:
        _must(self.plan.waits and not self.waited and not self.walked, "a wait too many")
        self.waited = True

    def release(self, _: plan.Release) -> None:
        _must(not self.released, "the kernel behind is let start twice")
        self.released = True

    def leave(self, s: plan.Leave) -> None:
        _must(self.waited or not self.plan.waits, "the kernel may end before the wait")
        _must(self.chunks is not None and not self.walked, "an instance ends that may have to store")
        self.scalar(s.first)
        self.scalar(s.last)

    def release_before(self, s: plan.ReleaseBefore) -> None:
        _must(self.waited or not self.plan.waits, "the kernel behind may start before the wait")
        _must(self.walked == [s.dim], f"no loop over {s.dim}")
        self.scalar(s.last)

    def loop(self, s: plan.Loop) -> None:
        _must(not self.walked, "a loop in a loop")
        if isinstance(s.over, plan.Over):
            self.walked, self.over = [s.over.dim], s.over
            self.walked_over(s.over)
        else:
            self.walked = [*s.over.dims]
            self.together(s.over)
        before = dict(self.axes), set(self.positions)
        self.statements(s.body)
        self.axes, self.positions = {v: self.axes[v] for v in before[0]}, before[1]
        _must(self.taken == self.coming == self.begun.keys(), "what is loaded ahead is not taken in turn")
        self.walked, self.over = [], None
        self.begun, self.taken, self.coming = {}, set(), set()
        self.maxima = set()

    def walked_over(self, s: plan.Over) -> None:
        self.scalar(s.first)
        self.scalar(s.last)
        _must(s.step % self.dims[s.dim].block == 0, "steps of no whole tiles")
        self.ends(s)

    def ends(self, s: plan.Over) -> None:
        """A loop over a dimension whose size is an argument ends where that says; of several chunks, each by itself."""
        first, last = self.bounds(s.first), self.bounds(s.last)
        _must(
            not self.dims[s.dim].dynamic or scalars.Size(s.dim, True) in last, f"the loop over {s.dim} has another end"
        )
        for x in (*first, *last):
            if isinstance(x, scalars.ChunkAt):
                self.length(x.length, s.dim)

    def bounds(self, x: Scalar) -> tuple[Scalar, ...]:
        """What an end of a loop is worked out from."""
        match x:
            case scalars.Mark():
                return self.bounds(self.marks[x])
            case scalars.Bound(_, of):
                return tuple(y for some in of for y in self.bounds(some))
            case scalars.Plus(start):
                return self.bounds(start)
            case _:
                return (x,)

    def together(self, s: plan.Together) -> None:
        """The loop counts the tiles of all dimensions: of a split one those of its chunk, and of one that is walked in
        part those of that part."""
        partly = s.dims[:1] if s.split is not None or s.part is not None else ()
        others = [d for d in s.dims if d not in partly]
        counts = [self.tiles_of(self.dims[d]) for d in others]
        _must(
            prod(n for n in counts if isinstance(n, int)) == prod(n for n in s.trips if isinstance(n, int))
            and {n for n in counts if not isinstance(n, int)} == {n for n in s.trips if not isinstance(n, int)},
            f"another number of tiles of {', '.join(others)}",
        )
        if s.split is not None:
            _must(s.dims[0] == s.split[0], f"{s.split[0]} is not walked outermost")
            self.length(s.split[1], s.split[0])
        if s.part is not None:
            _must(s.dims[0] == s.part.dim, f"{s.part.dim} is not walked outermost")
            _must(s.part.step == self.dims[s.part.dim].block, "steps of no tile")
            self.walked_over(s.part)

    def tiles_of(self, x: plan.Dimension) -> scalars.Count:
        return scalars.Tiles(x.name, x.block) if x.dynamic else -(-x.size // x.block)

    def length(self, x: scalars.Length, dim: str) -> None:
        """Of a chunk: all together are the whole dimension."""
        d, chunks = self.dims[dim], self.chunks or 0
        whole = (
            not d.dynamic and x * chunks >= d.size if isinstance(x, int) else x == scalars.Share(dim, chunks, d.block)
        )
        _must(whole, f"{chunks} chunks of {dim} are not all of it")

    def beside(self, s: plan.Beside) -> None:
        _must(not self.axes and sum(s.programs) == self.plan.programs, "the instances of parts are not all there are")
        first = 0
        for programs, body in zip(s.programs, s.bodies, strict=True):
            part = _Checker(replace(self.plan, programs=programs, statements=body))
            instances = next((x for x in body if isinstance(x, plan.Instances)), None)
            _must(instances is not None and instances.first == first, "instances of two parts are the same")
            part.seen = self.seen
            part.statements(body)
            _must(part.waited == self.plan.waits, "a part never waits")
            first += programs
        self.waited = self.plan.waits

    # -- names

    def define(self, value: str, axes: Axes, zero: frozenset[str]) -> None:
        _must(value in self.plan.values, f"{value} is no value of the kernel")
        self.axes[value], self.zero[value] = axes, zero

    def known(self, value: str) -> Axes:
        _must(value in self.axes, f"{value} is used before it is defined")
        return self.axes[value]

    def agree(self, value: str, axes: Axes) -> None:
        _must(self.known(value) == axes, f"{value} has the axes {self.axes[value]}, and is combined with {axes}")

    def start(self, x: Start) -> None:
        match x:
            case scalars.AtTile(d):
                _must(d in self.tiled, f"{d} has one tile")
            case scalars.AtStep(d):
                _must(self.walked == [d] and self.ahead is None, f"no loop over {d}")
            case scalars.AtFirst(_, first):
                _must(not self.walked and self.ahead == x, "the start of a loop that has begun")
                self.scalar(first)
            case scalars.AtNext(d, step):
                mine = self.over is not None and (self.over.dim, self.over.step) == (d, step)
                _must(mine and self.ahead == x, f"no next iteration of a loop over {d}")
            case scalars.AtJointStep():
                _must(len(self.walked) > 1, "no loop over several axes")
            case scalars.AtDivided(of, by):
                _must(by > 0, "division by what is not positive")
                for start, _ in of.terms:
                    self.start(start)
            case scalars.AtZero():
                pass

    def scalar(self, x: Scalar) -> None:
        match x:
            case scalars.TileAt(d):
                _must(d in self.tiled, f"{d} has one tile")
            case scalars.ChunkAt():
                _must(self.chunks is not None, "there are no chunks")
            case scalars.Mark():
                _must(x in self.marks, f"{x} is used before it is set")
            case scalars.Extreme(value, _, axes):
                _must(self.known(value) == axes, f"{value} has other axes")
            case scalars.Sum(_, terms):
                for _, s in terms:
                    self.scalar(s)
            case scalars.Plus(s) | scalars.Aligned(s):
                self.scalar(s)
            case scalars.Bound(_, some):
                for s in some:
                    self.scalar(s)
            case scalars.Size(d, given):
                _must(given == self.dims[d].dynamic, f"the size of {d} is taken for another")
            case scalars.Number():
                pass

    # -- memory

    def pointers(self, x: addresses.Pointers, mask: Axes) -> None:
        _must(x.buffer in self.plan.args, f"there is no pointer into {x.buffer}")
        lanes = [d for place, _ in x.terms for d in addresses.lanes_of(place)]
        _must({*lanes} == {*x.axes}, f"{x.buffer} is addressed along {lanes}, in blocks with {x.axes}")
        _must({*mask} == self.padded & {*apart(x.axes)}, f"{x.buffer} is masked along {mask}")
        merged = [p for p, _ in x.terms if isinstance(p, addresses.MergedLanes)]
        told = [(p.axis, p.dim) for p in merged]
        whole = [(axis, d) for axis in x.axes for d in apart((axis,)) if apart((axis,)) != (axis,)]
        _must(sorted(told) == sorted(whole), f"{x.buffer} is addressed along {told} of merged axes")
        together = addresses.SharedNumbers | addresses.Divided if x.bits else addresses.SharedNumbers
        numbered = [n for p, n in x.terms if isinstance(p, together) and addresses.lanes_of(p)]
        _must(numbered == [1] * bool(x.bits), f"{x.buffer} is read in numbers together that are no neighbours")
        self.places(x.terms, x.axes)

    def places(self, terms: Iterable[tuple[Place, scalars.Stride]], axes: Axes) -> None:
        """axes: of the block that they are spread to, which extends theirs and does not exchange them."""
        for place, _ in terms:
            own = addresses.lanes_of(place)
            _must(own == tuple(d for d in axes if d in own), f"positions along {own} in a block with {axes}")
            self.at(place)

    def at(self, x: Place) -> None:
        match x:
            case addresses.Lanes(d):
                _must(d in self.positions, f"the positions along {d} are not known")
                own = self.ahead is not None and self.ahead.dim == d
                other = isinstance(self.at_start[d], scalars.AtFirst | scalars.AtNext)
                _must(self.at_start[d] == self.ahead if own else not other, f"positions of another iteration along {d}")
            case addresses.ChunkNumber():
                _must(self.chunks is not None, "there are no chunks")
            case addresses.Picked(d, _, start):
                self.at(addresses.Lanes(d, False)) if start is None else self.start(start)
            case addresses.Divided(terms, _, by, _, axes):
                _must(by > 0, "division by what is not positive")
                _must({d for p, _ in terms for d in addresses.lanes_of(p)} == {*axes}, "a quotient of other axes")
                self.places(terms, axes)
            case addresses.Turns(d, count, start):
                self.at(addresses.Lanes(d, True))
                _must(self.at_start[d] == start and self.dims[d].block > 1, f"turns along {d} from elsewhere")
                _must(count > 1, f"{count} blocks in turns")
            case addresses.SharedNumbers(d, start, count):
                _must(
                    d not in self.padded and self.dims[d].block % count == 0, f"{d} may end with the first of {count}"
                )
                self.start(start)
            case addresses.MergedLanes(d, axis, start):
                _must(d in apart((axis,)) and self.dims[d].block > 1, f"{d} is no axis of {axis}")
                known = self.at_start.get(d) == start
                _must(known or self.ahead is not None, f"positions along {d} of {axis} from elsewhere")
                self.start(start)
            case addresses.Looked(value, axes):
                _must(self.known(value) == axes, f"{value} has other axes")

    # -- blocks

    def expr(self, x: Expr) -> None:
        for part in parts(x):
            self.expr(part)
        match x:
            case nodes.Value(name, axes):
                _must(self.known(name) == axes, f"{name} has the axes {self.axes[name]}, and is taken to have {axes}")
            case nodes.Shift(m) | nodes.Factor(m):
                _must(m in self.maxima, f"the maximum {m} has not moved")
            case nodes.Position(d):
                self.at(addresses.Lanes(d, False))
            case nodes.Extent(d):
                _must(d in self.plan.sizes, f"the size of {d} is no argument")
            case nodes.Placed(terms, _, axes):
                self.places(terms, axes)
            case nodes.Reduce(op, block, over):
                for d in over:
                    _must(d in block.axes, f"{d} is no axis of what is reduced")
                    _must(d not in self.padded or self.is_neutral(block, d, op), f"{op} over lanes past the end of {d}")
            case nodes.Scan() | nodes.Along():
                self.scan(x)
            case nodes.Dot(left, right, accumulator):
                self.dot(left, right)
                added = self.known(accumulator) if isinstance(accumulator, str) else (accumulator or x).axes
                _must(added == x.axes, "the accumulator has other axes")
            case nodes.Added(accumulator, block):
                _must(self.known(accumulator) == block.axes, f"{accumulator} has other axes")
            case _:
                self.shape(x)

    def scan(self, x: nodes.Scan | nodes.Along) -> None:
        """Blocks of positions that are told apart by two names, and what lies past the end of them."""
        over, op = (x.over, "max" if x.relative else x.op) if isinstance(x, nodes.Scan) else (x.axis, "prod")
        _must(over in x.x.axes and x.to not in x.x.axes, f"no block to scan along {over}")
        _must(self.extent(over) == self.extent(x.to), f"{over} and {x.to} have other blocks")
        _must(self.is_neutral(x.x, over, op), f"{op} over lanes past the end of {over}")
        if isinstance(x, nodes.Scan) and x.decay is not None:
            _must(x.decay.axes == x.x.axes, "a decay of other axes")

    def shape(self, x: Expr) -> None:
        """Axes of what only moves or combines blocks."""
        match x:
            case nodes.Spread(block, axes) | nodes.Repeated(block, axes):
                _must([d for d in axes if d in block.axes] == [*block.axes], f"{block.axes} are not among {axes}")
            case nodes.Permuted(block, axes):
                _must(sorted(block.axes) == sorted(axes), f"{block.axes} are not {axes}")
            case nodes.Reshaped(block, axes):
                _must(apart(block.axes) == apart(axes), f"{block.axes} are not {axes}")
            case nodes.InTurns(first, second, d):
                _must(first.axes == second.axes and axisnames.half(d) in first.axes, f"no blocks of every second {d}")
            case nodes.Entries(table, block):
                _must(len(table.axes) == 1 and bool(block.axes), f"entries of {table.axes} at {block.axes}")
            case nodes.OfWords(block, d, count, place, room):
                _must(block.axes == (axisnames.shared(d, count),), f"numbers along {d} of words along {block.axes}")
                _must(place < count and room % count == 0, f"number {place} of {count} in words of {room}")
                _must(self.dims[d].block % room == 0, f"blocks along {d} end within words")
            case nodes.EverySecond(block):
                _must(len(block.axes) == 1, f"every second element along one of {block.axes}")
            case nodes.ByteBits(block, less=less) | nodes.PairBits(block, less=less):
                _must(less.axes in ((), block.axes), "a subtrahend with other axes")
            case nodes.Masked(block, dims):
                _must({*dims} <= self.padded & {*block.axes}, f"{dims} are no padded axes")
            case nodes.Apply(op, args):
                _must(len(args) == OPS[op].arity, f"{op} of {len(args)} arguments")
            case _:
                pass
        if isinstance(x, nodes.Apply | nodes.Product | nodes.AddedLast | nodes.ExpDifference):
            _must(all(a.axes in ((), x.axes) for a in parts(x)), "arguments with other axes")

    def dot(self, left: Expr, right: Expr) -> None:
        (*batch, rows, k), (*also, depth, columns) = left.axes, right.axes
        _must((batch, k) == (also, depth), f"a product of {left.axes} and {right.axes}")
        sides = [self.extent(axis) for axis in (rows, k, columns)]
        enough = min(sides[:2]) >= MIN_DOT and sides[2] >= MIN_COLUMNS
        _must(enough, "a product too small for the matrix units")
        for d in self.padded & {*apart((k,))}:
            _must(d in self.zeros(left) & self.zeros(right), f"a product over lanes past the end of {d}")

    def extent(self, axis: str) -> int:
        """Elements of a block along an axis."""
        whole, count = axisnames.shares(axis)
        return prod(self.dims[d].block for d in apart((whole,))) // count

    def is_neutral(self, x: Expr, d: str, op: str) -> bool:
        """Whether past the end of a dimension a block is what a sum, maximum or minimum leaves as it is."""
        if d not in x.axes or d not in self.padded:
            return True
        if isinstance(x, nodes.Masked) and d in x.dims:
            return x.number.value in {OPS[op].neutral(whole) for whole in (False, True)}
        if isinstance(x, nodes.Value) and x.name in self.neutral:
            return d in self.neutral[x.name]
        return op == "sum" and d in self.zeros(x)

    def zeros(self, x: Expr) -> frozenset[str]:
        """The padded dimensions along which a block is zero past their end."""
        some = [(self.zeros(a), frozenset(apart(a.axes))) for a in parts(x) if a.axes]
        zero = OPS[x.op].zero if isinstance(x, nodes.Apply) else "all" if isinstance(x, nodes.AddedLast) else "either"
        match x:
            case nodes.Value(name):
                return self.zero.get(name, NOWHERE)
            case nodes.Masked(_, dims, number):
                return some[0][0] - {*dims} if number.value else some[0][0] | {*dims}
            case nodes.ByteBits():
                return frozenset(d for d in self.padded if self.beyond(x, d) == 0)
            case nodes.Apply(op) if OPS[op].linear:
                return frozenset(d for d in self.padded if self.beyond(x, d) == 0)
            case nodes.Apply() | nodes.AddedLast() if zero == "all":
                return frozenset.intersection(*(zero for zero, _ in some)) if len(some) == len(parts(x)) else NOWHERE
            case nodes.Apply(_, (first, *others)) if zero == "first":
                return self.zeros(first).difference(*(self.held(a) for a in others))
            case nodes.Apply() | nodes.Product() if zero == "either":
                held = [(zero, {*self.held(a)}) for a in parts(x) for zero in [self.zeros(a)]]
                return frozenset(
                    d
                    for d in self.padded
                    if any(d in zero for zero, _ in held) and all(d in zero or d not in have for zero, have in held)
                )
            case nodes.Dot(left, right, accumulator):
                own = {*apart(left.axes[:-2])}
                found = (self.zeros(left) | self.zeros(right)) & {*apart(x.axes)} - own
                return found & self.zeros(accumulator) if isinstance(accumulator, nodes.Dot) else found
            case nodes.InTurns(first, second):
                return self.zeros(first) & self.zeros(second)
            case nodes.Reduce("sum", _, over):
                return some[0][0] - {*over} if some else NOWHERE
            case (
                nodes.Cast()
                | nodes.MatrixType()
                | nodes.Ended()
                | nodes.Spread()
                | nodes.Repeated()
                | nodes.Permuted()
                | nodes.Reshaped()
                | nodes.Scaled()
            ):
                return some[0][0] if some else NOWHERE
            case _:
                return NOWHERE

    def beyond(self, x: Expr, d: str) -> Fraction | None:
        """The number that a block is past the end of a dimension, if it is known."""
        match x:
            case nodes.Literal(number) if isfinite(number):
                return Fraction(number)
            case nodes.ByteBits(byte, less=less):
                subtracted = self.beyond(less, d) if self.beyond(byte, d) == 0 else None
                return None if subtracted is None else x.of_zero - subtracted
            case nodes.Apply(op, args) if OPS[op].linear:
                found = [self.beyond(a, d) for a in args]
                known = [c * n for c, n in zip(OPS[op].linear, found, strict=True) if n is not None]
                return sum(known, Fraction(0)) if len(known) == len(found) else None
            case nodes.Spread(block) | nodes.Repeated(block) | nodes.MatrixType(block):
                return self.beyond(block, d)
            case _:
                return Fraction(0) if d in self.zeros(x) else None

    def held(self, x: Expr) -> Axes:
        """The axes along which a block differs."""
        return self.held(x.x) if isinstance(x, nodes.Spread | nodes.Repeated) else x.axes


def parts(x: Expr) -> tuple[Expr, ...]:
    """The blocks that an expression is made of."""
    match x:
        case nodes.Apply(_, args):
            return args
        case nodes.Dot(left, right, accumulator):
            return (left, right, accumulator) if isinstance(accumulator, nodes.Dot) else (left, right)
        case nodes.Product(a, b) | nodes.AddedLast(a, b) | nodes.InTurns(a, b):
            return a, b
        case nodes.ByteBits(block, less=less) | nodes.PairBits(block, less=less):
            return block, less
        case nodes.ExpDifference(block, shift):
            return block, shift
        case nodes.Entries(table, block):
            return table, block
        case nodes.Value() | nodes.Shift() | nodes.Factor() | nodes.Literal() | nodes.Position() | nodes.Extent():
            return ()
        case nodes.Placed() | nodes.Full():
            return ()
        case _:
            return (x.x,)


_STATEMENTS: Mapping[type[Statement], Callable[..., None]] = {
    plan.Instances: _Checker.instances,
    plan.Positions: _Checker.place,
    plan.SetMark: _Checker.mark,
    plan.Load: _Checker.load,
    plan.Take: _Checker.take,
    plan.Let: _Checker.let,
    plan.Round: _Checker.round,
    plan.Initialise: _Checker.initialise,
    plan.Accumulate: _Checker.accumulate,
    plan.Advance: _Checker.advance,
    plan.Rescale: _Checker.rescale,
    plan.Complete: _Checker.complete,
    plan.Store: _Checker.store,
    plan.Barrier: lambda *_: None,
    plan.Prefetch: _Checker.prefetch,
    plan.Wait: _Checker.wait,
    plan.Release: _Checker.release,
    plan.Leave: _Checker.leave,
    plan.ReleaseBefore: _Checker.release_before,
    plan.Loop: _Checker.loop,
    plan.Beside: _Checker.beside,
}
