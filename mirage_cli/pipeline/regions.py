"""A PyTorch model as regions: programs that the search takes whole, cut where little passes from one to the next.

    module ─► torch.export ─► nodes ─► partitions of what is known ─► cuts ─► one program for each region

What is in no region stays as it is, and says why.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from mirage_cli.errors import SpecError
from mirage_cli.ir.program import Program
from mirage_cli.spec.aten import MOVES, PRODUCTS, Traced, overloadless, positional, supported, trace
from mirage_cli.spec.graph import Graph
from mirage_cli.spec.positional import Array, Unsupported
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.numeric import reference64

PREFIX = "region_"
MOST_PRODUCTS, MOST_NODES = 3, 20
"""Of one region: more than that, and the search takes minutes."""
CHANGES, LAST = "changes a tensor in place", "aten.copy_"
"""LAST: what writes inputs and buffers that a model changes, at the end of its graph."""
UNCUT_BYTES = 1 << 60
"""Where masks, whole numbers or several tensors at once would pass."""
ROUNDINGS, LEAST_OFF = 16, 2e-3
"""How far a result of PyTorch may be from the program's in float64: roundings of its type, or with TF32's."""
MANY = 256
"""Numbers from which on their deviation is looked at."""
LAUNCH_BYTES = 8 << 20
"""What a kernel more costs, as bytes that could be moved meanwhile (2 µs at 4 TB/s)."""


@dataclass(frozen=True)
class Shape:
    """How a result of a program becomes PyTorch's.

    whole: PyTorch's shape. parts: the same with axes split as in the program. held: these, with one place for each axis
    along which the result is constant.
    """

    whole: tuple[int, ...]
    parts: tuple[int, ...]
    held: tuple[int, ...]

    def of(self, y: torch.Tensor) -> torch.Tensor:
        return y.reshape(self.held).expand(self.parts).reshape(self.whole)


@dataclass(frozen=True)
class Region:
    """A program of the model.

    module: what it replaces, by its name in the model. graph, program: what it computes, under a name that is the same
        wherever the same is computed. inputs: for each input of the program, which of the module's it is. shapes: of
        the results, in order.
    """

    module: str
    graph: Graph
    program: Program
    inputs: tuple[int, ...]
    shapes: tuple[Shape, ...]


@dataclass
class Cut:
    """A model whose regions are modules. left: the operators that are in none, with the reason."""

    model: torch.fx.GraphModule
    regions: list[Region] = field(default_factory=list[Region])
    left: dict[str, str] = field(default_factory=dict[str, str])


def exported(model: torch.nn.Module, inputs: tuple[Any, ...]) -> torch.fx.GraphModule:
    """The model's graph for inputs like these. Operators that are not known here are decomposed where PyTorch can, and
    tensors that are changed in place become new ones."""
    program = torch.export.export(model, inputs)
    unknown = {n.target for n in calls(program.graph) if not supported(n)}
    table = torch.export.default_decompositions()
    some = {op: table[op] for op in unknown if op in table}
    if some or any(map(changes, calls(program.graph))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own
            program = program.run_decompositions(some)  # type: ignore[arg-type]
    made = program.module()
    for node in made.graph.nodes:
        if node.op == "get_attr":
            tensor = attribute(made, node.target)
            node.meta = node.meta | {"val": node.meta.get("val", tensor), "scale": scale_of(tensor)}
    return made  # type: ignore[return-value]


def changes(node: Any) -> bool:
    """Whether a node changes a tensor in place."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def scale_of(tensor: torch.Tensor) -> float | None:
    """The standard deviation of a parameter's data, as a power of 4: equal layers have equal programs."""
    if not tensor.is_floating_point() or tensor.numel() < MANY:
        return None
    deviation = float(tensor.detach().float().std())
    return 4.0 ** round(math.log(deviation, 4)) if 0 < deviation < math.inf else None


def attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def calls(graph: torch.fx.Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op == "call_function"]


def cut(model: torch.fx.GraphModule) -> Cut:
    """The model with a module for each region. Its parameters stay where they are."""
    left: dict[str, str] = {}
    refused: set[Any] = set()
    while True:
        parts = segments(model, refused)
        wrong = [x for part in parts if (x := problem_of(part)) is not None]
        if not wrong:
            break
        for some, why in wrong:
            refused |= {*some}
            left |= {f"{overloadless(n.target)} ({n})": why for n in some if overloadless(n.target) not in MOVES}
    left |= {
        f"{overloadless(n.target)} ({n})": CHANGES if changes(n) else "no operator that is known here"
        for n in calls(model.graph)
        if not supported(n) and "val" in n.meta
    }
    traced = [trace(part, outputs_of(part), "region", lambda n: n.meta.get("scale")) for part in parts]
    fused = fuse_by_partitions(model, [dict.fromkeys(part) for part in parts], prefix=PREFIX)
    found = Cut(fused, left=left)
    for i, one in enumerate(traced):
        name = f"{PREFIX}{i}"
        region = region_of(fused, name, one)
        if agrees(fused, region):
            found.regions.append(region)
        else:
            found.left[name] = "its program is not what PyTorch computes: a mistake of mirage's"
    return found


