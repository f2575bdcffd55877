"""`torch.compile(model, backend="mirage")`: regions that the database knows run by its kernels.

Graphs come from AOTAutograd, so gradients, autocast and functionalisation are PyTorch's: the forward graph is
compiled, and the backward graph. On a GPU the rest is Inductor's. Nothing is searched or tuned, unless
`options={"tune": seconds}` says so.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any  # PyTorch's graphs and compiled functions

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import TensorifyState
from torch._functorch._aot_autograd.autograd_cache import should_use_local_autograd_cache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import CompileContext, TracingContext, detect_fake_mode, tracing
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mirage_cli.pipeline.callers import Kernel, Kernels, Settings, runs_on
from mirage_cli.pipeline.keys import gpu_of, sources
from mirage_cli.pipeline.models.agreement import NotRunError, looked_up
from mirage_cli.pipeline.models.attention import by_pytorch, kept_whole
from mirage_cli.pipeline.models.beside import Arguments, Beside, in_own_thread, region_beside
from mirage_cli.pipeline.models.compiled import NOTE, Compiled, described, noted, on_gpu, pickled
from mirage_cli.pipeline.models.figures import Figures
from mirage_cli.pipeline.models.inductors import by_inductor
from mirage_cli.pipeline.models.inplace import calls, functionalised, put_in_place
from mirage_cli.pipeline.models.layout import strides_of_results, with_strides
from mirage_cli.pipeline.models.model import Gain, Replaced, any_inside, faster, gain_of, slow_sizes
from mirage_cli.pipeline.models.named import by_operators, unchecked
from mirage_cli.pipeline.models.outlining import inlined, replace_call
from mirage_cli.pipeline.models.region import Kept, Region, Shape, Sized
from mirage_cli.pipeline.models.regions import PREFIX, as_numbers, cut, for_autograd, only_lifted, results
from mirage_cli.pipeline.models.symbols import Lengths, Times, at_sizes, placeholders
from mirage_cli.pipeline.models.whole import is_faster, may_be_copied, timed_on_copies
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import driver_version

OPTIONS = ("tune", "target", "db", "seed", "workers")
LOG = logging.getLogger(__name__)
aten = torch.ops.aten
WHOLE = "whole"
"""What a node has that a kernel takes without gaps."""
VIEWS = aten.permute.default, aten.reshape.default, aten.view.default, aten.expand.default
"""Operators that `call` puts around kernels, and what becomes of them. A result of the argument's shape and strides is
the argument itself: not so of all that move elements (a flip), nor of all views (by another offset or type)."""
DEPENDENT = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
"""Of operators whose results have sizes that are known when they run."""


def mirage(
    model: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str = "default",
) -> Any:
    """The backend. options: tune (seconds of search and tuning for each graph), target, db, seed, workers. mode: of
    Inductor, for what is in no region. Raises ValueError for others, TargetError, OptionError."""
    given, of_inductor = dict(options or {}), options_of_mode(mode)
    if unknown := [name for name in given if name not in OPTIONS]:
        raise ValueError(f"backend mirage has no option {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    settings = Settings(budget=given.pop("tune", None) or 0.0, **given)
    settings.gpu()
    numbers_of_first_call(model)
    kept_whole(model, example_inputs)
    compiler = Compiler(settings, of_inductor, model, example_inputs)
    state = compiler.state()
    made = compiler.made()
    as_given = compiler.as_given or not compiler.is_faster(made)
    if compiler.state() != state:  # by what was searched and timed: as later processes find it, which search nothing
        made = replace(compiler, searches=False).made()
    TensorifyState.clear()  # else Dynamo asks for these numbers in later graphs too, and makes one for each value
    delattr(model, NOTE)
    return inductors_own(model, example_inputs, of_inductor) if as_given else made


def numbers_of_first_call(model: torch.fx.GraphModule) -> None:
    """Takes floats that Dynamo has as inputs for what they are in this call, in the first graph of a function alone.

    With `dynamic=True` each attribute of a module is such an input, in the CPU's memory, where no kernel reads it. To
    ask for its value is a guard: a call with another one has a second graph made, in which floats are inputs.
    """
    compiling = CompileContext.current_compile_id()
    if compiling is None or compiling.frame_compile_id != 0:
        return
    for n in model.graph.find_nodes(op="call_method", target="item"):
        value = n.meta.get("example_value")
        if isinstance(value, torch.SymFloat) and value.node.hint is not None and n.args[0].op == "placeholder":
            n.replace_all_uses_with(float(value))  # type: ignore[arg-type]  # a number is an argument like a node
            model.graph.erase_node(n)
    model.recompile()


def options_of_mode(mode: str) -> dict[str, Any]:
    """Inductor's options for what a mode of `torch.compile` names. Raises ValueError for those that capture a CUDA
    graph: Inductor would copy all parameters into it at each call, since it is given a graph without a module."""
    from torch._inductor import list_mode_options

    modes = {name: some for name, some in list_mode_options().items() if "triton.cudagraphs" not in some}
    if mode not in modes:
        there_are = f"backend mirage has no mode {mode}; there are {', '.join(modes)}"
        raise ValueError(f"{there_are}. A compiled model can be captured by `torch.cuda.graph`")
    return modes[mode]


@dataclass
class Compiler:
    """Of one graph of Dynamo's. options: of Inductor. model, inputs: that graph and what it is called with. searches:
    whether a budget is spent. as_given: as of `Found`. kernels: in a graph that is not differentiated."""

    settings: Settings
    options: Mapping[str, Any]
    model: torch.fx.GraphModule
    inputs: Sequence[Any]
    searches: bool = True
    as_given: bool = field(default=False, init=False)
    kernels: Mapping[Any, Kernel] = field(default_factory=dict[Any, Kernel], init=False)

    @property
    def is_kept(self) -> bool:
        """Whether PyTorch's cache, if it is on, keeps what is made: of graphs where kernels run."""
        return should_use_local_autograd_cache() and runs_on([x for x in self.inputs if isinstance(x, torch.Tensor)])

    def state(self) -> str:
        """What decides, beside PyTorch, how a graph that is kept is compiled."""
        if not self.is_kept:
            return ""
        s = self.settings
        target, measures = s.gpu()
        with Database(s.path) as store:
            state = store.state(gpu_of(target, measures))
        searched = (s.budget, s.seed, s.workers) if s.budget and self.searches else None
        driver = driver_version() if measures else None
        return "\n".join(map(str, (sources(), target.name, driver, searched, sorted(self.options.items()), state)))

    def made(self) -> Callable[..., Any]:
        """The graph by AOTAutograd, or from PyTorch's cache."""
        tensors = [x for x in self.inputs if isinstance(x, torch.Tensor)]
        forward: Any = self.forward  # as a function alone, PyTorch does not ask whether there may be a kept graph
        by_aot = aot_autograd(
            fw_compiler=SerializableAOTDispatchCompiler(OutputCode, forward) if self.is_kept else forward,
            bw_compiler=SerializableAOTDispatchCompiler(OutputCode, self.backward),
            inference_compiler=SerializableAOTDispatchCompiler(OutputCode, self.inference),
            partition_fn=min_cut_rematerialization_partition,  # as Inductor has it: else all that is read is stored
            decompositions=for_autograd() if runs_on(tensors) else None,
            keep_inference_input_mutations=True,
        )
        with noted(self.model, self.state()) as found:
            made = by_aot(self.model, self.inputs)
        self.as_given = found.as_given
        return made

    def kernels_in(self, model: torch.fx.GraphModule) -> Mapping[Any, Kernel]:
        """Puts kernels into a graph, and returns them."""
        if self.searches:
            return with_kernels(model, self.settings)
        return with_kernels(model, replace(self.settings, budget=0.0), say=lambda _: None)

    def forward(self, model: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """One graph of AOTAutograd, as a function of a list of its inputs."""
        return compiled(model, example_inputs, self.kernels_in(model), self.options)

    def backward(self, model: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """The same of a backward graph. No memory that the forward graph has saved is written, so that it may be called
        again (`retain_graph=True`)."""
        if (context := TracingContext.try_get()) is not None and context.fw_metadata is not None:
            context.fw_metadata.bw_donated_idxs = []
        return self.forward(model, example_inputs)

    def inference(self, model: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """The same of a graph that is not differentiated."""
        self.kernels = kernels = self.kernels_in(model)
        as_given = on_gpu(example_inputs) and not (kernels and self.is_faster())
        return compiled(model, example_inputs, kernels, self.options, as_given)

    def is_faster(self, made: Callable[..., Any] | None = None) -> bool:
        """Whether the graph with its kernels, `made`, takes less time than Inductor's code for all of it. Known from
        the database; timed once, at fixed sizes, where there is a budget and it is given."""
        if not self.kernels or any(k.program.dynamic for k in self.kernels.values()):
            return True
        target, _ = self.settings.gpu()

        def both() -> Beside:
            assert made is not None, "nothing else is timed"
            own = inductors_own(copy.deepcopy(self.model), self.inputs, self.options)  # which changes what it is given
            return timed_on_copies(made, own, self.inputs)

        timed = self.settings.budget and may_be_copied(self.inputs)
        with Database(self.settings.path) as store:
            return is_faster(
                self.model,
                self.inputs,
                [*self.kernels.values()],
                Figures(store, target),
                both if made is not None and timed else None,
                LOG.info if made is not None else lambda _: None,
            )


def compiled(
    model: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    kernels: Mapping[Any, Kernel],
    options: Mapping[str, Any],
    as_given: bool = False,
) -> Compiled:
    """A graph with these kernels. It is compiled as it is kept: so later processes find what Inductor makes of it."""
    alone = only_kernels(model.graph, kernels)
    files = tuple(k.exported for k in kernels.values())
    text, as_kept = pickled(model)
    made = Compiled(text, files, alone, options, described(example_inputs), as_given)
    made.load(example_inputs, as_kept, {operator: kernel.function for operator, kernel in kernels.items()})
    return made


def only_kernels(graph: torch.fx.Graph, kernels: Mapping[Any, Kernel]) -> bool:
    """Whether a graph calls these kernels alone, which change nothing in place, and looks at tensors in other ways."""
    return all(
        not kernels[n.target].program.changed
        if n.target in kernels
        else n.target is operator.getitem or getattr(n.target, "is_view", False)
        for n in calls(graph)
    )


def inductors_own(
    model: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """What `torch.compile` makes of Dynamo's graph without this backend."""
    from torch._inductor.compile_fx import compile_fx

    by_pytorch(model)
    return compile_fx(model, list(example_inputs), config_patches=dict(options))  # type: ignore[return-value]


def with_kernels(
    model: torch.fx.GraphModule, settings: Settings, say: Callable[[str], object] = lambda text: LOG.info("%s", text)
) -> Mapping[Any, Kernel]:
    """Puts calls of kernels in the place of regions that have one, where they can run. Stored kernels alone where the
    budget is 0. Returns the kernels, by the operator that is called. say: is told what became of each region."""
    values = [n.meta.get("val") for n in placeholders(model.graph) if n.users]
    if not runs_on([x for x in values if isinstance(x, torch.Tensor)]):
        return {}
    strides = strides_of_results(model.graph)
    put_in_place(model.graph)
    as_numbers(model, [n for n in model.graph.find_nodes(op="get_attr") if only_lifted(n)])
    found = cut(model)
    with Kernels(settings, in_time=True) as kernels:
        graphs = [r.graph for r in found.regions]
        times, examples = [r.times for r in found.regions], [r.example for r in found.regions]
        made = kernels.of(graphs, times, examples) if settings.budget else kernels.known(graphs)
        measures, figures = kernels.measures, Figures(kernels.store, kernels.target)
        several = [served(model, gain_of(r, k)) for r, k in zip(found.regions, made, strict=True)]
        taken = {g.region.module: beside_inductor(model, g, figures) if measures else g for g in several}
    for gain in taken.values():
        say(str(gain))
    for name in [name for name, _ in model.named_children() if name.startswith(PREFIX)]:
        gain = taken.get(name)
        if gain is None or gain.kernel is None:
            inlined(model, name)
        else:
            put(model, gain.region, gain.kernel)
    without_gaps(model.graph)
    with_strides(model.graph, strides)
    without_same_views(model.graph)
    functionalised(model.graph)
    kernels_put = {g.kernel.operator: g.kernel for g in taken.values() if g.kernel is not None}
    if not kernels_put:
        unchecked(model.graph)
    by_operators(model.graph)
    model.graph.eliminate_dead_code()
    model.graph.lint()
    model.delete_all_unused_submodules()
    model.recompile()
    return kernels_put


def beside_inductor(model: torch.fx.GraphModule, gain: Gain, figures: Figures) -> Gain:
    """The gain, if the kernel was measured to be faster than Inductor's code. What was never measured is, once, on
    random data that no cache holds. Where sizes differ by call, the kernel's time beside eager PyTorch's decides."""
    region, kernel = gain.region, gain.kernel
    if kernel is None or region.sized:
        return gain
    if (beside := figures.of(kernel)) is None:
        own = model.get_submodule(region.module)
        assert isinstance(own, torch.fx.GraphModule), "a region is a graph"
        with tracing(None), unset_fake_temporarily(), torch.no_grad():
            try:
                given = looked_up(own)
            except NotRunError as error:
                return Gain(region, None, str(error))
            arguments = Arguments(tuple(given), (False,) * len(given))
            contestants = Replaced(own, region, kernel).computed, by_inductor(copy.deepcopy(own), given)
            beside = in_own_thread(region_beside, *contestants, arguments)
        figures.keep(kernel, beside)
    return faster(gain, beside)


def served(model: torch.fx.GraphModule, gain: Gain) -> Gain:
    """The gain, if kernels are for the size that the graph is made for, and not known to be slow there. To ask is a
    guard: a call with a size on the other side of an end has another graph made."""
    region, kernel = gain.region, gain.kernel
    if kernel is None:
        return gain
    slow = slow_sizes(region, kernel)
    calls = map(values_of, model.graph.find_nodes(op="call_module", target=region.module))
    sized = [(given, region.sizes(given)) for given in calls]
    if all(region.serves(given, sizes) and not any_inside(slow, sizes) for given, sizes in sized):
        return gain
    return Gain(region, None, "its kernels are for other sizes")


def values_of(call: torch.fx.Node) -> list[Any]:
    """What stands for the arguments of a call."""
    return [x.meta["val"] for x in call.args if isinstance(x, torch.fx.Node)]


def put(model: torch.fx.GraphModule, region: Region, kernel: Kernel) -> None:
    """The kernel's call in the place of each call of a region's module."""
    inner: Any = model.get_submodule(region.module)
    for node in model.graph.find_nodes(op="call_module", target=region.module):
        with model.graph.inserting_before(node):
            made = call(model.graph, region, kernel, node.args)
        some = [made] if isinstance(made, torch.fx.Node) else made
        sizes = region.sizes(values_of(node))
        for new, n, result in zip(some, results(inner), region.results, strict=True):
            if isinstance(result, Shape):
                whole = at_sizes(result.whole, sizes)
                new.meta["val"] = n.meta["val"].new_empty(whole).permute(result.back)  # as kernels make it
        replace_call(node, made)


def call(graph: torch.fx.Graph, region: Region, kernel: Kernel, args: Sequence[Any]) -> Any:
    """The nodes of a kernel's call: inputs in its shapes, results in PyTorch's."""
    given: list[Any] = []
    lengths = Sizes(graph, {s.symbol: size_node(graph, s, args) for s in region.sized}).of
    for i in region.inputs:
        x = args[i.which]
        if x.meta["val"].dtype == torch.uint8:
            x = graph.call_function(aten.view.dtype, (x, torch.int8))  # as programs have it
        x = graph.call_function(aten.permute.default, (x, [*i.order]))
        x = graph.call_function(aten.reshape.default, (x, lengths(i.shape)))
        x.meta[WHOLE] = i.strides is None
        given.append(x)
    made = graph.call_function(kernel.operator, tuple(given))
    own = [i for i, result in enumerate(region.results) if isinstance(result, Shape)]
    shaped: list[Any] = []
    for i, result in enumerate(region.results):
        if isinstance(result, Kept):
            shaped.append(args[result.which])
            continue
        y = made if len(own) == 1 else graph.call_function(operator.getitem, (made, own.index(i)))
        y = graph.call_function(aten.reshape.default, (y, lengths(result.held)))
        if result.held != result.parts:
            y = graph.call_function(aten.expand.default, (y, lengths(result.parts)))
        y = graph.call_function(aten.reshape.default, (y, lengths(result.whole)))
        shaped.append(graph.call_function(aten.permute.default, (y, [*result.back])))
    return shaped[0] if len(shaped) == 1 else tuple(shaped)


def without_gaps(graph: torch.fx.Graph) -> None:
    """Copies what kernels are given where it lies in memory with gaps. Kernels' results may lie otherwise than
    PyTorch's, and so may what operators make of them: their values are worked out anew."""
    mode = detect_fake_mode([n.meta.get("val") for n in placeholders(graph)])
    anew: set[Any] = set()
    for n in calls(graph):
        read = n.all_input_nodes
        settled = "val" in n.meta and not anew & {*read}
        if settled or {*DEPENDENT} & {*getattr(n.target, "tags", ())} or any("val" not in x.meta for x in read):
            continue
        if n.target is aten.view.default:
            n.target = aten.reshape.default  # a copy, where it is no view any more
        args, options = torch.fx.map_arg((n.args, n.kwargs), lambda x: x.meta["val"])
        with mode or nullcontext():
            n.meta["val"] = n.target(*args, **options)
        anew.add(n)
        if n.meta.get(WHOLE) and not n.meta["val"].is_contiguous():
            with graph.inserting_after(n):
                copied = graph.call_function(aten.clone.default, (n,), {"memory_format": torch.contiguous_format})
            n.replace_all_uses_with(copied, lambda user, copied=copied: user is not copied)
            copied.meta["val"] = n.meta["val"].contiguous()
            anew.add(copied)


def without_same_views(graph: torch.fx.Graph) -> None:
    """Leaves out what looks at a tensor as it is: each takes the CPU a microsecond. A result stays, unless it is all
    that becomes of what a graph computes: two results are two tensors, and so are a result and an input."""
    for n in calls(graph):
        if n.target not in VIEWS:
            continue
        read = n.args[0]
        if any(u.op == "output" for u in n.users) and (read.op != "call_function" or len(read.users) > 1):
            continue
        before, behind = (x.meta["val"] for x in (read, n))
        known = all(isinstance(i, int) for y in (before, behind) for i in (*y.shape, *y.stride()))
        if known and (before.shape, before.stride()) == (behind.shape, behind.stride()):
            n.replace_all_uses_with(read)
            graph.erase_node(n)


def size_node(graph: torch.fx.Graph, size: Sized, args: Sequence[Any]) -> Any:
    """What a call says a size by."""
    x = args[size.input]
    return x if size.axis is None else graph.call_function(aten.sym_size.int, (x, size.axis))


@dataclass(frozen=True)
class Sizes:
    """Nodes for sizes. symbols: those that there are."""

    graph: torch.fx.Graph
    symbols: Mapping[str, Any]

    def of(self, shape: Lengths) -> list[Any]:
        return [self.length(x) if isinstance(x, Times) else x for x in shape]

    def length(self, x: Times) -> Any:
        first, *others = [self.symbols[s] for s in x.symbols]
        for y in [*others, *[x.number] * (x.number != 1)]:
            first = self.graph.call_function(operator.mul, (first, y))
        return first
