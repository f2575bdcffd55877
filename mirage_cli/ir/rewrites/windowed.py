"""Windows of rows that are multiplied, as all rows and a mask.

    A[t, w] = dot(Q[t], K[t - w]);  P = softmax(where(t - w >= 0, A, -inf); w);  sum(P * V[t - w]; w)
        -->  A[t, u] = dot(Q[t], K[u]);  P = softmax(where(0 <= t - u < w, A, -inf); u);  dot(P, V[u]; u)      u = t - w

With a window each position t multiplies rows of its own: that is no product of matrices. With all rows one is, and
loops visit what the mask leaves. A window with gaps, K[t - 2*w], is one without for each place of t in blocks of 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from mirage_cli.ir.access import Index, combined, index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program, Tensor
from mirage_cli.ir.reach import ONE, Linear, linear
from mirage_cli.ir.rewrites.blocked import in_blocks
from mirage_cli.ir.rewrites.replaced import Replaced, left_out
from mirage_cli.ir.rewrites.rewriter import fixed_axes


def by_rows(program: Program) -> Program | None:
    """A lowered program with such windows as rows and masks; None where there is none."""
    gaps = {x.row: x.gap for x in _windows(program) if x.step == 1 < x.gap and program.sizes[x.row] % x.gap == 0}
    made = in_blocks(program, gaps) if gaps else program
    found = None
    while made is not None:
        some = (_Rows(made, x).rewritten() for x in _windows(made) if x.step == x.gap)
        made = next((x for x in some if x is not None), None)
        found = made or found
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """A product with what is read at `place` along an axis of `size`: it steps along `row`, which the other factor has,
    and has a gap between two positions of `tap`, which that has not."""

    product: str
    size: int
    place: Index
    row: str
    tap: str

    @property
    def step(self) -> int:
        return abs(dict(self.place.terms)[self.row])

    @property
    def gap(self) -> int:
        return abs(dict(self.place.terms)[self.tap])


def _windows(program: Program) -> Iterator[Window]:
    values, fixed = program.values(), fixed_axes(program)
    products = [e for e in program.eqns if OPS[e.op].kind == "contraction" and len(e.values) == 2]
    alone = {d for e in products for v in e.values for d in _plain(values[v])}
    for e in products:
        for read, other in (e.values, e.values[::-1]):
            known, beside = values[read], {*values[other].dims} - {*e.axes} - fixed
            for d, i in known.names.items() if isinstance(known, Eqn) else ():
                taps = {*i.dims} & {*known.dims} - {*e.axes, *values[other].dims} - fixed - alone
                pairs = [(row, tap) for tap in i.dims if tap in taps for row in i.dims if row in beside]
                if i.affine and d not in fixed:
                    yield from (Window(e.out, program.sizes[d], i, row, tap) for row, tap in pairs)


def _plain(x: Tensor | Eqn) -> Iterator[str]:
    """The axes along which a factor is what a tensor holds side by side."""
    if isinstance(x, Tensor):
        yield from x.dims
    elif x.op == "rename":
        yield from (i.axis for i in x.names.values() if i.axis is not None)


class _Rows(Replaced):
    """left: where no mask leaves out what is beyond a window, what its product is there."""

    def __init__(self, program: Program, window: Window) -> None:
        super().__init__(program)
        self.window, self.left = window, None
        terms = dict(window.place.terms)
        rest = index({d: c for d, c in terms.items() if d not in (window.row, window.tap)}, window.place.offset)
        gap, before = window.gap, rest.offset // window.gap
        low, high = combined(-before * gap, ((rest, 1),)).bounds(self.dims)
        if low < 0 or high >= gap or not self.says_where():
            return
        (new,) = self.own[window.tap] = self.behind(window.tap, {f"{window.tap}_row": -(-window.size // gap)})
        row, tap = terms[window.row] // gap, terms[window.tap] // gap
        self.whole[window.tap] = index({new: tap, window.row: -tap * row}, -tap * before)

    def says_where(self) -> bool:
        """Whether what is reduced over the window is masked where it leaves the rows. Where it does not, its product
        can be masked."""
        window, masks = self.window, list[str]()
        for beyond in self.beyond():
            some = (e.out for e in self.program.eqns if _says(e, beyond, self.program))
            mask = next((m for m in some if left_out(self.program, window.tap, {m: 0.0})), None)
            if mask is None:
                return False
            masks.append(mask)
        self.masks, self.true = frozenset(masks[:1]), {*masks[1:]}
        if not masks:
            self.left = next((x for x in (-inf, 0.0) if left_out(self.program, window.tap, {window.product: x})), None)
        return bool(masks) or self.left is not None

    def beyond(self) -> Iterator[Linear]:
        """What is at most 0 at positions that are rows: of both ends, those that the window goes beyond."""
        place, size = self.window.place, self.window.size
        before, behind = place.leaves(size, self.dims)
        here = Linear(tuple((("index", str(d)), c) for d, c in place.terms), place.offset)
        if before:
            yield here.scaled(-1)
        if behind:
            yield here.plus(ONE, 1 - size)

    def computed(self, e: Eqn) -> Iterator[Eqn]:
        made = [*super().computed(e)]
        if e.out != self.window.product or self.left is None:
            yield from made
            return
        yield from made[:-1]
        yield (product := self.define(self.name(f"{e.out}_all"), made[-1].op, made[-1].args, made[-1].axes))
        ends = [*self.within(self.window.tap)]
        yield from ends
        first, *others = [x.out for x in ends if x.type == "bool"]
        for m in others:
            yield (both := self.define(self.name("within"), "and", (first, m), ()))
            first = both.out
        outside = self.left if self.left else Fraction(0)
        yield self.define(e.out, "where", (first, product.out, outside), ())


def _says(e: Eqn, beyond: Linear, program: Program) -> bool:
    """Whether a comparison is whether this is at most 0."""
    order = OPS[e.op].order
    eqns = {x.out: x for x in program.eqns}
    if order is None or any(not isinstance(a, str) and abs(a) > 1 for a in e.args):
        return False  # which the verifier does not know at the sizes of its tests
    sizes: Mapping[str, Arg] = {x.out: Fraction(program.sizes[x.axes[0]]) for x in program.eqns if x.op == "size"}
    left, right = (linear(sizes.get(str(a), a), eqns, lambda leaf: leaf[0] == "index") for a in e.args)
    if left is None or right is None:
        return False
    if order.turned:
        left, right = right, left
    at_most = left.plus(right, -1).plus(ONE, int(order.strict))
    return dict(at_most.terms) == dict(beyond.terms) and at_most.constant == beyond.constant
