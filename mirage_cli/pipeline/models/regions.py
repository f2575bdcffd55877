"""A PyTorch model as regions: programs that the search takes whole, cut where little passes from one to the next.

    module ─► torch.export ─► nodes ─► partitions of what is known ─► cuts ─► one program for each region

What is in no region stays as it is, and says why.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any  # torch's graphs and nodes have few types

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mirage_cli.errors import SpecError, TraceError
from mirage_cli.ir.program import Tensor
from mirage_cli.pipeline.computed import computed_hash
from mirage_cli.pipeline.models.agreement import differs
from mirage_cli.pipeline.models.anysize import ComputedAgain, at_any_size, placed_part
from mirage_cli.pipeline.models.constants import folded, scale_of
from mirage_cli.pipeline.models.fused import WRITTEN_OUT
from mirage_cli.pipeline.models.groups import by_pytorch, matrices_named
from mirage_cli.pipeline.models.inplace import calls, changed, in_order, put_in_place
from mirage_cli.pipeline.models.named import as_before, checked, from_front, selected_by_tensors
from mirage_cli.pipeline.models.outlining import outlined, subgraph
from mirage_cli.pipeline.models.pairs import VIEWS, as_pairs
from mirage_cli.pipeline.models.partition import Part, Signature, outputs_of, segments, signature
from mirage_cli.pipeline.models.passes import (
    aliased_results,
    drawn_apart,
    draws,
    fills_of_own_shape,
    rematerialised,
    steps_apart,
    strided_in_memory,
    without_dead_code,
    without_empty,
    zeros_in_memory,
)
from mirage_cli.pipeline.models.region import Given, Kept, Region
from mirage_cli.pipeline.models.symbols import (
    RANGES,
    Length,
    Lengths,
    Symbol,
    Times,
    checks_apart,
    found_in,
    is_size,
    placeholders,
    shape_of,
    sizes_first,
    symbols_of,
    times,
    valued,
    with_symbols,
)
from mirage_cli.pipeline.models.taken import Share, shares
from mirage_cli.pipeline.models.turns import filled_in_turns
from mirage_cli.spec.arrays import Unsupported
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.table import ATEN
from mirage_cli.spec.aten.trace import (
    kept_statistics,
    row_of,
    supported,
)

CLAIMS = ("aten._assert_tensor_metadata",)
"""Operators that say of what type a tensor is, which its inputs' types settle."""
LIFTS = ("aten.lift_fresh", "aten.lift_fresh_copy")
"""Operators by which a graph reads what the model's text makes of a number, and nothing else."""
WITHOUT_GRADIENT = torch.ops.higher_order.wrap_with_set_grad_enabled
MODES = (WITHOUT_GRADIENT, torch.ops.higher_order.wrap_with_autocast)
"""Operators that run a graph under a mode of its own."""
COMPOSITE = DispatchKey.CompositeExplicitAutograd
"""Of PyTorch's own text of an operator in others."""
IN_PYTHON = ("quantized_decomposed",)
"""Libraries of PyTorch's own whose operators have such texts alone. A user's library may have kernels there."""
PREFIX = "region_"
CHANGES = "changes a tensor in place"


@dataclass
class Cut:
    """A model whose regions are modules. left: the operators that are in none, with the reason. shares: how much of the
    model is in regions."""

    model: torch.fx.GraphModule
    regions: list[Region] = field(default_factory=list[Region])
    left: dict[str, str] = field(default_factory=dict[str, str])
    shares: tuple[Share, ...] = ()


NO_GRAPH = 'torch.export made no graph of the model; torch.compile(model, backend="mirage") takes it in several'
"""What is added to an error of PyTorch's."""


def in_one_graph(model: torch.nn.Module, inputs: tuple[Any, ...], dynamic: Any) -> torch.export.ExportedProgram:
    """The model as `torch.export` has it. What PyTorch raises says besides what takes such a model."""
    try:
        with torch.enable_grad():  # else the graph would not say where the model turns gradients off
            return torch.export.export(
                model, inputs, dynamic_shapes=dynamic, prefer_deferred_runtime_asserts_over_guards=dynamic is not None
            )
    except Exception as error:
        error.add_note(NO_GRAPH)
        raise


