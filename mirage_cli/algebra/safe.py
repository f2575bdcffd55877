"""The forms of a program's values, made safe: exponentials that would overflow have their maximum subtracted.

No operator has a rule here: a maximum is subtracted where that cancels from the outcome, however it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from mirage_cli.algebra.canonical import Algebra, Atom, Form, Mono
from mirage_cli.ir.ops import Number
from mirage_cli.ir.program import Arg, Eqn, Program


def program_forms(algebra: Algebra, program: Program) -> dict[str, Form]:
    """The form of every value of a lowered program, exponentials made safe (see `make_safe`)."""
    algebra.axes |= set(program.order)
    forms: dict[str, Form] = {t.name: algebra.input(t.name, t.dims) for t in program.inputs}
    for e in program.eqns:
        forms[e.out] = algebra.apply(e.op, [_operand(a, forms) for a in e.args], e.axes)
    return drop_shifts(algebra, make_safe(algebra, forms), [t.name for t in program.outputs])


def _operand(a: Arg, forms: Mapping[str, Form]) -> Form | Number:
    return forms[a] if isinstance(a, str) else a


def make_safe(algebra: Algebra, forms: Mapping[str, Form]) -> dict[str, Form]:
    """Replace exp(a) under a Σ by shifted_exp(a)·exp(max a), an identity, everywhere.

    Where the exponentials' common factor cancels (a softmax, however it was written), so does exp(max a), and what is
    left never overflows; log(exp(max a)·x) becomes max a + log(x). This is the degree rule: exp(max a) stays exactly
    where an output has a degree other than 0.
    """
    shifts: dict[Form, frozenset[str]] = {}
    for atom in list(algebra.atoms.values()):
        if atom.kind == "sum":
            for factor, _ in atom.args[1]:
                if factor.kind == "exp":
                    axes = factor.dims & set(atom.args[0])
                    shifts[factor.args[0]] = shifts.get(factor.args[0], axes) & axes or axes
    memo: dict[Form, Form] = {}

    def safe(x: Form) -> Form:
        if x not in memo:
            memo[x] = algebra.rebuild(x, safe_atom)
        return memo[x]

    def safe_atom(atom: Atom) -> Form:
        if atom.kind == "exp":
            x = atom.args[0]
            for inner, axes in shifts.items():
                if axes and algebra.depending(x, axes) is inner:
                    moving = safe(inner)
                    top = algebra.extremum("max", moving, axes & moving.dims)
                    shifted = algebra.shifted_exp(moving, axes)
                    return algebra.mul(shifted, algebra.exp(algebra.add(top, safe(algebra.sub(x, inner)))))
        return algebra.map_atom(atom, safe)

    return {name: safe(f) for name, f in forms.items()}


def drop_shifts(algebra: Algebra, forms: Mapping[str, Form], outputs: Iterable[str]) -> dict[str, Form]:
    """exp(k·(x + c) - k·max(x + c)) --> exp(k·x - max k·x), where c lacks the maximum's axes, if outputs stay the same.

    The two differ by the factor λ = exp(max k·x + k·c - k·max(x + c)). That it is 1 is not used: it must cancel. From a
    logsumexp, with its + max(x + c), it does not, and the maximum stays as it was written.
    """
    for atom in [a for a in algebra.atoms.values() if a.kind == "shifted_exp"]:
        x, axes, k = atom.shift
        moving = algebra.scale(algebra.depending(x, axes), k)
        if moving is x:
            continue
        shifted, mark = algebra.shifted_exp(moving, axes), algebra.exp(algebra.mark(x, axes))
        dropped = _replaced(algebra, forms, atom, shifted)
        marked = _replaced(algebra, {n: forms[n] for n in outputs}, atom, algebra.mul(shifted, mark))
        if all(marked[n] is dropped[n] for n in outputs):
            forms = dropped
    return dict(forms)


def _replaced(algebra: Algebra, forms: Mapping[str, Form], old: Atom, new: Form) -> dict[str, Form]:
    """The forms with an atom replaced wherever it occurs."""
    memo: dict[Form, Form] = {}

    def walk(x: Form) -> Form:
        if x not in memo:
            memo[x] = algebra.rebuild(x, lambda atom: new if atom is old else algebra.map_atom(atom, walk))
        return memo[x]

    return {name: walk(f) for name, f in forms.items()}


def overflowing(form: Form) -> Mono:
    """The factors exp(max ...) that every term of the form has: what a safe version of it leaves out."""
    common: dict[Atom, Fraction] | None = None
    for mono, _ in form.terms:
        here = {a: e for a, e in mono if a.kind == "exp" and _is_maximum(a.args[0])}
        common = here if common is None else {a: e for a, e in common.items() if here.get(a) == e}
    return tuple(sorted((common or {}).items(), key=lambda f: f[0].key))


def _is_maximum(x: Form) -> bool:
    return any(a.kind == "max" for m, _ in x.terms for a, _ in m)


def eqn_forms(algebra: Algebra, eqns: Iterable[Eqn], forms: Mapping[str, Form]) -> dict[str, Form]:
    """Forms of a list of equations on top of known forms."""
    known = dict(forms)
    for e in eqns:
        known[e.out] = algebra.apply(e.op, [_operand(a, known) for a in e.args], e.axes)
    return known
