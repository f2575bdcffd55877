"""Equations as expressions over the current blocks of their arguments: elementwise, reductions, products.

Beside each goes along which padded dimensions it is known to be zero past their end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from mirage_cli.codegen import bytepairs, narrow, nodes
from mirage_cli.codegen.access import Descriptor, specialized
from mirage_cli.codegen.axisnames import apart, merged, merged_as
from mirage_cli.codegen.blocks import MAX_PRODUCT, EmitError, ScheduledKernel
from mirage_cli.codegen.matrices import Matrices, factors, matrices, of_warpgroups, operand_types
from mirage_cli.codegen.nodes import Axes, Expr
from mirage_cli.ir.access import Index, dims_of_atom, strides
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS, exact_inverse
from mirage_cli.ir.placement import Anew, Loop
from mirage_cli.ir.program import FLOAT8, INTEGERS, Arg, Eqn, cast_of
from mirage_cli.ir.reach import kept
from mirage_cli.ir.scans import Scan
from mirage_cli.ir.schedule import (
    on_matrix_units,
)
from mirage_cli.ir.tables import TableEntry

NOWHERE = frozenset[str]()
FLOAT8_TERMS = {"bfloat16": 128, "float16": 32}
"""How many products of float8 the matrix units may add up on their own in a program of this type. If all n are alike,
bits that are cut off 2^-13 below the first of the sum so far come to n · 2^-15 of it, and a unit in the last place to
2^-8 and 2^-11; 32 are added in one instruction, in which nothing is cut off of what is alike."""


class Computed(NamedTuple):
    """A block. clean: padded dimensions along which it is zero past their end."""

    expr: Expr
    clean: frozenset[str] = NOWHERE


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an equation stands.

    masks: what these are throughout the loop at hand. running: its running maxima. anew: its accumulators that start
    anew. clean: of every value so far.
    """

    scheduled: ScheduledKernel
    clean: Mapping[str, frozenset[str]]
    masks: Mapping[str, bool] = field(default_factory=dict[str, bool])
    running: frozenset[str] = NOWHERE
    anew: tuple[Anew, ...] = ()


def computed(s: Scope, e: Eqn) -> Computed:
    """What an equation computes from the current blocks of its arguments."""
    k = s.scheduled
    if e.op == "dot":
        return product(s, e)
    if isinstance(e, Scan):
        return Computed(_scanned(s, e))
    if isinstance(e, TableEntry):
        return Computed(_entries(k, e))
    if OPS[e.op].kind == "reduction":
        lanes, clean = summands(s, e)
        return Computed(across(k, e, lanes), clean)
    if e.op == "index":
        return Computed(_position(k, parse_index(e.axes[0])))
    if e.op == "size":
        return Computed(_extent(k, e.axes[0]))
    return _elementwise(s, e)


def _entries(k: ScheduledKernel, e: TableEntry) -> Expr:
    table, index = k.block_of(e.table), k.block_of(e.index)
    if not index.axes or len(table.axes) != 1:
        raise EmitError("an entry of a table for one position")
    return nodes.Entries(table, nodes.Cast(index, k.type_of(e.index), "int32"))


def _extent(k: ScheduledKernel, d: str) -> Expr:
    """The size of a dimension as a number."""
    return nodes.Extent(d) if d in k.dynamic else nodes.Full(nodes.Literal(float(k.sizes[d])), "float32", ())


def _position(k: ScheduledKernel, i: Index) -> Expr:
    axes = k.axes(i.dims)
    if not i.affine:
        return nodes.Placed(*k.places(i), axes)
    if not i.terms:
        return nodes.Full(nodes.Literal(Fraction(i.offset), True), "int32", ())
    total: Expr | None = None
    for d, c in i.terms:
        assert isinstance(d, str), "an affine index"
        term: Expr = nodes.Position(d, k.axes((d,)))
        if term.axes and term.axes != axes:
            term = nodes.Spread(term, axes)
        if c != 1:
            term = nodes.Apply("mul", (term, nodes.Literal(Fraction(c), True)), True, axes)
        total = term if total is None else nodes.Apply("add", (total, term), True, axes)
    assert total is not None, "an index with terms"
    return nodes.Apply("add", (total, nodes.Literal(Fraction(i.offset), True)), True, axes) if i.offset else total