def exported(model: torch.nn.Module, inputs: tuple[Any, ...], dynamic: Any = None) -> torch.fx.GraphModule:
    """The model's graph for inputs like these. Operators that are not known here are decomposed where PyTorch can.
    dynamic: which sizes differ by call, as `dynamic_shapes` of `torch.export`. What PyTorch cannot prove of them (that
    min(16·t, 64·t) is 16·t, say: its versions differ in that) is checked by each call.

    Tensors that are changed in place become new ones, unless who reads them behind the change reads its result, and
    their rows alone are changed (`put_in_place`).
    """
    program = in_one_graph(model, inputs, dynamic)
    modes = modes_of(program)
    detached(modes)
    held = program.graph_signature.inputs_to_lifted_tensor_constants
    numbers = {held[n.name] for n in placeholders(program.graph) if n.name in held and only_lifted(n)}
    some = decompositions(program.graph)
    if some or modes or not in_order(program.graph) or any(kept_statistics(n) for n in calls(program.graph)):
        program, known = decomposed(program, some), {*some}
        while more := {op: by for op, by in decompositions(program.graph).items() if op not in known}:
            program, known = decomposed(program, more), known | {*more}  # what the others are made of
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A model attribute .* requires gradient", UserWarning)  # and is detached
        made = program.module()
    for name, x in program.constants.items():
        if isinstance(x, torch.Tensor) and x.requires_grad:
            setattr(made, name, x)
    made.meta[RANGES] = program.range_constraints
    unread = [n for n in calls(made.graph) if overloadless(n.target) == "getitem" and not n.users]
    for node in [*unread, *(n for n in calls(made.graph) if overloadless(n.target) in CLAIMS)]:
        made.graph.erase_node(node)
    put_in_place(made.graph)
    as_numbers(made, [n for n in made.graph.find_nodes(op="get_attr") if n.target in numbers])
    written = {x for n in calls(made.graph) for x in changed(n)}
    for node in made.graph.find_nodes(op="get_attr"):
        if isinstance(tensor := attribute(made, node.target), torch.Tensor):  # else a graph that an operator runs
            scale = None if node in written else scale_of(tensor)  # what it holds differs by call
            node.meta = node.meta | {"val": node.meta.get("val", tensor), "scale": scale}
    return made  # type: ignore[return-value]


def modes_of(program: torch.export.ExportedProgram) -> list[tuple[torch.fx.Node, torch.fx.GraphModule]]:
    """The calls of graphs that run under a mode of their own (autocast, gradients on or off), and these graphs. To
    decompose a program is to write them out, with autocast's conversions."""
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [
        (n, attribute(m, x.target))
        for m in graphs
        for n in calls(m.graph)
        if n.target in MODES
        for x in n.all_input_nodes
        if x.op == "get_attr"
    ]


def detached(modes: Iterable[tuple[torch.fx.Node, torch.fx.GraphModule]]) -> None:
    """Detaches what is computed where gradients are off, which a graph that is written out no longer says."""
    for node, inner in modes:
        if node.target is not WITHOUT_GRADIENT or node.args[0]:
            continue
        for output in inner.graph.find_nodes(op="output"):
            for x in output.all_input_nodes:
                if not isinstance(x.meta.get("val"), torch.Tensor):
                    continue
                with inner.graph.inserting_before(output):
                    own = inner.graph.call_function(torch.ops.aten.detach.default, (x,))
                own.meta = dict(x.meta)
                output.replace_input_with(x, own)


def decompositions(graph: torch.fx.Graph) -> dict[Any, Any]:
    """Of the operators that are not known here, those that PyTorch decomposes, with how it does."""
    unknown = {n.target for n in calls(graph) if not supported(n)}
    if not unknown:
        return {}
    others = frozenset(op for op in unknown if getattr(op, "namespace", "aten") != "aten")
    table = {**pytorchs_table(others), **WRITTEN_OUT}
    in_python = {op: partial(op._op_dk, COMPOSITE) for op in unknown if is_for_each(op) or is_in_python(op)}
    return {op: table[op] for op in unknown if op in table} | in_python


@cache
def for_autograd() -> Mapping[Any, Any]:
    """The same of all operators, for AOTAutograd: what a derivative calls is not known before. What draws numbers stays
    whole: its parts might draw others."""
    table = {**pytorchs_table(frozenset()), **WRITTEN_OUT}
    return {op: by for op, by in table.items() if overloadless(op) not in ATEN and not draws(op)}


@cache
def pytorchs_table(_others: frozenset[Any]) -> Mapping[Any, Any]:
    """PyTorch's decompositions. A list takes a tenth of an export. It is made anew for other operators that are not
    PyTorch's: they may have been registered since."""
    return torch.export.default_decompositions()


def is_in_python(operator: Any) -> bool:
    """Whether PyTorch's own text of an operator, which does not count as a decomposition, is in other operators."""
    return getattr(operator, "namespace", "") in IN_PYTHON and operator.has_kernel_for_dispatch_key(COMPOSITE)


def is_for_each(operator: Any) -> bool:
    """Whether an operator makes one list of tensors of others: by calls of another, one for each."""
    schema = getattr(operator, "_schema", None)
    if schema is None or schema.is_mutable or not schema.arguments or len(schema.returns) != 1:
        return False
    lists = all(str(x.type) == "List[Tensor]" for x in (schema.arguments[0], schema.returns[0]))
    return lists and operator.has_kernel_for_dispatch_key(COMPOSITE)


