"""Numbers by which a graph names rows: counted from the front for updates and look-ups, and checked as PyTorch checks
them; and whole numbers of 64 bits that kernels compute with, checked to fit in their 32.

Kernels read and write at the rows that numbers name, as they are. What counts and checks the numbers stands outside of
the regions. A check raises RuntimeError on a CPU, and is a device-side assertion on a GPU, where Inductor makes one
kernel of all that reads the same numbers.

    index_put_(keys, [None, at], k)    -->    row = remainder(at, 16);    index_put_(keys, [None, row], k)
                                              _assert_async(all(at >= -16 & at < 16))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch.fx.node import has_side_effect

from mirage_cli.codegen.exported.ordinary import TORCH
from mirage_cli.ir.once import once
from mirage_cli.pipeline.models.inplace import GIVEN
from mirage_cli.pipeline.models.passes import is_view, memory_of, rematerialisable
from mirage_cli.pipeline.models.symbols import placeholders, shape_of
from mirage_cli.spec.aten.magnitudes import GIVEN as MOST
from mirage_cli.spec.aten.operands import MOST_COMPARED
from mirage_cli.spec.aten.row import APART, Named, overloadless
from mirage_cli.spec.aten.trace import row_of

aten = torch.ops.aten
FUNCTORCH: Any = TORCH._C._functorch
CHECK = aten._assert_async.msg
WHOLE = (torch.int32, torch.int64)
"""Types of numbers that name rows. Masks name none."""
MANY_COMPARISONS = 1 << 26
"""Of numbers with those of rows: as many take a GPU longer (6 µs, at three operations each) than one more kernel that
stores the numbers."""
COMPARED_MEANWHILE = 44
"""Comparisons that take a GPU as long as to write a number of 64 bits and to read it again (16 bytes at 4.1 TB/s)."""
MANY_READ, READ_MEANWHILE = 1 << 22, 8
"""Elements that a kernel reads in vain where it compares: as many of two bytes take a GPU two µs, and so many of them
as long as a number of 64 bits."""


@has_side_effect
def raise_unless(right: torch.Tensor, text: str) -> None:
    """Raises RuntimeError with this text, or has the GPU do so, unless it is true: of all at once under `vmap`."""
    if not torch.compiler.is_compiling():
        while FUNCTORCH.is_batchedtensor(right):
            right = FUNCTORCH.get_unwrapped(right)
    CHECK(right.all(), text)


def from_front(graph: torch.fx.Graph) -> None:
    """Counts from the front the rows that updates in place name, and those that are looked up by numbers that the graph
    is given, where negative numbers count from the end: once for all calls that name the same rows, in front of them
    all. `checked` refuses what lies beyond an end. Numbers that are given elsewhere in another tensor are taken from
    there in front too."""
    known: dict[Any, Any] = {}
    for n in from_ends(graph):
        x, indices, *rest = n.args
        places = {named.axis: named for named in row_of(n).named(n)}
        n.args = x, [i and counted_once(graph, places[d], known) for d, i in enumerate(indices)], *rest
    for n, index in moved_indices(graph):
        user, core = unturned(n, index)
        if APART in core.meta:
            continue  # it has been put there for another call
        if core not in known:
            known[core] = behind_what_it_reads(graph, aten.alias.default, core)
            known[core].meta["val"] = core.meta["val"]
        user.replace_input_with(core, known[core])


def selected_by_tensors(graph: torch.fx.Graph) -> None:
    """Looks up by a tensor what a graph selects by the tensor's number, and does not return.

    select(x, 0, _local_scalar_dense(i))    -->    index(x, [i])
    """
    viewed: set[Any] = set()  # by what is returned
    left = [x for n in graph.find_nodes(op="output") for x in n.all_input_nodes]
    while left:
        viewed.add(n := left.pop())
        left += [x for x in n.all_input_nodes if memory_of(x) == memory_of(n)]
    for n in graph.find_nodes(op="call_function", target=aten.select.int):
        x, dim, number = n.args
        if getattr(number, "target", None) is not aten._local_scalar_dense.default or n in viewed:
            continue
        (index,) = number.args
        value, at = n.meta["val"], index.meta["val"]
        if at.dtype not in WHOLE or at.device != value.device:
            continue
        with graph.inserting_before(n):
            read = graph.call_function(aten.index.Tensor, (x, [*[None] * (dim % (value.dim() + 1)), index]))
        read.meta = n.meta | {"val": value.clone()}
        n.replace_all_uses_with(read)
        graph.erase_node(n)
        if not number.users:
            graph.erase_node(number)


def moved_indices(graph: torch.fx.Graph) -> list[tuple[Any, Any]]:
    """Calls that look up rows, all numbered from the front, with the numbers, where a kernel would not be given these
    as they are, or turned: it reads by address nothing else. They are some of what the graph is given, or are worked
    out, where that is worth a kernel."""
    calls = [n for n in graph.nodes if n.op == "call_function" and row_of(n).looks_up]
    found = [(n, named) for n in calls for named in row_of(n).named(n) if not named.from_end]
    return [
        (n, named.index)
        for n, named in found
        if named.index.meta["val"].dtype in WHOLE
        and unturned(n, named.index)[1].op == "call_function"
        and (moved_from(named.index).op in GIVEN or is_worked_out(n, named))
    ]


def is_worked_out(reader: Any, named: Named) -> bool:
    """Whether a graph works numbers out, and to compare them with the number of each row takes longer than to read them
    from memory, or is not done. Regions end where they are worked out of floating-point numbers."""
    if raw(named.index).op in GIVEN or counted(named.index) is not None:
        return False
    made, stored = shape_of(reader), shape_of(named.index)
    rows = [size_of(x) for x in row_of(reader).named(reader)]
    if not all(isinstance(n, int) for n in (*made, *stored, *rows)):
        return False
    numbers, tables = math.prod(stored), [shape_of(x.of) for x in row_of(reader).named(reader)]
    read = max((math.prod(t) for t in tables if all(isinstance(n, int) for n in t)), default=0)
    if read - math.prod(made) >= MANY_READ + READ_MEANWHILE * numbers:
        return True
    as_long = MANY_COMPARISONS + COMPARED_MEANWHILE * numbers
    return max(rows) > MOST_COMPARED or math.prod(made) * max(rows) >= as_long


def unturned(user: Any, index: Any) -> tuple[Any, Any]:
    """The node whose elements an index has, each along axes of its own, and who reads that node for it."""
    while index.op == "call_function" and is_turned(index):
        user, index = index, index.args[0]
    return user, index


def is_turned(node: Any) -> bool:
    """Whether a node is its argument with the axes in another order, or repeated."""
    if APART in node.meta or not row_of(node).moves or not is_view(node):
        return False
    value, of = node.meta["val"], node.args[0].meta["val"]
    told = [{*zip(map(str, x.shape), map(str, x.stride()), strict=True)} for x in (value, of)]  # symbols among them
    axes, own = ({(n, step) for n, step in x if n != "1" and step != "0"} for x in told)
    return axes == own and str(value.storage_offset()) == str(of.storage_offset())


def from_ends(graph: torch.fx.Graph) -> list[Any]:
    """The calls whose rows are counted from the front: updates, and what is read by address."""
    updates = graph.find_nodes(op="call_function", target=aten.index_put_.default)
    reads = graph.find_nodes(op="call_function", target=aten.index.Tensor)
    return [*updates, *(n for n in reads if looks_up(n))]


def looks_up(read: Any) -> bool:
    """Whether what is read is named by what the graph is given, or works out where that is worth a kernel, beside
    numbers that are counted. Numbers else are compared with each row's."""
    several = [named for named in row_of(read).named(read) if counted(named.index) is None]
    return all(moved_from(named.index).op in GIVEN or is_worked_out(read, named) for named in several)


