"""Calls without Triton's dispatch: when they are taken, when not, and what they cost."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.exported.direct import (
    CONVENTION,
    KEPT_STREAMS,
    Memory,
    Step,
    on_stream,
    starts_as_known,
    way_into_c,
)
from mirage_cli.codegen.exported.selfcheck import BATCH, BATCHES, CpuTime, cpu_time
from mirage_cli.codegen.exported.start_text import USED
from mirage_cli.codegen.exported.text import RESERVED
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import Candidate, Failure, TensorSpec
from mirage_cli.verify.lies import fresh_memory_is_nan
from tools.launch_overhead import (
    CPU_FOR_GPU,
    StubCompiled,
    StubDriver,
    StubKernel,
    c_launcher,
    chain,
    inputs_of,
    kernel_names,
    load_with_stubs,
    measure,
    schedule_of,
)

SCRATCH = 1 << 21  # where the stubs' scratch memory starts


class Calls:
    """An exported file of stubs, and what its calls do."""

    def __init__(self, kernels: int, library: bool = False, kind: Any = StubCompiled, **sizes: int) -> None:
        self.program, self.graph = (g.resized(g.sizes | sizes) for g in chain(kernels, library))
        self.started: list[tuple[Any, ...]] = []  # by plans, of all kernels
        self.module: Any = load_with_stubs(self.program, self.graph, lambda: StubKernel(self.started, kind))
        self.kernels = [getattr(self.module, name).kernel for name in kernel_names(self.module)]
        self.allocated: list[tuple[int, int]] = []
        self.freed: list[int] = []
        self.module._FRESH = Memory(self.module._FRESH.empty, self.allocate, self.freed.append)
        self.inputs = inputs_of(self.program)

    def allocate(self, nbytes: int, stream: int) -> int:
        self.allocated.append((nbytes, stream))
        return SCRATCH

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module.stubbed(*(inputs or self.inputs))

    @property
    def dispatched(self) -> list[int]:
        """How often each kernel went through Triton's dispatch."""
        return [len(k.dispatched) for k in self.kernels]

    @property
    def addresses(self) -> list[list[int]]:
        """What plans started the kernels with."""
        return [[*c[9:]] for c in self.started]


