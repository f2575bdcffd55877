"""Canonical forms: sums of products of powers of atoms. Equal forms are a proof that two programs are equal.

Multiplying out, merging exp(a)·exp(b), and pulling what does not depend on a bound axis out of its Σ make
commutativity, associativity, distributivity, reassociation of contractions and moving a division over a contraction
hold by construction. The forms are sound and not complete: some equal programs get different forms (a product that
would have more than `MAX_TERMS` terms is not multiplied out).

Forms and atoms are interned by an `Algebra`, so equality is identity, and ordered by a digest of their structure, so
the order does not depend on the run.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from fractions import Fraction
from itertools import count
from typing import Any, Self  # what an atom is made of, which differs by kind

from mirage_cli.ir.access import Access, Index, dims_of, is_plain, plain, read_by
from mirage_cli.ir.access_text import parse_index, substitution
from mirage_cli.ir.once import once
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import FOLDS, OPS

MAX_POWER_BITS = 1000
"""Of a number's power; beyond, the power stays an operator."""
MAX_TERMS = 32
"""A product of sums with more terms than this is kept as a product."""

ONE, MINUS_ONE = Fraction(1), Fraction(-1)
Mono = tuple[tuple["Atom", Fraction], ...]


class Atom:
    """An indivisible factor. `kind` is one of

    input(name, access)  index(axis)  size(axis)  number(value)  inf()  exp(form)  shifted_exp(form, bound[, k])
    sum(bound, mono)  max(bound, form), as all of FOLDS  poly(form)  log(form)  fn(name, *forms)
    mark(form, bound)  written(op, axes, *args)  scaled(form, form)

    dims: the axes it depends on. key: a digest that orders atoms.
    """

    __slots__ = ("args", "dims", "key", "kind")

    def __init__(self, kind: str, args: tuple[Any, ...], dims: frozenset[str], key: str) -> None:
        self.kind, self.args, self.dims, self.key = kind, args, dims, key

    @property
    def shift(self) -> tuple[Form, tuple[str, ...], Fraction]:
        """x, the axes, and k of a shifted_exp, which is exp(k·x - k·max x)."""
        x, axes, *k = self.args
        return x, axes, k[0] if k else ONE

    def __str__(self) -> str:
        match self.kind:
            case "input":
                return f"{self.args[0]}[{','.join(map(str, self.args[1]))}]"
            case "sum":
                return f"Σ_{{{','.join(self.args[0])}}}({mono_text(self.args[1])})"
            case kind if kind in FOLDS:
                return f"{self.kind}_{{{','.join(self.args[0])}}}({self.args[1]})"
            case "shifted_exp":
                x, axes, k = self.shift
                inner = f"{x} - max_{{{','.join(axes)}}}"
                return f"exp({inner})" if k == 1 else f"exp({k}·({inner}))"
            case "fn":
                return f"{self.args[0]}({', '.join(str(a) for a in self.args[1:])})"
            case _:
                return f"{self.kind}({', '.join(str(a) for a in self.args)})"

    __repr__ = __str__


def mono_text(mono: Mono) -> str:
    return "·".join(str(a) if e == 1 else f"{a}^{e}" for a, e in mono) or "1"


class Form:
    """A sum of coefficients times monomials, in the order of their keys. Interned: compare with `is`."""

    __slots__ = ("atom", "dims", "key", "terms")

    def __init__(self, terms: tuple[tuple[Mono, Fraction], ...], dims: frozenset[str], key: str) -> None:
        self.terms, self.dims, self.key = terms, dims, key
        self.atom: Atom | None = None
        """The atom, if the form is just one."""
        if len(terms) == 1 and len(terms[0][0]) == 1:
            (((atom, power),), c) = terms[0]
            self.atom = atom if c == power == 1 else None

    @property
    def single(self) -> tuple[Mono, Fraction] | None:
        """The only term, if there is exactly one."""
        return self.terms[0] if len(self.terms) == 1 else None

    @property
    def number(self) -> Fraction | None:
        """The value of a constant form."""
        if not self.terms:
            return Fraction(0)
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def __str__(self) -> str:
        return " + ".join((f"{c}·" if c != 1 else "") + mono_text(m) for m, c in self.terms) or "0"

    __repr__ = __str__


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=10).hexdigest()


