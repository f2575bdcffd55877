"""A faster model from a PyTorch function or module: `mirage_cli.optimize`.

    model ─► regions ─► a Kernel each ─► the model with kernels in their place

What is in no region stays PyTorch's, and so does every region for which Inductor's code is as fast. A model without
kernels is compiled as it was given: what was exported of it is not always as fast.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any  # models, their arguments and results

import torch
from torch.fx.graph import CodeGen
from torch.utils._pytree import TreeSpec, tree_leaves, tree_structure

from mirage_cli.codegen.exported.ordinary import only_numbers
from mirage_cli.errors import NoKernelError, OptionError, TraceError
from mirage_cli.pipeline.callers import Kernel, Kernels, Settings, runs_on
from mirage_cli.pipeline.models.beside import Beside, given_to, region_beside, timed, unchanged
from mirage_cli.pipeline.models.figures import Figures
from mirage_cli.pipeline.models.inductors import Inductors
from mirage_cli.pipeline.models.inmodel import choices, keep, kept_beside
from mirage_cli.pipeline.models.inplace import changed
from mirage_cli.pipeline.models.layout import laid_out
from mirage_cli.pipeline.models.outlining import inlined
from mirage_cli.pipeline.models.pieces import in_pieces
from mirage_cli.pipeline.models.region import Apart, Kept, Region
from mirage_cli.pipeline.models.regions import PREFIX, Cut, attribute, cut, exported
from mirage_cli.pipeline.models.straight import Steps
from mirage_cli.pipeline.models.symbols import placeholders, shape_of
from mirage_cli.pipeline.models.taken import table
from mirage_cli.pipeline.models.whole import is_faster
from mirage_cli.pipeline.processes import ahead
from mirage_cli.store.store import Database

IN_MODEL = 0.15
"""The part of a budget in which kernels are chosen for how fast the whole model is."""
SURELY = 0.98
"""The part of Inductor's time that a region's kernel may take: two runs of one kernel differ by a percent or more."""
AT_ONCE = partial(print, flush=True)
"""Prints a line that is to be read while the work goes on."""


@dataclass(frozen=True)
class Gain:
    """What was found for a region. kernel: what takes its place; where there is none, `problem` says why.

    beside: the kernel and Inductor's code, as they were timed on what the model gives the region.
    """

    region: Region
    kernel: Kernel | None
    problem: str = ""
    beside: Beside | None = None

    def __str__(self) -> str:
        times = f" × {self.region.times}" if self.region.times > 1 else ""
        name = f"{self.region.module} ({self.region.graph.name}){times}"
        if self.kernel is None:
            return f"{name}: PyTorch's, {self.problem}"
        if self.beside is not None:
            return f"{name}: {self.beside.kernel_us:.2f} µs, Inductor {self.beside.inductor_us:.2f} µs"
        return f"{name}: {self.kernel.times}"


class Replaced(torch.nn.Module):
    """A region by its kernel; by PyTorch where that would compute something else, or cannot run.

    checks: as of `Whole`."""

    def __init__(
        self, original: torch.nn.Module, region: Region, kernel: Kernel, checks: torch.nn.Module | None = None
    ) -> None:
        super().__init__()
        self.checks = checks
        self.original, self.function = original, kernel.function  # which loads its file
        self.operator = kernel.operator  # looks at its arguments when it runs, not when it is traced
        self.region, self.single = region, len(region.results) == 1
        self.autocast = autocast()
        self.always = not region.sized and not any(isinstance(r, Kept) for r in region.results)
        self.slow = slow_sizes(region, kernel)
        self.steps = Steps.of(region)

    def forward(self, *given: Any) -> Any:
        sizes = self.region.sizes(given) if self.region.sized else {}
        if not self.serves(given, sizes):
            return self.original(*given)
        if self.checks is not None:
            self.checks(*given)
        return self.by_kernel(self.operator if torch.compiler.is_compiling() else self.function, given, sizes)

    def computed(self, *given: Any) -> Any:
        """What is timed: by the kernel, whatever else than sizes would have PyTorch compute it."""
        sizes = self.region.sizes(given) if self.region.sized else {}
        if not (self.always or self.region.serves(given, sizes)):
            return self.original(*given)
        return self.by_kernel(self.function, given, sizes)

    def by_kernel(self, function: Callable[..., Any], given: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        made = self.steps.results(function(*self.steps.inputs(given, sizes)), given, sizes)
        return made[0] if self.single else tuple(made)

    def by(self, kernel: Kernel) -> Replaced:
        """The same region by another kernel."""
        return Replaced(self.original, self.region, kernel, self.checks)

    def serves(self, given: Sequence[Any], sizes: Mapping[str, Any]) -> bool:
        """Whether the kernel computes what PyTorch would: no gradient, in the types of the trace, of numbers alone, at
        sizes that it is for. sizes: of the symbols."""
        compiling, trained = torch.compiler.is_compiling(), torch.is_grad_enabled()
        for x in given:
            if not isinstance(x, torch.Tensor):
                continue
            if (trained and x.requires_grad) or not (x.is_cuda or runs_on([x])):
                return False
            if not compiling and not only_numbers(x):
                return False
        if autocast() != self.autocast or not (self.always or self.region.serves(given, sizes)):
            return False
        return not (self.slow and any_inside(self.slow, sizes))


def slow_sizes(region: Region, kernel: Kernel) -> tuple[Apart, ...]:
    """The sizes of a region at which its kernel is not known to be faster than PyTorch."""
    return tuple(region.apart(kernel.program, ranges) for ranges in kernel.slow)


def any_inside(several: Sequence[Apart], sizes: Mapping[str, Any]) -> bool:
    """Whether sizes of the symbols are in any of these ranges."""
    return any(all(least <= x.at(sizes) <= most for x, least, most in some) for some in several)


def autocast() -> tuple[object, ...]:
    """The types that PyTorch computes some operators in here, on each kind of device."""
    cpu = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return cpu, torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")


def optimize(
    function: Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    *,
    budget: float = 60.0,
    target: str = "auto",
    dynamic: Any = None,
    seed: int = 0,
    workers: int | None = None,
    db: str | Path | None = None,
    say: Callable[[str], object] = AT_ONCE,
) -> torch.nn.Module:
    """The same function or module with the kernels that were found for it, for inputs of these shapes.

    example_inputs: positional; a tensor is one argument. dynamic: the sizes that differ by call, as `dynamic_shapes` of
    `torch.export`; of a function, for its arguments in order. budget: seconds of search and tuning for all regions
    together; what the database answers takes none. target: as of `mirage search`. say: is told what is being done, what
    was taken, what was not and why. Where a gradient is asked for, on other devices, and at sizes that kernels are not
    for, PyTorch computes. Raises MirageError, TypeError, and what `torch.export` raises.
    """
    settings = Settings(target, budget, seed, workers, db)
    _, has_gpu = settings.gpu()
    if isinstance(function, type):
        raise TypeError(f"a model is an nn.Module or a function, not the class {function.__name__}")
    if not callable(function):
        raise TypeError(f"a model is an nn.Module or a function, not {type(function).__name__}")
    if not isinstance(dynamic, dict | list | tuple | None):
        raise OptionError("dynamic has an entry for each argument, as `dynamic_shapes` of `torch.export`", dynamic)
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    module = as_module(function)
    of_arguments = (tuple(dynamic),) if isinstance(module, Function) and dynamic is not None else dynamic
    say("the model is traced")
    with ahead() if has_gpu else nullcontext():
        found = cut(exported(module, tuple(example_inputs), of_arguments))
    in_model = sum(r.times for r in found.regions) > 1
    if in_model:
        settings = replace(settings, budget=budget * (1 - IN_MODEL))
    some = found.regions
    tell_regions(found, settings.budget, say)
    with Inductors(found.model, some, settings.budget, say) as inductors:
        with Kernels(settings, in_model=in_model, in_time=True, on_tuning=inductors.begin) as kernels:
            made = kernels.of([r.graph for r in some], [r.times for r in some], [r.example for r in some])
            measures = kernels.measures
        model, original = found.model, with_own_graph(found.model)
        with Database(kernels.path) as store:
            figures = Figures(store, kernels.target) if measures else None
            used = put_in_place(found, made, example_inputs, figures, inductors, say)
            others = between(model) if used else []
            if figures is not None:
                if used:
                    say("the model is compiled")
                for other in others:
                    other.compile(dynamic=dynamic is not None)
                if in_model:
                    with unchanged(original, example_inputs):
                        used |= fastest_within(model, example_inputs, used, figures, inductors, IN_MODEL * budget, say)
                both = partial(beside_inductors, model, module, original, example_inputs)
                if not (used and is_faster(original, example_inputs, [*used.values()], figures, both, say)):
                    compiled = Function(torch.compile(module, dynamic=dynamic is not None))
                    return as_exported(compiled, original, function, example_inputs)
    called_plainly(model, example_inputs)
    return as_exported(model, original, function, example_inputs)


def beside_inductors(
    model: torch.fx.GraphModule, module: torch.nn.Module, original: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Beside:
    """The times of the model with kernels and of Inductor's code for the module. What they change of the inputs, or of
    what the original graph holds, is as before."""
    with unchanged(original, inputs):
        return timed(model, torch.compile(module, dynamic=False), [inputs])


def tell_regions(found: Cut, budget_s: float, say: Callable[[str], object]) -> None:
    """What stays PyTorch's and why, what part of the model each region is, and for how long they are searched."""
    for (operator, why), times in Counter((n.split()[0], why) for n, why in found.left.items()).items():
        say(f"{operator}{f' × {times}' if times > 1 else ''}: PyTorch's, {why}")
    say(table(found.shares))
    n = len(found.regions)
    say(f"{n} region{'s are' if n != 1 else ' is'} searched and tuned, for {budget_s:.0f} s in all")


