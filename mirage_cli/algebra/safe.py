"""The forms of a program's values, made safe: exponentials that would overflow have their maximum subtracted.

No operator has a rule here: a maximum is subtracted where that cancels from the outcome, however it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from mirage_cli.algebra.canonical import ONE, Algebra, Atom, Form, Mono, is_nonnegative
from mirage_cli.algebra.steps import constant
from mirage_cli.ir.access import plain
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program


def program_forms(algebra: Algebra, program: Program) -> dict[str, Form]:
    """The form of every value of a lowered program, exponentials made safe (see `make_safe`)."""
    return drop_shifts(algebra, make_safe(algebra, plain_forms(algebra, program)), [t.name for t in program.outputs])


def plain_forms(algebra: Algebra, program: Program) -> dict[str, Form]:
    """The form of every value of a lowered program, exponentials as they are written."""
    algebra.axes |= set(program.order)
    algebra.sizes |= program.sizes
    return eqn_forms(algebra, program.eqns, {t.name: algebra.input(t.name, plain(t.dims)) for t in program.inputs})


def grows_with_exponentials(plain: Form, safe: Form) -> bool:
    """Whether the safe form of a value still has some exp(max a) that its plain form lacks.

    Such a value is as large as the exponentials themselves. To subtract their maximum gains nothing, and loses much:
    exp(max a) overflows where exp(a - max a) is 0, and their product is a NaN.
    """
    written = atoms_of([plain])
    return any(a.kind == "exp" and _is_maximum(a.args[0]) and a not in written for a in atoms_of([safe]))


def _operand(a: Arg, forms: Mapping[str, Form]) -> Form | Number:
    return forms[a] if isinstance(a, str) else a


def make_safe(algebra: Algebra, forms: Mapping[str, Form]) -> dict[str, Form]:
    """Replace exp(a) under a Σ by shifted_exp(a)·exp(max a), an identity, everywhere.

    Where the exponentials' common factor cancels (a softmax, however it was written), so does exp(max a), and what is
    left never overflows; log(exp(max a)·x) becomes max a + log(x). This is the degree rule: exp(max a) stays exactly
    where an output has a degree other than 0.

    exp(k·a) is the power of that, also where it is itself under a Σ: so that (exp(a) - b)² stays a square. Multiplied
    out, its terms cancel, and float32 does not have what they leave.
    """
    shifts: dict[Form, frozenset[str]] = {}
    here = atoms_of(forms.values())
    for atom in [a for a in algebra.atoms.values() if a in here]:
        if atom.kind == "sum":
            for factor, _ in atom.args[1]:
                if factor.kind == "exp":
                    axes = factor.dims & set(atom.args[0])
                    shifts[factor.args[0]] = shifts.get(factor.args[0], axes) & axes or axes

    def shift_of(atom: Atom) -> tuple[Form, frozenset[str], Fraction] | None:
        """The a with the axes of its Σ and the largest k; an exponent that has a Σ over other axes goes by that."""
        x = atom.args[0] if atom.kind == "exp" else algebra.zero
        found = [
            (y, axes, k)
            for y, axes in shifts.items()
            if axes and (k := _multiple(algebra, algebra.depending(x, axes), y))
        ]
        own = next((axes for _, axes, k in found if k == 1), None)
        return max((f for f in found if f[1] == (own or f[1])), key=lambda f: f[2], default=None)

    def shifted(atom: Atom, safe: Callable[[Form], Form]) -> Form:
        found = shift_of(atom)
        assert found is not None
        inner, axes, k = found
        moving = safe(inner)
        top = algebra.scale(algebra.folded("max", moving, axes & moving.dims), k)
        rest = safe(algebra.sub(atom.args[0], algebra.scale(inner, k)))
        powered = algebra.pow(algebra.shifted_exp(moving, axes), k)
        return algebra.mul(powered, algebra.exp(algebra.add(top, rest)))

    return _rewritten(algebra, forms, lambda atom: shift_of(atom) is not None, shifted)


def atoms_of(forms: Iterable[Form]) -> set[Atom]:
    """Every atom in some forms, at any depth."""
    found: set[Atom] = set()
    todo = [a for f in forms for mono, _ in f.terms for a, _ in mono]
    while todo:
        atom = todo.pop()
        if atom not in found:
            found.add(atom)
            todo += [a for f in atom.args if isinstance(f, Form) for mono, _ in f.terms for a, _ in mono]
            todo += [a for a, _ in atom.args[1]] if atom.kind == "sum" else []
    return found


def _multiple(algebra: Algebra, x: Form, y: Form) -> Fraction | None:
    """The whole positive k for which x is k·y."""
    if not x.terms or not y.terms:
        return None
    k = x.terms[0][1] / y.terms[0][1]
    return k if k > 0 and k.denominator == 1 and algebra.scale(y, k) is x else None


def drop_shifts(algebra: Algebra, forms: Mapping[str, Form], outputs: Iterable[str]) -> dict[str, Form]:
    """exp(k·(x + c) - k·max(x + c)) --> exp(k·x - max k·x), where c lacks the maximum's axes, if outputs stay the same.

    The two differ by the factor λ = exp(max k·x + k·c - k·max(x + c)). That it is 1 is not used: it must cancel. From a
    logsumexp, with its + max(x + c), it does not, and the maximum stays as it was written.

    x is a number times a value of the program. Of others, such as what Σ q·(z + c) leaves without Σ q·c, the program's
    own operators do not make the exponential.
    """
    values = {up_to_a_number(f) for f in forms.values()}
    for atom in [a for a in algebra.atoms.values() if a.kind == "shifted_exp"]:
        x, axes, k = atom.shift
        moving = algebra.scale(algebra.depending(x, axes), k)
        if moving is x or up_to_a_number(moving) not in values:
            continue
        shifted, mark = algebra.shifted_exp(moving, axes), algebra.exp(algebra.mark(x, axes))
        dropped, marked = (
            _rewritten(algebra, group, lambda a, old=atom: a is old, lambda *_, new=new: new)
            for group, new in ((forms, shifted), ({n: forms[n] for n in outputs}, algebra.mul(shifted, mark)))
        )
        if all(marked[n] is dropped[n] for n in outputs):
            forms = dropped
    return dict(forms)


def up_to_a_number(x: Form) -> tuple[tuple[Mono, Fraction], ...]:
    """What forms share that are a number times each other."""
    return tuple((mono, c / x.terms[0][1]) for mono, c in x.terms)


def _rewritten(
    algebra: Algebra,
    forms: Mapping[str, Form],
    concerns: Callable[[Atom], bool],
    change: Callable[[Atom, Callable[[Form], Form]], Form],
) -> dict[str, Form]:
    """The forms with some atoms changed wherever they occur; `change` also gets what rewrites forms within an atom.

    A form without such an atom stays as it is, also where products in it were too long to be multiplied out.
    """
    found: dict[Form, bool] = {}
    memo: dict[Form, Form] = {}

    def occurs(x: Form) -> bool:
        if x not in found:
            found[x] = any(occurs_in(a) for mono, _ in x.terms for a, _ in mono)
        return found[x]

    def occurs_in(atom: Atom) -> bool:
        inner = atom.args[1] if atom.kind == "sum" else ()
        forms = (part for part in atom.args if isinstance(part, Form))
        return concerns(atom) or any(occurs_in(a) for a, _ in inner) or any(map(occurs, forms))

    def walk(x: Form) -> Form:
        if x not in memo:
            memo[x] = algebra.rebuild(x, walk_atom) if occurs(x) else x
        return memo[x]

    def walk_atom(atom: Atom) -> Form:
        if concerns(atom):
            return change(atom, walk)
        return algebra.map_atom(atom, walk) if occurs_in(atom) else algebra.of_atom(atom)

    return {name: walk(f) for name, f in forms.items()}


def overflowing(form: Form) -> Mono:
    """The factors exp(max ...) that every term of the form has: what a safe version of it leaves out."""
    common: dict[Atom, Fraction] | None = None
    for mono, _ in form.terms:
        here = {a: e for a, e in mono if a.kind == "exp" and _is_maximum(a.args[0])}
        common = here if common is None else {a: e for a, e in common.items() if here.get(a) == e}
    return tuple(sorted((common or {}).items(), key=lambda f: f[0].key))


def may_overflow(exponential: Form) -> bool:
    """Whether an exponential may be large: its exponent has a term that may be above all numbers."""
    (exponent,) = exponential.atom.args if exponential.atom else (exponential,)
    return any(m and not (c < 0 and _nowhere_negative(m)) for m, c in _unsettled(exponent))


def anywhere(x: Form) -> object:
    """What forms share that are the same value read at other places."""
    return frozenset((_factors_anywhere(m), c) for m, c in x.terms)


def _factors_anywhere(mono: Mono) -> object:
    return frozenset((_atom_anywhere(a), e) for a, e in mono)


def _atom_anywhere(atom: Atom) -> object:
    """The atom without the names of axes."""
    match atom.kind:
        case "input":
            return atom.args[0]
        case "index":
            return atom.kind
        case "sum":
            return atom.kind, _factors_anywhere(atom.args[1])
        case _:
            parts = (a for a in atom.args if not isinstance(a, tuple))
            return atom.kind, *(anywhere(a) if isinstance(a, Form) else a for a in parts)


def _nowhere_negative(mono: Mono) -> bool:
    return all(is_nonnegative(a) or k % 2 == 0 for a, k in mono)


def _is_maximum(x: Form) -> bool:
    """Whether x has a maximum, but for one from which a larger one is subtracted: exp(max a - maximum(max a, z)) is
    nowhere large."""
    return any(a.kind == "max" for m, _ in _unsettled(x) for a, _ in m)


def _unsettled(x: Form) -> list[tuple[Mono, Fraction]]:
    """The terms of x without each maximum from which a bound of it is subtracted, and without that bound."""
    alone = [(m[0][0], c) for m, c in x.terms if len(m) == 1 == m[0][1]]
    pairs = [(a, top) for a, c in alone for top, k in alone if a.kind == "max" and k == -c < 0 and _bounds(top, a)]
    settled = {((a, ONE),) for pair in pairs for a in pair}
    return [(m, c) for m, c in x.terms if m not in settled]


def _bounds(top: Atom, low: Atom) -> bool:
    """Whether `top` is nowhere less than the maximum `low`: that over more axes, the larger of it and others, or by its
    choice (`_chosen_bounds`)."""
    if top.kind == "max":
        return top.args[1] is low.args[1] and set(low.args[0]) <= set(top.args[0])
    if top.kind != "fn":
        return False
    if OPS[top.args[0]].result == "branches":
        mask, x, y = top.args[1:]
        return _chosen_bounds(mask, x, y, low)
    return top.args[0] == OPS[low.kind].joins and any(_form_bounds(x, low) for x in top.args[1:])


def _form_bounds(x: Form, low: Atom) -> bool:
    return x.atom is not None and (x.atom is low or _bounds(x.atom, low))


def _chosen_bounds(mask: Form, x: Form, y: Form, low: Atom) -> bool:
    """Whether a choice between x and y by a comparison of `low` with a number is nowhere less than `low`: what is
    chosen below, at and above this number is a bound of `low`, or a number that no `low` there exceeds.

    where(low == -inf, 0, low)    where(low < -1000, -1000, low)
    """
    asked = mask.atom
    if asked is None or asked.kind != "fn" or not OPS[asked.args[0]].compares:
        return False
    sides = [constant(a) for a in asked.args[1:]]
    numbers = [float(a) for a in sides if not isinstance(a, Form)]
    if len(numbers) != 1 or not any(isinstance(a, Form) and a.atom is low for a in sides):
        return False
    at = numbers[0]
    above = at + 1 if math.isfinite(at) else 0.0
    for value, largest in ((at - 1, at), (at, at), (above, math.inf)):
        chosen = x if OPS[asked.args[0]].ref(*(value if isinstance(a, Form) else at for a in sides)) else y
        number = constant(chosen)
        if not (_form_bounds(chosen, low) or (not isinstance(number, Form) and number >= largest)):
            return False
    return True


def eqn_forms(algebra: Algebra, eqns: Iterable[Eqn], forms: Mapping[str, Form]) -> dict[str, Form]:
    """Forms of a list of equations on top of known forms."""
    known = dict(forms)
    for e in eqns:
        known[e.out] = algebra.apply(e.op, [_operand(a, known) for a in e.args], e.axes)
    return known
