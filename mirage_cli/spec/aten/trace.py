"""A graph of PyTorch as a program: each node becomes arrays, as the row of its operator says.

No operator is decomposed further than its row says, so a trace reads as the model does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any  # nodes of PyTorch's graphs, and what their arguments are

from mirage_cli.errors import GraphError
from mirage_cli.ir.program import DTYPES, FLOAT8
from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.magnitudes import (
    LARGEST,
    Magnitudes,
    is_floating,
    is_mask,
    is_whole,
    reach,
    refuse_result,
)
from mirage_cli.spec.aten.memory import inverse, memory_order, order_of_result, strides_of
from mirage_cli.spec.aten.operands import both, mask_of, number_of
from mirage_cli.spec.aten.row import APART, Row, dtype_name, overloadless
from mirage_cli.spec.aten.table import ATEN
from mirage_cli.spec.aten.updates import WRITTEN
from mirage_cli.spec.graph import Graph
from mirage_cli.spec.keys import FLOATS, TENSOR_TYPES


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph of PyTorch as a program.

    inputs, outputs: of the program, with their nodes. arrays: the results, in memory order, whose axes of size 1, and
    along which they are constant, the program's tensors lack. again: nodes whose result is computed once more, along
    other axes.
    """

    graph: Graph
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any], ...]
    arrays: tuple[Array, ...]
    again: frozenset[Any] = frozenset()


def trace(
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    scale_of: Callable[[Any], float | None] = lambda _: None,
    named: Mapping[int, int] = MappingProxyType({}),
    arguments: Sequence[Any] | None = None,
) -> Traced:
    """These nodes of a graph, in order. What they take besides is an input of the program.

    outputs: nodes. scale_of: the standard deviation of an input's data. named: the largest of each size that differs by
    call. arguments: the inputs in their order, where they have one. Raises Unsupported.
    """
    t, magnitudes = Trace(named, moves), Magnitudes(moves, named)
    known: dict[Any, Any] = {}
    inputs: dict[str, Any] = {}

    def value(x: Any) -> Any:
        if isinstance(x, Sequence) and not isinstance(x, str):
            return [value(y) for y in x]
        if not hasattr(x, "op"):
            return x
        if isinstance(size := getattr(x, "meta", {}).get("val"), int | float):
            return size
        if x not in known:
            label = f"X{len(inputs)}"
            inputs[label] = x
            known[x] = input_of(t, label, x, scale_of(x))
        if known[x] is WRITTEN:
            raise Unsupported(f"{x} is read where it is changed in place")
        return known[x]

    def operand(node: Any, x: Any) -> Any:
        return as_taken(node, x, value(x))

    taken = read_by(nodes)
    for x in taken if arguments is None else [x for x in arguments if x in taken]:
        with suppress(Unsupported):  # which is said where it is read
            value(x)
    try:
        for node in nodes:
            t.maker = node
            magnitudes.refuse_large(node)
            made = call(t, node, [operand(node, a) for a in node.args],
                        {k: operand(node, a) for k, a in node.kwargs.items()})  # fmt: skip
            known[node] = mask_of(made) if is_mask(node) else made
        for node in outputs:
            t.maker = node
            refuse_result(node, taken)
        t.maker = None
        return traced(t, name, known, inputs, outputs, made_of_floats(nodes))
    except Unsupported as error:
        error.maker = t.maker
        raise


def read_by(nodes: Sequence[Any]) -> list[Any]:
    """The tensors that these nodes take from elsewhere, the largest first, whatever reads them first: PyTorch's
    decompositions read the operands of one operator in many orders, and as matrices."""
    own = {*nodes}
    found = (x for n in nodes for x in n.all_input_nodes if x not in own and hasattr(x.meta.get("val"), "dtype"))
    return sorted(dict.fromkeys(found), key=largest_first)


def largest_first(node: Any) -> tuple[int, int]:
    """What orders nodes by the sizes of their tensors."""
    sizes = [n for n in node.meta["val"].shape if n != 1]
    return -math.prod(sizes), sizes[-1] if sizes else 1