def _mono_key(mono: Mono) -> str:
    return ".".join(f"{a.key}^{e}" for a, e in mono)


class Algebra:
    """Builds canonical forms; the interpreter `A` of the `canon` column of OPS.

    aliases: axes made up to avoid capture, with the axis whose size they have. axes: all others that have been seen.
    sizes: of those whose size is known.
    """

    def __init__(self) -> None:
        self._forms: dict[tuple[tuple[Mono, Fraction], ...], Form] = {}
        self.atoms: dict[tuple[Any, ...], Atom] = {}
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.aliases: dict[str, str] = {}
        self.axes: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.zero, self.one = self._form({}), self._form({(): ONE})

    def copy(self) -> Self:
        """An algebra with the same forms, which makes others for itself."""
        found = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set):
                setattr(found, name, copy(value))
        return found

    # -- construction

    def _form(self, terms: Mapping[Mono, Fraction]) -> Form:
        kept = tuple(sorted(((m, c) for m, c in terms.items() if c), key=lambda t: _mono_key(t[0])))
        form = self._forms.get(kept)
        if form is None:
            dims = frozenset[str]().union(*(a.dims for m, _ in kept for a, _ in m))
            form = self._forms[kept] = Form(kept, dims, _digest(*(f"{c}*{_mono_key(m)}" for m, c in kept)))
        return form

    def _atom(self, kind: str, *args: Any, dims: Iterable[str]) -> Atom:
        name = (kind, *args)
        atom = self.atoms.get(name)
        if atom is None:
            parts: list[object] = [kind]
            for a in args:
                if isinstance(a, Form | Atom):
                    parts.append(a.key)
                elif kind == "sum" and a is args[1]:
                    parts.append(_mono_key(a))
                elif kind == "input" and a is args[1]:
                    parts.append(tuple(map(str, a)))
                else:
                    parts.append(a)
            atom = self.atoms[name] = Atom(kind, args, frozenset(dims), _digest(*parts))
        return atom

    def of_atom(self, atom: Atom, exponent: Fraction = ONE) -> Form:
        return self._form({((atom, exponent),): ONE})

    @once
    def of_mono(self, mono: Mono, c: Fraction = ONE) -> Form:
        """The product of the factors, merged and multiplied out where needed."""
        result = self.const(c)
        plain: dict[Atom, Fraction] = {}
        for atom, e in mono:
            if atom.kind == "exp":
                result = self.mul(result, self.exp(self.scale(atom.args[0], e)))
            elif atom.kind == "poly" and len(atom.args[0].terms) > 1:
                result = self.mul(result, self._pow_sum(atom.args[0], e))
            else:
                plain[atom] = e
        return self.mul(result, self._form({self._sorted(self._scaled(plain)): ONE}))

    @staticmethod
    def _sorted(factors: Mapping[Atom, Fraction]) -> Mono:
        return tuple(sorted(((a, e) for a, e in factors.items() if e), key=lambda f: f[0].key))

    # -- leaves

    def const(self, x: Number) -> Form:
        if isinstance(x, Fraction):
            return self._form({(): x})
        inf = self.of_atom(self._atom("inf", dims=()))
        return inf if x > 0 else self.scale(inf, MINUS_ONE)

    def input(self, name: str, access: Access) -> Form:
        dims = dims_of(access)
        self.axes |= set(dims) - set(self.aliases)
        return self.of_atom(self._atom("input", name, access, dims=dims))

    def index(self, axis: str) -> Form:
        """A position along an axis, or by an index in axes; where an access reads one position, `index(2)`. A number
        would lose that it is a position, which the verifier compares with others exactly."""
        return self.of_atom(self._atom("index", axis, dims=parse_index(axis).dims))

    def size(self, axis: str) -> Form:
        return self.of_atom(self._atom("size", self.aliases.get(axis, axis), dims=()))

    # -- arithmetic

    def scale(self, x: Form, c: Fraction) -> Form:
        return self._form({m: k * c for m, k in x.terms})

    def add(self, *xs: Form) -> Form:
        total: dict[Mono, Fraction] = {}
        for x in xs:
            for m, c in x.terms:
                total[m] = total.get(m, Fraction(0)) + c
        return self._form(total)

    def sub(self, x: Form, y: Form) -> Form:
        return self.add(x, self.scale(y, MINUS_ONE))

    @once
    def mul(self, x: Form, y: Form) -> Form:
        if x is y and len(x.terms) > 1:
            return self._pow_sum(x, Fraction(2))
        if len(x.terms) * len(y.terms) > MAX_TERMS:
            x, y = (z if len(z.terms) == 1 else self.of_atom(self._atom("poly", z, dims=z.dims)) for z in (x, y))
        return self.add(*(self._mul_mono(m, c, n, d) for m, c in x.terms for n, d in y.terms))

    def _mul_mono(self, m: Mono, c: Fraction, n: Mono, d: Fraction) -> Form:
        factors = dict(m)
        for atom, e in n:
            factors[atom] = factors.get(atom, Fraction(0)) + e
        merged = [a for a, e in m if a.kind == "poly" and factors[a] != e]
        if whole := [self.pow(a.args[0], factors.pop(a)) for a in merged if factors[a].denominator == 1]:  # √x·√x is x
            return functools.reduce(self.mul, whole, self._mul_mono(self._sorted(factors), c, (), d))
        factors = self._scaled(factors)
        exponents = [self.scale(a.args[0], factors.pop(a)) for a in list(factors) if a.kind == "exp"]
        product = self._form({self._sorted(factors): c * d})
        if not exponents:
            return product
        if len(exponents) == 1:
            exp = self.exp(exponents[0])
            if exp.atom is not None and exp.atom.kind == "exp":  # nothing to merge: keep as a factor
                return self._form({self._sorted({**factors, exp.atom: ONE}): c * d})
            return self.mul(product, exp)
        return self.mul(product, self.exp(self.add(*exponents)))

    def _scaled(self, factors: dict[Atom, Fraction]) -> dict[Atom, Fraction]:
        """x²/t² --> (x/t)² for a t that is made of max |x| or max x²: the squares of x alone may pass the range.

        So a Σ of (x/t)², as LAPACK's nrm2 has it, is none of x² over t². In a product that has x once, x/t is x·(1/t).
        """
        if not any(a.kind == "scaled" or (e < 0 and self._largest_in(a)) for a, e in factors.items()):
            return factors
        found: dict[Atom, Fraction] = {}
        for atom, e in factors.items():
            x, t = atom.args if atom.kind == "scaled" else (self.of_atom(atom), self.one)
            for a, k in (*x.terms[0][0], *((a, -k) for a, k in t.terms[0][0])):
                found[a] = found.get(a, Fraction(0)) + k * e
        for t in [a for a, e in found.items() if e < 0]:
            for x, k in self._largest_in(t).items():
                times = min(found.get(x, Fraction(0)), -found[t] / k) // 1
                if found.get(x, 0) >= 2 and times >= 1:
                    args = self.of_atom(x), self.of_atom(t, k)
                    found[self._atom("scaled", *args, dims=x.dims | t.dims)] = Fraction(times)
                    found |= {x: found[x] - times, t: found[t] + k * times}
        return {a: e for a, e in found.items() if e}

    @once
    def _largest_in(self, t: Atom) -> Mapping[Atom, Fraction]:
        """The values the largest of whose magnitudes are in this one, and the power of it that is as large as they."""
        found: dict[Atom, Fraction] = {}
        if t.kind == "max" and t.args[1].single:
            ((x, power), *others), _ = t.args[1].single
            inner = x.args[1].atom if x.kind == "fn" and OPS[x.args[0]].unsigned and power == 1 else x
            if inner is not None and not others and (inner is not x or power % 2 == 0):
                found[inner] = ONE / power
        elif t.kind in ("fn", "poly"):
            forms = (x for x in t.args if isinstance(x, Form))
            for a, e in (f for x in forms for m, _ in x.terms for f in m):
                found |= self._largest_in(a) if e == 1 else {}
        return found

    def pow(self, x: Form, e: Number) -> Form:
        if not isinstance(e, Fraction):
            return self.fn("pow", x, self.const(e))
        if e == 0 or x is self.one:
            return self.one
        if e == 1:
            return x
        if x.single:
            mono, c = x.single
            if e.denominator == 1 and (c or e > 0) and _writable(c, e):
                return self.of_mono(tuple((a, k * e) for a, k in mono), c**e.numerator)
            unknown = [(a, k) for a, k in mono if not is_nonnegative(a) or _loses_sign(a, k)]
            if c > 0 and (not unknown or (len(unknown) == 1 and unknown[0][1] == 1)):
                root = _exact_power(c, e)
                product = self.of_mono(tuple((a, k * e) for a, k in mono), ONE if root is None else root)
                number = self._atom("number", c, dims=())
                return product if root is not None else self.mul(product, self.of_atom(number, e))
        return self._pow_sum(x, e)

    def _pow_sum(self, x: Form, e: Fraction) -> Form:
        """An atom with an exponent. Squares too: where terms of x all but cancel, those of x² leave rounding errors."""
        if e == 1 and len(x.terms) <= MAX_TERMS:
            return x
        lead = next((c for m, c in x.terms if m), ONE)  # not the constant: x + 1e-6 is not to become 1e6 x + 1
        if len(x.terms) > 1 and e.denominator == 1 and e < 0 and _writable(lead, e):
            monic = self.scale(x, 1 / lead)
            return self.scale(self.of_atom(self._atom("poly", monic, dims=x.dims), e), lead**e.numerator)
        return self.of_atom(self._atom("poly", x, dims=x.dims), e)

    def exp(self, x: Form) -> Form:
        """exp(x). Where x subtracts its maximum, that makes the atom shifted_exp; of the rest, logarithms come out."""
        if x is self.zero:
            return self.one
        if x.single and x.single[1] < 0 and [a.kind for a, _ in x.single[0]] == ["inf"]:
            return self.zero
        plain = [(m[0][0], c) for m, c in x.terms if len(m) == 1 and m[0][1] == 1]
        for atom, c in plain:
            if atom.kind == "max" and c < 0 and (subtracted := self._maximised(x, atom, -c)):
                moving, axes = subtracted
                rest = self.add(x, self.scale(self.sub(self.of_atom(atom), moving), -c))
                return self.mul(self.shifted_exp(moving, axes, -c), self.exp(rest))
        for atom, c in plain:
            if atom.kind == "log" and c.denominator == 1:
                rest = self.sub(x, self.scale(self.of_atom(atom), c))
                return self.mul(self.pow(atom.args[0], c), self.exp(rest))
        return self.of_atom(self._atom("exp", x, dims=x.dims))

    def shifted_exp(self, x: Form, axes: Iterable[str], k: Fraction = ONE) -> Form:
        """exp(k·x - k·max x), the maximum over these axes; k is positive."""
        bound = tuple(sorted(x.dims & set(axes)))
        times = () if k == 1 else (k,)
        return self.of_atom(self._atom("shifted_exp", x, bound, *times, dims=x.dims)) if bound else self.one

    def mark(self, x: Form, axes: Iterable[str]) -> Form:
        """Some value with the axes of x but these, known to nobody."""
        return self.of_atom(self._atom("mark", x, tuple(axes), dims=x.dims - set(axes)))

    def _maximised(self, x: Form, top: Atom, k: Fraction) -> tuple[Form, tuple[str, ...]] | None:
        """The y, and the axes, of which `top` is the maximum, where x has k·y, up to terms that lack the axes."""
        bound, inner = top.args
        if self.depending(x, bound) is self.scale(self.depending(inner, bound), k):
            return inner, bound
        for mono, c in x.terms:  # y may be a maximum itself: max_a max_b z is max_{a,b} z
            atom = mono[0][0] if c == k and len(mono) == 1 and mono[0][1] == 1 else top
            if atom.kind == "max" and atom.args[1] is inner and set(atom.args[0]) < set(bound):
                return self.of_atom(atom), tuple(a for a in bound if a not in atom.args[0])
        return None

    def depending(self, x: Form, axes: Iterable[str]) -> Form:
        """The terms of x that depend on one of these axes."""
        axes = set(axes)
        return self._form({m: c for m, c in x.terms if any(a.dims & axes for a, _ in m)})

    def log(self, x: Form) -> Form:
        if x is self.one:
            return self.zero
        if x.single:
            mono, c = x.single
            exponents = [self.scale(a.args[0], e) for a, e in mono if a.kind == "exp"]
            if exponents:
                rest = self._form({tuple(f for f in mono if f[0].kind != "exp"): c})
                return self.add(self.log(rest), *exponents)
        return self.of_atom(self._atom("log", x, dims=x.dims))

    def fn(self, name: str, *args: Form) -> Form:
        return self.of_atom(self._atom("fn", name, *args, dims=frozenset[str]().union(*(a.dims for a in args))))

    def sort(self, *args: Form) -> list[Form]:
        """The arguments of a commutative function in canonical order."""
        return sorted(args, key=lambda f: f.key)

    # -- reductions

    def sum(self, x: Form, axes: Iterable[str]) -> Form:
        return self._sum(x, frozenset(axes))

    @once
    def _sum(self, x: Form, bound: frozenset[str]) -> Form:
        return self.add(*(self._sum_mono(m, c, bound) for m, c in x.terms))

    def _sum_mono(self, mono: Mono, c: Fraction, bound: frozenset[str]) -> Form:
        outside: dict[Atom, Fraction] = {}
        inside: dict[Atom, Fraction] = {}
        free = frozenset[str]().union(*(a.dims for a, _ in mono))
        outer = self.one
        for atom, e in mono:
            if not atom.dims & bound:
                outside[atom] = e
            elif atom.kind == "exp":
                moving = self.depending(atom.args[0], bound)
                outer = self.mul(outer, self.exp(self.scale(self.sub(atom.args[0], moving), e)))
                inside[self._atom("exp", moving, dims=moving.dims)] = e
            elif atom.kind == "sum" and e == 1 and not set(atom.args[0]) & (bound | free):
                inner_bound, inner = atom.args
                for a, k in inner:
                    inside[a] = inside.get(a, Fraction(0)) + k
                bound |= frozenset(inner_bound)
                free |= frozenset(inner_bound)
            else:
                inside[atom] = inside.get(atom, Fraction(0)) + e
        exps = [a for a in inside if a.kind == "exp"]
        result = self.mul(self._form({self._sorted(outside): c}), outer)
        if len(exps) > 1:
            merged = self.exp(self.add(*(self.scale(a.args[0], inside.pop(a)) for a in exps)))
            product = self.mul(self._form({self._sorted(inside): ONE}), merged)
            return self.mul(result, self.sum(product, bound))
        for axis in sorted(bound - frozenset[str]().union(*(a.dims for a in inside))):
            result = self.mul(result, self.size(axis))
        for part in _components(self._sorted(inside), bound):
            axes = tuple(sorted(bound & frozenset[str]().union(*(a.dims for a, _ in part))))
            dims = frozenset[str]().union(*(a.dims for a, _ in part)) - set(axes)
            total = self.of_atom(self._atom("sum", axes, part, dims=dims)) if axes else self.of_mono(part)
            result = self.mul(result, total)
        return result

    def folded(self, kind: str, x: Form, axes: Iterable[str]) -> Form:
        """One of FOLDS over axes, nested ones merged. Nothing is pulled out of it: finite fields have no order that
        would confirm it of a maximum."""
        bound = frozenset(axes)
        if not bound:
            return x
        for a in sorted(bound - x.dims):  # its terms with this axis have cancelled: the same value, repeated along it
            nothing = self.const(OPS[kind].neutral(whole=False))
            x = self.fn("where", self.fn("le", self.zero, self.index(a)), x, nothing)
        if x.atom is not None and x.atom.kind == kind and not set(x.atom.args[0]) & bound:
            bound |= frozenset(x.atom.args[0])
            x = x.atom.args[1]
        return self.of_atom(self._atom(kind, tuple(sorted(bound)), x, dims=x.dims - bound))

    # -- substitution

    def rename(self, x: Form, names: Mapping[str, Index]) -> Form:
        """x with indices in the place of free axes; bound axes that would capture one of theirs are renamed apart."""
        live = {a: b for a, b in names.items() if a in x.dims and a != b.axis}
        if not live:
            return x
        return self._renamed(x, tuple(sorted(live.items())))

    @once
    def _renamed(self, x: Form, names: tuple[tuple[str, Index], ...]) -> Form:
        live = dict(names)
        return self.rebuild(x, lambda atom: self._rename_atom(atom, live))

    def _rename_atom(self, atom: Atom, names: Mapping[str, Index]) -> Form:
        if not atom.dims & set(names):
            return self.of_atom(atom)
        if atom.kind == "input":
            return self.input(atom.args[0], tuple(i.within(names) for i in atom.args[1]))
        if atom.kind == "index":
            return self.index(str(parse_index(atom.args[0]).within(names)))
        bound: tuple[str, ...] = ()
        if atom.kind == "sum" or atom.kind in FOLDS:
            bound = atom.args[0]
        elif atom.kind == "written":
            bound = atom.args[1]
        elif atom.kind == "shifted_exp":  # its bound axes are free in the exponent too: rename both
            x, axes, k = atom.shift
            moved = self.rename(x, names)
            under, beside = read_by(axes, names), read_by(x.dims - set(axes), names)
            whole = all(self._size(d) == self._size(i.axis) for d, i in zip(axes, under, strict=True))
            if is_plain(under) and whole and not set(dims_of(under)) & set(dims_of(beside)):
                return self.shifted_exp(moved, dims_of(under), k)
            top = self.rename(self.folded("max", x, axes), names)
            return self.fn("exp_sub", self.scale(moved, k), self.scale(top, k))  # its parts alone may overflow
        taken = {d for i in names.values() for d in i.dims}
        apart = self._apart([b for b in bound if b in taken], taken | atom.dims | {*bound})
        inner = {a: i for a, i in names.items() if a not in bound} | {b: plain((a,))[0] for b, a in apart.items()}

        def renamed(x: Form) -> Form:
            return self.rename(x, inner)

        return self.map_atom(atom, renamed, tuple(apart.get(b, b) for b in bound))

    def _size(self, axis: str | None) -> int | None:
        """The size of an axis, where it is known: the maximum of some positions is not that of all."""
        return None if axis is None else self.sizes.get(self.aliases.get(axis, axis))

    def _apart(self, axes: Sequence[str], taken: Set[str]) -> dict[str, str]:
        """Names in the place of bound axes that are none of those taken. What is bound in other atoms may have them
        too: products with one operand then have one sum over it, which one loop computes."""
        found: dict[str, str] = {}
        for axis in axes:
            root = self.aliases.get(axis, axis)
            numbered = (f"{root}_{n}" for n in count(1))
            name = next(x for x in numbered if x not in {*taken, *self.axes, *found.values()})
            self.aliases[name] = root
            found[axis] = name
        return found

    def rebuild(self, x: Form, change: Callable[[Atom], Form]) -> Form:
        """x with every atom replaced by a form."""
        terms: list[Form] = []
        for mono, c in x.terms:
            term = self.const(c)
            for atom, e in mono:
                changed = change(atom)
                power = self.of_atom(atom, e) if changed.atom is atom else self.pow(changed, e)
                term = self.mul(term, power)
            terms.append(term)
        return self.add(*terms)

    def map_atom(self, atom: Atom, f: Callable[[Form], Form], bound: tuple[str, ...] | None = None) -> Form:
        """The atom rebuilt from its parts mapped by `f`, with the axes it binds replaced by `bound`."""
        match atom.kind:
            case "exp":
                return self.exp(f(atom.args[0]))
            case "log":
                return self.log(f(atom.args[0]))
            case "poly":
                return f(atom.args[0])
            case "fn":
                name = atom.args[0]
                args = [f(a) for a in atom.args[1:]]
                commutes = name in OPS and OPS[name].commutes
                return self.fn(name, *(self.sort(*args) if commutes else args))
            case "sum":
                axes = atom.args[0] if bound is None else bound
                return self.sum(f(self.of_mono(atom.args[1])), axes)
            case kind if kind in FOLDS:
                return self.folded(atom.kind, f(atom.args[1]), atom.args[0] if bound is None else bound)
            case "shifted_exp":
                return self.shifted_exp(f(atom.args[0]), *atom.args[1:])
            case "scaled":
                x, t = map(f, atom.args)
                return self.mul(x, self.pow(t, MINUS_ONE))
            case "written":
                op, axes, *args = atom.args
                mapped = [f(a) if isinstance(a, Form) else a for a in args]
                return self.written(op, axes if bound is None else bound, mapped)
            case _:
                return self.of_atom(atom)

    def written(self, op: str, axes: tuple[str, ...], args: Iterable[Form | Number]) -> Form:
        """An operator's result as an atom of its own, whatever its terms come to."""
        args = tuple(args)
        dims = frozenset[str]().union(*(a.dims for a in args if isinstance(a, Form))) - set(axes)
        return self.of_atom(self._atom("written", op, axes, *args, dims=dims))

    def apply(self, op: str, args: Iterable[Form | Number], axes: tuple[str, ...] = ()) -> Form:
        """The form of one operator applied to forms and numbers."""
        return self._apply(op, tuple(args), axes)

    @once
    def _apply(self, op: str, args: tuple[Form | Number, ...], axes: tuple[str, ...]) -> Form:
        row = OPS[op]
        forms: list[Any] = [a if isinstance(a, Form) else self.const(a) for a in args]
        if row.numbers:
            numbers = {i: forms[i].number for i in row.numbers}
            known = None not in numbers.values()
            return row.canon(self, *(numbers.get(i, f) for i, f in enumerate(forms))) if known else self.fn(op, *forms)
        if row.kind == "leaf":
            return row.canon(self, axes[0])
        if row.kind == "rename":
            return row.canon(self, forms[0], substitution(axes))
        return row.canon(self, *forms, axes) if row.kind in ("reduction", "contraction") else row.canon(self, *forms)


