"""Graphs with kernels as PyTorch's cache of AOTAutograd's results keeps them: a process that starts anew traces, cuts
and searches nothing.

The cache knows a graph by Dynamo's, its inputs and PyTorch's options. `noted` adds what else decides: this package's
sources, the backend's settings, and what the database has for the GPU. A graph that is differentiated is two in the
cache, kept together: the backward graph is compiled with the forward graph, and not in the first backward pass.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from typing import Any  # PyTorch's graphs and compiled functions

import torch
from functorch.compile import make_boxed_func
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._guards import detect_fake_mode
from torch._inductor.output_code import OutputCode
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.node import map_aggregate

from mirage_cli.pipeline.callers import Exported
from mirage_cli.pipeline.models.attention import by_pytorch
from mirage_cli.pipeline.models.inductors import by_inductor
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.regions import attribute

NOTE = "mirage"
"""The attribute of Dynamo's graph that is in the cache's key."""


@dataclass
class Found:
    """What is known of a graph behind AOTAutograd. as_given: whether Inductor is to compile Dynamo's graph, which no
    kernel makes faster. What AOTAutograd and Inductor have both wrapped takes the CPU longer."""

    as_given: bool = False


FOUND: ContextVar[Found] = ContextVar("found")


@contextmanager
def noted(model: torch.fx.GraphModule, text: str) -> Generator[Found]:
    """Has PyTorch's cache know this graph of Dynamo's by this text too. The attribute stays: the key is of the
    attributes' order too, and the graph may be compiled once more. No text: it is not kept."""
    found = Found()
    token = FOUND.set(found)
    setattr(model, NOTE, text)
    try:
        with_backward = bool(text) or config.force_non_lazy_backward_lowering
        with config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=with_backward):
            yield found
    finally:
        FOUND.reset(token)


def not_noted() -> Any:
    """Inductor keeps what it compiles for a part of a graph as it does without this backend."""
    return config.patch(bundled_autograd_cache=False)


@dataclass(frozen=True)
class Given:
    """An input that a graph is compiled for. kind: a tensor's class, type and device; or the text of what is no tensor.
    shape, strides: lengths as text, which may differ by call."""

    kind: str
    shape: tuple[str, ...] | None = None
    strides: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    @staticmethod
    def of(x: Any) -> Given:
        if not isinstance(x, torch.Tensor):
            return Given(str(x))
        lengths, strides = (tuple(map(str, some)) for some in (x.shape, x.stride()))
        return Given(type(x).__name__, lengths, strides, x.dtype, x.device)

    def made(self, read: Callable[[str], Any]) -> Any:
        """A tensor without data, or a length. read: a length by its text."""
        if self.shape is None:
            return read(self.kind)
        lengths, strides = ([*map(read, some)] for some in (self.shape, self.strides))
        return torch.empty_strided(lengths, strides, dtype=self.dtype, device=self.device)


def described(inputs: Sequence[Any]) -> tuple[Given, ...]:
    """What a graph is compiled for."""
    return tuple(map(Given.of, inputs))


def as_described(given: Sequence[Given], beside: Sequence[Any]) -> list[Any]:
    """Inputs of a backward graph, whose lengths are made of those of its forward graph's inputs, `beside`. Raises
    ValueError where these are tensors with data, and what Python raises for a text that is no length."""
    mode = detect_fake_mode(beside)
    if mode is None:
        raise ValueError("the inputs of the forward graph are tensors with data")
    env = mode.shape_env
    with mode:
        return [x.made(int if env is None else env.deserialize_symexpr) for x in given]


@dataclass(eq=False)
class Compiled(OutputCode):
    """A graph with its kernels. text: the pickled graph; none, if it cannot be pickled. files: of its kernels. alone:
    whether it calls these alone. options: of Inductor. given: its inputs. as_given: as `Found` has it: nothing is
    compiled."""

    text: bytes | None
    files: tuple[Exported, ...]
    alone: bool
    options: Mapping[str, Any]
    given: tuple[Given, ...]
    as_given: bool = False
    function: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        self._boxed_call = True  # it is called with a list

    def __call__(self, inputs: Any) -> Any:
        assert self.function is not None, "it was loaded"
        return self.function(inputs)

    def load(
        self, inputs: Sequence[Any], model: torch.fx.GraphModule, functions: Mapping[Any, Callable[..., Any]]
    ) -> None:
        """Compiles the graph. functions: of its kernels, by operator."""
        if self.as_given:
            FOUND.get().as_given = True
            self.function = uncalled
            return
        with not_noted():
            self.function = around(model, functions if self.alone else {}, inputs, self.options)

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:  # noqa: ARG002
        """Of what the cache had. example_inputs: of the forward graph, for its backward graph too. Raises ValueError
        where AOTAutograd has made other inputs of a call's tensors, and what `as_described` raises."""
        if graph_kwargs.get("is_backward"):
            example_inputs = as_described(self.given, example_inputs)
        elif (given := described(example_inputs)) != self.given:
            raise ValueError(f"the graph is for {self.given}, and not for {given}")
        assert self.text is not None, "else it was not kept"
        functions = {f.operator: f.function for f in self.files}
        self.load(example_inputs, read(self.text), functions)

    def prepare_for_serialization(self) -> None:
        if self.text is None:
            raise BypassAOTAutogradCache("the graph cannot be pickled")
        self.function = None

    def set_triton_bundle(self, triton_bundle: object) -> None:
        """Triton keeps kernels itself."""