def agrees(model: torch.fx.GraphModule, region: Region) -> bool:
    """Whether the program, in float64, gives what PyTorch computes of some random data: of any sign, or above zero
    where nothing is a number of those (below a root, say)."""
    program, sizes = region.program, region.program.sizes
    (node,) = (n for n in model.graph.nodes if n.op == "call_module" and n.target == region.module)
    with unset_fake_temporarily(), torch.no_grad():
        for positive in (False, True):
            generator = torch.Generator().manual_seed(0)
            given = [evaluated(x) if positional(x) else drawn(x.meta["val"], generator, positive) for x in node.args]
            made = model.get_submodule(region.module)(*given)
            outputs = made if isinstance(made, list | tuple) else [made]
            if not all(bool(y.isfinite().any()) for y in outputs):
                continue
            shapes = [[sizes[d] for d in t.dims] for t in program.inputs]
            exact = reference64(program, [as_given(given[i], s) for i, s in zip(region.inputs, shapes, strict=True)])
            return all(close(y, shape.of(x)) for y, x, shape in zip(outputs, exact, region.shapes, strict=True))
    return False


def as_given(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor as a program's input. The bytes of masks are 0 and 1."""
    x = x.reshape(shape)
    return x.contiguous().view(torch.int8) if x.dtype is torch.bool else x.contiguous()


def evaluated(node: Any) -> Any:
    """The value of a node that is made of no tensor."""
    if isinstance(node, list | tuple):
        return [evaluated(x) for x in node]
    if not isinstance(node, torch.fx.Node):
        return node
    function: Any = node.target
    return function(*map(evaluated, node.args), **{k: evaluated(x) for k, x in node.kwargs.items()})


def drawn(like: torch.Tensor, generator: torch.Generator, positive: bool = False) -> torch.Tensor:
    """Random data in the memory order of a tensor."""
    if not like.is_floating_point():  # small numbers are rows of all tables, and classes
        return torch.randint(0, 2, like.shape, generator=generator).to(like.device, like.dtype)
    data = torch.randn(like.shape, generator=generator)
    data = (data.abs() if positive else data).to(like.device, like.dtype)
    if 0 in like.stride():
        return data
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(data)


def close(y: torch.Tensor, exact: torch.Tensor) -> bool:
    """By the norm of the difference of what are numbers: a program that is another one is off by far more. Infinities
    and what is no number are in the same places, but for what is beyond the type of PyTorch's result."""
    rounded = exact.to(y.dtype)
    numbers = y.isfinite()
    if not torch.equal(numbers, rounded.isfinite()) or not torch.equal(y.isnan(), exact.isnan()):
        return False
    if not torch.equal(y[y.isinf()], rounded[y.isinf()]):
        return False
    off, size = (float(torch.where(numbers, x, 0.0).norm()) for x in (y.double() - exact, exact))
    return bool(numbers.any()) and off <= max(ROUNDINGS * torch.finfo(y.dtype).eps, LEAST_OFF) * size


class _Known(OperatorSupportBase):
    def __init__(self, refused: set[Any]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:  # noqa: ARG002
        fine = node.op == "call_function" and node not in self.refused and supported(node)
        return fine and not positional(node)


def segments(model: torch.fx.GraphModule, refused: set[Any]) -> list[list[Any]]:
    """The nodes of each region, in order."""
    if any(changes(n) and overloadless(n.target) != LAST for n in calls(model.graph)):
        return []  # what is read before and behind the change may not be moved past it
    support = _Known(refused)
    place = {n: i for i, n in enumerate(model.graph.nodes)}
    found: list[list[Any]] = []
    for partition in CapabilityBasedPartitioner(model, support, allows_single_node_partition=True).propose_partitions():
        nodes = sorted(partition.nodes, key=place.__getitem__)
        if not refused & {*nodes}:  # the partitioner keeps what takes several tensors apart with what makes them
            found += [part for part in pieces(nodes) if any(overloadless(n.target) not in MOVES for n in part)]
    return found


def pieces(nodes: Sequence[Any]) -> list[list[Any]]:
    """The nodes of a partition cut where the least has to be stored, into parts that are no larger than a search takes.

    best[i] = min over j of best[j] + the bytes that pass at j + `LAUNCH_BYTES`, for the first i nodes.
    Of equal cuts the last is taken: it leaves what is cheap with what it follows.
    """
    weight = [PRODUCTS.get(overloadless(n.target), 0) for n in nodes]
    work = [overloadless(n.target) not in MOVES for n in nodes]
    passing = seams(nodes)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for i in range(1, len(nodes) + 1):
        options: list[tuple[float, int]] = []
        products = count = 0
        for j in range(i - 1, -1, -1):
            products, count = products + weight[j], count + work[j]
            if (products > MOST_PRODUCTS or count > MOST_NODES) and j < i - 1:
                break
            options.append((best[j][0] + (passing[j] + LAUNCH_BYTES if j else 0), j))
        best.append(min(options, key=lambda x: (x[0], -x[1])))
    ends = [len(nodes)]
    while ends[-1]:
        ends.append(best[ends[-1]][1])
    return [list(nodes[a:b]) for a, b in pairwise(reversed(ends))]


def seams(nodes: Sequence[Any]) -> list[int]:
    """Bytes that the nodes before each place hand to those from there on."""
    at = {n: i for i, n in enumerate(nodes)}
    steps = [0] * (len(nodes) + 1)
    for i, n in enumerate(nodes):
        last = max((at[u] for u in n.users if u in at), default=i)
        passed = bytes_of(n) if is_result(n) else UNCUT_BYTES
        steps[i + 1] += passed
        steps[last + 1] -= passed
    return [*accumulate(steps)][: len(nodes)]


def is_result(node: Any) -> bool:
    """Whether a program may have it as a result: one tensor of floating-point numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def bytes_of(node: Any) -> int:
    value = node.meta.get("val")
    some = value if isinstance(value, list | tuple) else [value]
    return sum(x.numel() * x.element_size() for x in some if isinstance(x, torch.Tensor))


def outputs_of(part: Iterable[Any]) -> list[Any]:
    own = {*part}
    return [n for n in part if any(u not in own for u in n.users)]


def problem_of(part: Sequence[Any]) -> tuple[Sequence[Any], str] | None:
    """Which nodes are no program, and why; None where all are one."""
    try:
        made = program_of(trace(part, outputs_of(part), "region").graph.text())
    except Unsupported as error:
        return [error.maker] if error.maker in part else part, str(error)
    return (part, made) if isinstance(made, str) else None


@lru_cache(maxsize=1 << 10)
def program_of(text: str) -> Program | str:
    """What a spec means, or its first mistake.

    Equal layers have equal texts, and a text takes longer to read than a region to be traced.
    """
    try:
        return parse_spec(text).at()
    except SpecError as error:
        return error.diagnostics[0].message


def region_of(model: torch.fx.GraphModule, name: str, traced: Traced) -> Region:
    """The program of a fused module, whose results have the names of the nodes that they were."""
    graph = traced.graph
    graph.name = f"region_{hashlib.sha256(graph.text().encode()).hexdigest()[:8]}"
    (node,) = (n for n in model.graph.nodes if n.op == "call_module" and n.target == name)
    given = [original(model, x) for x in node.args]
    read = {label: given.index(n.name) for label, n in traced.inputs}
    program = program_of(graph.text())
    assert isinstance(program, Program), f"it was one by another name: {program}"
    inputs = tuple(read[t.name] for t in program.inputs)
    made = results(model, name)
    assert [n.name for n in made] == [n.name for _, n in traced.outputs], "results are in the order of the graph"
    return Region(name, graph, program, inputs, tuple(map(shape_of, traced.arrays)))


def results(model: torch.fx.GraphModule, name: str) -> list[Any]:
    """What a fused module returns."""
    module: Any = model.get_submodule(name)
    return next(n for n in module.graph.nodes if n.op == "output").all_input_nodes


def original(model: torch.fx.GraphModule, node: Any) -> str:
    """The name of the node that this was before regions were fused."""
    maker, at = (node.args[0], node.args[1]) if overloadless(node.target) == "getitem" else (node, 0)
    fused = maker.op == "call_module" and maker.target.startswith(PREFIX)
    return results(model, maker.target)[at].name if fused else node.name


def shape_of(array: Array) -> Shape:
    own = {*array.own}
    parts = [x for dim in array.dims for axis in dim for x in axis.leaves()]
    return Shape(array.shape, tuple(x.size for x in parts), tuple(x.size if x in own else 1 for x in parts))
