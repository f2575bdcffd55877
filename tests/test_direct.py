"""Calls without Triton's dispatch: when they are taken, when not, and what they cost."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from mirage_cli.codegen.direct import (
    CONVENTION,
    KEPT_STREAMS,
    RECORDING,
    Bound,
    Memory,
    PlannedLaunch,
    RecordedCall,
    RecordedKernel,
    Step,
    on_stream,
    starts_as_known,
    way_into_c,
)
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.selfcheck import BATCH, BATCHES, CpuTime, cpu_time
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import Candidate, Failure, TensorSpec
from mirage_cli.verify.yardstick import fresh_memory_is_nan
from tests.launch_overhead import (
    StubCompiled,
    StubDriver,
    StubGpu,
    StubKernel,
    c_launcher,
    chain,
    inputs_of,
    kernel_names,
    load_with_stubs,
    measure,
    schedule_of,
)


class Address:
    """A tensor on a GPU, as far as a launch looks at it."""

    device = "gpu"
    dtype = torch.uint8

    def __init__(self, address: int, nbytes: int = 8) -> None:
        self.address, self.nbytes, self.shape = address, nbytes, (nbytes,)

    def stride(self) -> tuple[int]:
        return (1,)

    def data_ptr(self) -> int:
        return self.address

    def detach(self) -> Address:
        return Address(self.address)

    def get_device(self) -> int:
        return 0


NO_SCRATCH = Memory(Address, lambda *_: 0, lambda _: None)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    stub = StubDriver()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=stub))
    return stub


@pytest.fixture
def no_gpu(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """What files loaded with stubs ask torch for."""
    for where, name, answer in StubGpu.answers:
        monkeypatch.setattr(where, name, answer)
    return driver


class OneKernel:
    """A planned launch of one stub kernel, with scratch buffers of these sizes behind inputs and outputs."""

    def __init__(self, *scratch_bytes: int, kind: Any = StubCompiled) -> None:
        self.kernel = StubKernel([], kind)
        self.recorded = RecordedKernel(self.kernel)
        self.scratch_bytes = scratch_bytes
        self.allocated: list[tuple[int, int]] = []
        self.freed: list[int] = []
        self.planned = PlannedLaunch(
            self.launch, self.make_scratch, Memory(self.empty, self.allocate, self.freed.append)
        )

    def launch(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Sequence[Any]) -> None:
        self.recorded[(5,)](*inputs, *outputs, *scratch, num_warps=4)

    def make_scratch(self, device: str) -> list[Address]:
        assert device == "gpu"
        return [Address(1 << 20, n) for n in self.scratch_bytes]

    def empty(self, shape: tuple[int], *_: object) -> Address:
        return Address(1 << 20, *shape)

    def allocate(self, nbytes: int, stream: int) -> int:
        self.allocated.append((nbytes, stream))
        return 1 << 21

    def __call__(self, *addresses: int, device: int = 0) -> None:
        """The last address is the output's."""
        *inputs, y = map(Address, addresses)
        self.planned(device, inputs, [y])

    @property
    def dispatched(self) -> int:
        return len(self.kernel.dispatched)

    @property
    def started(self) -> list[tuple[Any, ...]]:
        """The arguments of the launches that did not go through Triton's dispatch."""
        return [c[9:] for c in self.kernel.calls or ()]


def test_the_second_call_starts_what_the_first_compiled(driver: StubDriver) -> None:
    one = OneKernel()
    one(32, 48)
    ((grid, args, options),) = one.kernel.dispatched
    assert (grid, [x.address for x in args], options) == ((5,), [32, 48], {"num_warps": 4})
    assert one.kernel.calls == []
    driver.stream = 9
    one(48, 64)
    assert one.dispatched == 1
    assert one.kernel.calls == [(5, 1, 1, 9, 3, (4, 1, 0), None, None, None, 48, 64)]
    assert one.allocated == []


