"""A model with kernels beside Inductor's code for all of it: measured once, kept in the database, and obeyed.

Regions are timed apart from the model. What stands between them may take longer beside a kernel than it does where
Inductor has all of the model: it lays tensors out otherwise, or fuses what a region's border lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # models, and their arguments

import torch
from torch.utils._pytree import tree_leaves

from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.models.beside import Beside, copies, in_own_thread, timed
from mirage_cli.pipeline.models.figures import Figures
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.regions import attribute
from mirage_cli.verify.testdata import copied

WHOLE_S = 20.0
"""What Inductor may take to compile a model without kernels, if the one with kernels is to be timed beside it."""
OPERATOR_S = 0.02
"""Of that for each operator: 33 s for the 1,653 that a cut of Llama with 32 layers has, on an H200's host."""
COPIED = 0.5
"""The part of a GPU's free memory that copies of a model's tensors may take."""


def is_faster(
    model: torch.fx.GraphModule,
    inputs: Sequence[Any],
    kernels: Sequence[Kernel],
    figures: Figures,
    measured: Callable[[], Beside] | None,
    say: Callable[[str], object],
) -> bool:
    """Whether a model with these kernels takes less time as a whole than Inductor's code for it, as far as that is
    known. model: without kernels. measured: times both, which is asked for where it is not known and Inductor does not
    take long; None where nothing may be timed."""
    text = whole_text(model, inputs)
    whole = figures.of_model(text, kernels)
    if whole is None:
        if measured is None:
            return True
        if (compiling_s := OPERATOR_S * operators(model)) > WHOLE_S:
            say(f"the model was not timed as a whole: Inductor would take some {compiling_s:.0f} s to compile it")
            return True
        say("Inductor compiles the model without kernels, to be timed beside it")
        try:
            whole = measured()
        except Exception as error:  # the border of a measurement: what waits for the GPU, say, is in no CUDA graph
            say(f"the model was not timed as a whole: {(str(error).splitlines() or [type(error).__name__])[0]}")
            return True
        figures.keep_model(text, kernels, whole)
    say(f"the model: {whole.kernel_us:.1f} µs, Inductor {whole.inductor_us:.1f} µs")
    if whole.kernel_us >= whole.inductor_us:
        say("it stays PyTorch's, which is as fast as a whole")
    return whole.kernel_us < whole.inductor_us


def operators(model: torch.fx.GraphModule) -> int:
    """How many a call of the model runs."""
    inner = (attribute(model, n.target) for n in model.graph.find_nodes(op="call_module"))
    return len(calls(model.graph)) + sum(operators(m) for m in inner if isinstance(m, torch.fx.GraphModule))


def whole_text(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> str:
    """What stands around the kernels of a model, and for which tensors."""
    held = [n.meta.get("val") for n in model.graph.nodes if n.op == "get_attr"]
    tensors = [x for x in (*held, *tree_leaves(inputs)) if isinstance(x, torch.Tensor)]
    return "\n".join([str(model.graph), *(f"{tuple(x.shape)} {x.dtype}" for x in tensors)])


def may_be_copied(inputs: Sequence[Any]) -> bool:
    """Whether copies of a call's tensors stand for them: there are some, they are numbers, lie apart from one another,
    and the GPU has room for as many copies as no cache holds."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if not tensors or not are_numbers(tensors) or not all(x.is_cuda for x in tensors):
        return False
    if len({x.untyped_storage().data_ptr() for x in tensors}) < len(tensors):
        return False
    free, _ = torch.cuda.mem_get_info()
    return copies(tensors) * sum(x.untyped_storage().nbytes() for x in tensors) < COPIED * free


def are_numbers(tensors: Sequence[Any]) -> bool:
    """Whether tensors have data: Dynamo gives a backend those of the call, and others tensors that stand for them."""
    return all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)


def timed_on_copies(kernels: Callable[..., Any], inductor: Callable[..., Any], inputs: Sequence[Any]) -> Beside:
    """Times a graph with kernels and Inductor's code for it on copies of a call's tensors, which may be changed."""
    device = torch.cuda.current_device()

    def copies_timed() -> Beside:
        several = range(copies([x for x in inputs if isinstance(x, torch.Tensor)]))
        sets = [[copied(x.detach()) if isinstance(x, torch.Tensor) else x for x in inputs] for _ in several]
        with torch.random.fork_rng([device]):
            return timed(kernels, inductor, sets)

    return in_own_thread(copies_timed)