def put_in_place(
    found: Cut,
    made: Sequence[Kernel | NoKernelError],
    inputs: Sequence[Any],
    figures: Figures | None,
    inductors: Inductors,
    say: Callable[[str], object],
) -> dict[str, Kernel]:
    """Puts kernels in the place of the regions for which they are faster than Inductor's code. These, by module."""
    used: dict[str, Kernel] = {}
    for gain in gains(found, made, inputs, figures, inductors):
        say(str(gain))
        if gain.kernel is not None:
            used[gain.region.module] = gain.kernel
            setattr(found.model, gain.region.module, replaced(found, gain.region, gain.kernel))
    laid_out(found.model.graph, found.regions, used)
    found.model.recompile()
    return used


def fastest_within(
    model: torch.fx.GraphModule,
    inputs: Sequence[Any],
    used: Mapping[str, Kernel],
    figures: Figures,
    inductors: Inductors,
    within_s: float,
    say: Callable[[str], object],
) -> dict[str, Kernel]:
    """Puts other kernels in the place of those of a compiled model where the whole takes less time then. These, by
    module; the database answers with them from now on."""
    store, target = figures.store, figures.target
    several = {name: [k, *others] for name, k in used.items() if (others := kept_beside(store, target, k))}
    if not several:
        return {}
    several = dict(
        sorted(several.items(), key=lambda x: -replaced_in(model, x[0]).region.times * (x[1][0].best.us or 0))
    )

    def put(name: str, kernel: Kernel) -> None:
        setattr(model, name, replaced_in(model, name).by(kernel))

    changed: dict[str, Kernel] = {}
    for choice in choices(lambda: model(*inputs), put, several, within_s):
        say(str(choice))
        changed[choice.module] = choice.kernel
    for name in several:
        keep(store, target, changed.get(name, used[name]))
    given = given_to(model, changed, inputs)
    for name, kernel in changed.items():
        own = replaced_in(model, name)
        figures.keep(kernel, region_beside(own.computed, inductors.of(name, own.original), given[name]))
    return changed


