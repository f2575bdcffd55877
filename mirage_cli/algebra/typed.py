"""The types of products: an operand that the program multiplies in another type is cast first."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_cli.algebra.canonical import Atom, Form, sums_over
from mirage_cli.algebra.graph import Decomposition, Source, Step
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.precision import float_types, product_type
from mirage_cli.ir.program import HALVES


def note_products(d: Decomposition, forms: Mapping[str, Form]) -> None:
    """Takes down in which type the program multiplies under each Σ."""
    types = float_types(d.program)
    for e in d.program.eqns:
        if e.op == "dot":
            dtype = product_type(e, types, d.program.dtype)
            for total in sums_over(forms[e.out], e.axes):
                same = d.products.setdefault(total, dtype) == dtype
                d.products[total] = dtype if same else "float32"


def typed_dot(d: Decomposition, a: Source, b: Source, axes: tuple[str, ...], dtype: str) -> Step:
    """A product in this type: an operand that would be multiplied in another is rounded to it first. In any, where it
    is not named."""
    sides = [x for x in (a, b) if isinstance(x, Form)]
    wide = [x for x in sides if _is_wide(d, x)]
    casts: list[Form] = []
    if dtype in HALVES and all(_fits(d, x, dtype) for x in wide):
        casts = wide
    elif dtype == "float32" and not wide:
        casts = [x for x in sides if not d.is_input(x)][:1]
    return Step("dot", (a, b), axes, tuple((x, dtype) for x in dict.fromkeys(casts)))


def _is_wide(d: Decomposition, form: Form) -> bool:
    """Whether products take a class as float32 that no cast has rounded (`ir.mugraph.exact_values`)."""
    if form not in d.wide:
        atom = form.atom
        if d.program.dtype == "float32" and not (atom is not None and atom.kind == "input"):
            d.wide[form] = True
        else:
            d.wide[form] = any(_is_wide_atom(d, a) for m, _ in form.terms for a, _ in m)
    return d.wide[form]


def _is_wide_atom(d: Decomposition, atom: Atom) -> bool:
    match atom.kind:
        case "input":
            return next(t.dtype for t in d.program.inputs if t.name == atom.args[0]) == "float32"
        case "sum":
            return d.products.get(atom) not in HALVES and any(_is_wide_atom(d, a) for a, _ in atom.args[1])
        case "fn" if OPS[atom.args[0]].cast:
            return False
        case _:
            return any(_is_wide(d, x) for x in atom.args if isinstance(x, Form))


def _fits(d: Decomposition, form: Form, dtype: str) -> bool:
    """Whether a class is in the range of a type, as far as the program's own values are: bfloat16 has float32's; to
    float16 it is a value of this type in the program, or what is made of float32 in it lies between 0 and 1."""
    if dtype == "bfloat16":
        return True
    types = float_types(d.program)
    if any(form in d.forms[v] for v, own in types.items() if own == dtype):
        return True
    single = d.program.dtype == "float32"
    factors = [f for m, _ in form.terms for f in m if single or _is_wide_atom(d, f[0])]
    return len(form.terms) == 1 and all(a.kind == "shifted_exp" and e > 0 for a, e in factors)
