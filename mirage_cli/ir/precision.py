"""The floating-point types of a program's values, as PyTorch's type promotion gives them, and which values a kernel may
keep in a smaller type or must not round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import FLOAT8, HALVES, Arg, Eqn, Program, cast_of, tensor_type


def float_types(program: Program) -> Mapping[str, str]:
    """Of each floating-point value, the type that PyTorch's promotion gives it; of float8, as inputs are."""
    found = {t.name: t.dtype for t in program.inputs if tensor_type(t) == "float"}
    for e in program.eqns:
        if e.type == "float":
            found[e.out] = result_dtype(e, found, program.dtype)
    return found


def exact_values(program: Program) -> frozenset[str]:
    """What float32 inputs reach in a program of a smaller type, and no cast has rounded: PyTorch computes that in
    float32."""
    return _unrounded(program, in_float32(program.eqns, (t.name for t in program.inputs if t.dtype == "float32")))


def _unrounded(program: Program, values: Collection[str]) -> frozenset[str]:
    """Of these values those that something else reads than casts to one type of 16 bits."""
    outputs = {t.name: {""} for t in program.outputs}
    read: dict[str, set[str]] = {}
    for e in program.eqns:
        for v in e.values:
            read.setdefault(v, outputs.get(v, set[str]()).copy()).add(cast_of(e))
    return frozenset(v for v in values if not (len(own := read.get(v, {""})) == 1 and own <= HALVES))


def promoted_values(program: Program) -> frozenset[str]:
    """float32 outputs, and what elementwise operators make of them: PyTorch's type promotion keeps that in float32,
    and a smaller type may not have its range."""
    found = {t.name for t in program.outputs if t.dtype == "float32"}
    for e in program.eqns:
        if OPS[e.op].kind == "elementwise" and cast_of(e) in ("", "float32") and found & set(e.values):
            found.add(e.out)
    return _unrounded(program, found)


def values_added_back(program: Program) -> frozenset[str]:
    """What elementwise operators make of a computed value that is added to it again, as of z in z - softplus(z):
    where z is 500, PyTorch's two terms are rounded alike and cancel. One that is rounded to 16 bits beside one that
    is not would leave the rounding error."""
    place = {e.out: n for n, e in enumerate(program.eqns)}
    made_of = [0] * len(program.eqns)  # bits: the places of what elementwise operators make each value of
    found = set[str]()
    for n, e in enumerate(program.eqns):
        if OPS[e.op].kind != "elementwise" or e.type != "float":
            continue
        own = [place[v] for v in e.values if v in place]
        for m in own:
            made_of[n] |= made_of[m] | 1 << m
        if len(OPS[e.op].linear) == 2:
            pairs = [(x, y) for x in own for y in own if made_of[y] >> x & 1]
            found |= {
                program.eqns[m].out
                for x, y in pairs
                for m in range(x + 1, y + 1)
                if (m == y or made_of[y] >> m & 1) and made_of[m] >> x & 1 and not cast_of(program.eqns[m])
            }
    return frozenset(found)


def decisive_values(program: Program) -> frozenset[str]:
    """What decisions are made of, but for what floating-point sums lie between: masks, integers and float8 as
    outputs, and arguments of functions that jump. Where such a value is half-way between two results, its last bit
    decides."""
    found = {t.name for t in program.outputs if t.dtype in FLOAT8 or tensor_type(t) != "float"}
    for e in reversed(program.eqns):
        row = OPS[e.op]
        summed = row.kind in ("reduction", "contraction") and not row.extremum and e.type == "float"
        if row.jumps or (e.out in found and not summed):
            found |= set(e.values)
    return frozenset(found)


def widened_values(program: Program) -> frozenset[str]:
    """Values of float32 that PyTorch makes of one of 16 bits by a cast alone: they are as exact in 16 bits."""
    types = float_types(program)
    own = {e.out for e in program.eqns if e.out not in program.internals and OPS[e.op].kind != "reduction"}
    casts = (e for e in program.eqns if cast_of(e) == "float32")
    return frozenset(e.out for e in casts if types.get(e.values[0]) in HALVES and e.values[0] in own)


def chosen_values(program: Program) -> dict[str, str]:
    """Values that are numbers of inputs of 16 bits, or infinite, and this type: what is read of such an input, what
    masks leave of it, and its largest and least elements are as exact in 16 bits."""
    found = {t.name: t.dtype for t in program.inputs if t.dtype in HALVES}
    for e in program.eqns:
        if e.op == "rename" or OPS[e.op].extremum:
            own: Collection[Arg] = e.values[:1]
        else:
            own = [a for a in e.args[1:] if a not in (math.inf, -math.inf)] if e.op == "where" else ()
        types = {found.get(a, "") if isinstance(a, str) else "" for a in own}
        if len(types) == 1 and "" not in types:
            (found[e.out],) = types
    return {e.out: found[e.out] for e in program.eqns if e.out in found}


def product_dtype(program: Program) -> str:
    """The type of operands whose rate bounds its products: float8 where both are of such inputs, casts, or products
    with them; in float32, some may be of smaller values alone."""
    found, types = program.dtype, float_types(program)
    eights = {t.name: t.dtype for t in program.inputs if t.dtype in FLOAT8}
    for e in program.eqns:
        if e.op == "dot" and {*eights}.issuperset(e.values):
            return eights[e.values[0]]
        if e.op == "dot" and (small := product_type(e, types, program.dtype)) in HALVES:
            found = small
        if (e.op == "rename" or OPS[e.op].growth == "product") and (own := [v for v in e.values if v in eights]):
            eights[e.out] = eights[own[0]]
        if cast_of(e) in FLOAT8:
            eights[e.out] = cast_of(e)
    return found


def in_float32(eqns: Iterable[Eqn], values: Iterable[str]) -> set[str]:
    """These values of float32, what equations make of them or cast to it, and of that what no cast rounds."""
    found = {*values}
    for e in eqns:
        cast = cast_of(e)
        if cast == "float32" or (not cast and found & set(e.values)):
            found.add(e.out)
    return found


def promoted_dtype(types: Iterable[str], own: str) -> str:
    """What values of these types are computed in together. own: the program's type, which float8 is brought to."""
    some = {*types} - FLOAT8
    return own if not some else some.pop() if len(some) == 1 else "float32"


def result_dtype(e: Eqn, types: Mapping[str, str], own: str) -> str:
    """The type of a floating-point result in PyTorch. types: of floating-point values. own: the program's."""
    given = [types[v] for v in e.values if v in types]
    if e.op == "rename" and given:
        return given[0]
    return cast_of(e) or promoted_dtype(given, own)


def product_type(e: Eqn, types: Mapping[str, str], own: str) -> str:
    """The type in which PyTorch multiplies the operands of a contraction. types, own: as of `result_dtype`."""
    return promoted_dtype((types[v] for v in e.values if v in types), own)
