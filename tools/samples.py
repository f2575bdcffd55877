"""PyTorch's samples of its operators through the backend, as a page: how many are right, and how many are in regions.

`python -m tools.samples PAGE [--dtypes float32,int64,bool] [--samples 2] [--operators add,topk] [--gradients]`. Each
region is computed by its program in float64, in the place of a kernel: a sample takes some 30 ms. Each result is
returned as it is, and behind a quotient and a sum: more is in regions then. Samples need the package `expecttest`.
The exit code is 1 where a result is wrong, or a call raises what PyTorch's own tracing does not.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch.utils._pytree import tree_leaves, tree_map_only

from mirage_cli.codegen.exported.public import schema
from mirage_cli.pipeline import backend
from mirage_cli.pipeline.callers import Settings
from mirage_cli.pipeline.models.regions import Cut, cut, for_autograd
from mirage_cli.spec.graph import Graph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.float64 import called64

LIBRARY = torch.library.Library("mirage_samples", "FRAGMENT")
NUMBERS = itertools.count()
LARGE = 50_000
"""Elements of samples that are left out: evaluations in float64 take long."""
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5}
Function = Callable[..., list[Any]]


class Exact:
    """Stands for the kernel of a program: computes it in float64."""

    slow = ()
    exported, times = None, "in float64"
    best = SimpleNamespace(eager_us=None, us=None)

    def __init__(self, graph: Graph) -> None:
        self.program = parse_spec(graph.text()).at()
        name = f"k{next(NUMBERS)}"
        LIBRARY.define(name + schema(self.program))
        LIBRARY.impl(name, self.run, "CPU")
        torch.library.register_fake(f"mirage_samples::{name}", self.fake, lib=LIBRARY)
        self.function = self.operator = getattr(torch.ops.mirage_samples, name).default

    def run(self, *inputs: torch.Tensor) -> Any:
        for t, x in zip(self.program.inputs, inputs, strict=True):
            sizes = tuple(self.program.sizes[d] for d in t.dims)
            assert (str(x.dtype), x.shape) == (f"torch.{t.dtype}", sizes), f"{t.name} is {x.dtype} {x.shape}"
        made, behind = called64(self.program, inputs)
        for t, x, y in zip(self.program.inputs, inputs, behind, strict=True):
            if t.name in self.program.changed:
                x.copy_(y)
        return self.returned([y.to(x) if y is not x else y.clone() for y, x in zip(made, self.empty(), strict=True)])

    def fake(self, *_: torch.Tensor) -> Any:
        return self.returned(self.empty())

    def empty(self) -> list[torch.Tensor]:
        p = self.program
        return [torch.empty([p.sizes[d] for d in t.dims], dtype=getattr(torch, t.dtype)) for t in p.results]

    def returned(self, some: Sequence[torch.Tensor]) -> Any:
        return None if not some else some[0] if len(some) == 1 else tuple(some)


class ExactKernels:
    """Stands for what searches."""

    target = measures = store = None

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> ExactKernels:
        return self

    def __exit__(self, *_: object) -> None: ...

    def of(self, graphs: Sequence[Graph], *_: object) -> list[Exact]:
        return [Exact(g) for g in graphs]


@dataclass(frozen=True)
class Outcome:
    """kind: right, wrong, raised, or why nothing was compared."""

    kind: str
    regions: int = 0
    detail: str = ""


def compiled(function: Function, cuts: list[Cut]) -> Callable[..., list[Any]]:
    """The function by AOTAutograd and this backend. cuts: where its graphs are noted."""

    def noted(model: torch.fx.GraphModule) -> Cut:
        cuts.append(cut(model))
        return cuts[-1]

    backend.Kernels, backend.Figures, backend.cut = ExactKernels, lambda *_: None, noted
    made = backend.Compiler(Settings("h200", 1.0), {}, torch.fx.GraphModule({}, torch.fx.Graph()), ())
    return aot_function(  # type: ignore[no-any-return]
        function, fw_compiler=made.forward, bw_compiler=made.backward, inference_compiler=made.inference,
        decompositions=for_autograd(), keep_inference_input_mutations=True,
    )  # fmt: skip


def called(function: Function, given: Sequence[torch.Tensor], gradients: bool) -> list[Any]:
    """The results, the inputs behind the call, and the gradients."""
    torch.manual_seed(0)
    made = [x for x in function(*given) if x is not None]
    found = [*made, *given]
    roots = [x for x in made if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in given if x.requires_grad]
    if gradients and roots and leaves:
        found += torch.autograd.grad(roots, leaves, [torch.ones_like(x) for x in roots], materialize_grads=True)
    return found


def copied(given: Sequence[torch.Tensor], wide: bool = False) -> list[torch.Tensor]:
    """wide: floating-point numbers in float64."""
    floats = (x.double() if wide and x.is_floating_point() else x for x in given)
    return [y.detach().clone().requires_grad_(x.requires_grad) for y, x in zip(floats, given, strict=True)]


def outcome(function: Function, given: Sequence[torch.Tensor], gradients: bool) -> Outcome:
    cuts: list[Cut] = []
    try:
        expected = called(function, copied(given), gradients)
    except Exception as error:
        return Outcome("eager raises", detail=str(error))
    try:
        exact = called(function, copied(given, wide=True), gradients)
    except Exception:
        exact = expected
    try:
        found = called(compiled(function, cuts), copied(given), gradients)
    except Exception as error:
        return Outcome(raised(function, given), detail=f"{type(error).__name__}: {error}"[:200])
    regions = sum(len(c.regions) for c in cuts)
    for one, other, wide in zip(found, expected, exact if len(exact) == len(expected) else expected, strict=True):
        if why := differs(one, other, wide):
            return Outcome("wrong", regions, why)
    return Outcome("right", regions)


def raised(function: Function, given: Sequence[torch.Tensor]) -> str:
    """Whose error it is: PyTorch's where AOTAutograd alone does not trace the function."""
    try:
        aot_function(function, fw_compiler=lambda model, _: model)(*copied(given))
    except Exception:
        return "not traced"
    return "raised"


