"""Inductor's code for regions, which their kernels are compared with.

A thread compiles it for a region while kernels for it are tuned, where there is time: other processes do that, but the
thread leaves their tuner little of the interpreter. Nothing runs on the GPU meanwhile, where times are taken: Inductor
looks for the fastest of its own configurations in the first call.
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any  # compiled functions

import torch
from torch._guards import tracing

from mirage_cli.ir.once import once
from mirage_cli.pipeline.models.attention import by_pytorch
from mirage_cli.pipeline.models.region import Region
from mirage_cli.pipeline.models.symbols import placeholders


def by_inductor(
    model: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The graph compiled as a model of its own: what is left of it is decomposed as Inductor wants it, and what kernels
    change in place is made functional and put back. options: of Inductor, for this graph. Whether inputs require a
    gradient is left out of what Inductor's cache knows the graph by: of one graph, they do in some processes alone."""
    from torch._inductor.compile_fx import compile_fx

    by_pytorch(model)
    with tracing(None), torch.no_grad():
        inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in example_inputs]
        return compile_fx(model, inputs, config_patches=dict(options or {}))  # type: ignore[return-value]


BESIDE_S = 10.0
"""Seconds of the budget for each region from which on the thread compiles while kernels are tuned. On an H200's host it
takes 5 s for the first; a tuning that was given 1.6 s took 2.3 s alone and 4.8 s beside it."""


class Inductors:
    """Of a model's regions, each compiled once: a context manager, at the end of which nothing is compiled any more.
    budget_s: of the search and tuning of all. say: is told what is waited for."""

    def __init__(
        self,
        model: torch.nn.Module,
        regions: Sequence[Region],
        budget_s: float,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.model, self.say = model, say
        self.beside = budget_s >= BESIDE_S * len(regions)
        self.regions = {r.graph.name: r for r in regions}
        self.thread = ThreadPoolExecutor(1, "inductor")
        self.compiling: int | None = None  # the thread, while it compiles
        self.begun: dict[str, Future[Callable[..., Any]]] = {}
        self.worked_out: dict[Any, Any] = {}  # as `once` has it

    def __enter__(self) -> Inductors:
        return self

    def __exit__(self, *_: object) -> None:
        """Has the thread end: Python would wait for it at its own end, whatever it still compiles."""
        self.thread.shutdown(wait=False, cancel_futures=True)
        if self.compiling is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.compiling), ctypes.py_object(SystemExit))

    def begin(self, program: str) -> None:
        """Has the thread compile for the region that this program is of, whose tuning begins. Sizes that differ by call
        are known when it runs."""
        region = self.regions.get(program)
        if region is None:
            return
        self.say(f"{region.module} is tuned")
        if not self.beside or region.sized or region.module in self.begun:
            return
        own = self.model.get_submodule(region.module)
        if isinstance(own, torch.fx.GraphModule):
            values = [n.meta["val"] for n in placeholders(own.graph)]
            self.begun[region.module] = self.thread.submit(self.compiled, copy.deepcopy(own), values)

    def compiled(self, own: torch.fx.GraphModule, values: Sequence[Any]) -> Callable[..., Any]:
        """`by_inductor`, in the thread."""
        self.compiling = threading.get_ident()
        try:
            return by_inductor(own, values)
        finally:
            self.compiling = None

    @once
    def of(self, module: str, own: torch.nn.Module) -> Callable[..., Any]:
        """For the region of this module, which is its `own`. What the thread could not compile is compiled when it is
        called."""
        begun = self.begun.get(module)
        if begun is None or not begun.done():
            self.say(f"{module}: Inductor compiles it, to be timed beside its kernel")
        compiled = None if begun is None or begun.exception() is not None else begun.result()
        return compiled or torch.compile(own, dynamic=False)