# -- elementwise


def _elementwise(s: Scope, e: Eqn) -> Computed:
    k = s.scheduled
    want = k.axes_of(e.out)
    branch = kept(e, s.masks)
    if branch is not None:
        return Computed(branched(k, e, branch, want), s.clean[branch] if isinstance(branch, str) else NOWHERE)
    if OPS[e.op].shift and e.args[1] in s.running:
        return Computed(_shifted_exp(k, e, want))
    if not e.values:
        return Computed(_constant(e))
    if e.out in k.postponed and len(e.values) == 1:
        return Computed(_argument(k, e.values[0], want, e, False), _zero_lanes(s, e))
    if e.out in k.small_integers:
        return Computed(narrow.computed(k, e, bytepairs.is_read_as_multiplied(k, e)))
    if cast := cast_of(e):
        return Computed(_rounded(k, e, cast, want), _zero_lanes(s, e))
    given = _with_sizes(k, e) if e.type == "bool" else e.args
    whole = e.type != "float" and all(k.type_of(v) in {*INTEGERS, "bool"} for v in given if isinstance(v, str))
    args = tuple(_argument(k, a, want, e, whole) for a in given)
    return Computed(_applied(k, e, args, want), _zero_lanes(s, e))


def _rounded(k: ScheduledKernel, e: Eqn, dtype: str, want: Axes) -> Expr:
    """A value in a floating-point type."""
    (a,) = e.values
    if k.type_of(a) == dtype:
        return nodes.spread(k.block_of(a), want)
    x = _argument(k, a, want, e, False)
    return x if dtype == "float32" else nodes.Cast(x, "float32", dtype)


def _with_sizes(k: ScheduledKernel, e: Eqn) -> tuple[str | Number, ...]:
    """The arguments, with the numbers that sizes are: float32 has no odd positions beyond 2^24 to compare with them."""
    numbers = [_number(k, a) for a in e.args]
    if any(n is None and _is_size(k, a) for a, n in zip(e.args, numbers, strict=True)):
        raise EmitError("a comparison with a dynamic size")
    return tuple(a if n is None else n for a, n in zip(e.args, numbers, strict=True))


def _zero_lanes(s: Scope, e: Eqn) -> frozenset[str]:
    """Where an elementwise equation is zero because its arguments are."""
    k = s.scheduled
    first, *others = e.args
    clean = [s.clean[v] for v in e.values]
    match OPS[e.op].zero:
        case "either":  # where one factor is and the other is zero too or lacks the dimension
            if len(clean) == 1:
                return clean[0]
            return frozenset(
                d
                for d in k.padded
                if any(d in c for c in clean)
                and all(d in c or d not in k.dims[v] for v, c in zip(e.values, clean, strict=True))
            )
        case "all" if len(clean) == len(e.args):
            return frozenset.intersection(*clean)
        case "first" if isinstance(first, str):
            return s.clean[first].difference(*(k.dims[a] for a in others if isinstance(a, str)))
        case _:
            return NOWHERE


def _applied(k: ScheduledKernel, e: Eqn, args: tuple[Expr, ...], axes: Axes) -> Expr:
    """The operator of an elementwise equation applied to its arguments."""
    row = OPS[e.op]
    if row.growth == "raised":
        exponent = e.args[1]
        if not isinstance(exponent, Fraction):
            raise EmitError("an infinite exponent")
        return nodes.Power(args[0], exponent, e.out in k.accurate)
    if _adds_to_fresh_product(k, e):
        return nodes.AddedLast(args[0], args[1], axes)
    divisor = _number(k, e.args[1]) if row.by_number else None
    inverse = None if divisor is None else exact_inverse(divisor)
    if inverse is not None:
        return nodes.Scaled(args[0], inverse)
    by_number = bool(row.by_number) and (divisor is not None or _is_size(k, e.args[1]))
    exact = e.out in k.accurate or by_number  # means of equal values are to be that value
    return nodes.Apply(e.op, args, exact, axes, bool(row.of_integers) and e.type == "int")