class LiteralAlgebra(Algebra):
    """One in which a result stays what the operator computes where all its terms cancel, or all that have some axis.

    A mean that is 0 of values that were rounded is not 0, and a program that subtracts it makes them exact again.
    """

    def apply(self, op: str, args: Iterable[Form | Number], axes: tuple[str, ...] = ()) -> Form:
        args = tuple(args)
        found = super().apply(op, args, axes)
        forms = [a for a in args if isinstance(a, Form)]
        if OPS[op].kind not in ("elementwise", "reduction", "contraction") or not forms:
            return found
        literal = self.written(op, axes, args)
        return found if found.number is None and found.dims == literal.dims else literal


def is_nonnegative(atom: Atom) -> bool:
    """Whether an atom cannot be negative, so that fractional powers distribute over it."""
    squares = atom.kind == "sum" and all(is_nonnegative(a) or k % 2 == 0 for a, k in atom.args[1])
    return squares or atom.kind in ("exp", "shifted_exp", "size", "number")


def _loses_sign(atom: Atom, k: Fraction) -> bool:
    """Whether a root of atom**k need not be a power of the atom in a finite field, where a sum of squares may have no
    root, and be the negative of that of its own square."""
    return atom.kind == "sum" and k % 2 == 0


def _exact_power(c: Fraction, e: Fraction) -> Fraction | None:
    """c ** e where that is rational and the exponent is a half."""
    if c == 1:
        return ONE
    if e.denominator == 2 and _writable(c, e):
        n, d = math.isqrt(c.numerator), math.isqrt(c.denominator)
        if n * n == c.numerator and d * d == c.denominator:
            return Fraction(n, d) ** e.numerator
    return None


