"""Comparisons that the sizes of the program itself settle, as comparisons that any sizes settle alike.

    i[d] = index(d)          i[d] = index(d)
    M[d] = le(i, 7)    -->   Z[d] = mul(i, 0)         d = 7
                             M[d] = le(Z, 0)

Comparisons with larger numbers are random where a test has few positions, so that 7 is told from 6. Where the program
has no position at which they differ, a plan need not compare: it reads d at 0, say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program

Settled = TypeVar("Settled", Program, MuGraph)
SIGNS = (Fraction(-1), Fraction(0), Fraction(1))
"""What 0 is compared with exactly."""


def settled(x: Settled) -> Settled:
    """A program or a μGraph of which the tests know all comparisons that hold everywhere or nowhere."""
    sizes = {**x.sizes, **{r.dim: r.most for r in x.dynamic}}
    if isinstance(x, Program):
        return replace(x, eqns=tuple(_settled(x.eqns, sizes, {e.out for e in x.eqns})))
    values = {*x.tensors(), *(e.out for k in x.kernels for e in k.body), *(v.out for k in x.kernels for v in k.loads)}
    return replace(x, kernels=tuple(replace(k, body=tuple(_settled(k.body, sizes, values))) for k in x.kernels))


def _settled(eqns: Iterable[Eqn], sizes: Mapping[str, int], taken: Collection[str]) -> Iterator[Eqn]:
    positions: dict[str, tuple[Eqn, tuple[int, int]]] = {}
    for e in eqns:
        if e.place and {*e.place.dims, *(x.below for x in e.place.lookups if isinstance(x.below, str))} <= sizes.keys():
            positions[e.out] = e, e.place.bounds(sizes)  # chunks have no size yet
        found = next((positions[v] for v in e.values if v in positions), None) if OPS[e.op].compares else None
        numbers = [a for a in e.args if isinstance(a, Fraction)]
        answer = _everywhere(e, found[1], numbers[0]) if found and numbers else None
        if found is None or answer is None:
            yield e
            continue
        name = next(n for n in (f"{e.out}_at{'_' * i}" for i in range(len(taken) + 1)) if n not in taken)
        yield replace(found[0], op="mul", args=(found[0].out, Fraction(0)), axes=(), out=name)
        sign = next(c for c in SIGNS if _holds(e, 0, c) == answer)
        yield replace(e, args=tuple(name if isinstance(a, str) else sign for a in e.args))


def _everywhere(e: Eqn, bounds: tuple[int, int], number: Fraction) -> bool | None:
    """What a comparison of any position in these bounds with a number gives; None where that depends on it."""
    low, high = bounds
    near = {min(max(n, low), high) for n in (math.floor(number), math.ceil(number), low, high)}
    answers = {_holds(e, n, number) for n in near}
    return answers.pop() if len(answers) == 1 else None


def _holds(e: Eqn, position: int, number: Fraction) -> bool:
    return bool(OPS[e.op].ref(*(position if isinstance(a, str) else float(number) for a in e.args)))
