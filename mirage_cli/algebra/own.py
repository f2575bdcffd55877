"""The program's own equations as nodes, so that the program as written is always in its graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_cli.algebra.canonical import Form, sums_in, sums_over
from mirage_cli.algebra.graph import Decomposition, Node, Step
from mirage_cli.algebra.steps import constant
from mirage_cli.algebra.typed import typed_dot
from mirage_cli.ir.access import Index
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.precision import float_types, product_type
from mirage_cli.ir.program import Eqn, Program, Tensor, tables_of


def own_nodes(d: Decomposition, versions: Iterable[dict[str, Form]]) -> tuple[dict[Form, list[Node]], set[Form]]:
    """The program's own equations by the class that they make; and the classes that are made in no other way."""
    own: dict[Form, list[Node]] = {}
    decisive: set[Form] = set()
    for forms in versions:
        for form, node, decides in _program_nodes(d, forms):
            own.setdefault(form, []).append(node)
            if decides:
                decisive.add(form)
    return own, decisive


def _program_nodes(d: Decomposition, safe: dict[str, Form]) -> Iterator[tuple[Form, Node, bool]]:
    """The program's own equations as nodes, where they hold for the safe forms too; and whether the class is to have
    no others."""
    for e in _with_joined_reads(d.program):
        given = e.args[: OPS[e.op].arity]  # tables are part of an access
        args: tuple[Form | Number, ...] = tuple(safe[a] if isinstance(a, str) else a for a in given)
        made = safe[e.out].atom
        if made is not None and made.kind == "shifted_exp":
            continue  # exp(a - max a), which only exp_sub computes without NaN where a row is masked out whole
        if safe[e.out].number is not None and e.values:
            continue  # its terms have cancelled: what they leave would be rounding errors
        dims = frozenset[str]().union(*(a.dims for a in args if isinstance(a, Form)))
        acted_on = set(e.names or e.axes) if OPS[e.op].kind != "leaf" else set[str]()
        if not acted_on <= dims or safe[e.out].dims != frozenset(e.dims):
            continue  # an argument or the result has lost an axis, its terms having cancelled
        if d.algebra.apply(e.op, args, e.axes) is safe[e.out] and safe[e.out] not in args:
            literals = tuple(constant(a) if isinstance(a, Form) else a for a in args)
            node = Node(_steps_of(d, e, literals), "program")
            yield safe[e.out], node, _decides(d, e, safe[e.out])
    yield from _moved_nodes(d, safe)


def _decides(d: Decomposition, e: Eqn, form: Form) -> bool:
    """Whether decisions are made of what an equation computes by elements: only itself rounds as the program does. But
    Σs that are added may become one, as those are rounded in any order."""
    row = OPS[e.op]
    return e.out in d.decisive and row.kind == "elementwise" and not (row.linear and sums_in(form))


def _moved_nodes(d: Decomposition, safe: Mapping[str, Form]) -> Iterator[tuple[Form, Node, bool]]:
    """The program's own differences where they are read: at other places, from arguments there. Those of the algebra
    may cancel where these do not. So it is with what decisions are made of, and with what is made of either.

    D = X - Y, E = D[y + 1]  -->  E = X[y + 1] - Y[y + 1]

    A sum or a product among the arguments may be read from memory at the other place. Where an axis only has another
    name there, a difference is made anew, and what is made of it is read from memory.
    """
    values, kept = d.program.values(), _kept_together(d, safe)
    todo = [(str(e.args[0]), e.names) for e in d.program.eqns if e.op == "rename"]
    seen = set[tuple[str, Form]]()
    for value, names in todo:
        e, form = values[value], d.algebra.rename(safe[value], names)
        if isinstance(e, Tensor) or (value, form) in seen:
            continue
        seen.add((value, form))
        if OPS[e.op].kind in ("reduction", "contraction"):
            axes = substitution_text({a: i for a, i in names.items() if a in safe[value].dims})
            if axes and form.number is None:
                yield form, Node((Step("rename", (safe[value],), axes),), "program"), False
            continue
        if OPS[e.op].kind not in ("elementwise", "rename"):
            continue
        if e.op == "rename":
            todo.append((str(e.args[0]), _read_twice(values[str(e.args[0])].dims, e.names, names)))
            continue
        todo += [(a, names) for a in e.values]
        elsewhere = any(i.axis is None for i in names.values())
        if e.out not in kept or not (elsewhere or _keeps(d, e, form)):
            continue
        args = tuple(d.algebra.rename(safe[a], names) if isinstance(a, str) else a for a in e.args)
        if d.algebra.apply(e.op, args) is form and form not in args and form.number is None:
            literals = tuple(constant(a) if isinstance(a, Form) else a for a in args)
            yield form, Node((Step(e.op, literals),), "program"), _decides(d, e, form)


def _kept_together(d: Decomposition, safe: Mapping[str, Form]) -> set[str]:
    """Differences and what decisions are made of, and what is made of either by elements. The algebra has no other way
    to make these: it would take the terms apart."""
    kept = set[str]()
    for e in d.program.eqns:
        moves = OPS[e.op].kind in ("elementwise", "rename")
        if moves and (_keeps(d, e, safe[e.out]) or not kept.isdisjoint(e.values)):
            kept.add(e.out)
    return kept


def _keeps(d: Decomposition, e: Eqn, form: Form) -> bool:
    """Whether an equation is a difference, or decisions are made of it."""
    return -1 in OPS[e.op].linear[1:] or _decides(d, e, form)


def _with_joined_reads(program: Program) -> Iterator[Eqn]:
    """The equations. A read of what another equation has read stands behind the one read that does both.

    K = QKV[s, h + 8], KT = K[t, h]  -->  K = QKV[s, h + 8], KT = QKV[t, h + 8], KT = K[t, h]
    """
    dims = {x.name: x.dims for x in program.inputs} | {e.out: e.dims for e in program.eqns}
    reads: dict[str, Eqn] = {}
    for e in program.eqns:
        if e.op == "rename":
            reads[e.out] = e
            if (first := reads.get(str(e.args[0]))) is not None:
                x = str(first.args[0])
                names = _read_twice(dims[x], first.names, e.names)
                args = (x, *tables_of(names.values()))
                reads[e.out] = replace(e, args=args, axes=substitution_text(names))
                yield reads[e.out]
        yield e


def _read_twice(dims: Sequence[str], first: Mapping[str, Index], then: Mapping[str, Index]) -> dict[str, Index]:
    """What takes the place of axes where what is read is read again. dims: of what is read first."""
    return {a: i for a, i in then.items() if a in dims} | {a: i.within(then) for a, i in first.items()}


def _steps_of(d: Decomposition, e: Eqn, args: tuple[Form | Number, ...]) -> tuple[Step, ...]:
    """An equation's steps: one, but for a product with a number, which is no operand of a contraction."""
    if OPS[e.op].kind == "contraction" and not all(isinstance(a, Form) for a in args):
        return Step("mul", args), Step("sum", (0,), e.axes)
    if e.op == "dot":
        types = [d.products[total] for f in d.forms[e.out] for total in sums_over(f, e.axes)]
        dtype = types[0] if types else product_type(e, float_types(d.program), d.program.dtype)
        return (typed_dot(d, *args, axes=e.axes, dtype=dtype),)
    return (Step(e.op, args, e.axes),)
