"""What a passing finite-field test proves: the degree of the functions compared, and the bound that follows.

Each value is a quotient of polynomials; its numerator's degree and its denominator as a product of powers of named
polynomials are followed through the equations. exp, roots and random functions count as fresh variables of degree 1;
for them the bound rests on the assumption that is recorded (docs/verification.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from mirage_cli.ir.access import Index, plain
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.op import Growth, Known
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program
from mirage_cli.verify.residues import MODULI, Levels
from mirage_cli.verify.structure import in_pieces

ASSUMPTIONS = {
    "exponential": "powers of ω behave as independent where exponents differ",
    "root": "roots behave as random functions",
    "extremum": "max and min are known as associative, commutative operations alone",
    "mask": "comparisons are known as functions alone",
    "fn": "opaque functions are known as functions alone",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What one test claims.

    bound: on a false accept. assumes: texts of what it rests on. at: seed, sizes, tiles and chunks.
    """

    bound: float
    assumes: tuple[str, ...]
    at: str = ""


def outside(eqns: Iterable[Eqn]) -> tuple[str, ...]:
    """What these equations have of which the finite fields know less than the bound's theorem asks, with its operators.

    In the order of `ASSUMPTIONS`.
    """
    found: dict[str, list[str]] = {kind: [] for kind in ASSUMPTIONS}
    for e in eqns:
        kind = _known(e)
        if kind != "exactly" and e.op not in found[kind]:
            found[kind].append(e.op)
    return tuple(f"{', '.join(sorted(ops))} ({ASSUMPTIONS[kind]})" for kind, ops in found.items() if ops)


def _known(e: Eqn) -> Known:
    """How the finite fields know what an equation computes: its operator's column, but a fractional power is a root."""
    return "root" if OPS[e.op].growth == "raised" and _whole(e.args[1]) is None else OPS[e.op].known


def _whole(exponent: Arg) -> int | None:
    """An exponent that is a whole number."""
    return int(exponent) if isinstance(exponent, Fraction) and exponent.denominator == 1 else None


@dataclass(frozen=True, slots=True)
class Factor:
    """A power of a polynomial in a denominator: degree of the base, and the axes it depends on."""

    degree: int
    dims: frozenset[str]
    power: int


@dataclass(frozen=True, slots=True)
class Degree:
    """A quotient: numerator's degree, denominator as a product of factors by name."""

    top: int
    bottom: Mapping[str, Factor]

    @property
    def below(self) -> int:
        return sum(f.degree * f.power for f in self.bottom.values())


def power(x: Degree, n: int) -> Degree:
    return Degree(x.top * n, {k: Factor(f.degree, f.dims, f.power * n) for k, f in x.bottom.items()})