def test_addresses_that_are_not_aligned_go_through_triton(driver: StubDriver) -> None:
    one = OneKernel()
    for _ in range(2):
        one(8, 16)
    assert one.planned.plans == {}
    for addresses in ((16, 32), (2, 16), (16, 8), (2, 8), (32, 48)):
        one(*addresses)
    assert one.dispatched == 6
    assert one.started == [(32, 48)]


def test_each_device_is_planned_for_itself(driver: StubDriver) -> None:
    one = OneKernel()
    for device in (0, 1, 0, 1):
        one(16, 32 + device * 16, device=device)
    assert one.dispatched == 2
    assert one.started == [(16, 32), (16, 48)]


def test_one_tensor_given_twice_may_be_two_the_next_time(driver: StubDriver) -> None:
    one = OneKernel()
    x = Address(16)
    one.planned(0, [x, x], [Address(32)])
    one(48, 64, 80)
    assert one.started == [(48, 64, 80)]


def test_calls_are_on_the_current_stream_however_many_there_are(driver: StubDriver) -> None:
    one = OneKernel()
    one(16, 32)
    streams = [*range(1, KEPT_STREAMS + 3), 1]
    for stream in streams:
        driver.stream = stream
        one(16, 32)
    assert [c[3] for c in one.kernel.calls or ()] == streams
    assert len(one.planned.plans[0].bound) <= KEPT_STREAMS


def test_scratch_is_one_allocation(driver: StubDriver) -> None:
    one = OneKernel(8, 256, 257)
    for _ in range(2):
        one(16, 32)
    start = 1 << 21
    assert (one.allocated, one.freed) == ([(256 + 256 + 512, driver.stream)], [start])
    assert one.started == [(16, 32, start, start + 256, start + 512)]


def test_scratch_is_given_back_where_a_launch_fails(driver: StubDriver) -> None:
    one = OneKernel(8)
    one(16, 32)
    (plan,) = one.planned.plans.values()
    plan.bound[driver.stream] = [Bound(lambda *_: pytest.fail("launched"), plan.steps[0].pick)]
    with pytest.raises(pytest.fail.Exception, match="launched"):
        one(16, 32)
    assert one.freed == [1 << 21]


def test_scratch_that_pytorch_is_to_fill_is_a_tensor(driver: StubDriver) -> None:
    """Where what a kernel does not write is to be NaN."""
    one = OneKernel(8, 8)
    one(16, 32)
    with fresh_memory_is_nan():
        one(16, 32)
    start = 1 << 20
    assert (one.dispatched, one.started, one.allocated) == (1, [(16, 32, start, start + 256)], [])


def test_a_pytorch_without_such_memory_launches_in_tritons_own_way(driver: StubDriver) -> None:
    one = OneKernel(8)
    one.planned.memory = Memory(one.empty, None, None)
    for _ in range(2):
        one(16, 32)
    assert (one.dispatched, one.planned.plans) == (2, {})