def uncalled(_: list[Any]) -> Any:
    raise AssertionError("Inductor's code for Dynamo's graph is called")


@dataclass(frozen=True)
class Made:
    """In the place of a node, among another's arguments."""

    name: str


class Pickler(pickle.Pickler):
    """Writes a graph as its nodes. PyTorch's own way is the text of the graph, which is run to be read: what no tensor
    goes into (random numbers, zeros that a later operator changes) would be computed then, and once for all calls."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.fx.GraphModule):
            return with_nodes, (held_by(obj), tuple(map(written, obj.graph.nodes)))
        if isinstance(obj, OpOverload):
            return operator_named, (str(obj),)
        if isinstance(obj, HigherOrderOperator):
            raise pickle.PicklingError(f"{obj} runs graphs of its own")
        return NotImplemented


def held_by(model: torch.fx.GraphModule) -> dict[str, Any]:
    """What the nodes of a graph name: tensors and modules, by their paths."""
    named = [str(n.target) for n in model.graph.nodes if n.op in ("get_attr", "call_module")]
    return {path: attribute(model, path) for path in named}


def written(node: torch.fx.Node) -> tuple[Any, ...]:
    def named(x: Any) -> Any:
        return Made(x.name) if isinstance(x, torch.fx.Node) else x

    given: Any = node.args, node.kwargs
    return node.op, node.name, node.target, *map_aggregate(given, named)


def with_nodes(held: dict[str, Any], nodes: Sequence[tuple[Any, ...]]) -> torch.fx.GraphModule:
    graph, made = torch.fx.Graph(), dict[str, Any]()

    def node(x: Any) -> Any:
        return made[x.name] if isinstance(x, Made) else x

    for op, name, target, *given in nodes:
        args, options = map_aggregate(given, node)
        made[name] = graph.create_node(op, target, args, options, name)
    return torch.fx.GraphModule(held, graph)


def operator_named(name: str) -> Any:
    """aten.add.Tensor"""
    return attribute(torch.ops, name)  # type: ignore[arg-type]  # a module of another kind


def pickled(model: torch.fx.GraphModule) -> tuple[bytes | None, torch.fx.GraphModule]:
    """A graph without what was noted of its nodes, and the graph that is read from there. None and the graph itself, if
    it has what only this process knows."""
    text = BytesIO()
    try:
        with unset_fake_temporarily():
            Pickler(text).dump(model)
        return text.getvalue(), read(text.getvalue())
    except Exception:  # the border of pickle, where whatever a graph holds says so in its own way
        return None, model


def read(text: bytes) -> torch.fx.GraphModule:
    """A pickled graph, whose constants are tensors with data while PyTorch works with others."""
    with unset_fake_temporarily():
        return pickle.loads(text)


def around(
    model: torch.fx.GraphModule,
    functions: Mapping[Any, Callable[..., Any]],
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> Callable[[list[Any]], Any]:
    """Inductor's code for what is in no kernel; PyTorch's where nothing is on a GPU. functions: of kernels by operator,
    where nothing is computed outside of them: to call functions takes the CPU less time than operators in Inductor's
    code. options: of Inductor."""
    by_pytorch(model)
    if not on_gpu(example_inputs):
        return make_boxed_func(model.forward)
    if not functions:
        return make_boxed_func(undifferentiated(by_inductor(model, example_inputs, options)))
    for n in calls(model.graph):
        n.target = functions.get(n.target, n.target)
    model.recompile()
    return make_boxed_func(undifferentiated(model.forward))


def undifferentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has PyTorch not ask, for each operator that a compiled graph calls, whether it is differentiated: AOTAutograd has
    done so. A kernel's call takes the CPU less than half of the time then."""

    def call(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage]  # it has no public name
            return function(*inputs)

    return call


def on_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs)
