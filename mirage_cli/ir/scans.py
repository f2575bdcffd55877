"""Reductions up to each position of an axis that a kernel holds whole: one scan computes those of all positions.

    sum(where(j <= t, X[j], 0); j)  -->  running sums of X, with the roles j:tile, t:tile
    sum(where(s <= t, B[s] * prod(where(s < r and r <= t, A[r], 1); r), 0); s)
                                    -->  h[t] = A[t] * h[t - 1] + B[t], with the roles r:tile, s:tile, t:tile
    sum(exp_sub(where(j <= t, X[j], -inf), max(where(j <= t, X[j], -inf); j)); j)
                                    -->  running sums of exponentials relative to the running maximum

μGraphs keep the masked reduction, which says all of it. As with the matrix units, how a block of it is computed is left
to the cost model and the planner: both see the kernel with `Scan`s in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program, live_eqns
from mirage_cli.ir.reach import ONE, Linear, linear


@dataclass(frozen=True, slots=True)
class Scan(Eqn):
    """At each position along `to`, what `op` makes of its arguments' product along `axes` up to the same position, or
    with `back` from there on.

    along: the axis of the last argument where that is a decay, by which each step multiplies the sum so far; else "".
    relative: of the argument's exponential, relative to that of its largest element so far.
    """

    to: str
    back: bool
    along: str = ""
    relative: bool = False

    @property
    def factors(self) -> tuple[Arg, ...]:
        """What is reduced: the product of these."""
        return self.args[:-1] if self.along else self.args

    @property
    def decay(self) -> Arg | None:
        return self.args[-1] if self.along else None

    @property
    def combined(self) -> int:
        """How many values it combines at once."""
        return 2 if self.along or self.relative else 1

    @property
    def acts_on(self) -> frozenset[str]:
        """The axes that it names: positions along all of them are told apart."""
        return frozenset((self.to, *self.over))

    @property
    def over(self) -> tuple[str, ...]:
        """The axes that are held whole with that of the result."""
        return (*self.axes, *((self.along,) if self.along else ()))

    @property
    def spans(self) -> frozenset[str]:
        """The axes of its result: what is reduced is held for no pair of positions."""
        return frozenset(self.dims)


@dataclass(frozen=True, slots=True)
class Upto:
    """A mask of the positions of an axis up to those of `to`, or with `back` from them on. apart: 0 where it holds at
    the same position, 1 where it does from the one before or behind."""

    axis: str
    to: str
    back: bool
    apart: int


def difference(mask: Eqn, eqns: Mapping[str, Eqn]) -> Linear | None:
    """For a comparison of positions, the number that is at most 0 where it holds."""
    if (order := OPS[mask.op].order) is None:
        return None
    left, right = (linear(a, eqns, lambda leaf: leaf[0] == "index") for a in mask.args)
    if left is None or right is None:
        return None
    if order.turned:
        left, right = right, left
    return left.plus(right, -1).plus(ONE, int(order.strict))


def upto(mask: Eqn, axis: str, eqns: Mapping[str, Eqn]) -> Upto | None:
    """What a comparison leaves of an axis, if that is what is up to each position of another."""
    if (zero_at_most := difference(mask, eqns)) is None:
        return None
    terms = {d: c for (_, d), c in zero_at_most.terms}
    factor, constant = terms.pop(axis, 0), zero_at_most.constant
    if len(terms) != 1 or abs(factor) != 1 or constant not in (0, 1):
        return None
    ((to, opposite),) = terms.items()
    return Upto(axis, to, factor < 0, constant) if opposite == -factor else None


TORCH_RECURRENCE = """
for span in [1 << n for n in range(({out}.shape[-1] - 1).bit_length())]:
    rest = {out}.shape[-1] - span
    {out} = torch.cat([{out}[..., :span], {out}[..., span:] + {decay}[..., span:] * {out}[..., :rest]], -1)
    {decay} = torch.cat([{decay}[..., :span], {decay}[..., span:] * {decay}[..., :rest]], -1)