def _adds_to_fresh_product(k: ScheduledKernel, e: Eqn) -> bool:
    """Whether this adds what a loop loads to a product of the same iteration. As the first addend of that it would
    be loaded before it starts, and not fetched ahead."""
    if OPS[e.op].linear != (1, 1) or len(e.values) < 2:
        return False
    for loop in k.placement.loops:
        fresh = {s.out for s in loop.steps if isinstance(s, Eqn) and s.op == "dot"} - dict(loop.accumulators).keys()
        loaded = {s.out for s in loop.steps if isinstance(s, Load)}
        if any(v in fresh and w in loaded for v, w in (e.values, e.values[::-1])):
            return True
    return False


def _number(k: ScheduledKernel, a: str | Number) -> Number | None:
    """The number that an argument is, also where it is the size of an axis that is known."""
    if not isinstance(a, str):
        return a
    return Fraction(k.sizes[d]) if _is_size(k, a) and (d := k.eqns[a].axes[0]) not in k.dynamic else None


def _is_size(k: ScheduledKernel, a: str | Number) -> bool:
    return isinstance(a, str) and a in k.eqns and k.eqns[a].op == "size"


def branched(k: ScheduledKernel, e: Eqn, a: str | Number, want: Axes) -> Expr:
    """An equation that comes to one of its arguments."""
    if not isinstance(a, str):
        return nodes.Full(nodes.Literal(a, e.type == "int"), k.type_of(e.out), want)
    x = _argument(k, a, want, e, e.type == "int")
    return x if k.axes_of(a) == want else nodes.Repeated(x, want)


def _shifted_exp(k: ScheduledKernel, e: Eqn, want: Axes) -> Expr:
    """exp(x - m) for a running maximum: one multiply-add and one exp2, or the difference first."""
    x, m = (str(a) for a in e.args)
    shift = nodes.spread(nodes.Shift(m, k.axes_of(m)), want)
    factor = k.postponed.get(x, 1.0)
    return nodes.ExpDifference(_argument(k, x, want, e, False), shift, m in k.subtracted_first, want, factor)


def _constant(e: Eqn) -> Expr:
    """An equation of numbers alone, worked out here."""
    result = float(OPS[e.op].ref(*(float(a) for a in e.args if not isinstance(a, str))))
    if e.type == "bool":
        return nodes.Full(nodes.Literal(int(result), True), "bool", ())
    return nodes.Full(nodes.Literal(Fraction(result) if math.isfinite(result) else result), "float32", ())


def _argument(k: ScheduledKernel, a: str | Number, want: Axes, e: Eqn, whole: bool) -> Expr:
    if not isinstance(a, str):
        return nodes.Literal(a, whole)
    x: Expr = k.block_of(a)
    kind = k.type_of(a)
    mixed = kind in INTEGERS and (not whole or e.type == "float")
    counted = kind == "bool" and e.type == "float" and all(a != e.args[i] for i in OPS[e.op].masks)
    if kind in {"float16", "bfloat16", *FLOAT8} or mixed or counted:
        x = nodes.Cast(x, kind, "float32")
    elif kind == "int8":
        x = nodes.Cast(x, kind, "int32")
    if OPS[e.op].masks and e.type == "bool" and want and not x.axes and _compares_floats(k, a):
        # Triton's interpreter repeats the mask as float32, which has no `&`
        x = nodes.Apply("gt", (nodes.Cast(x, kind, "int32"), nodes.Literal(Fraction(0), True)), True, ())
    return nodes.spread(x, want)


def _compares_floats(k: ScheduledKernel, mask: str) -> bool:
    """Whether a mask follows from comparisons of floating-point numbers."""
    e = k.eqns.get(mask)
    kinds = [(v, k.type_of(v)) for v in e.values] if e is not None else []
    return any(_compares_floats(k, v) if kind == "bool" else kind != "int32" for v, kind in kinds)


# -- reductions


def summands(s: Scope, e: Eqn) -> Computed:
    """What a reduction reduces: its argument, neutral past the end of the dimensions that go."""
    k = s.scheduled
    (a,) = e.values
    kind = k.type_of(a)
    x: Expr = k.full_block(a)
    whole = kind in INTEGERS and e.type == "int"
    if kind != ("int32" if whole else "float32"):
        x = nodes.Cast(x, kind, "int32" if whole else "float32")
    zero_is_neutral = s.clean[a] if e.op == "sum" else NOWHERE
    x = _masked(k, x, [d for d in e.axes if d not in zero_is_neutral], neutral(e.op, whole))
    return Computed(x, s.clean[a] - set(e.axes) if e.op == "sum" else NOWHERE)