def decomposed(program: torch.export.ExportedProgram, by: dict[Any, Any]) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own
        return program.run_decompositions(by)


def only_lifted(node: torch.fx.Node) -> bool:
    """Whether a held tensor is one that the model's text makes of a number or a list, as `torch.tensor(0.5)` does. A
    tensor that the model or a closure holds may be changed between calls."""
    return bool(node.users) and all(overloadless(n.target) in LIFTS for n in node.users)


def as_numbers(model: torch.fx.GraphModule, held: Iterable[torch.fx.Node]) -> None:
    """Has the graph make each of these tensors anew, where it is a single number: a number is part of a program, and a
    tensor of the CPU is no input of a kernel."""
    first = next((n for n in model.graph.nodes if n.op.startswith("call")), None)
    for node in held:
        x = attribute(model, str(node.target))
        if first is None or x.dim() > 0:
            continue
        with unset_fake_temporarily(), model.graph.inserting_before(first):
            kind: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
            number = model.graph.call_function(torch.ops.aten.full.default, ([], x.item()), kind)
        number.meta = {"val": x} | node.meta
        node.replace_all_uses_with(number)
        model.graph.erase_node(node)


def attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class Refused:
    """Why a part is no region. at: the index of the node at fault, None where that node is not known. stored: those of
    nodes without whose readers the part may be one."""

    why: str
    at: int | None
    stored: tuple[int, ...] = ()


def rewritten(model: torch.fx.GraphModule) -> set[Any]:
    """Has the graph as programs are made of it. Returns the views that no region has (`steps_apart`)."""
    zeros_in_memory(model.graph)
    folded(model)
    filled_in_turns(model.graph)
    as_pairs(model.graph)
    selected_by_tensors(model.graph)
    sizes_first(model.graph)
    checks_apart(model.graph)
    matrices_named(model.graph)
    from_front(model.graph)
    without_empty(model.graph)
    without_dead_code(model.graph)
    fills_of_own_shape(model.graph)
    drawn_apart(model.graph)
    strided_in_memory(model.graph)
    steps = steps_apart(model.graph)
    rematerialised(model.graph, steps)
    return steps


def cut(model: torch.fx.GraphModule) -> Cut:
    """The model with a module for each region. Its parameters stay where they are."""
    left: dict[str, str] = {}
    known: dict[Signature, Region | Refused] = {}
    steps = rewritten(model)
    refused, stored = aliased_results(model.graph) | steps, set[Any]()
    symbols = symbols_of(model)
    with valued([*model.graph.nodes], {name: s.example or s.most for name, s in symbols.items()}):
        while True:
            parts = segments(model.graph, refused, stored)
            wrong = [(part, x) for part in parts if isinstance(x := known_region(part, known, symbols), Refused)]
            if not wrong:
                break
            for part, reason in wrong:
                if apart := {part[i] for i in reason.stored} - stored:
                    stored |= apart
                    continue
                why = at_fault(part, reason, known, symbols)
                refused |= {*why}
                told = (n for n in why if draws(n.target) or not row_of(n).moves)
                left |= {f"{overloadless(n.target)} ({n})": why[n] for n in told}
        taken = {n for part in parts for n in part}
        left |= {
            f"{overloadless(n.target)} ({n})": why_left(n)
            for n in calls(model.graph)
            if n not in taken | refused and is_told(n)
        }
        as_before(model.graph, taken)
        by_pytorch(model.graph, taken)
        checked(model.graph, [n for n in model.graph.nodes if n in taken])
        rows = shares(model.graph, taken)
        names = outlined(model, parts, PREFIX)
    with_symbols(model)
    found = Cut(model, left=left, shares=rows)
    times = Counter(n.target for n in model.graph.nodes if n.op == "call_module")
    for key, name in names.items():
        region = known[key]
        assert isinstance(region, Region), "the nodes of refused parts are in no part"
        region = replace(region, module=name, times=times[name])
        if why := differs(model.get_submodule(name), region):
            found.left[name] = why
        else:
            found.regions.append(region)
    return found


def is_told(node: Any) -> bool:
    """Whether a node is an operator of the model's that does more than move elements, for more than checks."""
    apart = APART in node.meta or all(APART in u.meta and u.target not in VIEWS for u in node.users)
    return "val" in node.meta and not apart and not is_size(node) and not row_of(node).moves


def why_left(node: Any) -> str:
    """Why a node is in no region that none has refused."""
    if supported(node):
        return "only PyTorch's operators read it"
    return CHANGES if changed(node) else "no operator that is known here"


@dataclass(frozen=True)
class Whole:
    """A function as one program. checks: of the numbers by which it names rows, on the function's arguments; None where
    it names none."""

    region: Region
    checks: torch.fx.GraphModule | None


