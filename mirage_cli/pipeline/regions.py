"""A PyTorch model as regions: programs that the search takes whole, cut where little passes from one to the next.

    module ─► torch.export ─► nodes ─► partitions of what is known ─► cuts ─► one program for each region

What is in no region stays as it is, and says why.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mirage_cli.errors import SpecError, TraceError
from mirage_cli.ir.program import Program, Tensor
from mirage_cli.pipeline.partition import (
    Part,
    Signature,
    calls,
    changed,
    fused,
    in_order,
    outputs_of,
    seen_views,
    segments,
    signature,
    with_own,
)
from mirage_cli.pipeline.taken import Share, shares
from mirage_cli.spec.aten import MOVES, inverse, memory_order, overloadless, supported, trace
from mirage_cli.spec.graph import Graph
from mirage_cli.spec.positional import Array, Unsupported
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.numeric import reference64

CLAIMS = ("aten._assert_tensor_metadata",)
"""Operators that say of what type a tensor is, which its inputs' types settle."""
PREFIX = "region_"
CHANGES = "changes a tensor in place"
ROUNDINGS, LEAST_OFF = 16, 2e-3
"""How far a result of PyTorch may be from the program's in float64: roundings of its type, or with TF32's."""
MANY = 256
"""Numbers from which on their deviation is looked at."""