def _scanned(s: Scope, e: Scan) -> Expr:
    """What lies past the end is neutral where it comes first."""
    k, (axis,) = s.scheduled, e.axes
    if e.relative:
        (a,), kind = e.values, k.type_of(e.values[0])
        block = k.full_block(a)
        whole = block if kind == "float32" else nodes.Cast(block, kind, "float32")
        x, decay = _masked(k, whole, [axis], neutral("max", False)), None
    else:
        x, decay = _decaying(k, e) if e.along else (summands(s, e).expr, None)
    result = k.axes(e.dims)
    if axis not in x.axes:
        return x
    found = nodes.Scan(e.op, x, axis, e.to, e.back, decay, e.relative)
    return nodes.Permuted(found, result) if found.axes != result else found


def _decaying(k: ScheduledKernel, e: Scan) -> tuple[Expr, Expr]:
    """What a recurrence adds, and by what it multiplies what there was, as blocks of the same axes."""
    (axis,), beside = e.axes, tuple(d for d in e.dims if d != e.to)
    space = k.axes((*beside, axis))

    def block(a: Arg) -> Expr:
        if not isinstance(a, str):
            return nodes.Literal(a)
        x: Expr = k.full_block(a)
        return x if k.type_of(a) == "float32" else nodes.Cast(x, k.type_of(a), "float32")

    def whole(x: Expr) -> Expr:
        if not x.axes:
            return x if not isinstance(x, nodes.Literal) or not space else nodes.Full(x, "float32", space)
        return x if x.axes == space else nodes.Repeated(nodes.spread(x, space), space)

    first, *others = (whole(block(a)) for a in e.factors)
    for other in others:
        first = nodes.Apply("mul", (first, other), True, space)
    x = _masked(k, first, [axis], neutral(e.op, False))
    assert e.decay is not None, "a recurrence"
    y = block(e.decay)
    if e.along in y.axes:
        y = nodes.Along(_masked(k, y, [e.along], nodes.Literal(Fraction(1))), e.along, axis)
        own = tuple(d for d in space if d in y.axes)
        y = y if y.axes == own else nodes.Permuted(y, own)
    return x, whole(y)


def neutral(op: str, whole: bool) -> nodes.Literal:
    """What leaves a sum, a maximum or a minimum as it is."""
    return nodes.Literal(OPS[op].neutral(whole), whole)


def across(k: ScheduledKernel, e: Eqn, x: Expr) -> Expr:
    """A block with all axes that the equation computes over, reduced over those that it reduces."""
    over = tuple(d for d in k.axes(k.iteration_space(e)) if d in e.axes)
    return nodes.Reduce("sum" if e.op == "dot" else e.op, x, over, shows_nan(k, e)) if over else x


def shows_nan(k: ScheduledKernel, e: Eqn) -> bool:
    """Whether a maximum or minimum is to be NaN where an argument is. One that only shifts exponents need not be:
    their sum is."""
    if e.type == "int" or not OPS[e.op].extremum:
        return False
    uses = [x for x in k.kernel.body if e.out in x.values]
    shift = bool(uses) and all(OPS[x.op].shift and x.args[1] == e.out for x in uses)
    outputs = {t.name for t in k.graph.outputs} | k.graph.changed
    return not shift or any(x.value == e.out and x.buffer in outputs for x in k.kernel.stores)


def _masked(k: ScheduledKernel, x: Expr, dims: Sequence[str], number: nodes.Literal) -> Expr:
    """A block with this number where it lies past the end of one of these dimensions."""
    dirty = k.masked_dims(dims, x.axes)
    return nodes.Masked(x, dirty, number) if dirty else x


# -- products

SWIZZLED = 3
"""Axes of a block for a product that Triton lays out in shared memory so that rows of it are read from all banks, at
most (3.6). Rows of 128 bytes of other blocks are in the same banks; of two axes that are summed, 32 bytes are."""