def counted_once(graph: torch.fx.Graph, named: Named, known: dict[Any, Any]) -> Any:
    """The index, or what counts it from the front. known: by index and size."""
    index, value = named.index, named.index.meta["val"]
    if APART in index.meta or counted(index) is not None or value.dtype not in WHOLE:
        return index
    key = index, str(size_of(named))
    if key not in known:
        known[key] = index
        if (size := length(graph, named)) is not None:
            known[key] = behind_what_it_reads(graph, aten.remainder.Scalar, index, size)
            known[key].meta["val"] = value
    return known[key]


def as_before(graph: torch.fx.Graph, inside: Container[Any]) -> None:
    """Undoes `from_front` for calls that are in no region: PyTorch counts and checks for itself."""
    for name in (aten.index_put_.default, aten.index.Tensor):
        for n in graph.find_nodes(op="call_function", target=name):
            if n not in inside:
                x, indices, *rest = n.args
                n.args = x, [i and raw(i) for i in indices], *rest
    names = aten.remainder.Scalar, aten.alias.default
    made = [n for name in names for n in graph.find_nodes(op="call_function", target=name) if APART in n.meta]
    for n in made:
        for user in [u for u in n.users if n.target is aten.alias.default and u not in inside]:
            user.replace_input_with(n, raw(n))
        if not n.users:
            graph.erase_node(n)