""".strip()
"""The text in torch that makes of x[..., t], which is called {{out}}, h[..., t] = decay[..., t] * h[..., t - 1] +
x[..., t]: twice as many steps of all positions at once, until all are taken (Hillis and Steele 1986)."""


def scan_of(e: Eqn, eqns: Mapping[str, Eqn], dims: Mapping[str, tuple[str, ...]]) -> Scan | None:
    """A masked reduction as a scan, whatever the sizes of its two axes are."""
    if OPS[e.op].kind != "reduction" or len(e.axes) != 1 or (some := eqns.get(e.values[0])) is None:
        return None
    if relative := OPS[some.op].shift and OPS[e.op].joins == "add":
        masked, most = (eqns.get(v) for v in some.values) if len(some.values) == 2 else (None, None)
        if masked is None or most is None or most.op != "max" or (most.values, most.axes) != (some.values[:1], e.axes):
            return None
        some = masked
    if OPS[some.op].masks != (0,) or len(some.args) != 3:
        return None
    mask, value, outside = some.args
    if not (isinstance(mask, str) and isinstance(value, str) and mask in eqns):
        return None
    if isinstance(outside, str) or outside != OPS["max" if relative else e.op].identity:
        return None
    (axis,) = e.axes
    found = upto(eqns[mask], axis, eqns)
    if found is None or found.apart or axis not in dims[value]:
        return None
    if relative:
        scan = Scan(e.out, e.op, (value,), e.axes, e.dims, e.type, found.to, found.back, relative=True)
        return None if found.to in dims[value] else scan
    if found.to in dims[value]:
        return _recurrence(e, value, found, eqns, dims) if e.op == "sum" else None
    return Scan(e.out, e.op, (value,), e.axes, e.dims, e.type, found.to, found.back)


def _recurrence(
    e: Eqn, value: str, at: Upto, eqns: Mapping[str, Eqn], dims: Mapping[str, tuple[str, ...]]
) -> Scan | None:
    """A sum of products, one of whose factors is that of the decays behind each position."""
    factors: list[Arg] = []
    while (q := eqns.get(value)) is not None and q.op == "mul":
        decayed = [a for a in q.values if at.to in dims[a]]
        if len(decayed) != 1:
            return None
        (value,) = decayed
        factors += [a for a in q.args if a != value]
    found = _decay(q, at, eqns) if q is not None else None
    given = [v for v in (*factors, found and found[0]) if isinstance(v, str)]
    if found is None or not any(at.axis in dims[v] for v in factors if isinstance(v, str)):
        return None
    decay, along = found
    apart = {at.to, at.axis, along}
    if any(len(apart & {*dims[v]}) > 1 for v in given) or any(along in dims[v] for v in factors if isinstance(v, str)):
        return None
    if isinstance(decay, str) and at.axis in dims[decay]:
        return None
    return Scan(e.out, e.op, (*factors, decay), e.axes, e.dims, e.type, at.to, at.back, along)


def _decay(e: Eqn, at: Upto, eqns: Mapping[str, Eqn]) -> tuple[Arg, str] | None:
    """What a product multiplies from behind the position along the axis of a sum on, up to that of its result, or with
    `back` in front of it and from that on; and along which axis it does."""
    some = eqns.get(e.values[0]) if OPS[e.op].kind == "reduction" and len(e.axes) == 1 else None
    if some is None or OPS[e.op].joins != "mul" or OPS[some.op].masks != (0,) or len(some.args) != 3:
        return None
    mask, decay, outside = some.args
    both = eqns.get(mask) if isinstance(mask, str) else None
    if both is None or both.op != "and" or isinstance(outside, str) or outside != OPS[e.op].identity:
        return None
    (along,) = e.axes
    ends = {upto(eqns[m], along, eqns) for m in both.values if m in eqns}
    want = {Upto(along, at.to, at.back, 0), Upto(along, at.axis, not at.back, 1)}
    return (decay, along) if ends == want else None


def possible(kernel: Kernel) -> Iterator[Scan]:
    """Those of a kernel that there are once all of their axes are held whole."""
    eqns = {e.out: e for e in kernel.body}
    return (s for e in kernel.body if (s := scan_of(e, eqns, kernel.value_dims)) is not None)


def scans_of(kernel: Kernel) -> tuple[Scan, ...]:
    """Those that a kernel has, and those that are possible."""
    return (*(e for e in kernel.body if isinstance(e, Scan)), *possible(kernel))


def with_scans(kernel: Kernel, some: Collection[Scan]) -> Kernel:
    """The kernel with these in the place of its masked reductions."""
    scans = {s.out: s for s in some}
    body = (scans.get(e.out, e) for e in kernel.body)
    return replace(kernel, body=tuple(live_eqns(body, (s.value for s in kernel.stores)))) if scans else kernel


@lru_cache(maxsize=256)
def by_scans(program: Program, sums_alone: bool = False) -> Program:
    """The program with scans in the place of its reductions up to each position, as it is evaluated: of 65,536
    positions, no 4,294,967,296 elements are held. sums_alone: of no other reductions, as in finite fields."""
    eqns = {e.out: e for e in program.eqns if e.op in OPS}
    dims = {name: x.dims for name, x in program.values().items()}
    scans = [s for e in eqns.values() if (s := scan_of(e, eqns, dims)) is not None and not s.relative]
    if sums_alone:
        scans = [s for s in scans if s.op == "sum" and not s.along]
    found = {s.out: s for s in scans if all(program.sizes[a] == program.sizes[s.to] for a in s.over)}
    if not found:
        return program
    wanted = [*(t.name for t in program.outputs), *(p.value for p in program.parts)]
    return replace(program, eqns=tuple(live_eqns((found.get(e.out, e) for e in program.eqns), wanted)))


@lru_cache(maxsize=4096)
def scanned(kernel: Kernel) -> Kernel:
    """The kernel with the scans whose axes it holds whole. These have one size (`whole_alike`)."""
    whole = {*kernel.with_role("tile")}
    return with_scans(kernel, [s for s in possible(kernel) if {s.to, *s.over} <= whole])


def whole_alike(kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Whether the axes of all scans are pairs of one size."""
    scans = (e for e in scanned(kernel).body if isinstance(e, Scan))
    return all(sizes[s.to] == sizes[a] for s in scans for a in s.over)


def reduces(e: Eqn) -> bool:
    """Whether an equation reduces its axes, to one result for all of their positions."""
    return OPS[e.op].kind == "reduction" and not isinstance(e, Scan)
