"""Numbers that scores are multiplied by, moved behind their maximum and into their exponent.

    t[q, s] = mul(a, c);  x[q, s] = where(mask, t, -inf);  m[q] = max(x; s), running;  p[q, s] = exp_sub(x, m)
    --> n = max(where(mask, a, -inf)),  p = exp(c * (where(mask, a, -inf) - n)), and m = c * n behind the loop

For c > 0 rounding keeps the order, so that m is the same number, and c needs no operation for each element: it is a
factor of log2 e, which the exponential multiplies by. A later loop, which has m whole, would need c for each element:
where one makes the scores again, they keep their factor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import inf, isfinite

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.ops import exact_inverse
from mirage_cli.ir.placement import Loop, Placement
from mirage_cli.ir.program import Eqn


def postponed(kernel: Kernel, placement: Placement) -> dict[str, float]:
    """The values that loops may hold before they are multiplied by a positive number, with that number: running maxima
    and the exponentials of differences from these are all that is made of them, in one loop."""
    eqns = {e.out: e for e in kernel.body}
    readers: dict[str, set[str]] = defaultdict(set)
    for e in kernel.body:
        for v in e.values:
            readers[v].add(e.out)
    for s in kernel.stores:
        readers[s.value].add("")
    times = Counter(s.out for segment in placement.segments for s in segment.steps)
    found: dict[str, float] = {}
    for loop in placement.loops:
        inside = {s.out for s in loop.steps if isinstance(s, Eqn) and times[s.out] == 1}
        for m in loop.running:
            values = [*_made_of(eqns, eqns[m].values[0])]
            factor = _factor(eqns[values[-1]]) if values[-1] in eqns else None
            first, *others = values
            known = all(readers[v] == {w} for v, w in zip(others, values, strict=False))
            if factor is not None and known and inside >= {*values} and _exponents(eqns, loop, m, readers[first]):
                found |= dict.fromkeys(values, factor)
    return found


def _made_of(eqns: Mapping[str, Eqn], v: str) -> Iterator[str]:
    """A value; behind it, as long as a mask makes it of another value or -inf, that value."""
    yield v
    e = eqns.get(v)
    if e is not None and e.op == "where" and e.args[2] == -inf and isinstance(e.args[1], str):
        yield from _made_of(eqns, e.args[1])


def _factor(e: Eqn) -> float | None:
    """The positive number by which an equation multiplies one value."""
    if len(e.values) != 1 or len(e.args) != 2 or e.type != "float":
        return None
    (number,) = (a for a in e.args if not isinstance(a, str))
    if not isfinite(number) or number <= 0:
        return None
    if e.op == "mul":
        return float(number)
    if e.op == "div" and e.args[1] == number:
        return exact_inverse(Fraction(number))
    return None


def _exponents(eqns: Mapping[str, Eqn], loop: Loop, m: str, readers: set[str]) -> bool:
    """Whether all that reads a value beside its running maximum are exponentials of the difference, in its loop."""
    steps = {s.out for s in loop.steps if isinstance(s, Eqn)}
    others = readers - {m}
    return others <= steps and all(eqns[v].op == "exp_sub" and eqns[v].args[1] == m for v in others)


def merges_alone(graph: MuGraph, buffer: str) -> bool:
    """Whether a buffer holds maxima of chunks, of which no kernel makes more than the factors by which it merges what
    else the chunks have left: M = max(m; chunks), exp_sub(m, M)."""
    readers = [(k, x.out) for k in graph.kernels for x in k.loads if x.buffer == buffer]
    shown = {t.name for t in graph.outputs}
    return buffer not in shown and bool(readers) and all(_merges(k, part) for k, part in readers)


def _merges(kernel: Kernel, part: str) -> bool:
    tops = {e.out for e in kernel.body if e.op == "max" and e.args == (part,)}
    factors = {e.out for e in kernel.body if e.op == "exp_sub" and e.args[0] == part and e.args[1] in tops}
    others = {v for e in kernel.body if e.out not in tops | factors for v in e.values}
    return bool(factors) and not (others | {s.value for s in kernel.stores}) & (tops | {part})
