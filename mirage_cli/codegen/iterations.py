"""What a kernel does in its loops: accumulators before, in and after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from mirage_cli.codegen import nodes, plan
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.expressions import (
    Scope,
    across,
    as_float,
    branched,
    computed,
    matrices,
    matrix_product,
    multiplied,
    neutral,
    product,
    shows_nan,
    summands,
    unfolded,
)
from mirage_cli.codegen.nodes import Axes
from mirage_cli.codegen.plan import Statement
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import Anew, Loop
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.schedule import MAX_LANES, on_matrix_units

Step: TypeAlias = Load | Eqn
Degrees: TypeAlias = Sequence[tuple[str, int]]


def deferred(k: ScheduledKernel, loop: Loop) -> frozenset[str]:
    """Accumulators that keep the axes they reduce until after the loop: those that nothing rescales or looks at.

    A reduction across lanes in every iteration costs a barrier; adding up blocks costs registers. Values that come
    from a product are laid out so that reducing them is cheap.
    """
    return frozenset(name for name in loop.steady if _deferrable(k, k.eqns[name]))


def _deferrable(k: ScheduledKernel, e: Eqn) -> bool:
    space = k.axes(k.iteration_space(e))
    if (e.op != "dot" and OPS[e.op].kind != "reduction") or not set(space) & set(e.axes):
        return False
    if k.elements(space) > MAX_LANES * 32 * k.schedule.warps:
        return False
    return not on_matrix_units(e, k.dims, k.block) if e.op == "dot" else not k.from_product(e.values[0])


def wide_products_last(k: ScheduledKernel, loop: Loop) -> Sequence[Step]:
    """The steps of an iteration, products that nothing here waits for last, the larger the later: by the last of
    several that share an operand, Triton decides how warps stand for all of them."""
    used = {v for s in loop.steps if isinstance(s, Eqn) for v in s.values} | {s.value for s in loop.stores}
    last = [s for s in loop.steps if isinstance(s, Eqn) and s.op == "dot" and s.out not in used]
    last.sort(key=lambda e: k.elements(k.axes(e.dims)))
    return [*(s for s in loop.steps if s not in last), *last]


def accumulated(k: ScheduledKernel, e: Eqn, degrees: Degrees, defers: bool) -> Axes:
    """The axes of an accumulator in its loop. Where nothing rescales a product, they are those that the matrix units
    give it: to bring it to its own in each iteration costs a second block of registers.

    degrees: in running maxima. defers: whether it keeps the axes that it reduces.
    """
    if e.op == "dot" and on_matrix_units(e, k.dims, k.block):
        changed = degrees or e.out in k.factored
        return k.axes(e.dims) if changed else matrices(k, e).axes
    return k.axes(k.iteration_space(e) if defers else e.dims)


def initialised(k: ScheduledKernel, e: Eqn, degrees: Degrees, defers: bool) -> plan.Initialise:
    """An accumulator, `accumulated`, before its loop."""
    axes = accumulated(k, e, degrees, defers)
    return plan.Initialise(e.out, neutral(e.op, e.type == "int"), k.type_of(e.out), axes)


def combined(s: Scope, e: Eqn, degrees: Degrees, defers: bool) -> Iterator[Statement]:
    """What an iteration does to an accumulator, `accumulated`."""
    k = s.scheduled
    if e.out in s.running:
        factor = k.postponed.get(e.values[0], 1.0)
        yield plan.Advance(e.out, computed(s, e).expr, shows_nan(k, e), e.out in k.subtracted_first, factor)
        return
    axes = accumulated(k, e, degrees, defers)
    if e.out in k.before:
        yield plan.Let(k.before[e.out], k.block_of(e.out))
    yield from (plan.Let(e.out, restarted(k, e, x)) for x in s.anew if x.accumulator == e.out)
    for m, g in degrees:
        factor = nodes.spread(nodes.Factor(m, k.axes_of(m)), axes)
        yield from [plan.Rescale(e.out, factor, g < 0)] * abs(g)
    if factored := k.factored.get(e.out):
        part = unfolded(k, e, nodes.Value(factored.part, matrices(k, e).axes))
        for v in factored.by:
            part = nodes.Apply("mul", (part, nodes.spread(as_float(k, v, k.block_of(v)), axes)), True, axes)
        yield plan.Let(e.out, nodes.Added(e.out, part))
    elif e.op == "dot" and on_matrix_units(e, k.dims, k.block) and axes == matrices(k, e).axes:
        yield plan.Let(e.out, matrix_product(s, e, e.out))
    elif e.op == "dot" and not defers:
        yield plan.Let(e.out, product(s, e, e.out).expr)
    elif e.op == "dot":
        yield plan.Accumulate(e.out, "sum", multiplied(s, e), False)
    else:
        block = summands(s, e).expr
        yield plan.Accumulate(e.out, e.op, block if defers else across(k, e, block), shows_nan(k, e))


def restarted(k: ScheduledKernel, e: Eqn, x: Anew) -> nodes.Expr:
    """An accumulator, which begins anew where an extremum has moved. It stays where the extremum is no number, which is
    for good, and where the accumulator has met nothing yet."""
    own, axes = k.block_of(x.extremum), k.axes_of(x.extremum)
    before = nodes.Value(k.before[x.extremum], axes)
    stays: nodes.Expr = nodes.Apply("eq", (own, before), True, axes)
    if shows_nan(k, k.eqns[x.extremum]):
        stays = nodes.Apply("or", (stays, nodes.Apply("isnan", (before,), True, axes)), True, axes)
    other = branched(k, e, x.other, k.axes_of(e.out))
    if x.other != OPS[e.op].identity:
        nothing = nodes.Apply("eq", (k.block_of(e.out), neutral(e.op, e.type == "int")), True, other.axes)
        stays = nodes.Apply("or", (nodes.spread(stays, other.axes), nothing), True, other.axes)
    return nodes.Apply("where", (nodes.spread(stays, other.axes), k.block_of(e.out), other), True, other.axes)


def completed(k: ScheduledKernel, e: Eqn, degrees: Degrees, defers: bool) -> list[Statement]:
    """What is left to do of an accumulator, `accumulated`, after its loop."""
    kept, own = replace(k.block_of(e.out), axes=accumulated(k, e, degrees, defers)), k.block_of(e.out)
    done: list[Statement] = []
    if kept.axes != own.axes:
        done.append(plan.Complete(e.out, across(k, e, kept) if defers else unfolded(k, e, kept)))
    if e.out in k.read_behind_loops and e.values[0] in k.postponed:
        done.append(plan.Let(e.out, nodes.Scaled(own, k.postponed[e.values[0]])))
    return done