@dataclass(frozen=True)
class Given:
    """How one of PyTorch's tensors becomes an input of a program.

    which: of a module's. order: of its positions in memory, as it was traced. shape: the input's. strides: None where
    it is contiguous.
    """

    which: int
    order: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A copy, where it lies otherwise in memory."""
        x = tensors[self.which].permute(self.order).reshape(self.shape)
        if self.strides is None:
            return x.contiguous()
        if x.stride() == self.strides:
            return x
        return torch.empty_strided(self.shape, self.strides, dtype=x.dtype, device=x.device).copy_(x)


@dataclass(frozen=True)
class Shape:
    """How a result of a program becomes PyTorch's.

    held: the program's, with one place for each axis along which the result is constant. parts: with all places. whole:
    PyTorch's shape in memory order. back: from which to PyTorch's order.
    """

    held: tuple[int, ...]
    parts: tuple[int, ...]
    whole: tuple[int, ...]
    back: tuple[int, ...]

    def of(self, y: torch.Tensor) -> torch.Tensor:
        return y.reshape(self.held).expand(self.parts).reshape(self.whole).permute(self.back)


@dataclass(frozen=True)
class Region:
    """A program of the model.

    module: what it replaces, by its name in the model. times: how often the model calls it. graph, program: what it
        computes, under a name that is the same wherever the same is computed. inputs: what each input of the program is
        of the module's. shapes: of the results, in order.
    """

    module: str
    times: int
    graph: Graph
    program: Program
    inputs: tuple[Given, ...]
    shapes: tuple[Shape, ...]


@dataclass
class Cut:
    """A model whose regions are modules. left: the operators that are in none, with the reason. shares: how much of the
    model is in regions."""

    model: torch.fx.GraphModule
    regions: list[Region] = field(default_factory=list[Region])
    left: dict[str, str] = field(default_factory=dict[str, str])
    shares: tuple[Share, ...] = ()


def exported(model: torch.nn.Module, inputs: tuple[Any, ...]) -> torch.fx.GraphModule:
    """The model's graph for inputs like these. Operators that are not known here are decomposed where PyTorch can.

    Tensors that are changed in place become new ones, unless who reads them behind the change reads its result.
    """
    program = torch.export.export(model, inputs)
    unknown = {n.target for n in calls(program.graph) if not supported(n)}
    table = torch.export.default_decompositions()
    some = {op: table[op] for op in unknown if op in table}
    if some or not in_order(program.graph):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own
            program = program.run_decompositions(some)  # type: ignore[arg-type]
    made = program.module()
    for node in [n for n in calls(made.graph) if overloadless(n.target) in CLAIMS]:
        made.graph.erase_node(node)
    for node in made.graph.nodes:
        if node.op == "get_attr":
            tensor = attribute(made, node.target)
            node.meta = node.meta | {"val": node.meta.get("val", tensor), "scale": scale_of(tensor)}
    return made  # type: ignore[return-value]


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


@dataclass(frozen=True)
class Said:
    """A part as a program. inputs: what each of the program's is of what the part reads."""

    graph: Graph
    program: Program
    inputs: tuple[Given, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Unsaid:
    """A part that is no program, and why. at: which of its nodes is at fault, or None where that is not known."""

    why: str
    at: int | None


def cut(model: torch.fx.GraphModule) -> Cut:
    """The model with a module for each region. Its parameters stay where they are."""
    left: dict[str, str] = {}
    known: dict[Signature, Said | Unsaid] = {}
    with_own(model.graph)
    refused = seen_views(model.graph)
    while True:
        parts = segments(model.graph, refused)
        wrong = [(part, said) for part in parts if isinstance(said := said_once(part, known), Unsaid)]
        if not wrong:
            break
        for part, said in wrong:
            some = part if said.at is None else [part[said.at]]
            refused |= {*some}
            left |= {f"{overloadless(n.target)} ({n})": said.why for n in some if overloadless(n.target) not in MOVES}
    left |= {
        f"{overloadless(n.target)} ({n})": CHANGES if changed(n) else "no operator that is known here"
        for n in calls(model.graph)
        if not supported(n) and "val" in n.meta
    }
    taken = shares(model.graph, {n for part in parts for n in part})
    names = fused(model, parts, PREFIX)
    found = Cut(model, left=left, shares=taken)
    times = Counter(n.target for n in model.graph.nodes if n.op == "call_module")
    for key, name in names.items():
        said = known[key]
        assert isinstance(said, Said), "what is none has been refused"
        region = Region(name, times[name], said.graph, said.program, said.inputs, said.shapes)
        if agrees(model.get_submodule(name), region):
            found.regions.append(region)
        else:
            found.left[name] = "its program is not what PyTorch computes: a mistake of mirage's"
    return found


def whole(model: torch.fx.GraphModule, name: str) -> Region:
    """All of a model without parameters as one program, however large. Raises TraceError."""
    part, read = calls(model.graph), [n for n in model.graph.nodes if n.op == "placeholder"]
    if any(n.op == "get_attr" for n in model.graph.nodes):
        raise TraceError(name, "a kernel's tensors are its arguments, and this has others")
    if seen_views(model.graph):
        raise TraceError(name, "it returns a view of an argument, or of another result")
    said = said_of(part, read)
    if isinstance(said, Unsaid):
        raise TraceError(name, said.why if said.at is None else f"{overloadless(part[said.at].target)}: {said.why}")
    returned = next(n for n in model.graph.nodes if n.op == "output").all_input_nodes
    if returned != outputs_of(part):
        raise TraceError(name, "it returns one of its arguments, one tensor twice, or in another order than computed")
    region = Region("", 1, said.graph, said.program, said.inputs, said.shapes)
    if not agrees(model, region):
        raise TraceError(name, "its program is not what PyTorch computes: a mistake of mirage's")
    return region


def said_once(part: Part, known: dict[Signature, Said | Unsaid]) -> Said | Unsaid:
    """What equal parts say is worked out once."""
    key, read = signature(part)
    if key not in known:
        known[key] = said_of(part, read)
    return known[key]


def said_of(part: Part, read: Sequence[Any]) -> Said | Unsaid:
    try:
        traced = trace(part, outputs_of(part), PREFIX, lambda n: n.meta.get("scale"))
    except Unsupported as error:
        return Unsaid(str(error), part.index(error.maker) if error.maker in part else None)
    graph = traced.graph
    graph.name = f"{PREFIX}{hashlib.sha256(graph.text().encode()).hexdigest()[:8]}"
    try:
        program = parse_spec(graph.text()).at()
    except SpecError as error:
        return Unsaid(error.diagnostics[0].message, None)
    nodes = dict(traced.inputs)
    inputs = tuple(given_of(program, t, read, nodes[t.name]) for t in program.inputs)
    pairs = zip(traced.arrays, traced.outputs, strict=True)
    return Said(graph, program, inputs, tuple(shape_of(a, n.meta["val"]) for a, (_, n) in pairs))


def agrees(module: Any, region: Region) -> bool:
    """Whether the program, in float64, gives what PyTorch computes of some random data: of any sign, or above zero
    where nothing is a number of those (below a root, say)."""
    with unset_fake_temporarily(), torch.no_grad():
        for positive in (False, True):
            given = examples(module, positive)
            made = module(*given)
            outputs = made if isinstance(made, list | tuple) else [made]
            if not all(bool(y.isfinite().any()) for y in outputs):
                continue
            exact = reference64(region.program, [x.of(given) for x in region.inputs])
            return all(close(y, shape.of(x)) for y, x, shape in zip(outputs, exact, region.shapes, strict=True))
    return False


def examples(module: Any, positive: bool = False) -> list[torch.Tensor]:
    """Random inputs of a region's module."""
    values = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    generators = {x.device: torch.Generator(x.device).manual_seed(0) for x in values}
    return [drawn(x, generators[x.device], positive) for x in values]


def drawn(like: torch.Tensor, generator: torch.Generator, positive: bool = False) -> torch.Tensor:
    """Random data in the memory order of a tensor."""
    if not like.is_floating_point():  # small numbers are rows of all tables, and classes
        return torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype)
    data = torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    data = data.abs() if positive else data
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


def results(module: Any) -> list[Any]:
    """What a region's module returns."""
    return next(n for n in module.graph.nodes if n.op == "output").all_input_nodes


def given_of(program: Program, tensor: Tensor, read: Sequence[Any], node: Any) -> Given:
    shape = tuple(program.sizes[d] for d in tensor.dims)
    strides = tensor.steps(program.sizes) if tensor.strides else None
    return Given(read.index(node), memory_order(node.meta["val"]), shape, strides)


def shape_of(array: Array, like: torch.Tensor) -> Shape:
    """array: in the memory order of PyTorch's result."""
    own = {*array.own}
    parts = [x for dim in array.dims for axis in dim for x in axis.leaves()]
    held = tuple(x.size if x in own else 1 for x in parts)
    return Shape(held, tuple(x.size for x in parts), array.shape, (*inverse(memory_order(like)),))
