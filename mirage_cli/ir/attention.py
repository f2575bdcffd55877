"""Attention in a program: O = Σ_s softmax_s(scale · Σ_d Q·K, masked causally, by lengths or not) · V.

It is looked for in the program lowered to primitive operators, whatever its axes and values are called, and however its
scale and mask are written. It is a structure of certain operators, so their names are compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from math import inf

from mirage_cli.ir.access import Dims
from mirage_cli.ir.derived import lower
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program, tensor_type

At = Callable[[Arg], Eqn]
NOTHING = Eqn("", "", (), (), (), "float")
"""The equation of an input or a number."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Q, K, V; the axes (batch, rows, keys, inner, outer); the scale; the query's axis of a causal mask, or ().

    lengths: the input that holds them, with what is added for the number of keys; None where all keys count.
    """

    values: Dims
    axes: tuple[Dims, Dims, Dims, Dims, Dims]
    scale: float
    positions: Dims
    lengths: tuple[str, int] | None = None

    @property
    def heads(self) -> tuple[Dims, ...]:
        """The choices of axes of Q that can be heads which share keys; all other rows count as positions."""
        rows = self.axes[1]
        if self.positions:
            return (without(rows, self.positions),)
        return (), *(rows[:n] for n in range(1, len(rows) + 1))


def find_attention(program: Program) -> Attention | None:
    """softmax(Q·K · scale + mask)·V, where the program is that and nothing else: what a library has one call for."""
    if program.parts:
        return None
    lowered = lower(program)
    eqns = {e.out: e for e in lowered.eqns}
    dims = {name: x.dims for name, x in lowered.values().items()}
    integers = {t.name for t in lowered.inputs if tensor_type(t) == "int"}

    def at(a: Arg) -> Eqn:
        return eqns.get(a, NOTHING) if isinstance(a, str) else NOTHING

    last = at(lowered.outputs[0].name)
    for weights, v in (last.args, last.args[::-1]) if last.op == "dot" and len(lowered.outputs) == 1 else ():
        product, scale, mask, lengths = _scores(_softmaxed(weights, {*last.axes}, at), at, integers)
        for q, k in (product.args, product.args[::-1]) if product.op == "dot" else ():
            if not (isinstance(q, str) and isinstance(k, str) and isinstance(v, str)):
                continue
            keys, inner = last.axes, product.axes
            batch = without(dims[k], keys, inner)
            rows = without(dims[q], batch, inner)
            outer = without(dims[v], batch, keys)
            named = {*keys} <= {*dims[k]} & {*dims[v]} and {*batch} <= {*dims[q]} & {*dims[v]}
            own = lengths is None or {*dims[lengths[0]]} <= {*batch}
            fits = not mask or (mask[1:] == keys and (own if lengths else mask[0] in rows))
            if named and not {*keys, *outer} & {*rows} and fits:
                positions = mask[:1] if lengths is None else ()
                return Attention((q, k, v), (batch, rows, keys, inner, outer), scale, positions, lengths)
    return None


def _softmaxed(weights: Arg, keys: set[str], at: At) -> Arg:
    """exp(x) / sum(exp(x)), with or without max(x) subtracted --> x. Anything else --> 0."""
    quotient = at(weights)
    if quotient.op != "div" or at(quotient.args[0]).op != "exp" or not _reduces(quotient, "sum", keys, at):
        return 0.0
    x = at(quotient.args[0]).args[0]
    return at(x).args[0] if at(x).op == "sub" and _reduces(at(x), "max", keys, at) else x


def _reduces(e: Eqn, op: str, axes: set[str], at: At) -> bool:
    """Whether the second argument is this reduction of the first."""
    r = at(e.args[1])
    return r.op == op and r.args == e.args[:1] and {*r.axes} == axes


def _scores(x: Arg, at: At, integers: Container[str]) -> tuple[Eqn, float, Dims, tuple[str, int] | None]:
    """Takes numbers and a mask off: (what is left, the scale, (the query's axis or the input that holds lengths, the
    key's axis) or (), and of lengths the input with what is added for the number of keys)."""
    e, scale, mask = at(x), 1.0, ()
    lengths: tuple[str, int] | None = None
    while e.op in ("mul", "div", "where"):
        if e.op == "where":
            seen = at(e.args[0])
            order = OPS[seen.op].order if seen.op in OPS else None
            if mask or e.args[2] != -inf or order is None:
                break
            far, near = seen.args if order.turned else seen.args[::-1]
            if at(near).op != "index":
                break
            if isinstance(far, str) and far in integers:
                mask, lengths = (far, *at(near).axes), (far, 0 if order.strict else 1)
            elif at(far).op == "index" and not order.strict:
                mask = (*at(far).axes, *at(near).axes)
            else:
                break
            e = at(e.args[1])
        else:
            x, number = e.args if isinstance(e.args[0], str) else e.args[::-1]
            if isinstance(number, str) or number <= 0 or (e.op == "div" and x != e.args[0]):
                break
            scale = scale * float(number) if e.op == "mul" else scale / float(number)
            e = at(x)
    return e, scale, mask, lengths


def without(dims: Iterable[str], *others: Dims) -> Dims:
    return tuple(d for d in dims if not any(d in o for o in others))
