"""Indices of a program's text: where in a tensor is read and written."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from mirage_cli.ir.access import (
    FARTHEST,
    Access,
    Index,
    Lookup,
    atom_index,
    combined,
    index,
    lookups_of,
    nested,
    of_positions,
    outside_tables,
    plain,
    quotient,
    remainder,
)
from mirage_cli.ir.footprint import untold
from mirage_cli.ir.program import Tensor, distinct_tables, tables_of, tensor_type
from mirage_cli.spec.idioms import SLICE
from mirage_cli.spec.scope import MAX_DEPTH, MAX_INTEGER, Poisoned, Scope
from mirage_cli.spec.vocabulary import PAD


class IndexReader:
    """Reads expressions of axes, numbers and tables as indices."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def index(self, e: ast.expr, depth: int) -> Index:
        """A sum of axes, tables, and their quotients and remainders, each times an integer, and an integer."""
        if depth > MAX_DEPTH:
            raise self.scope.fail(e, "this index is nested too deeply")
        match e:
            case ast.Constant(value=int() as n) if not isinstance(n, bool) and abs(n) <= MAX_INTEGER:
                return index({}, n)
            case ast.Name() if e.id not in self.scope.sizes and e.id in self.scope.names:
                return self.lookup(e, e, (), depth)
            case ast.Name():
                return plain((self.scope.axis(e),))[0]
            case ast.Subscript():
                return self.lookup(e, e.value, e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice], depth)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                x = self.index(e.operand, depth + 1)
                return combined(0, ((x, -1),)) if isinstance(e.op, ast.USub) else x
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                x, y = self.scope.each(self.index, (e.left, e.right), depth + 1)
                return combined(0, ((x, 1), (y, 1 if isinstance(e.op, ast.Add) else -1)))
            case ast.BinOp(op=ast.Mult() | ast.FloorDiv() | ast.Mod()):
                return self.index_by_number(e, depth)
            case ast.BinOp(op=ast.Div()):
                raise self.scope.fail(e, "an index is an integer: // divides and rounds down")
            case ast.Slice():
                raise self.scope.fail(e, SLICE)
            case _:
                known = "axes, integer inputs and their // and %, each times an integer, and an integer"
                raise self.scope.fail(e, f"an index is a sum of {known}")

    def index_by_number(self, e: ast.BinOp, depth: int) -> Index:
        """An index times, over or modulo a number."""
        x, y = self.scope.each(self.index, (e.left, e.right), depth + 1)
        if isinstance(e.op, ast.Mult):
            if x.terms and y.terms:
                raise self.scope.fail(e, "an axis is multiplied by a number here, not by an axis; a name is a position")
            return combined(0, ((x, y.offset),)) if x.terms else combined(0, ((y, x.offset),))
        if y.terms or not 1 <= y.offset <= FARTHEST:
            raise self.scope.fail(e.right, "an index is divided by a positive number here; a name is a position")
        return (quotient if isinstance(e.op, ast.FloorDiv) else remainder)(x, y.offset)

    def lookup(self, e: ast.expr, of: ast.expr, nodes: Sequence[ast.expr], depth: int) -> Index:
        """`T[m]`, or `T` where it has no axes: an integer that an input holds. `pad(T, 0)[m]`: 0 beyond its end."""
        of, beyond = _padded(of)
        if not isinstance(of, ast.Name):
            raise self.scope.fail(of, "an index is looked up in an input, T[...], or pad(T, 0)[...]")
        x = self.scope.name(of)
        t = self.scope.builder.known[x] if isinstance(x, str) else None
        if not isinstance(t, Tensor):
            known = "an index is computed of axes, numbers and integer inputs alone"
            hint = f"of a short table, sum(where(index(a) == {of.id}, table, 0), a) is the entry that a result names"
            raise self.scope.fail(of, f"{of.id} is no input; {known}; {hint}")
        if tensor_type(t) != "int":
            hint = f"inputs: {of.id}: {{dims: [{', '.join(t.dims)}], dtype: int32, below: AXIS}}"
            raise self.scope.fail(of, f"{of.id} is {t.dtype}, and an index is an integer; {hint}")
        if t.below is None:
            hint = f"inputs: {of.id}: {{dims: [{', '.join(t.dims)}], dtype: {t.dtype}, below: AXIS}}"
            raise self.scope.fail(of, f"an index needs to know what {of.id} is less than; {hint}")
        indices = self.scope.each(self.index, nodes, depth + 1)
        if len(indices) != len(t.dims):
            has = f"the axes {', '.join(t.dims)}" if t.dims else "no axes"
            given = f"{len(indices)} indices are" if len(indices) != 1 else "1 index is"
            raise self.scope.fail(e, f"{given} given, and {of.id} has {has}")
        for d, i, node in zip(t.dims, indices, nodes, strict=True):
            self.check_index(node, d, i, beyond)
            if not beyond and any(i.leaves(self.scope.sizes[d], self.scope.sizes)):
                low, high = i.bounds(self.scope.sizes)
                has = f"{d} has the positions 0 to {self.scope.sizes[d] - 1}"
                hint = f"pad({of.id}, 0)[...] reads 0 where nothing is"
                raise self.scope.fail(node, f"this reads {d} from {low} to {high}, and {has}; {hint}")
        return atom_index(Lookup(t.name, tuple(indices), t.below, t.padded))

    def check_index(self, node: ast.expr, d: str, i: Index, padded: bool = False) -> None:
        """Whether an index reads some of an axis; all that a table names must be there, but where what is not is 0 by
        the program's own word (padded)."""
        tables = lookups_of([i])
        if not all(self.scope.sizes[a] for a in (d, *i.dims, *(x.below for x in tables)) if isinstance(a, str)):
            raise Poisoned
        low, high = i.bounds(self.scope.sizes)
        has = f"{d} has the positions 0 to {self.scope.sizes[d] - 1}"
        if high < 0 or low >= self.scope.sizes[d]:
            reach = f"from {low} to {high}" if low < high else f"at {low}"
            raise self.scope.fail(node, f"this reads {d} {reach}, and {has}")
        if max(-low, high) > FARTHEST:
            farthest = low if -low > high else high
            raise self.scope.fail(node, f"this comes to {farthest}, more than 2 ** 30 from the start of {d}")
        if tables and not padded and any(of_positions(i).leaves(self.scope.sizes[d], self.scope.sizes)):
            hint = "; pad(input, 0)[...] reads 0 where nothing is"
            raise self.scope.fail(node, f"this may read {d} from {low} to {high}, and {has}{_limits((i,))}{hint}")

    def check_dynamic(self, node: ast.expr, d: str, i: Index, done: str) -> None:
        """Whether an index says the same place at all sizes of dynamic axes. done: what is done by it."""
        for a, j in nested([(d, i)], {t: self.scope.builder.known[t].dims for t in tables_of([i])}):
            if j.axis != a:
                self.scope.refuse_dynamic(node, (a, *outside_tables(j)), f"is only {done} by its own name")

    def warn_exchanged(self, node: ast.expr, dims: Sequence[str], access: Sequence[Index]) -> None:
        """Warn where axes of a result are read by one another: no spec writes down the order of a result's axes, so
        that another order was likely in mind."""
        if exchanged := [f"{d} by {a}" for d, a in _exchanged(dims, access)]:
            has = f"the axes {', '.join(dims)}, in the order of `dims`"
            self.scope.warn(
                node, f"this result has {has}, and reads {', '.join(exchanged)}; `rename` says that it is meant"
            )

    def warn_outside(self, node: ast.expr, name: str, dims: Sequence[str], access: Sequence[Index]) -> None:
        """Warn where an axis of an input is read by a longer one of its own: another order of them was likely in
        mind."""
        sizes, alone = self.scope.sizes, {i.axis for i in access}
        outside = [
            f"{d}, of {sizes[d]} positions, by {a}, of {sizes[a]}"
            for d, a in _exchanged(dims, access)
            if a in alone and sizes[d] < sizes[a]
        ]
        if outside:
            has = f"the axes {', '.join(dims)}, in this order"
            self.scope.warn(node, f"{name} has {has}, and reads {', '.join(outside)}: what lies outside is 0")

    def check_written(self, name: str, tensor: Tensor, access: Access, nodes: Sequence[ast.expr]) -> None:
        """Whether all that is written by these indices is there, and nothing twice, at all sizes. Raises Poisoned."""
        largest = self.scope.largest
        for d, i, node in zip(tensor.dims, access, nodes, strict=True):
            if not all(self.scope.sizes[a] for a in (d, *i.dims, *(x.below for x in i.lookups)) if isinstance(a, str)):
                raise Poisoned
            low, high = of_positions(i).bounds(largest)
            if low < 0 or high >= largest[d]:
                reach = f"from {low} to {high}" if low < high else f"at {low}"
                positions = f"{d} has the positions 0 to {largest[d] - 1}"
                raise self.scope.fail(node, f"this writes {name} along {d} {reach}, and {positions}{_limits((i,))}")
            if high > FARTHEST:
                raise self.scope.fail(node, f"this comes to {high}, more than 2 ** 30 from the start of {d}")
            self.check_dynamic(node, d, i, "written")
        tables = {t.name: t for t in self.scope.builder.known.values() if isinstance(t, Tensor)}
        if axes := untold(access, largest, distinct_tables(tables.values())):
            why = f"they are the same for several positions along {', '.join(axes)}, as far as can be told"
            again = [x for x in tables_of(access) if not tables[x].distinct]
            hint = f"; if {again[0]} names none twice, declare it `distinct: true`" if again else ""
            raise self.scope.fail(nodes[0], f"these indices may write an element of {name} twice: {why}{hint}")


def _padded(of: ast.expr) -> tuple[ast.expr, bool]:
    """What is read, and whether it is 0 where it has no position: of `pad(T, 0)`, T."""
    match of:
        case ast.Call(func=ast.Name(id=name), args=[inner, ast.Constant(value=0)], keywords=[]) if name == PAD:
            return inner, True
        case _:
            return of, False


def _exchanged(dims: Sequence[str], access: Sequence[Index]) -> list[tuple[str, str]]:
    """The axes of a tensor that are read by others of its axes, which are read by others too."""
    moved = {d for d, i in zip(dims, access, strict=True) if d not in i.dims}
    return [(d, a) for d, i in zip(dims, access, strict=True) if d in moved for a in i.dims if a in moved]


def _limits(access: Access) -> str:
    """What the tables are below that are looked up."""
    below = " and ".join(f"{x.table} is below {x.below}" for x in lookups_of(access))
    return f": {below}" * bool(below)


def index_count(name: str, dims: Sequence[str], count: int) -> str:
    """What is wrong with so many indices of a tensor."""
    has = f"the axes {', '.join(dims)}" if dims else "no axes"
    return f"{f'{count} indices are' if count > 1 else '1 index is'} given, and {name} has {has}"