def raw(index: Any) -> Any:
    """The index as the model has it."""
    return index.args[0] if APART in index.meta and index.op == "call_function" else index


def moved_from(node: Any) -> Any:
    """The node whose elements this one moves."""
    while node.op == "call_function" and row_of(node).moves and node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def counted(node: Any) -> range | None:
    """Of an index that is 0, 1, 2, ..., or others like that, at some positions: what is counted. None of others."""
    node = moved_from(node)
    whole = all(isinstance(x, int) for x in node.args)
    return range(*node.args) if overloadless(node.target) == "aten.arange" and whole else None


def checked(graph: torch.fx.Graph, inside: Sequence[Any]) -> None:
    """Checks the numbers by which these nodes name rows: equal ones once. What is worked out of numbers that the graph
    is given is worked out once more. inside: what kernels compute."""
    checks = Checks(graph, frozenset(inside), rematerialisable(graph))
    rows = [(n, named) for n in inside for named in row_of(n).named(n)]
    small = {x for _, named in rows for x in checks.given([named.index, raw(named.index)])}  # less than an axis is long
    for n in inside:
        for x in checks.given(n.all_input_nodes) if not row_of(n).moves else ():
            if x not in small:
                checks.fits(x, overloadless(n.target))
                small.add(x)
    for n, named in rows:
        if not named.trusted:
            checks.of(named, overloadless(n.target))


