"""Loads of which a mask leaves a part: what would be put to 0 is not loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace

from mirage_cli.codegen import addresses, axisnames, nodes, plan
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.nodes import Expr
from mirage_cli.codegen.plan import Statement
from mirage_cli.ir.access import strides
from mirage_cli.ir.ops import OPS


def picked(k: ScheduledKernel, body: Sequence[Statement], ahead: Collection[str]) -> list[Statement]:
    """x = load; c = mask; y = where(c, x, 0)  -->  c = mask; x = load where c; y = x

    Of an iteration, where the mask follows from positions, is the same for what lies side by side in memory, and
    nothing else reads x. Products then take x from where the loads of later iterations bring it; what a mask changes
    goes through registers. ahead: loads of the next iteration.
    """
    loads = {s.out: s for s in body if isinstance(s, plan.Load)}
    uses = Counter(name for s in body for name in _names(s))
    found = [*body]
    for s in body:
        if not isinstance(s, plan.Let) or (pick := _pick(s.expr)) is None:
            continue
        mask, value, kept = pick
        x = loads.get(value.name)
        if x is None or value.name in ahead or uses[value.name] != 2 or not _maskable(k, x, mask, s.expr):
            continue
        if _of_positions(mask, body):
            found.remove(x)
            at = found.index(s)
            found[at : at + 1] = [replace(x, when=mask), replace(s, expr=kept)]
    return found


def _pick(x: Expr) -> tuple[nodes.Value | nodes.Spread, nodes.Value, Expr] | None:
    """The mask, the value, and what is made of it, of what is 0 where the mask is not."""
    if not isinstance(x, nodes.Apply) or OPS[x.op].result != "branches" or len(x.args) != 3:
        return None
    mask, kept, other = x.args
    if not isinstance(mask, nodes.Value) and not (isinstance(mask, nodes.Spread) and isinstance(mask.x, nodes.Value)):
        return None
    value = kept.x if isinstance(kept, nodes.Cast) else kept
    zero = isinstance(other, nodes.Literal) and other.value == 0
    return (mask, value, kept) if zero and isinstance(value, nodes.Value) and kept.axes == x.axes else None


def _maskable(k: ScheduledKernel, x: plan.Load, mask: nodes.Value | nodes.Spread, whole: Expr) -> bool:
    """Whether a load by pointers may have the mask: of its own axes but those along which elements lie side by side,
    which would be loaded one by one."""
    pointers = isinstance(x.access, addresses.Pointers) and x.access.axes == x.axes == whole.axes
    if not pointers or x.outside or x.others or x.repeated or x.ahead is not None or x.out not in k.loads:
        return False
    load = k.loads[x.out]
    steps, _ = strides(load.access, k.tensors[load.buffer].steps(k.sizes))
    beside = {d for d, n in steps.items() if n == 1}
    return bool(beside) and not beside & {
        *axisnames.apart(mask.x.axes if isinstance(mask, nodes.Spread) else mask.axes)
    }


def _of_positions(mask: Expr, body: Sequence[Statement]) -> bool:
    """Whether nothing that the iteration loads or changes is needed for a mask."""
    lets = {s.out: s.expr for s in body if isinstance(s, plan.Let)}
    others = (s for s in body if not isinstance(s, plan.Let))
    changed = {name for s in others for name in (getattr(s, "out", ""), *getattr(s, "others", ()))}
    todo, seen = [*_names(mask)], set[str]()
    while todo:
        name = todo.pop()
        if name in changed:
            return False
        todo += _names(lets[name]) if name in lets and name not in seen else ()
        seen.add(name)
    return True


def _names(x: object) -> Iterator[str]:
    """All words in a statement or an expression but for names of buffers: those of values, and a few more."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, tuple):
        for y in x:
            yield from _names(y)
    elif is_dataclass(x) and not isinstance(x, type):
        for f in fields(x):
            if f.name != "buffer":
                yield from _names(getattr(x, f.name))