def differs(found: Any, expected: Any, exact: Any) -> str:
    """Nothing where a result is eager PyTorch's, or as near to float64's."""
    if not isinstance(expected, torch.Tensor):
        return "" if found == expected or found != found else f"{found} for {expected}"
    found, expected, exact = (x.detach() if isinstance(x, torch.Tensor) else x for x in (found, expected, exact))
    near = TOLERANCE.get(expected.dtype, 1e-7)
    problem = ""
    for other in (expected, exact.to(expected.dtype)):
        try:
            torch.testing.assert_close(found, other, rtol=near, atol=near, equal_nan=True)
            return ""
        except AssertionError as error:
            problem = problem or " ".join(str(error).split())[:160]
    return problem


def function_of(operator: Callable[..., Any], sample: Any) -> tuple[Function, list[torch.Tensor]]:
    """A sample as a function of its tensors."""
    arguments = sample.input, sample.args, sample.kwargs
    tensors = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]

    def function(*given: torch.Tensor) -> list[Any]:
        left = iter(given)
        x, args, options = tree_map_only(torch.Tensor, lambda _: next(left), arguments)
        made = tree_leaves(operator(x, *args, **options))
        numbers = [y for y in made if isinstance(y, torch.Tensor) and y.dim() and y.dtype is not torch.bool]
        return [*made, *((y / 3 + 1).sum(-1) for y in numbers)]

    return function, tensors


def outcomes(options: argparse.Namespace) -> Iterator[tuple[str, str, Outcome]]:
    from torch.testing._internal import common_methods_invocations as samples

    samples.wrapper_set_seed = lambda operator, *args, **named: operator(*args, **named)
    for info in samples.op_db:
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            types = info.supported_backward_dtypes("cpu") if options.gradients else info.supported_dtypes("cpu")
            if dtype not in types or (options.operators and info.name not in options.operators.split(",")):
                continue
            torch.manual_seed(0)
            some = [*info.sample_inputs("cpu", dtype, requires_grad=options.gradients)]
            for sample in some[:: max(1, len(some) // options.samples)][: options.samples]:
                function, given = function_of(info.op, sample)
                if all(x.layout == torch.strided for x in given) and sum(x.numel() for x in given) <= LARGE:
                    yield info.formatted_name, name, outcome(function, given, options.gradients)


def page(found: Mapping[str, Counter[str]], problems: Sequence[str]) -> str:
    kinds = sorted({k for c in found.values() for k in c})
    lines = [f"| type | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    lines += [f"| {name} | {' | '.join(str(c[k]) for k in kinds)} |" for name, c in found.items()]
    return "\n".join(["# PyTorch's samples of its operators", "", *lines, "", *problems, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--dtypes", default="float32,bfloat16,int64,uint8,bool")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--operators", default="")
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    found: dict[str, Counter[str]] = {}
    problems: list[str] = []
    for operator, dtype, o in outcomes(options):
        found.setdefault(dtype, Counter()).update([o.kind, *["in regions"] * (o.regions > 0)])
        if o.kind in ("wrong", "raised"):
            problems.append(f"* {operator}, {dtype}: {o.kind}: {o.detail}")
            print(problems[-1], flush=True)
    options.page.write_text(page(found, problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