def addresses_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def odd(x: torch.Tensor) -> torch.Tensor:
    """Such a tensor at an address that is aligned to two bytes alone."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def test_the_second_call_starts_what_the_first_compiled(driver: StubDriver) -> None:
    calls = Calls(2)
    calls()
    (grid, args, options), ((last_grid, last_args, _),) = calls.kernels[0].dispatched[0], calls.kernels[1].dispatched
    assert addresses_of(args[:2]) == addresses_of(calls.inputs)
    assert (last_args[0] is args[2], grid, last_grid) == (True, (3,), (3,))
    assert options["num_warps"] == 4
    assert calls.started == calls.allocated == []
    driver.stream = 9
    others = [torch.zeros_like(x) for x in calls.inputs]
    y = calls(*others)
    how = 3, 1, 1, 9, 3, (4, 1, 0), None, None, None
    assert calls.started == [(*how, *addresses_of(others), SCRATCH), (*how, SCRATCH, y.data_ptr())]
    assert calls.dispatched == [1, 1]


def test_addresses_that_are_not_aligned_go_through_triton(driver: StubDriver) -> None:
    calls = Calls(1)
    x, w = calls.inputs
    for _ in range(2):
        calls(odd(x), w)
    assert calls.module._PLANS == {}
    for inputs in ((x, w), (odd(x), w), (x, odd(w)), (odd(x), odd(w))):
        calls(*inputs)
    assert calls.dispatched == [6]
    y = calls(x, w)
    assert calls.dispatched == [6]
    assert calls.addresses == [addresses_of([x, w, y])]


def test_each_device_is_planned_for_itself(driver: StubDriver) -> None:
    calls = Calls(1)
    for device in (0, 1, 0, 1):
        calls.module._launch(device, calls.inputs)
    assert calls.dispatched == [2]
    assert len(calls.started) == 2
    assert {device: plan.device for device, plan in calls.module._PLANS.items()} == {0: 0, 1: 1}


def test_one_tensor_given_twice_may_be_two_the_next_time(driver: StubDriver) -> None:
    calls = Calls(1, m=64, n=64)
    x, w = calls.inputs
    calls(x, x)
    y = calls(w, x)
    assert calls.addresses == [addresses_of([w, x, y])]


def test_calls_are_on_the_current_stream_however_many_there_are(driver: StubDriver) -> None:
    calls = Calls(1)
    calls()
    streams = [*range(1, KEPT_STREAMS + 3), 1]
    for stream in streams:
        driver.stream = stream
        calls()
    assert [c[3] for c in calls.started] == streams
    assert len(calls.module._PLANS[0].bound) <= KEPT_STREAMS


def test_scratch_is_one_allocation(driver: StubDriver) -> None:
    calls = Calls(4, n=20)
    for _ in range(2):
        y = calls()
    buffers = [SCRATCH, SCRATCH + 768, SCRATCH + 2 * 768]  # 640 bytes each, and then at a multiple of 256
    assert (calls.allocated, calls.freed) == ([(3 * 768, driver.stream)], [SCRATCH])
    x, w = addresses_of(calls.inputs)
    assert calls.addresses == [[x, w, buffers[0]], buffers[:2], buffers[1:], [buffers[2], y.data_ptr()]]


def test_scratch_is_given_back_where_a_launch_fails(driver: StubDriver) -> None:
    calls = Calls(2)
    calls()
    calls.module._PLANS[0].bound[driver.stream] = [lambda *_: pytest.fail("launched")] * 2
    with pytest.raises(pytest.fail.Exception, match="launched"):
        calls()
    assert calls.freed == [SCRATCH]


def test_memory_that_pytorch_is_to_fill_is_a_tensor(driver: StubDriver) -> None:
    """Where what a kernel does not write is to be NaN: here the stubs write nothing."""
    calls = Calls(3)
    calls()
    filled: list[torch.Tensor] = []
    memory = calls.module._FILLED

    def allocate(nbytes: int, stream: int) -> int:
        address = memory.allocate(nbytes, stream)
        filled.append(allocated[address].view(torch.float16))
        return address

    allocated = memory.free.__self__
    calls.module._FILLED = memory._replace(allocate=allocate)
    with fresh_memory_is_nan():
        assert calls().isnan().all()
        assert calls.module._by_triton(calls.inputs).isnan().all()
    (scratch,) = filled
    assert scratch.isnan().all()
    assert [a for c in calls.addresses[:2] for a in c[-1:]] == [scratch.data_ptr(), scratch.data_ptr() + 16 * 48 * 2]
    assert calls.allocated == []
    assert allocated == {}


def test_a_pytorch_without_such_memory_makes_tensors(driver: StubDriver) -> None:
    program, graph = chain(2)
    started: list[tuple[Any, ...]] = []
    missing = CPU_FOR_GPU | {"from torch._C import _cuda_getDevice": "raise ImportError"}
    module: Any = load_with_stubs(program, graph, lambda: StubKernel(started), missing)
    assert module._FRESH is module._FILLED
    x, w = inputs_of(program)
    for _ in range(3):
        y = module.stubbed(x, w)
    (first, second) = started[-2:]
    assert first[9:11] == (x.data_ptr(), w.data_ptr())
    assert (first[11], second[10]) == (second[9], y.data_ptr())


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_launch_hooks_are_called_by_triton_itself(
    hook: str, driver: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(1)
    runtime = triton.knobs.runtime
    calls()
    profiler: Callable[..., None] = lambda *_: None  # noqa: E731
    getattr(runtime, hook).add(profiler)
    try:
        calls()
    finally:
        getattr(runtime, hook).remove(profiler)
    assert calls.dispatched == [2]
    with monkeypatch.context() as patched:
        patched.setattr(runtime, hook, profiler)
        calls()
        assert calls.dispatched == [3]
        patched.setattr(runtime, hook, None)
        calls()
    calls()
    assert calls.dispatched == [3]
    assert len(calls.started) == 2


def test_what_is_watched_is_not_planned(driver: StubDriver) -> None:
    calls = Calls(1)
    profiler: Callable[..., None] = lambda *_: None  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(profiler)
    try:
        calls()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(profiler)
    assert calls.module._PLANS == {}


class OtherCompiled:
    """What another Triton might compile: it starts its kernels otherwise."""

    def __init__(self, calls: object) -> None:
        pass

    def __getitem__(self, grid: tuple[int]) -> None:
        raise AssertionError("started")


@pytest.mark.parametrize("kind", [OtherCompiled, lambda _: None, lambda _: 5])
def test_another_triton_launches_in_its_own_way(kind: object, driver: StubDriver) -> None:
    calls = Calls(1, kind=kind)
    for _ in range(3):
        calls()
    assert calls.dispatched == [3]
    assert calls.module._PLANS == {}


def test_this_triton_is_known() -> None:
    assert starts_as_known(StubCompiled)
    assert not starts_as_known(OtherCompiled)
    assert not starts_as_known(int)
    assert " " not in CONVENTION


def test_libraries_are_called_with_tensors_in_their_turn(driver: StubDriver) -> None:
    """They make their results; PyTorch makes no tensors of anything else between kernels."""
    calls = Calls(3, library=True)
    done: list[Any] = calls.started

    def multiply(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        done.append((x, w, torch.empty(16, 48, dtype=torch.float16) if out is None else out))
        return done[-1][2]

    calls.module.k0 = multiply
    calls.module._KERNELS = (multiply, *calls.module._KERNELS[1:])
    x, w = calls.inputs
    for _ in range(3):
        done.clear()
        y = calls()
        product, *launches = done
        assert [*product[:2]] == [x, w]
        buffer = product[2]
        assert (buffer.shape, buffer.dtype) == ((16, 48), torch.float16)
    assert [[*c[9:]] for c in launches] == [[buffer.data_ptr(), SCRATCH], [SCRATCH, y.data_ptr()]]
    assert calls.dispatched == [1, 1]
    assert calls.allocated == [(1536, driver.stream)] * 2


def test_a_library_may_make_the_output(driver: StubDriver) -> None:
    """X squared by Triton, then multiplied by W."""
    text = """
        mugraph stubbed float16
        dims m=16 k=64 n=48
        input X f16[m, k]
        input W f16[k, n]
        output Y f16[m, n]
        buffer B f16[m, k]
        kernel k0 generated m:tile k:grid
          X = load X[m, k]
          B[m, k] = mul(X, X)
          store B[m, k] = B
        kernel k1 library
          B = load B[m, k]
          W = load W[k, n]
          Y[m, n] = dot(B, W; k)
          store Y[m, n] = Y
    """
    graph = parse_mugraph(textwrap.dedent(text))
    program = Program(
        "stubbed", graph.dims, graph.dtype, graph.inputs, tuple(e for k in graph.kernels for e in k.body), graph.outputs
    )
    started: list[tuple[Any, ...]] = []
    module: Any = load_with_stubs(program, graph, lambda: StubKernel(started))
    x, w = (torch.randn(t.shape, dtype=t.dtype) for t in inputs_of(program))
    buffers: list[torch.Tensor] = []

    def multiply(b: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        buffers.append(b.normal_())  # as if k0 had written it
        return torch.mm(b, w, out=out)

    module.k1 = multiply
    module._KERNELS = (module.k0, multiply)
    for _ in range(3):
        y = module.stubbed(x, w)
        assert torch.equal(y, buffers[-1] @ w)
    assert [c[9:] for c in started] == [(x.data_ptr(), b.data_ptr()) for b in buffers[1:]]


def test_outputs_have_the_axes_of_the_program_where_the_kernels_are_merged(driver: StubDriver) -> None:
    text = """
        mugraph stubbed float16
        dims a=4 b=8 ab=a*b k=64
        input X f16[ab, k]
        output Y f16[ab]
        kernel k0 generated ab:grid k:tile
          X = load X[ab, k]
          Y[ab] = sum(X; k)
          store Y[ab] = Y
    """
    spec = """
        name: stubbed
        dims: {a: 4, b: 8, k: 64}
        dtype: float16
        inputs: {X: [a, b, k]}
        program: Y = sum(X, k)
        outputs: {Y: [a, b]}
    """
    program, graph = parse_spec(textwrap.dedent(spec)).at(), parse_mugraph(textwrap.dedent(text))
    module: Any = load_with_stubs(program, graph, lambda: StubKernel([]))
    (x,) = inputs_of(program)
    for _ in range(3):
        assert module.stubbed(x).shape == (4, 8)


def test_libraries_compute_in_their_own_types_under_autocast(driver: StubDriver) -> None:
    calls = Calls(2, library=True)
    x, w = (torch.randn(t.shape, dtype=t.dtype) for t in calls.inputs)
    calls(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(x, w).dtype == torch.bfloat16
        calls(x, w)
    assert len(calls.kernels[0].dispatched) == 2
    for _, (product, _), _ in calls.kernels[0].dispatched:
        assert torch.equal(product, x @ w)
    calls(x, w)
    assert len(calls.kernels[0].dispatched) == 2


def test_c_is_called_as_triton_calls_it() -> None:
    calls: list[Any] = []
    run = c_launcher(lambda *args: calls.append(args))
    assert way_into_c(type(run)) is not None
    assert way_into_c(OtherCompiled) is way_into_c(int) is None
    on_stream(Step(run, 5, 3, (4, 1, 0), None), 7)(16, 32)
    on_stream(Step(run, 5, 3, (4, 1, 0), lambda args: [x // 2 for x in args]), 7)(32, 64)
    on_stream(Step(run, None, 3, (4, 1, 0), None), 7)(5, 16, 32)
    on_stream(Step(run, None, 3, (4, 1, 0), lambda args: [x // 2 for x in args]), 7)(5, 32, 64)
    run(5, 1, 1, 7, 3, (4, 1, 0), None, None, None, 16, 32)
    *by_plans, by_triton = [[*c[:-1], [*c[-1]]] if isinstance(c[-1], list | tuple) else [*c] for c in calls]
    assert by_plans == [by_triton] * 4


def test_triton_allocates_what_kernels_ask_it_for() -> None:
    run = c_launcher(pytest.fail)
    run.global_scratch_size = 8
    with pytest.raises(RuntimeError, match="allocat"):
        on_stream(Step(run, 5, 3, (4, 1, 0), None), 7)(16, 32)


def test_what_fails_is_not_planned(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(1)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(calls.module, "launch", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        calls()
    assert calls.module._PLANS == {}
    assert calls.module.RECORDING.noted is None


def test_threads_share_the_plan(driver: StubDriver) -> None:
    calls = Calls(1)
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            calls()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    (dispatched,) = calls.dispatched
    assert 1 <= dispatched <= 8
    assert dispatched + len(calls.started) == 400
    assert {(*c[:2],) for c in calls.addresses} == {(*addresses_of(calls.inputs),)}


def test_threads_do_not_note_the_launches_of_others(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(1)
    launch = calls.module.launch
    grids: list[Any] = []

    def launch_with_another(*tensors: Any) -> None:
        launch(*tensors)
        other = threading.Thread(target=calls.module.k0.launch, args=((99,), *tensors[0]))
        other.start()
        other.join()
        grids.extend(grid for grid, _, _ in calls.kernels[0].dispatched)

    monkeypatch.setattr(calls.module, "launch", launch_with_another)
    calls()
    assert grids == [(3,), (99,)]
    calls()
    assert [c[0] for c in calls.started] == [3]


@pytest.mark.parametrize(
    "name", ["_FRESH", "_plan", "_call", "torch", "plan", "stream", "empty", "joined", "X_at", "k0", "launch"]
)
def test_inputs_may_have_names_that_the_file_needs(name: str, driver: StubDriver) -> None:
    _, graph = chain(2)
    graph = parse_mugraph(re.sub(r"\bW\b", name, print_mugraph(graph)))
    body = tuple(e for k in graph.kernels for e in k.body)
    program = Program("stubbed", graph.dims, graph.dtype, graph.inputs, body, graph.outputs)
    started: list[tuple[Any, ...]] = []
    module: Any = load_with_stubs(program, graph, lambda: StubKernel(started))
    x, w = inputs_of(program)
    for _ in range(3):
        y = module.stubbed(X=x, **{f"{name}_" if name in RESERVED else name: w})
    assert [c[9:] for c in started[-2:]] == [(x.data_ptr(), w.data_ptr(), SCRATCH), (SCRATCH, y.data_ptr())]


@pytest.mark.parametrize("library", [False, True])
def test_all_names_that_the_functions_use_are_known(library: bool, driver: StubDriver) -> None:
    module: Any = load_with_stubs(*chain(3, library))
    code = module._start.__code__
    tensors = {"X", "W", "Y", "B0", "B1", "X_at", "W_at", "Y_at", "B0_at", "B1_at"}
    used = {n for n in code.co_names if n in vars(module)} | {*code.co_varnames}
    unused = {"is_capturing"}  # of patient kernels
    unused |= {"joined", "ALIGNMENT_BYTES"} if library else set()  # the library alone reads the inputs
    assert used - tensors - {"k0", "k1", "k2"} == USED - unused
    code = module.stubbed.__code__
    assert {n for n in code.co_names if n in vars(module)} | {*code.co_varnames} - {"X", "W"} == RESERVED - {
        "_capture",
        "_changes",
    }


# The exported file


def test_calls_of_an_exported_function_take_the_direct_way(driver: StubDriver) -> None:
    program, graph = chain(3)
    module: Any = load_with_stubs(program, graph)
    kernels = [getattr(module, name) for name in kernel_names(module)]
    assert len(kernels) == 3
    x, w = inputs_of(program)
    for _ in range(3):
        assert module.stubbed(x, w).shape == (16, 48)
    assert [len(k.kernel.dispatched) for k in kernels] == [1, 1, 1]
    odd = torch.zeros(16 * 64 + 1, dtype=torch.float16)[1:].view(16, 64)
    module.stubbed(odd, w)
    assert [len(k.kernel.dispatched) for k in kernels] == [2, 2, 2]
    with pytest.raises(ValueError, match="X should be contiguous"):
        module.stubbed(torch.zeros(64, 16, dtype=torch.float16).mT, w)


def test_weights_that_could_be_trained_cost_nothing_where_no_gradient_is_recorded(driver: StubDriver) -> None:
    program, graph = chain(1)
    module: Any = load_with_stubs(program, graph)
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.nn.Parameter(torch.zeros(64, 48, dtype=torch.float16))
    assert not module._is_plain((x, w))
    with torch.no_grad():
        assert module._is_plain((x, w))
    with torch.inference_mode():
        assert module._is_plain((x, w))


def test_inputs_like_those_of_the_call_before_are_known_at_once_and_no_others(driver: StubDriver) -> None:
    program, graph = chain(2)
    module: Any = load_with_stubs(program, graph)
    x, w = inputs_of(program)
    module.stubbed(x, w)
    alike, trained = module._PLANS[0].known
    assert alike(torch.ones_like(x), torch.ones_like(w))
    assert not trained
    others = {
        "X should have the dtype": (x.float(), w),
        "X should have the shape": (x[:8], w),
        "W should be contiguous": (x, w.t().contiguous().t()),
        "W should be a tensor": (x, 3),
    }
    for text, inputs in others.items():
        assert not alike(*inputs), text
        with pytest.raises((TypeError, ValueError), match=text):
            module.stubbed(*inputs)


def test_a_pytorch_that_knows_inputs_in_another_way_is_done_without(
    driver: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = load_with_stubs(*chain(2))
    monkeypatch.setattr(module, "TensorGuards", lambda *tensors: None)
    for _ in range(2):
        assert module.stubbed(*inputs_of(chain(2)[0])).shape == (16, 48)
    assert [len(k.kernel.dispatched) for k in (module.k0, module.k1)] == [1, 1]
    assert not module._PLANS[0].known[0](*inputs_of(chain(2)[0]))


def test_known_inputs_are_not_plain_while_a_gradient_is_recorded(
    driver: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, graph = chain(2)
    module: Any = load_with_stubs(program, graph)
    x, w = inputs_of(program)
    w = torch.nn.Parameter(w)
    with torch.no_grad():
        module.stubbed(x, w)
        monkeypatch.setattr(module, "_is_plain", lambda _: pytest.fail("not known"))
        module.stubbed(x, w)
    monkeypatch.setattr(module, "_is_plain", lambda _: False)
    operators: list[Any] = []
    monkeypatch.setattr(module, "_check", operators.append)
    module.stubbed(x, w)
    assert len(operators) == 1


@pytest.mark.parametrize(("kernels", "library"), [(1, False), (2, True)])
def test_overhead_without_a_gpu(kernels: int, library: bool, driver: StubDriver) -> None:
    """The bound is far above what is usual, for machines that are busy with other things."""
    time = measure(*chain(kernels, library))
    assert time.launches == kernels
    assert time.overhead_us is not None
    assert time.own_us is not None
    assert 0.5 < time.own_us < time.overhead_us * 1.5 < 75
    overhead = f"overhead {time.overhead_us:.2f} µs: a call without its {kernels} launches, {time.own_us:.2f} its own"
    assert overhead in str(time)
    assert f"; {time.call_us:.2f} µs a call with them" in str(time)


def test_the_overhead_is_of_calls_without_launches(driver: StubDriver) -> None:
    module: Any = load_with_stubs(*chain(2))
    calls: list[tuple[Any, ...]] = []
    for k in (module.k0, module.k1):
        k.kernel = StubKernel(calls)
    inputs = inputs_of(chain(2)[0])
    time = cpu_time(lambda: module.stubbed(*inputs), module._PLANS, 0, vars(module))
    assert time.launches == 2
    assert len(calls) == 2 * (BATCHES * BATCH + 1)  # one call shows what launches return; the first was Triton's own
    module.stubbed(*inputs)
    assert len(calls) == 2 * (BATCHES * BATCH + 2)


def test_its_own_time_is_of_calls_that_allocate_nothing(driver: StubDriver) -> None:
    program, graph = chain(3)
    module: Any = load_with_stubs(program, graph)
    made: list[str] = []
    memory = module._FRESH
    module._FRESH = counted = memory._replace(
        empty=lambda *layout: (made.append("tensor"), memory.empty(*layout))[1],
        allocate=lambda nbytes, stream: (made.append("scratch"), memory.allocate(nbytes, stream))[1],
        free=lambda address: (made.append("freed"), memory.free(address))[1],
    )
    inputs = inputs_of(program)
    time = cpu_time(lambda: module.stubbed(*inputs), module._PLANS, 0, vars(module))
    assert time.own_us is not None
    assert module._FRESH is counted
    calls = 2 + 2 * BATCHES * BATCH  # of these two show what launches return, and what memory is taken
    assert {x: made.count(x) for x in made} == {"tensor": calls, "scratch": calls, "freed": calls}


def test_where_triton_launches_in_its_own_way_the_overhead_is_not_known(driver: StubDriver) -> None:
    calls = Calls(1, kind=OtherCompiled)
    time = cpu_time(calls, calls.module._PLANS, 0, vars(calls.module))
    assert (time.overhead_us, time.launches) == (None, 0)
    assert "overhead" not in str(time)


def test_library_calls_alone_are_planned_too(driver: StubDriver) -> None:
    program, graph = chain(1, library=True)
    module: Any = load_with_stubs(program, graph)
    x, w = (torch.randn(t.shape).half() for t in inputs_of(program))
    for _ in range(3):
        assert torch.equal(module.stubbed(x, w), x @ w)
    assert module._PLANS[0].known[0](x, w)
    time = cpu_time(lambda: module.stubbed(x, w), module._PLANS, 0, vars(module))
    assert time.launches == 1
    assert time.overhead_us is not None


def test_a_cuda_graph_is_of_inputs_that_are_right_and_on_a_gpu() -> None:
    program, graph = chain(1)
    module: Any = load_export(export_source(program, graph, schedule_of(graph)))
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.zeros(64, 48, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"W should have the dtype torch.float16"):
        module.stubbed_graph(x, w.float())
    with pytest.raises(ValueError, match="a CUDA graph needs inputs on a CUDA device, not on cpu"):
        module.stubbed_graph(X=x, W=w)


@pytest.mark.parametrize("library", [False, True])
def test_the_compile_farm_takes_an_exported_file(library: bool, farm: Callable[[int], CompileFarm]) -> None:
    """Its tensors have no data, and what it compiles is for a GPU that is not there."""
    program, graph = chain(2, library)
    inputs, outputs = ([TensorSpec(t.name, tuple(program.sizes[d] for d in t.dims), t.dtype) for t in side]
                       for side in (program.inputs, program.outputs))  # fmt: skip
    job = Candidate("exported", export_source(program, graph, schedule_of(graph)))
    ((_, kernels),) = farm(90).compile_all([job], tuple(inputs), tuple(outputs))
    assert not isinstance(kernels, Failure)
    assert [k.name for k in kernels] == (["k1"] if library else ["k0", "k1"])


# On a GPU


def squared_product(library: bool = False, **choices: bool) -> str:
    """Two kernels: the square of X·W, after a buffer."""
    program, graph = chain(2, library)
    return export_source(program, graph, schedule_of(graph, **choices))


@pytest.fixture(scope="module")
def source() -> str:
    return squared_product()


@pytest.fixture(scope="module")
def exported(source: str) -> Any:
    return load_export(source)


def on_gpu(seed: int, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """X and W, `offset` elements of two bytes behind an aligned address."""
    g = torch.Generator("cuda").manual_seed(seed)

    def draw(m: int, n: int) -> torch.Tensor:
        return torch.randn(m * n + offset, generator=g, device="cuda", dtype=torch.float16)[offset:].view(m, n)

    return draw(16, 64).div_(8), draw(64, 48)


def expect(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    torch.testing.assert_close(y.float(), (x.float() @ w.float()).square(), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_gpu_direct_launches_at_every_alignment(exported: Any) -> None:
    for offset in (0, 1, 8, 3, 0, 1):
        for seed in range(3):
            x, w = on_gpu(seed, offset)
            expect(exported.stubbed(x, w), x, w)
            aligned = on_gpu(seed)[1]
            expect(exported.stubbed(x, aligned), x, aligned)
    assert [len(plan.steps) for plan in exported._PLANS.values()] == [2]


@pytest.mark.gpu
def test_gpu_one_tensor_given_twice_may_be_two_the_next_time() -> None:
    program, graph = chain(2)
    sizes = {"m": 64, "n": 64}
    program, graph = program.resized(program.sizes | sizes), graph.resized(program.sizes | sizes)
    module: Any = load_export(export_source(program, graph, schedule_of(graph)))
    x, w = (torch.randn(64, 64, device="cuda", dtype=torch.float16) / 8 for _ in range(2))
    expect(module.stubbed(x, x), x, x)
    expect(module.stubbed(x, w), x, w)
    expect(module.stubbed(w, x), w, x)


@pytest.mark.gpu
def test_gpu_a_library_kernel_among_others() -> None:
    module: Any = load_export(squared_product(library=True))
    for seed in range(4):
        x, w = on_gpu(seed)
        expect(module.stubbed(x, w), x, w)
    assert [len(plan.steps) for plan in module._PLANS.values()] == [2]
    replay = module.stubbed_graph(x, w)
    x.copy_(on_gpu(9)[0])
    expect(replay(), x, w)


@pytest.mark.gpu
def test_gpu_direct_launches_are_on_the_current_stream(exported: Any) -> None:
    x, w = on_gpu(0)
    exported.stubbed(x, w)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = x * 1  # only after the sleep
        y = exported.stubbed(late, w)
        assert not stream.query()
    stream.synchronize()
    expect(y, x, w)


@pytest.mark.gpu
def test_gpu_threads(exported: Any) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        x, w = on_gpu(seed, seed % 2)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(100):
                y = exported.stubbed(x, w)
            torch.cuda.current_stream().synchronize()
        if not torch.allclose(y.float(), (x.float() @ w.float()).square(), rtol=1e-2, atol=1e-2):
            wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.gpu
def test_gpu_other_devices(exported: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x, w = (t.to("cuda:1") for t in on_gpu(0))
    for _ in range(3):
        y = exported.stubbed(x, w)
        assert y.device == x.device
        expect(y, x, w)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_gpu_graph_computes_anew(exported: Any) -> None:
    x, w = on_gpu(0)
    replay = exported.stubbed_graph(x, w)
    assert replay.inputs[0] is x
    y = replay()
    expect(y, x, w)
    for seed in (1, 2):
        x.copy_(on_gpu(seed)[0])
        assert replay() is y
        expect(y, x, w)


@pytest.mark.gpu
def test_gpu_captured_by_hand(exported: Any) -> None:
    x, w = on_gpu(3, 1)
    exported.stubbed(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = exported.stubbed(x, w)
    y.zero_()
    graph.replay()
    expect(y, x, w)


@pytest.mark.gpu
def test_gpu_first_call_within_a_capture(source: str) -> None:
    """In a module of its own, which has compiled nothing yet."""
    module: Any = load_export("# another file\n" + source)
    x, w = on_gpu(4)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = module.stubbed(x, w)
        z = module.stubbed(x, w)
    captured.replay()
    expect(y, x, w)
    expect(z, x, w)


@pytest.mark.gpu
def test_gpu_hooks_see_every_launch(exported: Any) -> None:
    x, w = on_gpu(5)
    exported.stubbed(x, w)
    names: list[str] = []
    hook: Callable[[Any], None] = lambda metadata: names.append(metadata.get()["name"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        expect(exported.stubbed(x, w), x, w)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    exported.stubbed(x, w)
    assert names == ["k0", "k1"]


@pytest.mark.gpu
def test_gpu_python_file_says_the_overhead(source: str, tmp_path: Path) -> None:
    path = tmp_path / "stubbed.py"
    path.write_text(source, encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    line = r"^CPU +overhead \d+\.\d\d µs: a call without its 2 launches, \d+\.\d\d its own, .* \d+\.\d\d µs a call with"
    assert re.search(line, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.gpu
def test_gpu_overhead(exported: Any) -> None:
    """The best of three, since other work on the machine only ever adds to it."""
    x, w = on_gpu(6)
    times: list[CpuTime] = []
    with torch.inference_mode():
        for _ in range(3):
            times.append(cpu_time(lambda: exported.stubbed(x, w), exported._PLANS, x.get_device(), vars(exported)))
            print(times[-1])
    overheads = [t.overhead_us for t in times if t.launches == 2 and t.overhead_us is not None]
    assert len(overheads) == 3
    assert min(overheads) < 10, "\n".join(map(str, times))