@dataclass(frozen=True)
class Checks:
    """The nodes outside of some others that check the numbers of these. remat: as of `rematerialisable`. known: by what
    they compute. worked_out: as `once` has it."""

    graph: torch.fx.Graph
    inside: frozenset[Any]
    remat: frozenset[Any]
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])
    worked_out: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def of(self, named: Named, operator: str) -> None:
        """Where a kernel compares numbers that it works out of floating-point ones, there is none: such numbers are no
        row's that it reads, and what it writes is none either."""
        if named.index.meta["val"].dtype not in WHOLE or is_inside(named):
            return
        index, size = self.outside(self.numbers_of(named.index)), length(self.graph, named)
        if index is None or size is None:
            return
        ends = f"{'negative from its end, or ' * named.from_end}less than its size of {size_of(named)}"
        text = f"{operator}: a number names no row of an axis; such numbers are {ends}"
        self.made(raise_unless, self.right(named, index, size), text)

    def numbers_of(self, index: Any) -> Any:
        """The node that has each of an index's numbers, without what only turns or repeats them: that of the model,
        or its copy where kernels make it and hand it on."""
        _, core = unturned(None, index)
        _, own = unturned(None, raw(core))
        return own if own not in self.inside or own in self.remat else core

    def given(self, operands: Sequence[Any]) -> dict[Any, None]:
        """What kernels only move to make these of it, in order."""
        found: dict[Any, None] = {}
        left = [*reversed(operands)]
        while left:
            if (x := left.pop()) not in found:
                found[x] = None
                left += x.all_input_nodes if x in self.inside and row_of(x).moves else ()
        return found

    def fits(self, x: Any, operator: str) -> None:
        """That what a kernel is given to compute with lies as near to 0 as `spec.aten.magnitudes` takes it to."""
        if x in self.inside or getattr(x.meta.get("val"), "dtype", None) != torch.int64 or counted(x) is not None:
            return
        right = self.made(
            aten.bitwise_and.Tensor, self.made(aten.ge.Scalar, x, -MOST), self.made(aten.le.Scalar, x, MOST)
        )
        text = f"{operator}: a whole number is 2^30 or further from 0, and kernels compute in 32 bits"
        self.made(raise_unless, right, text)

    def right(self, named: Named, index: Any, size: Any) -> Any:
        """Which of the numbers name a row."""
        least = 0 if not named.from_end else -size if isinstance(size, int) else self.made(operator.neg, size)
        ends = self.made(aten.ge.Scalar, index, least), self.made(aten.lt.Scalar, index, size)
        right = self.made(aten.bitwise_and.Tensor, *ends)
        if named.besides is None:
            return right
        return self.made(aten.bitwise_or.Tensor, right, self.made(aten.eq.Scalar, index, named.besides))

    @once
    def outside(self, node: Any) -> Any:
        """The node, or a copy of it that is not inside. None where that would compute more than counts."""
        if node not in self.inside:
            return node
        if node not in self.remat:
            return None
        places = {x: self.outside(x) for x in node.all_input_nodes}
        if None in places.values():
            return None
        args, options = torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)
        return self.made(node.target, *args, **options)

    def made(self, target: Any, *args: Any, **options: Any) -> Any:
        """A node behind what it reads."""
        key = target, str(args), str(options)
        if key not in self.known:
            self.known[key] = behind_what_it_reads(self.graph, target, *args, **options)
        return self.known[key]


def behind_what_it_reads(graph: torch.fx.Graph, target: Any, *args: Any, **options: Any) -> Any:
    """A node that is in no region."""
    node = graph.call_function(target, args, options)
    node.meta = {APART: True}
    given = [n for n in graph.nodes if n.op in GIVEN]
    max([given[-1], *node.all_input_nodes]).append(node)
    return node


def by_operators(graph: torch.fx.Graph) -> None:
    """Makes the checks calls of PyTorch's operator, which is all that its caches of compiled graphs know."""
    for n in graph.find_nodes(op="call_function", target=raise_unless):
        right, text = n.args
        with graph.inserting_before(n):
            n.args = graph.call_function(aten.all.default, (right,)), text
        n.target = CHECK


def unchecked(graph: torch.fx.Graph) -> None:
    """Takes the checks away."""
    left = [*graph.find_nodes(op="call_function", target=raise_unless)]
    while left:
        node = left.pop()
        if not node.users:
            left += [x for x in node.all_input_nodes if APART in x.meta]
            graph.erase_node(node)


def size_of(named: Named) -> Any:
    """How many rows there are: a number, or PyTorch's symbol."""
    return shape_of(named.of)[named.axis]


def length(graph: torch.fx.Graph, named: Named) -> Any:
    """The same as a number or a node; None where it is a size that nothing given has."""
    size = size_of(named)
    if isinstance(size, int):
        return size
    given = [(x, i) for x in placeholders(graph) for i, n in enumerate(shape_of(x)) if str(n) == str(size)]
    if not given:
        return None
    node = behind_what_it_reads(graph, aten.sym_size.int, *given[0])
    node.meta["val"] = size
    return node


def is_inside(named: Named) -> bool:
    """Whether all of the numbers are known, and name rows: counted ones, and those of `constants.in_tables`."""
    _, core = unturned(None, named.index)
    if core.op == "get_attr" and APART in core.meta:
        return True
    numbers, size = counted(named.index), size_of(named)
    if numbers is None or not isinstance(size, int):
        return False
    return {*numbers[:1], *numbers[-1:]} <= {*range(-size if named.from_end else 0, size)}
