"""Reductions over an axis of which a mask leaves one position: what is there is read, and nothing is reduced.

    sum(where(k == i, X[k], 0) * Y[k, n]; k)  -->  X[i] * Y[i, n]
    max(where(k == i + 1 and M[k], X[k, i], -inf); k)  -->  where(M[i + 1], X[i + 1, i], -inf)

A product with a diagonal matrix is one of elements, and a trace reads the diagonal alone. No value of another position
gets into the result, so that NaN there does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from mirage_cli.ir.access import Index, index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.reach import linear
from mirage_cli.ir.rewrites.rewriter import Rewriter


def selected(program: Program) -> Program | None:
    """A lowered program that reads the one position which a mask leaves of an axis; None where there is none."""
    return _Selected(program).rewritten()


@dataclass(frozen=True, slots=True)
class _Only:
    """What a reduced value is but at one position of an axis: of `value`, where `others` hold too."""

    axis: str
    at: Index
    masked: str
    value: str
    others: tuple[str, ...]


class _Selected(Rewriter):
    def of(self, e: Eqn) -> Iterable[Eqn]:
        if OPS[e.op].kind not in ("reduction", "contraction"):
            return (e,)
        self.known[e.out] = e
        found = next((x for v in e.values for axis in e.axes if (x := self.only(e, v, axis))), None)
        return (e,) if found is None else tuple(self.read_there(e, found))

    def only(self, e: Eqn, v: str, axis: str) -> _Only | None:
        """The one position along an axis where a value is not what changes no reduction of this kind."""
        match self.known[v]:
            case Eqn(op="where", args=(str(mask), str(value), Fraction() | float() as outside)):
                pass
            case _:
                return None
        if outside != (0 if OPS[e.op].kind == "contraction" else OPS[e.op].identity) or axis in self.fixed:
            return None
        masks = tuple(self.conjuncts(mask))
        for m in masks:
            if (at := self.place(m, axis)) is not None and not {*at.dims} & ({*e.axes} | self.fixed):
                return _Only(axis, at, v, value, tuple(x for x in masks if x != m))
        return None

    def place(self, mask: str, axis: str) -> Index | None:
        """The position along an axis that a comparison asks for, where it is one everywhere. The verifier's fields take
        comparisons with numbers beyond 1 and -1, and with quotients and remainders, for random."""
        e = self.known[mask]
        if not isinstance(e, Eqn) or e.op != "eq":
            return None
        eqns = {name: x for name, x in self.known.items() if isinstance(x, Eqn)}
        left, right = (linear(a, eqns, lambda leaf: leaf[0] == "index") for a in e.args)
        if left is None or right is None:
            return None
        zero = left.plus(right, -1)
        rest = {d: c for (_, d), c in zero.terms}
        step = rest.pop(axis, 0)
        if abs(zero.constant) > 1 or {abs(step), *map(abs, rest.values())} != {1}:
            return None
        at = index({d: -step * c for d, c in rest.items()}, -step * zero.constant)
        least, most = at.bounds(self.dims)
        return at if 0 <= least <= most < self.dims[axis] else None

    def read_there(self, e: Eqn, x: _Only) -> Iterator[Eqn]:
        """The equation without the axis, of its values where they are read at the one position."""
        left = tuple(a for a in e.axes if a != x.axis)
        alone = len(e.values) == 1 and not left
        values: list[str] = []
        for v in e.values:
            made = [*self.there(v, x, e.out if alone else self.name(f"{v}_there"))]
            yield from made
            values.append(made[-1].out if made else x.value if v == x.masked else v)
        if not alone:
            yield self.define(e.out, e.op if left else "mul", tuple(values), left)

    def there(self, v: str, x: _Only, out: str) -> Iterator[Eqn]:
        """A value at the one position; nothing where it is the same at all."""
        if v != x.masked:
            yield from self.moved(v, x, out)
            return
        if not x.others:
            yield from self.moved(x.value, x, out)
            return
        masks: list[str] = []
        for m in x.others:
            made = [*self.moved(m, x, self.name(f"{m}_there"))]
            yield from made
            masks.append(made[-1].out if made else m)
        while len(masks) > 1:
            yield (both := self.define(self.name(f"{v}_mask"), "and", (masks.pop(), masks.pop()), ()))
            masks.append(both.out)
        made = [*self.moved(x.value, x, self.name(f"{v}_value"))]
        yield from made
        known = self.known[v]
        assert isinstance(known, Eqn), "it was found as one"
        yield self.define(out, known.op, (masks[0], made[-1].out if made else x.value, known.args[2]), ())

    def moved(self, v: str, x: _Only, out: str) -> Iterator[Eqn]:
        if x.axis in self.known[v].dims:
            yield self.read(out, v, {x.axis: x.at})