def merged_operands(phases: Sequence[ScheduledKernel], boxes: Mapping[str, Descriptor]) -> list[dict[str, Axes]]:
    """For each phase of a kernel the axes of what is loaded for products alone, where several axes are one side of the
    product.

    Pointers load a block as the product takes it, x[k, a*b], wherever its elements lie. A block x[a, b, k] that is
    loaded through a descriptor is merged to x[a*b, k] as it lies in memory, then permuted: x[k, a*b]. Triton does both
    to the block in shared memory. Permuted first, x[k, a, b], it would go through registers in every iteration.
    """
    some = [_merged_operands(k, boxes) for k in phases]
    alike = [{v: found.get(v, ()) for v in k.loads} for k, found in zip(phases, some, strict=True)]
    return [{v: axes for v, axes in found.items() if all(x.get(v, axes) == axes for x in alike)} for found in some]


def _merged_operands(k: ScheduledKernel, boxes: Mapping[str, Descriptor]) -> dict[str, Axes]:
    users = defaultdict[str, set[Axes]](set)
    types = defaultdict[str, set[str]](set)
    for e in k.kernel.body:
        if e.op == "dot" and on_matrix_units(e, k.dims, k.block):
            m = matrices(k, e)
            for (value, groups), dtype in zip(m.operands(), operand_types(k, e, m), strict=True):
                users[value].add(merged(*groups))
                types[value].add(dtype)
        else:
            for value in e.values:
                users[value].add(k.axes(k.dims[value]))
    stored = {s.value for s in k.kernel.stores}
    found = {value: next(iter(users[value])) for value in k.loads if value not in stored and len(users[value]) == 1}
    some = {v: axes for v, axes in found.items() if k.type_of(v) in types[v]}
    some = {v: axes if v in boxes else _pointed(k, k.loads[v], axes) for v, axes in some.items()}
    return {
        v: axes
        for v, axes in some.items()
        if apart(axes) != axes and (v not in boxes or _lies_merged(axes, boxes[v].block))
    }


def _lies_merged(axes: Axes, box: Axes) -> bool:
    """Whether axes that are to be merged follow one another in a box."""
    return apart(merged_as(axes, box)) == box


def _pointed(k: ScheduledKernel, x: Load, axes: Axes) -> Axes:
    """The axes that pointers are to have: those that are merged in an operand are one where positions along them are
    counted, not looked up or divided.

    Not where their index may leave the tensor in a loop, as windows do: its bounds are worked out for each position of
    a block's axis in every iteration, and a merged axis has as many as both together. Four of six convolutions of 3 x 3
    were slower so on an H200 (results/h200/notes-2026-11-28.md). Nor where a block keeps more than SWIZZLED axes. Nor
    where the product has axes in another order than a block of positions that are looked up, or divided, has them.
    """
    if x.buffer in k.live or k.repeats(x) or not _in_order(k, x, axes):
        return apart(axes)
    found = tuple(d for axis in axes for d in ((axis,) if _counted(k, x, {*apart((axis,))}) else apart((axis,))))
    return found if found == axes or len(found) <= SWIZZLED else apart(axes)


def _in_order(k: ScheduledKernel, x: Load, axes: Axes) -> bool:
    """Whether each atom of a load's indices has its axes in this order."""
    atoms = (k.axes(dims_of_atom(a)) for i in x.access for a, _ in i.terms if not isinstance(a, str))
    return all(own == tuple(d for d in apart(axes) if d in own) for own in atoms)


def _counted(k: ScheduledKernel, x: Load, merged: Set[str]) -> bool:
    """Whether positions along axes that are merged are counted, and stay inside of the tensor in loops."""
    tensor, loops = k.tensors[x.buffer], k.kernel.with_role("loop", "split")
    steps, _ = strides(x.access, tensor.steps(k.sizes))
    counted = all(not merged & {*dims_of_atom(a)} for a in steps if not isinstance(a, str))
    windows = (
        (d, i) for d, i in zip(tensor.dims, x.access, strict=True) if merged & {*i.dims} and {*loops} & {*i.dims}
    )
    return (
        counted
        and all(steps.get(d) for d in merged)
        and not any(any(i.leaves(k.sizes[d], k.sizes)) for d, i in windows)
    )