def _writable(c: Fraction, e: Fraction) -> bool:
    """Whether c ** e is a number of moderate length, which float64 can hold too."""
    bits = max(c.numerator.bit_length(), c.denominator.bit_length())
    return abs(c) == 1 or bits * abs(e) <= MAX_POWER_BITS


def _components(mono: Mono, bound: frozenset[str]) -> list[Mono]:
    """The factors in groups that share no bound axis."""
    groups: list[tuple[set[str], list[tuple[Atom, Fraction]]]] = []
    for atom, e in mono:
        axes, members = set(atom.dims & bound), [(atom, e)]
        for group in [g for g in groups if g[0] & axes]:
            axes, members = axes | group[0], group[1] + members
            groups.remove(group)
        groups.append((axes, members))
    return [tuple(sorted(members, key=lambda f: f[0].key)) for _, members in groups]


def mono_dims(mono: Iterable[tuple[Atom, Fraction]]) -> frozenset[str]:
    return frozenset[str]().union(*(a.dims for a, _ in mono))


def sums_in(x: Form) -> list[Atom]:
    """The Σs that are factors of its terms."""
    return [a for m, _ in x.terms for a, _ in m if a.kind == "sum"]


def sums_over(x: Form, axes: Iterable[str]) -> list[Atom]:
    """Those of these that are over one of the axes."""
    return [total for total in sums_in(x) if {*total.args[0]} & {*axes}]