def traced(
    t: Trace,
    name: str,
    known: Mapping[Any, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[Any],
    floats: Container[Any],
) -> Traced:
    """The program of what the nodes have come to. floats: those that are made of floating-point tensors. Raises
    Unsupported."""
    outputs = [n for n in outputs if known[n] is not WRITTEN]

    def typed(n: Any) -> Array:
        """A result as what its tensor holds. Where all that it is made of are numbers like 1.0, it is an integer for
        the language; and a quotient that is rounded down, a float."""
        if is_mask(n):
            return mask_of(known[n])
        if is_whole(n):
            return both(g.integer, known[n])
        return number_of(known[n]) if n in floats else in_floats(number_of(known[n]))

    made: dict[str, tuple[Array, str]] = {}
    for i, n in enumerate(outputs):
        t.maker = n
        if not isinstance(known[n], Array):
            raise Unsupported(f"{n} makes several tensors")
        made[f"O{i}"] = p.permuted(typed(n), order_of_result(n.meta["val"])), output_dtype(n)
    try:
        graph = t.graph(name, made)
    except GraphError as error:
        raise Unsupported(str(error)) from None
    used = {line.split(":")[0] for line in graph.inputs}
    every = {**inputs, **{a.name: inputs[first.name] for a, first in t.again.items()}}
    read = tuple((label, x) for label, x in every.items() if label in used)
    arrays = tuple(a for a, _ in made.values())
    told = {axis for a in t.arrays if a.name in used for axis in a.own}
    for n, a in zip(outputs, arrays, strict=True):
        if any(axis.size in t.named and axis not in told for axis in a.own):
            t.maker = first_counted(n, {*known} - {*inputs.values()})
            raise Unsupported(f"no input says a size of {n}, which differs by call")
    return Traced(graph, read, tuple(zip(made, outputs, strict=True)), arrays, frozenset(t.computed_again))


def first_counted(node: Any, known: Container[Any]) -> Any:
    """The first floating-point numbers that a result is made of, along positions alone; the result, if it is none.
    known: the nodes of the program, without its inputs."""
    of = next((x for x in node.all_input_nodes if x in known and is_floating(x)), None)
    return node if of is None else first_counted(of, known)


def makes_floats(node: Any) -> bool:
    """Whether a call makes floating-point numbers of whole ones alone: PyTorch converts these first."""
    made, given = node.meta.get("val"), [x.meta.get("val") for x in node.all_input_nodes]
    types = [x.dtype for x in given if hasattr(x, "dtype")]
    floating = hasattr(made, "dtype") and made.dtype.is_floating_point
    return floating and any(map(is_whole, node.all_input_nodes)) and not any(d.is_floating_point for d in types)


def made_of_floats(nodes: Sequence[Any]) -> set[Any]:
    """The nodes whose floating-point numbers are worked out of others, or of whole numbers that are converted."""
    own, found = {*nodes}, set[Any]()
    for n in nodes:
        operands = [x for x in n.all_input_nodes if is_floating(x)]
        if is_floating(n) and (makes_floats(n) or any(x in found or x not in own for x in operands)):
            found.add(n)
    return found


def in_floats(x: Any) -> Any:
    """Whole numbers as floating-point ones. Masks as they are."""
    return both(lambda v: v / 1, x) if isinstance(x, Array) and not x.mask else x


def as_taken(node: Any, given: Any, x: Any) -> Any:
    """An argument of a call as PyTorch converts it. x: its value. Raises Unsupported."""
    if not (row_of(node).keeps_type and is_whole(node)):
        return in_floats(x) if makes_floats(node) and getattr(given, "op", "") else x
    if not is_floating(given):
        return math.trunc(x) if isinstance(x, float) else x
    if dtype_name(node.meta["val"].dtype) == "int64" and reach(given) > LARGEST:
        raise Unsupported(f"{node} makes whole numbers of floating-point ones that may not fit in 32 bits")
    return both(g.integer, x)


def input_of(t: Trace, label: str, node: Any, scale: float | None) -> Array:
    """An input of the program. Bytes from 0 to 255 are read as those from -128 to 127 that have the same bits."""
    tensor = node.meta["val"]
    if not hasattr(tensor, "dtype"):
        raise Unsupported(f"{node} is no tensor")
    dtype = dtype_name(tensor.dtype)
    if dtype not in DTYPES and dtype != "uint8":
        raise Unsupported(f"{node} is of {dtype}")
    if not all(isinstance(n, int) for n in tensor.shape):
        raise Unsupported(f"{node} has a size that is not known")
    order = memory_order(tensor)
    array = t.input(
        label, [tensor.shape[d] for d in order], "int8" if dtype == "uint8" else dtype, scale, strides_of(node)
    )
    array = array if [*order] == sorted(order) else p.permuted(array, inverse(order))
    return both(lambda v: g.bit_and(v, 255), array) if dtype == "uint8" else array


def output_dtype(node: Any) -> str:
    dtype = dtype_name(node.meta["val"].dtype)
    if dtype not in TENSOR_TYPES:
        raise Unsupported(f"the result {node} is of {dtype}")
    return dtype


def call(t: Trace, node: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a node makes. Raises Unsupported."""
    if not supported(node):
        changes = written(node) or kept_statistics(node)
        raise Unsupported("changes a tensor in place" if changes else "no operator that is known here")
    refuse_types(node)
    if written(node):
        refuse_target(node)
    row = row_of(node)
    given = {k: x for k, x in options.items() if k not in ("dtype", "layout", "device", "pin_memory", "memory_format")}
    if row.with_node:
        args = [t, node, *args]
    try:
        inspect.signature(row.handler).bind(*args, **given)
    except TypeError as error:
        raise Unsupported(f"{overloadless(node.target)} is called in a form that is not known here: {error}") from None
    made = row.handler(*args, **given)
    return mask_of(made) if row.keeps_type and is_mask(node) else made


def unknown(*_args: Any, **_options: Any) -> Array:
    raise Unsupported("an operator that is not known here")


UNKNOWN = Row(unknown)


def refuse_types(node: Any) -> None:
    """Raises Unsupported for numbers that a kernel would compute otherwise than PyTorch."""
    tensors = [x.meta.get("val") for x in (node, *node.all_input_nodes)]
    if any(0 in getattr(x, "shape", ()) for x in tensors):
        raise Unsupported(f"{node} computes with a tensor without elements")
    dtype = dtype_name(getattr(tensors[0], "dtype", ""))
    if dtype in ("float64", "complex64", "complex128"):
        raise Unsupported(f"{node} is of {dtype}")


def written(node: Any) -> Sequence[Any]:
    """The nodes whose tensors a node changes in place, as its operator's schema says."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    found = [given.get(a.name) for a in schema.arguments if a.is_write]
    return [x for some in found for x in (some if isinstance(some, list | tuple) else [some]) if hasattr(x, "op")]


def refuse_target(node: Any) -> None:
    """Raises Unsupported where a node changes a tensor in place that no kernel can."""
    if output_dtype(node) not in {*FLOATS, *FLOAT8, "int8"}:
        raise Unsupported(f"{node} changes a tensor of {output_dtype(node)} in place")
    tensor = node.args[0].meta["val"]
    if strides_of(node.args[0]) is None and not tensor.permute(memory_order(tensor)).is_contiguous():
        raise Unsupported(f"{node} changes a tensor that has several elements in one place")


def row_of(node: Any) -> Row:
    """The row of the operator that a node calls. Of an operator without one, a row that raises Unsupported."""
    return ATEN.get(overloadless(node.target), UNKNOWN)


def moves(node: object) -> bool:
    """Whether a node copies elements and computes nothing. The numbers that it is given are positions."""
    return row_of(node).moves


def supported(node: Any) -> bool:
    """Whether there is a row for the node's operator, and the row says all that it does: rows change their first
    argument alone."""
    known = APART not in node.meta and row_of(node) is not UNKNOWN
    return known and all(x is node.args[0] for x in written(node)) and not kept_statistics(node)


def kept_statistics(node: Any) -> Sequence[Any]:
    """The running statistics that a norm changes, which its schema does not say."""
    if overloadless(node.target) not in ("aten.batch_norm", "aten.instance_norm"):
        return []
    _, _, _, mean, var, training, *_ = node.args
    return [mean, var] if training and mean is not None else []
