"""Ways to make a Σ of a product: a dot of two sides, a sum of the product, a sum of sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations

from mirage_cli.algebra.canonical import ONE, Algebra, Atom, Form, Mono, mono_dims, sums_in
from mirage_cli.algebra.graph import Decomposition, Node, Source
from mirage_cli.algebra.safe import plain_forms
from mirage_cli.algebra.steps import Steps, constant, product_after
from mirage_cli.algebra.typed import typed_dot
from mirage_cli.ir.program import HALVES, Program

MAX_FACTORS = 6
"""A contraction of more factors than this is only ever split as one factor against the rest."""
MAX_ABSORBED = 2
"""Factors that are taken into a Σ at once."""


def contractions(d: Decomposition, total: Atom, others: Mono, c: Fraction) -> Iterator[Node]:
    """dot or sum for one Σ, with some of the factors that stand beside it taken in."""
    bound, mono, dtype = frozenset(total.args[0]), total.args[1], d.products.get(total, "")
    takeable = [f for f in others if not f[0].dims & bound and not (f[0].kind == "sum" and f[1] == 1) and f[0].dims]

    def summed() -> Node:
        steps = Steps()
        first = steps.add("sum", d.algebra.of_mono(mono), axes=total.args[0])
        product_after(d, steps, first, others, c)
        return steps.node()

    if len(mono) == 1:
        yield summed()
    found = 0
    for n in range(min(len(takeable), MAX_ABSORBED) + 1):
        for taken in combinations(takeable, n):
            rest = tuple(f for f in others if f not in taken)
            for side, other, axes in _partitions(d, mono + taken, bound):
                steps = Steps()
                if dtype in HALVES:  # so are the Σs that the sides have been given
                    for inner in (*sums_in(side), *sums_in(other)):
                        if {*inner.args[0]} <= bound - {*axes}:
                            d.products.setdefault(inner, dtype)
                if side.dims == other.dims:  # neither is a matrix beside the other: a product by elements
                    first = steps.add("sum", steps.add("mul", side, other), axes=axes)
                else:
                    first = steps.append(typed_dot(d, side, other, axes, dtype))
                product_after(d, steps, first, rest, c)
                found += 1
                yield steps.node()
    if len(mono) > 1 and not found:
        yield summed()
    yield from _sums_of_parts(d, total, others, c)


def _sums_of_parts(d: Decomposition, total: Atom, others: Mono, c: Fraction) -> Iterator[Node]:
    """The Σ of squared distances by parts, and the Σ that its shift holds. i are the innermost of the axes.

    Σ_ai (x - s)² = Σ_a (Σ_i (x - m)² + |i|·(m - s)²), where m is the mean of x over i, and s is any value without i
    (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances").
    Σ_ai x = Σ_a Σ_i x

    A shift such as the mean over all is not known before all of x was read. The parts are about means of their own, and
    what they are off is small where s is near x: nothing cancels that does not in the Σ itself.
    """
    algebra, axes = d.algebra, tuple(a for a in d.axes if a in total.args[0])
    shift = _shifted_square(algebra, total)
    held = not shift and any(
        a.args[0] == total.args[0] and (p := _shifted_square(algebra, a)) and total in sums_in(p)
        for a in [*algebra.atoms.values()]
        if a.kind == "sum"
    )
    for n in range(1, len(axes) if shift or held else 1):
        outer, inner = axes[:n], axes[n:]
        steps = Steps()
        part: Source = algebra.sum(algebra.of_mono(total.args[1]), inner)
        if shift:
            size = functools.reduce(algebra.mul, map(algebra.size, inner))
            apart = algebra.mul(algebra.sum(shift, inner), algebra.pow(size, -ONE))
            squares = steps.add("mul", steps.add("square", constant(apart)), size)
            own = algebra.sum(algebra.pow(algebra.sub(shift, apart), Fraction(2)), inner)
            part = steps.add("add", squares, own)
        first = steps.add("sum", part, axes=outer)
        product_after(d, steps, first, others, c)
        yield steps.node()


def summed_in_parts(program: Program) -> set[frozenset[str]]:
    """The axes of every Σ of squares about a shift that holds a Σ over the same axes, in a lowered program: two passes
    where they are one axis, and one by parts."""
    algebra = Algebra()
    plain_forms(algebra, program)
    atoms = [a for a in algebra.atoms.values() if a.kind == "sum"]
    return {frozenset(a.args[0]) for a in atoms if _shifted_square(algebra, a)}


def _shifted_square(algebra: Algebra, total: Atom) -> Form | None:
    """The x - s of Σ (x - s)², where s lacks the axes of the Σ and holds a Σ over them."""
    if len(total.args[1]) > 1:
        return None
    ((atom, power),) = total.args[1]
    x = atom.args[0] if atom.kind == "poly" and power == 2 else algebra.zero
    return x if any(a.args[0] == total.args[0] for a in sums_in(x)) else None


def _partitions(d: Decomposition, mono: Mono, bound: frozenset[str]) -> Iterator[tuple[Form, Form, tuple[str, ...]]]:
    """The two sides of a dot, each with its own Σs inside, for every bipartition of the factors. Of a side that is a
    value of the program, no factor is better taken by the other side."""
    factors = list(mono)
    if len(factors) < 2:
        return
    rest = factors[1:]
    sizes = range(len(rest)) if len(factors) <= MAX_FACTORS else (0, len(rest) - 1)
    for n in sizes:
        for chosen in combinations(rest, n):
            left = (factors[0], *chosen)
            right = tuple(f for f in rest if f not in chosen)
            axes = bound & mono_dims(left) & mono_dims(right)
            if not axes:
                continue
            if _outer(left, right, axes, bound) or _outer(right, left, axes, bound):
                d.cuts["outer product"] += 1
                continue
            sides = [d.algebra.sum(d.algebra.of_mono(s), bound & mono_dims(s) - axes) for s in (left, right)]
            scaled = (_scales_larger(d, left, right), _scales_larger(d, right, left))
            if any(larger and side not in d.own for larger, side in zip(scaled, sides, strict=True)):
                d.cuts["scaling of the larger operand"] += 1
                continue
            a, b = sorted(sides, key=lambda f: f.key)
            yield a, b, tuple(x for x in d.axes if x in axes)


def _outer(side: Mono, other: Mono, axes: frozenset[str], bound: frozenset[str]) -> bool:
    """Whether a side of a contraction over some of the bound axes is a product with more axes than any of its factors,
    and nothing is summed in it. Not if its factors have axes in common that are contracted, with a matrix: in
    Σ_{k,i} M[k,i,l]·(X[k,i]·R[k,c]), k."""
    dims = mono_dims(side)
    if len(side) == 1 or dims & (bound - axes) or any(a.dims == dims for a, _ in side):
        return False
    return not (mono_dims(other) - dims and axes.intersection(*(a.dims for a, _ in side)))


def _scales_larger(
    d: Decomposition, side: Sequence[tuple[Atom, Fraction]], other: Sequence[tuple[Atom, Fraction]]
) -> bool:
    """Whether a factor of this side only scales it, and could as well scale the other, smaller side."""
    sizes = d.sizes

    def elements(dims: frozenset[str]) -> tuple[int, str]:
        return math.prod(sizes[a] for a in dims), ",".join(sorted(dims))

    for f in side:
        rest = mono_dims([g for g in side if g is not f])
        if (
            len(side) > 1
            and f[0].dims <= rest
            and f[0].dims <= mono_dims(other)
            and elements(rest) > elements(mono_dims(other))
        ):
            return True
    return False