def test_a_kernel_with_a_single_argument(driver: StubDriver) -> None:
    one = OneKernel()
    one.planned.launch = lambda _, outputs, scratch: one.launch([], outputs, scratch)
    one(16, 32)
    one(16, 48)
    assert one.started == [(48,)]


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_launch_hooks_are_called_by_triton_itself(
    hook: str, driver: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneKernel()
    runtime = triton.knobs.runtime
    one(0, 16)
    profiler: Callable[..., None] = lambda *_: None  # noqa: E731
    getattr(runtime, hook).add(profiler)
    try:
        one(0, 16)
    finally:
        getattr(runtime, hook).remove(profiler)
    assert one.dispatched == 2
    with monkeypatch.context() as patched:
        patched.setattr(runtime, hook, profiler)
        one(0, 16)
        assert one.dispatched == 3
        patched.setattr(runtime, hook, None)
        one(0, 16)
    one(0, 16)
    assert one.dispatched == 3
    assert len(one.started) == 2


class OtherCompiled:
    """What another Triton might compile: it starts its kernels otherwise."""

    def __init__(self, calls: object) -> None:
        pass

    def __getitem__(self, grid: tuple[int]) -> None:
        raise AssertionError("started")


@pytest.mark.parametrize("kind", [OtherCompiled, lambda _: None, lambda _: 5])
def test_another_triton_launches_in_its_own_way(kind: object, driver: StubDriver) -> None:
    one = OneKernel(kind=kind)
    for _ in range(3):
        one(0, 16)
    assert one.dispatched == 3
    assert one.planned.plans == {}


def test_this_triton_is_known() -> None:
    assert starts_as_known(StubCompiled)
    assert not starts_as_known(OtherCompiled)
    assert not starts_as_known(int)
    assert " " not in CONVENTION


@pytest.mark.parametrize("other", [3, None, Address(16), SimpleNamespace(base=Address(16))])
def test_arguments_that_are_no_tensors_of_the_call_go_through_triton(other: object, driver: StubDriver) -> None:
    kernel = StubKernel([])
    recorded = RecordedKernel(kernel)
    planned = PlannedLaunch(lambda xs, ys, _: recorded[(1,)](*xs, *ys, other), lambda _: [], NO_SCRATCH)
    for _ in range(2):
        planned(0, [Address(0)], [Address(16)])
    assert len(kernel.dispatched) == 2
    assert planned.plans == {}


def test_libraries_are_called_with_tensors_in_their_turn(driver: StubDriver) -> None:
    one = OneKernel(8)
    calls: list[Any] = []
    library = RecordedCall(lambda *tensors: calls.append([x.address for x in tensors]))

    def launch(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Sequence[Any]) -> None:
        library(inputs[1], scratch[0])
        one.launch(inputs, [], scratch)
        library(scratch[0], *outputs)

    one.kernel.calls = calls
    one.planned.launch = launch
    for _ in range(3):
        one(16, 32, 48)
    buffer = 1 << 20
    assert one.dispatched == 1
    assert calls[:2] == [[32, buffer], [buffer, 48]]
    assert [c if isinstance(c, list) else c[9:] for c in calls[2:5]] == [[32, buffer], (16, 32, buffer), [buffer, 48]]
    assert calls[5:] == calls[2:5]
    assert one.allocated == []


def test_pytorch_makes_tensors_of_what_libraries_see_alone(driver: StubDriver) -> None:
    one = OneKernel(8, 16, 300)
    calls: list[Any] = []
    library = RecordedCall(lambda *tensors: calls.append([x.address for x in tensors]))

    def launch(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Sequence[Any]) -> None:
        one.launch(inputs, [], scratch)
        library(scratch[1], *outputs)

    one.kernel.calls = calls
    one.planned.launch = launch
    one(16, 32)
    calls.clear()
    one(16, 32)
    own, tensor = 1 << 21, 1 << 20
    assert [c if isinstance(c, list) else c[9:] for c in calls] == [(16, own, tensor, own + 256), [tensor, 32]]
    assert (one.allocated, one.freed) == ([(256 + 512, driver.stream)], [own])


def test_c_is_called_as_triton_calls_it() -> None:
    calls: list[Any] = []
    run = c_launcher(lambda *args: calls.append(args))
    assert way_into_c(type(run)) is not None
    assert way_into_c(OtherCompiled) is way_into_c(int) is None
    start, pick = on_stream(Step(run, 5, 3, (4, 1, 0), tuple), 7)
    start(*pick([16, 32]))
    run(5, 1, 1, 7, 3, (4, 1, 0), None, None, None, 16, 32)
    by_plan, by_triton = calls
    assert by_plan == by_triton


def test_triton_allocates_what_kernels_ask_it_for() -> None:
    run = c_launcher(pytest.fail)
    run.global_scratch_size = 8
    start, pick = on_stream(Step(run, 5, 3, (4, 1, 0), tuple), 7)
    with pytest.raises(RuntimeError, match="allocat"):
        start(*pick([16, 32]))


def test_what_fails_is_not_planned(driver: StubDriver) -> None:
    one = OneKernel()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    one.planned.launch = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        one(16, 32)
    assert one.planned.plans == {}
    assert RECORDING.noted is None


def test_threads_share_the_plan(driver: StubDriver) -> None:
    one = OneKernel()
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            one(16, 32)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert 1 <= one.dispatched <= 8
    assert one.dispatched + len(one.started) == 400
    assert set(one.started) == {(16, 32)}


def test_threads_do_not_note_the_launches_of_others(driver: StubDriver) -> None:
    one = OneKernel()

    def launch_with_another(*tensors: Any) -> None:
        other = threading.Thread(target=one.launch, args=([Address(160)], [Address(176)], []))
        other.start()
        other.join()
        one.launch(*tensors)

    one.planned.launch = launch_with_another
    one(16, 32)
    one(48, 64)
    assert one.dispatched == 2
    assert one.started == [(48, 64)]


# The exported file


def test_calls_of_an_exported_function_take_the_direct_way(no_gpu: StubDriver) -> None:
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


def test_fresh_memory_is_filled_where_pytorch_shall_do_so(no_gpu: StubDriver) -> None:
    """The self-check would see what a kernel forgets to write: here the stubs write nothing."""
    module: Any = load_with_stubs(*chain(2))
    x, w = inputs_of(chain(2)[0])
    with fresh_memory_is_nan():
        for _ in range(2):
            assert module.stubbed(x, w).isnan().all()
    assert len(module.k0.kernel.dispatched) == 1


def test_a_library_kernel_is_planned_with_the_others(no_gpu: StubDriver) -> None:
    program, graph = chain(2, library=True)
    module: Any = load_with_stubs(program, graph)
    x, w = (torch.ones_like(t) for t in inputs_of(program))
    products: list[Any] = []
    module.k0.function = lambda *tensors: products.append(tensors)
    for _ in range(3):
        module.stubbed(x, w)
    assert kernel_names(module) == ["k1"]
    assert len(module.k1.kernel.dispatched) == 1
    assert [(a.data_ptr(), b.data_ptr(), c.shape) for a, b, c in products] == [
        (x.data_ptr(), w.data_ptr(), (16, 48))
    ] * 3


def test_weights_that_could_be_trained_cost_nothing_where_no_gradient_is_recorded(no_gpu: StubDriver) -> None:
    program, graph = chain(1)
    module: Any = load_with_stubs(program, graph)
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.nn.Parameter(torch.zeros(64, 48, dtype=torch.float16))
    assert not module._is_plain((x, w))
    with torch.no_grad():
        assert module._is_plain((x, w))
    with torch.inference_mode():
        assert module._is_plain((x, w))


def test_inputs_like_those_of_the_call_before_are_known_at_once_and_no_others(no_gpu: StubDriver) -> None:
    program, graph = chain(2)
    module: Any = load_with_stubs(program, graph)
    x, w = inputs_of(program)
    module.stubbed(x, w)
    ((alike, trained),) = module._KNOWN.values()
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
    no_gpu: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = load_with_stubs(*chain(2))
    monkeypatch.setattr(module, "TensorGuards", lambda *tensors: None)
    for _ in range(2):
        assert module.stubbed(*inputs_of(chain(2)[0])).shape == (16, 48)
    assert not module._KNOWN


def test_known_inputs_are_not_plain_while_a_gradient_is_recorded(
    no_gpu: StubDriver, monkeypatch: pytest.MonkeyPatch
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
def test_overhead_without_a_gpu(kernels: int, library: bool, no_gpu: StubDriver) -> None:
    """The bound is far above what is usual, for machines that are busy with other things."""
    time = measure(*chain(kernels, library))
    assert time.launches == kernels
    assert time.overhead_us is not None
    assert 0.5 < time.overhead_us < 50
    overhead = f"overhead {time.overhead_us:.2f} µs: a call without its {kernels} launches"
    assert f"{overhead}; {time.call_us:.2f} µs a call with them" in str(time)


def test_the_overhead_is_of_calls_without_launches(no_gpu: StubDriver) -> None:
    module: Any = load_with_stubs(*chain(2))
    calls: list[tuple[Any, ...]] = []
    for k in (module.k0, module.k1):
        k.kernel = StubKernel(calls)
    inputs = inputs_of(chain(2)[0])
    time = cpu_time(lambda: module.stubbed(*inputs), module._planned, 0)
    assert time.launches == 2
    assert len(calls) == 2 * BATCHES * BATCH  # the first call went by Triton's own way
    module.stubbed(*inputs)
    assert len(calls) == 2 * BATCHES * BATCH + 2


def test_where_triton_launches_in_its_own_way_the_overhead_is_not_known(no_gpu: StubDriver) -> None:
    one = OneKernel(kind=OtherCompiled)
    time = cpu_time(lambda: one(0, 16), one.planned, 0)
    assert (time.overhead_us, time.launches) == (None, 0)
    assert "overhead" not in str(time)


def test_a_file_of_library_calls_alone_has_no_plan(no_gpu: StubDriver) -> None:
    program, graph = chain(1, library=True)
    source = export_source(program, graph, schedule_of(graph))
    assert "class Plan" not in source and "import triton" not in source
    module: Any = load_export(source.replace('"cuda"', '"cpu"').replace("_strided_cuda", "_strided_cpu"))
    x, w = (torch.randn(t.shape).half() for t in inputs_of(program))
    assert torch.equal(module._run(x, w), x @ w)
    time = cpu_time(lambda: module._run(x, w), None, 0)
    assert time.overhead_us is None


def test_a_cuda_graph_is_of_inputs_that_are_right_and_on_a_gpu() -> None:
    program, graph = chain(1)
    module: Any = load_export(export_source(program, graph, schedule_of(graph)))
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.zeros(64, 48, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"W should have the dtype torch.float16"):
        module.stubbed_graph(x, w.float())
    with pytest.raises(ValueError, match="a CUDA graph needs inputs on a CUDA device, not on cpu"):
        module.stubbed_graph(X=x, W=w)


@pytest.mark.parametrize("library", [False, True])
def test_the_compile_farm_takes_an_exported_file(
    library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors have no data, and what it compiles is for a GPU that is not there."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    program, graph = chain(2, library)
    inputs, outputs = ([TensorSpec(t.name, tuple(program.sizes[d] for d in t.dims), t.dtype) for t in side]
                       for side in (program.inputs, program.outputs))  # fmt: skip
    job = Candidate("exported", export_source(program, graph, schedule_of(graph)))
    with CompileFarm(90, workers=1) as farm:
        ((_, kernels),) = farm.compile_all([job], tuple(inputs), tuple(outputs))
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
    assert [len(plan.steps) for plan in exported._planned.plans.values()] == [2]


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
    assert [plan.needs_tensors for plan in module._planned.plans.values()] == [True]
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
    line = r"^CPU +overhead \d+\.\d\d µs: a call without its 2 launches; \d+\.\d\d µs a call with them"
    assert re.search(line, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.gpu
def test_gpu_overhead(exported: Any) -> None:
    """The best of three, since other work on the machine only ever adds to it."""
    x, w = on_gpu(6)
    times: list[CpuTime] = []
    with torch.inference_mode():
        for _ in range(3):
            times.append(cpu_time(lambda: exported.stubbed(x, w), exported._planned, x.get_device()))
            print(times[-1])
    overheads = [t.overhead_us for t in times if t.launches == 2 and t.overhead_us is not None]
    assert len(overheads) == 3
    assert min(overheads) < 10, "\n".join(map(str, times))