def product(s: Scope, e: Eqn, accumulator: str | None = None) -> Computed:
    """A product on the matrix units where the blocks allow it, else multiplied out and summed.

    accumulator: the name of a block to add to.
    """
    k = s.scheduled
    m = matrices(k, e)
    clean = frozenset(
        d for d in k.padded & set(e.dims) if (d in s.clean[m.left] or d in s.clean[m.right]) and d not in m.batch
    )
    x = unfolded(k, e, matrix_product(s, e, None)) if on_matrix_units(e, k.dims, k.block) else _multiplied_out(s, e)
    return Computed(nodes.Added(accumulator, x) if accumulator else x, clean)


def matrix_product(s: Scope, e: Eqn, accumulator: str | None) -> Expr:
    """A product with the axes that the matrix units give it. accumulator: the name of a block of these axes to add to,
    which they do themselves where they compute the product as one."""
    k = s.scheduled
    m = matrices(k, e)
    types = operand_types(k, e, m)
    if (pairs := bytepairs.operand(k, e)) is not None:
        (value, groups), dtype = [*m.operands()][pairs.left], types[pairs.left]
        return bytepairs.product(k, e, pairs, _operand(s, value, groups, e, dtype), accumulator)
    operands = zip(m.operands(), types, strict=True)
    left, right = (_operand(s, value, groups, e, dtype) for (value, groups), dtype in operands)
    found = nodes.Dot(left, right, accumulator, _precision(k, m, types))
    return nodes.Ended(found) if accumulator == e.out and ends_in_iteration(s, e, found) else found


def _precision(k: ScheduledKernel, m: Matrices, types: tuple[str, str]) -> nodes.Precision:
    if types[0] == "int8":
        return "int8"
    if {*types} <= FLOAT8:
        return FLOAT8_TERMS[k.graph.dtype]
    if len({*types}) == 2:
        return nodes.InParts(types.index("float32"), "tf32" if "float16" in types else "bfloat16")
    if types[0] != "float32":
        return None
    if not k.float32_products & {m.left, m.right}:  # of two smaller types, both of which TF32 holds
        return "tf32"
    return "tf32x3" if k.schedule.tf32x3 else "ieee"


def unfolded(k: ScheduledKernel, e: Eqn, x: Expr) -> Expr:
    """What the matrix units compute of a product, with the axes of the product."""
    m, result = matrices(k, e), k.axes(e.dims)
    whole = (*m.batch, *m.rows, *m.columns)
    if x.axes != whole:
        x = nodes.Reshaped(x, whole)
    return nodes.Permuted(x, result) if whole != result else x


def ends_in_iteration(s: Scope, e: Eqn, x: nodes.Dot) -> bool:
    """Whether a product of warpgroups that adds to an accumulator is to end in the iteration that starts it.

    Triton leaves such a product under way, but in specialized loops, and the next iteration overwrites what it may
    still read:

    * in shared memory, what the loop loads for it and for others than products that take it alike. Triton has one
      buffer less for that than for what products alone take.
    * in registers, a left operand that the loop computes, or of which it merges axes. One that follows from another
      product of the loop is safe: that is waited for, and all before it, before the registers are written.
    """
    k = s.scheduled
    loop = next((x for x in k.placement.loops if any(step.out == e.out for step in x.steps)), None)
    m = matrices(k, e)
    if loop is None or x.precision in ("ieee", "int8") or not of_warpgroups(k, m):
        return False
    if specialized(k.graph, k.kernel, k.schedule, k.sizes):
        return False
    steps = {x.out: x for x in loop.steps}

    def waits(value: str) -> bool:
        y = steps.get(value)
        product = isinstance(y, Eqn) and y.op == "dot" and on_matrix_units(y, k.dims, k.block)
        return product or (isinstance(y, Eqn) and any(map(waits, y.values)))

    left = x.left
    while isinstance(left, nodes.Permuted | nodes.MatrixType):
        left = left.x
    in_parts = x.precision == "tf32x3" or isinstance(x.precision, nodes.InParts)
    whole = isinstance(steps.get(m.left), Load) and m.left not in k.folded
    as_loaded = whole and isinstance(left, nodes.Value) and not in_parts
    computed_left = m.left in steps and not as_loaded and not waits(m.left)
    return computed_left or any(v in _loaded_for_others(s, loop) for v in (m.left, m.right))