def replaced_in(model: torch.fx.GraphModule, name: str) -> Replaced:
    """The module of this name, in which a kernel is in the place of a region."""
    own = model.get_submodule(name)
    assert isinstance(own, Replaced), "it was put there"
    return own


def with_own_graph(model: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The model of the same modules and tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own
        return torch.fx.GraphModule(model, deepcopy(model.graph))


def between(model: torch.fx.GraphModule) -> list[torch.nn.Module]:
    """What a compiler may have of a model beside its kernels: what stands between them, in pieces, and what computes
    where a kernel does not."""
    kernels = [m for m in model.children() if isinstance(m, Replaced)]
    for name, module in [*model.named_children()]:
        if name.startswith(PREFIX) and not isinstance(module, Replaced):
            inlined(model, name)
    return [*in_pieces(model), *(k.original for k in kernels)]


def as_exported(
    model: torch.nn.Module, exported: torch.fx.GraphModule, function: object, example: Sequence[Any]
) -> torch.nn.Module:
    """The model, calls of which raise TraceError where there are more or fewer arguments than in the example, a tensor
    has another type, or another size that is not dynamic, or lies where the model changes another, or what is no tensor
    differs. So do changes of the mode that the function was in."""
    expected, structure = tree_leaves(example), tree_structure(tuple(example))
    tensors = len(example) if all(isinstance(x, torch.Tensor) for x in example) else -1
    fixed = [shape_of(n) for n in placeholders(exported.graph)]
    training = getattr(function, "training", False)
    in_place = changed_arguments(exported.graph) if len(fixed) == len(expected) else []

    def check(_: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named:
            raise TraceError("arguments", f"{', '.join(named)}: give by position what the example has, and no other")
        same = len(given) == tensors and all(isinstance(x, torch.Tensor) for x in given)
        leaves = given if same else leaves_of(given, example, structure)
        for i, (x, y) in enumerate(zip(leaves, expected, strict=True)):
            if (one := kind_of(x)) != (other := kind_of(y)):
                raise TraceError(f"argument {i}", f"it is {one}, and was {other} in the example")
            if len(fixed) == len(expected) and not fits(x, fixed[i]):
                sizes = "sizes that differ by call are named by `dynamic`"
                raise TraceError(f"argument {i}", f"it is {[*x.shape]}, and was {[*y.shape]} in the example; {sizes}")
        refuse_overlaps(leaves, in_place)

    def checked(model: torch.nn.Module) -> torch.nn.Module:
        def train(mode: bool = True) -> torch.nn.Module:
            if mode != training:
                raise TraceError("train()" if mode else "eval()", "a model stays in the mode in which it was optimised")
            return model

        model.register_forward_pre_hook(check, prepend=True, with_kwargs=True)  # in front of `torch.export`'s own
        model.train, model.eval = train, lambda: train(False)  # type: ignore[method-assign]
        model.training = training  # not of its children, which may be the user's own
        return model

    if isinstance(model, torch.fx.GraphModule):  # a copy has no other hooks
        if hasattr(model, "_guards_fn"):  # which looks at sizes; a hook of `torch.export` compares structures alone
            model.validate_inputs = False  # type: ignore[assignment]  # no tensor, and no module
        model._register_deepcopy_hook(checked)  # pyright: ignore[reportPrivateUsage]
    return checked(model)


def changed_arguments(graph: torch.fx.Graph) -> list[int]:
    """The arguments that a model, or a region of it, changes in place, by number."""
    written = {x for n in graph.nodes if n.op.startswith("call_") for x in changed(n)}
    return [i for i, n in enumerate(placeholders(graph)) if n in written]


def refuse_overlaps(given: Sequence[Any], in_place: Sequence[int]) -> None:
    """Raises TraceError where an argument lies where another does that a model changes."""
    for i in in_place:
        for j, x in enumerate(given):
            if j != i and isinstance(x, torch.Tensor) and overlap(x, given[i]):
                raise TraceError(f"argument {j}", f"it lies where argument {i} does, which the model changes in place")


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether tensors are known to have elements in one place: they begin in one, or have no gaps."""
    if 0 in (x.numel(), y.numel()) or torch.compiler.is_compiling():
        return False
    first, other = x.data_ptr(), y.data_ptr()
    if first == other or not (x.is_contiguous() and y.is_contiguous()):
        return first == other
    return first < other + y.nbytes and other < first + x.nbytes


def leaves_of(given: Sequence[Any], example: Sequence[Any], structure: TreeSpec) -> list[Any]:
    """What arguments of the example's structure are made of. Raises TraceError."""
    if len(given) != len(example):
        raise TraceError("arguments", f"{len(given)} are given, and the example has {len(example)}")
    if tree_structure(tuple(given)) != structure:
        pairs = enumerate(zip(given, example, strict=True))
        i, x, y = next((i, x, y) for i, (x, y) in pairs if tree_structure(x) != tree_structure(y))
        raise TraceError(f"argument {i}", f"it is {made_of(x)}, and was {made_of(y)} in the example")
    return tree_leaves(given)


def made_of(x: Any) -> str:
    """An argument in words: what it is, and its keys, or how many leaves it has."""
    inside = ", ".join(map(str, x)) if isinstance(x, dict) else len(tree_leaves(x))
    return "a tensor" if isinstance(x, torch.Tensor) else f"a {type(x).__name__} of {inside}"


def called_plainly(model: torch.fx.GraphModule, example: Sequence[Any]) -> None:
    """Leaves out, where all arguments are tensors and so are the results, what takes an exported model's arguments
    apart and puts its results together: 20 µs of a call."""
    codegen = model.graph._codegen  # pyright: ignore[reportPrivateUsage]
    out = getattr(getattr(codegen, "pytree_info", None), "out_spec", None)
    if out is None or not all(isinstance(x, torch.Tensor) for x in example):
        return
    (output,) = model.graph.find_nodes(op="output")
    made = [*output.args[0]]
    returned = next((x for x in (*made[:1], tuple(made), made) if tree_structure(x) == out), None)
    if returned is None:
        return
    output.args = (returned,)
    model.graph.set_codegen(CodeGen())
    model.recompile()


def fits(x: Any, shape: Sequence[Any]) -> bool:
    """Whether an argument has the sizes of an exported one, where these are numbers."""
    sizes = getattr(x, "shape", ())
    return len(sizes) == len(shape) and all(n == m for n, m in zip(sizes, shape, strict=True) if isinstance(m, int))


def kind_of(x: Any) -> object:
    """What a traced graph takes for granted of an argument: a tensor's type, and anything else itself. Of another
    library's array, that it is one: its == compares elements."""
    if isinstance(x, torch.Tensor):
        return x.dtype
    return type(x) if hasattr(x, "__array__") else x


def gains(
    found: Cut,
    made: Sequence[Kernel | NoKernelError],
    inputs: Sequence[Any],
    figures: Figures | None,
    inductors: Inductors,
) -> Iterator[Gain]:
    """What becomes of each region, of what was found for it. figures: where its kernel's times beside Inductor's are
    kept; None where kernels are not timed."""
    several = [gain_of(r, k) for r, k in zip(found.regions, made, strict=True)]
    kernels = {g.region.module: g.kernel for g in several if g.kernel is not None}
    known = {name: figures.of(k) for name, k in kernels.items()} if figures else {}
    fresh = [name for name, beside in known.items() if beside is None]
    given = given_to(found.model, fresh, inputs) if fresh else {}
    for gain in several:
        name = gain.region.module
        if gain.kernel is None or figures is None or (name not in given and known[name] is None):
            yield gain
            continue
        beside = known[name]
        if beside is None:
            own = attribute(found.model, name)
            kernel = replaced(found, gain.region, gain.kernel)
            beside = region_beside(kernel.computed, inductors.of(name, own), given[name])
            figures.keep(gain.kernel, beside)
        yield faster(gain, beside)


def faster(gain: Gain, beside: Beside) -> Gain:
    """The gain where the kernel was seen to take less time than Inductor's code; else none, and why."""
    if beside.kernel_us < SURELY * beside.inductor_us:
        return replace(gain, beside=beside)
    why = f"{beside.kernel_us:.2f} µs is not surely below Inductor's {beside.inductor_us:.2f}"
    return Gain(gain.region, None, why, beside)


def replaced(found: Cut, region: Region, kernel: Kernel) -> Replaced:
    return Replaced(attribute(found.model, region.module), region, kernel)


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    return function if isinstance(function, torch.nn.Module) else Function(function)


def gain_of(region: Region, found: Kernel | NoKernelError) -> Gain:
    """A region gets a kernel that is faster than eager PyTorch, where that was timed: where sizes differ by call, at
    those of the example."""
    if isinstance(found, NoKernelError):
        return Gain(region, None, found.why)
    best = found.best
    if found.program.dynamic:
        if any(region.example_inside(found.program, ranges) for ranges in found.slow):
            return Gain(region, None, "at the example's sizes none is faster than eager's")
        return Gain(region, found)
    if best.eager_us is not None and best.us is not None and best.us >= best.eager_us:
        return Gain(region, None, f"{best.us:.2f} µs is no faster than eager's {best.eager_us:.2f}")
    return Gain(region, found)