class _Walk:
    """Degrees through a list of equations."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.kinds: set[str] = set()
        self.exponent = 0
        self.fresh = 0

    def run(self, eqns: Iterable[Eqn], env: dict[str, Degree]) -> None:
        for e in eqns:
            args = [env[a] if isinstance(a, str) else Degree(0, {}) for a in e.args]
            env[e.out] = self.equation(e, args)

    def equation(self, e: Eqn, args: list[Degree]) -> Degree:
        known = _known(e)
        if known != "exactly":
            self.kinds.add(known)
        if known == "exponential":
            self.exponent = max([self.exponent, *(a.top + a.below for a in args)])
        return GROWTHS[OPS[e.op].growth](self, e, args)

    def product(self, x: Degree, y: Degree) -> Degree:
        bottom = dict(x.bottom)
        for k, f in y.bottom.items():
            bottom[k] = Factor(f.degree, f.dims, f.power + (bottom[k].power if k in bottom else 0))
        return Degree(x.top + y.top, bottom)

    def inverse(self, x: Degree, e: Eqn) -> Degree:
        self.fresh += 1
        return Degree(x.below, {f"{e.out} {self.fresh}": Factor(x.top, frozenset(e.dims), 1)})

    def total(self, terms: list[Degree]) -> Degree:
        bottom: dict[str, Factor] = {}
        for t in terms:
            for k, f in t.bottom.items():
                bottom[k] = max(f, bottom.get(k, f), key=lambda f: f.power)
        whole = sum(f.degree * f.power for f in bottom.values())
        return Degree(max((t.top + whole - t.below for t in terms), default=0), bottom)

    def raised(self, e: Eqn, x: Degree) -> Degree:
        exponent = _whole(e.args[1])
        if exponent is None:
            return FRESH
        return power(x if exponent > 0 else self.inverse(x, e), min(abs(exponent), MODULI[-1]))

    def of_all(self, e: Eqn, x: Degree) -> Degree:
        """A product over all elements along the axes. Of extrema, one of φ(x) = (x + c)³ + d: as a polynomial of d, it
        tells n elements from others but for a probability of n / p, besides that of equal elements."""
        longest = max(x.top, x.below) + OPS[e.op].extremum
        return power(Degree(longest, x.bottom), prod(self.sizes.get(a, 3) for a in e.axes))

    def reduced(self, e: Eqn, x: Degree) -> Degree:
        """A sum over axes: denominators that depend on them are multiplied together."""
        if OPS[e.op].kind not in ("reduction", "contraction"):
            return x
        top, bottom = x.top, {}
        for k, f in x.bottom.items():
            n = prod(self.sizes.get(a, 3) for a in e.axes if a in f.dims)
            top += (n - 1) * f.degree * f.power
            bottom[k if n == 1 else f"{k} {e.out}"] = Factor(f.degree * n, f.dims - set(e.axes), f.power)
        return Degree(top, bottom)


FRESH = Degree(1, {})
GROWTHS: Mapping[Growth, Callable[[_Walk, Eqn, list[Degree]], Degree]] = {
    "none": lambda w, e, x: Degree(0, {}),
    "fresh": lambda w, e, x: FRESH,
    "first": lambda w, e, x: w.reduced(e, _read_by(x[0], e.names, e.names.values())),
    "total": lambda w, e, x: w.total(x[-2:]),
    "product": lambda w, e, x: w.reduced(e, w.product(x[0], x[1])),
    "quotient": lambda w, e, x: w.product(x[0], w.inverse(x[1], e)),
    "squared": lambda w, e, x: w.product(x[0], x[0]),
    "inverse": lambda w, e, x: w.inverse(x[0], e),
    "scaled": lambda w, e, x: w.product(x[0], FRESH),
    "raised": lambda w, e, x: w.raised(e, x[0]),
    "all": lambda w, e, x: w.of_all(e, x[0]),
}
"""The degree of a result, from those of the arguments."""


def claim(program: Program, graph: MuGraph, levels: Sequence[Iterable[Levels]]) -> Claim:
    """The bound of one test that compared each output in these residues, some elements in these, others in those.

    A difference of degree D that is not zero vanishes at a random point modulo p with probability at most D / p
    (Schwartz 1980, Zippel 1979); residues modulo different primes are independent. Where exponentials occur one residue
    alone is counted, and the degree of the exponents, which are residues modulo a smaller prime, is added. A test that
    compared nothing of an output bounds nothing.
    """
    walk = _Walk(program.sizes)
    env = {t.name: Degree(1, {}) for t in program.inputs}
    walk.run(program.eqns, env)
    other = _Walk(graph.sizes)
    memory = {t.name: Degree(1, {}) for t in graph.inputs}
    parted = {p.tensor.name for p in program.parts} | {t.name for t in graph.outputs if in_pieces(graph, t)}
    stored: dict[str, list[Degree]] = {}
    for k in graph.kernels:
        values = {x.out: _read_by(memory[x.buffer], graph.tensors()[x.buffer].dims, x.access) for x in k.loads}
        other.run(k.body, values)
        for s in k.stores:
            if s.buffer in parted or len(s.dims) > len(graph.tensors()[s.buffer].dims):  # by blocks
                stored.setdefault(s.buffer, []).append(values[s.value])
            else:
                memory[s.buffer] = _read_by(values[s.value], s.dims, plain(graph.tensors()[s.buffer].dims))
    kinds = walk.kinds | other.kinds
    exponent = max(walk.exponent, other.exponent)
    bound = 0.0
    for (t, whole, _), compared in zip(program.places(), levels, strict=True):
        if not compared:
            bound = 1.0
        a = env[t.name]
        candidates = stored.get(whole.name) or [memory[t.name]]
        degree = max(1, *(max(a.top + b.below, b.top + a.below) for b in candidates))
        for valid in compared:
            if "exponential" in kinds:
                here = degree / MODULI[valid.index(True)] + exponent / MODULI[-1]
            else:
                here = prod(min(1.0, degree / p) for p, v in zip(MODULI, valid, strict=True) if v)
            bound = max(bound, min(1.0, here))
    return Claim(bound, tuple(text for kind, text in ASSUMPTIONS.items() if kind in kinds))


def _read_by(x: Degree, dims: Iterable[str], access: Iterable[Index]) -> Degree:
    """x, which has these axes, with an index in the place of each. A denominator at other positions is another one."""
    new = {d: i for d, i in zip(dims, access, strict=True) if i.axis != d}
    bottom: dict[str, Factor] = {}
    for k, f in x.bottom.items():
        moved = [f"{d}={new[d]}" for d in sorted(f.dims) if d in new]
        axes = frozenset(a for d in f.dims for a in (new[d].dims if d in new else (d,)))
        bottom[" ".join((k, *moved))] = replace(f, dims=axes)
    return Degree(x.top, bottom)