def _loaded_for_others(s: Scope, loop: Loop) -> frozenset[str]:
    """What a loop loads for others than products that take it alike."""
    k = s.scheduled
    taken = defaultdict[str, set[object]](set, {x.value: {"stored"} for x in loop.stores})
    for x in (x for x in loop.steps if isinstance(x, Eqn)):
        if x.op == "dot" and on_matrix_units(x, k.dims, k.block):
            m = matrices(k, x)
            for value, dtype in zip((m.left, m.right), operand_types(k, x, m), strict=True):
                taken[value].add((dtype, {*x.axes} <= s.clean.get(value, NOWHERE), of_warpgroups(k, m)))
        else:
            for value in x.values:
                taken[value].add("computed")
    return frozenset(x.out for x in loop.steps if isinstance(x, Load) and len(taken[x.out]) > 1)


def _operand(s: Scope, value: str, groups: Sequence[list[str]], e: Eqn, dtype: str) -> Expr:
    """A block as the matrix units take it: batch, then two axes, clean along the summed ones, in their type."""
    k = s.scheduled
    kind = k.type_of(value)
    if dtype == "float16" and narrow.packed(k, value):
        block = narrow.of_bytes(k, value, bytepairs.read_as_multiplied(k, e, value))
        x = _masked(k, block, e.axes, nodes.Literal(0.0))
    else:
        zero = nodes.Literal(0, True) if kind in INTEGERS else nodes.Literal(0.0)
        x = _masked(k, k.full_block(value), [d for d in e.axes if d not in s.clean[value]], zero)
        x = x if kind == dtype else nodes.Cast(x, kind, dtype)
    if dtype == "bfloat16":
        x = nodes.MatrixType(x)
    groups = [[axis] if (axis := "*".join(group)) in x.axes else group for group in groups]
    wanted = merged(*groups)
    return x if x.axes == wanted else _as_matrix(x, *groups)


def _as_matrix(x: Expr, batch: list[str], first: list[str], last: list[str]) -> Expr:
    """A block with an axis for each group.

    Where the last one alone is several axes, x[k, a, b] is permuted to x[a, b, k], merged to x[a*b, k], and permuted to
    x[k, a*b]. Triton moves a merge of what is loaded behind its copy to shared memory. Of x[k, a, b] that lies with k
    contiguous it would need a layout of x[k, a, b] there, which it has only from 8 positions of b on.
    """
    if len(last) > 1 and len(first) == 1:
        return nodes.Permuted(_as_matrix(x, batch, last, first), merged(batch, first, last))
    flat, wanted = (*batch, *first, *last), merged(batch, first, last)
    x = x if x.axes == flat else nodes.Permuted(x, flat)
    return x if flat == wanted else nodes.Reshaped(x, wanted)


def _multiplied_out(s: Scope, e: Eqn) -> Expr:
    """A product element by element, summed over this block."""
    k = s.scheduled
    if not any(d in e.axes for d in k.axes(k.iteration_space(e))):
        a, b, space = _spread_factors(k, e)
        return nodes.Apply("mul", (a, b), True, space)
    return across(k, e, multiplied(s, e))


def multiplied(s: Scope, e: Eqn) -> Expr:
    """A product element by element, zero past the end of the dimensions that will be summed over."""
    k = s.scheduled
    a, b, space = _spread_factors(k, e)
    both = [d for d in e.axes if not all(d in s.clean[v] or d not in k.axes(k.dims[v]) for v in factors(e))]
    return _masked(k, nodes.Product(a, b, space), both, nodes.Literal(0.0))


def _spread_factors(k: ScheduledKernel, e: Eqn) -> tuple[Expr, Expr, Axes]:
    space = k.axes(k.iteration_space(e))
    if k.elements(space) > MAX_PRODUCT:
        raise EmitError("product too large to multiply out")
    both = factors(e)
    told = {d for v in both for d in k.axes_of(v)} == {*space}
    a, b = (nodes.spread(as_float(k, v, k.block_of(v) if told else k.full_block(v)), space) for v in both)
    return a, b, space


def as_float(k: ScheduledKernel, value: str, x: Expr) -> Expr:
    kind = k.type_of(value)
    if k.graph.dtype == "float16" and narrow.packed(k, value):
        x, kind = narrow.of_bytes(k, value), "float16"
    return x if kind == "float32" else nodes.Cast(x, kind, "float32")