def whole(model: torch.fx.GraphModule, name: str) -> Whole:
    """All of a model without parameters as one program, however large. Raises TraceError."""
    as_pairs(model.graph)
    part, read = calls(model.graph), placeholders(model.graph)
    if unknown := next((n for n in part if found_in([n])), None):
        raise TraceError(
            name, f"{overloadless(unknown.target)}: a size of what it makes depends on its argument's numbers"
        )
    if not part:
        raise TraceError(name, "it computes nothing of its arguments that is a tensor")
    if any(n.op == "get_attr" for n in model.graph.nodes):
        raise TraceError(name, "a kernel's tensors are its arguments, and this has others")
    if aliased_results(model.graph):
        raise TraceError(name, "it returns a view of an argument, or of another result")
    region = region_of(part, read, {}, read)
    if isinstance(region, Refused):
        place = "" if region.at is None else f"{overloadless(part[region.at].target)}: "
        raise TraceError(name, place + region.why)
    if results(model) != outputs_of(part):
        raise TraceError(name, "it returns one of its arguments, one tensor twice, or in another order than computed")
    if why := differs(model, region):
        raise TraceError(name, why)
    checked(model.graph, part)
    checks = [n for n in calls(model.graph) if n not in part]
    return Whole(region, torch.fx.GraphModule(model, subgraph(checks, read, [])) if checks else None)


def at_fault(
    part: Part, reason: Refused, known: dict[Signature, Region | Refused], symbols: Mapping[str, Symbol]
) -> dict[Any, str]:
    """The nodes for which a part is refused, and why: where that is not said, those that are refused alone, or else
    all."""
    if reason.at is not None:
        return {part[reason.at]: reason.why}
    taken = {n: [u for u in n.users if overloadless(u.target) == "getitem"] for n in part}
    alone = {n: known_region([n, *taken[n]], known, symbols) for n in part if overloadless(n.target) != "getitem"}
    return {n: x.why for n, x in alone.items() if isinstance(x, Refused)} or dict.fromkeys(part, reason.why)


def known_region(
    part: Part, known: dict[Signature, Region | Refused], symbols: Mapping[str, Symbol]
) -> Region | Refused:
    """The region of a part. Equal parts are traced once."""
    key, read = signature(part)
    if key not in known:
        known[key] = region_of(part, read, symbols)
    return known[key]


def region_of(
    part: Part, read: Sequence[Any], symbols: Mapping[str, Symbol], arguments: Sequence[Any] | None = None
) -> Region | Refused:
    """A part that reads these nodes, traced. symbols: of the model, by name. arguments: as of `trace`."""
    try:
        own = {name: symbols[name] for name in found_in([*part, *read])}
        placed, sized, axes, example = (
            at_any_size(part, read, own) if own else (placed_part(part, {}, arguments), (), {}, {})
        )
        graph = placed.traced.graph
        program = graph.program()
        graph.name = f"{PREFIX}{computed_hash(program)[:8]}"
    except Unsupported as error:
        return Refused(str(error), part.index(error.maker) if error.maker in part else None)
    except ComputedAgain as error:
        return Refused(str(error), None, tuple(map(part.index, error.products)))
    except SpecError as error:
        return Refused(error.diagnostics[0].message, None)
    except RecursionError:  # canonical forms are nested as deeply as operators follow one another
        return Refused("more operators one behind another than are taken at once", None)
    program = replace(program, name=graph.name)
    nodes = dict(placed.traced.inputs)
    lengths: dict[str, Length] = {**program.sizes, **axes}

    def given(t: Tensor) -> Given:
        order, shape = placed.orders[t.name], tuple(lengths[d] for d in t.dims)
        own = [n if isinstance(n, int) else Times(1, (str(n),)) for n in shape_of(nodes[t.name])]
        same = shape == tuple(own[d] for d in order)
        return Given(read.index(nodes[t.name]), order, shape, steps_of(t, lengths), same)

    inputs = tuple(map(given, program.inputs))
    shapes = iter(placed.shapes)
    results = tuple(
        Kept(read.index(x)) if (x := next(iter(changed(n)), None)) else next(shapes) for n in outputs_of(part)
    )
    return Region(graph, program, inputs, results, sized, axes, example)


def results(module: Any) -> list[Any]:
    """What a region's module returns."""
    return next(n for n in module.graph.nodes if n.op == "output").all_input_nodes


def steps_of(tensor: Tensor, lengths: Mapping[str, Length]) -> Lengths | None:
    """The strides of an input that has its own. lengths: of axes."""
    if not tensor.strides:
        return None
    found: list[Length] = []
    step: Length = 1
    for d, stride in zip(reversed(tensor.dims), reversed(tensor.strides), strict=True):
        found.append(step if stride is None else stride)
        step = times(found[-1], lengths[d])
    return tuple(reversed(found))
