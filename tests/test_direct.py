"""Launches without Triton's dispatch: when they are taken, when not, and what they cost."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from mirage_cli.codegen.direct import CONVENTION, DirectLaunch, starts_as_known
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.selfcheck import CpuTime, bare_launches, cpu_time
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import Candidate, Failure, TensorSpec
from tests.launch_overhead import (
    StubCompiled,
    StubDriver,
    StubKernel,
    chain,
    kernel_names,
    load_with_stubs,
    measure,
    schedule_of,
)


class Address:
    """A tensor on a GPU, as far as a launch looks at it."""

    is_cuda = True

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    stub = StubDriver()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=stub))
    return stub


@pytest.fixture
def no_gpu(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """What files loaded with stubs ask torch for."""
    for name in ("current_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    return driver


@pytest.fixture
def stub(driver: StubDriver) -> tuple[DirectLaunch, StubKernel]:
    kernel = StubKernel([])
    return DirectLaunch(kernel), kernel


Stub = tuple[DirectLaunch, StubKernel]


def test_the_second_launch_starts_what_the_first_compiled(stub: Stub, driver: StubDriver) -> None:
    direct, kernel = stub
    x, y = Address(32), Address(48)
    direct[(5,)](x, y, num_warps=4)
    assert kernel.dispatched == [((5,), (x, y), {"num_warps": 4})]
    assert kernel.calls == []
    driver.stream = 9
    direct[(5,)](y, Address(64), num_warps=4)
    assert len(kernel.dispatched) == 1
    assert kernel.calls == [(5, 1, 1, 9, 3, (4, 1, 0), None, None, None, 48, 64)]


def test_each_alignment_and_each_device_is_compiled_for_itself(stub: Stub, driver: StubDriver) -> None:
    direct, kernel = stub
    for device in (0, 1):
        driver.device = device
        for addresses in ((0, 16), (2, 16), (16, 8), (2, 8)):
            for _ in range(2):
                direct[(1,)](*map(Address, addresses))
        direct[(1,)](Address(30), Address(14))  # neither is aligned, as with 2 and 8
    assert len(kernel.dispatched) == 8
    assert [c[-2:] for c in kernel.calls or ()] == [(0, 16), (2, 16), (16, 8), (2, 8), (30, 14)] * 2


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_launch_hooks_are_called_by_triton_itself(stub: Stub, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, kernel = stub
    runtime = triton.knobs.runtime
    direct[(1,)](Address(0))
    profiler: Callable[..., None] = lambda *_: None  # noqa: E731
    getattr(runtime, hook).add(profiler)
    try:
        direct[(1,)](Address(0))
    finally:
        getattr(runtime, hook).remove(profiler)
    assert len(kernel.dispatched) == 2
    with monkeypatch.context() as patched:
        patched.setattr(runtime, hook, profiler)
        direct[(1,)](Address(0))
        assert len(kernel.dispatched) == 3
        patched.setattr(runtime, hook, None)
        direct[(1,)](Address(0))
    direct[(1,)](Address(0))
    assert len(kernel.dispatched) == 3
    assert len(kernel.calls or ()) == 2


class OtherCompiled:
    """What another Triton might compile: it starts its kernels otherwise."""

    def __init__(self, calls: object) -> None:
        pass

    def __getitem__(self, grid: tuple[int]) -> None:
        raise AssertionError("started")


@pytest.mark.parametrize("kind", [OtherCompiled, lambda _: None, lambda _: 5])
def test_another_triton_launches_in_its_own_way(kind: object, driver: StubDriver) -> None:
    kernel = StubKernel([], kind)
    direct = DirectLaunch(kernel)
    for _ in range(3):
        direct[(1,)](Address(0))
    assert len(kernel.dispatched) == 3
    assert direct.compiled == {}


def test_this_triton_is_known() -> None:
    assert starts_as_known(StubCompiled)
    assert not starts_as_known(OtherCompiled)
    assert not starts_as_known(int)
    assert " " not in CONVENTION


@pytest.mark.parametrize("other", [3, None, SimpleNamespace(base=1), torch.zeros(1), torch.zeros(1, device="meta")])
def test_arguments_that_are_no_tensors_on_a_gpu_go_through_triton(other: object, stub: Stub) -> None:
    direct, kernel = stub
    for _ in range(2):
        direct[(1,)](other, num_stages=2)
    assert len(kernel.dispatched) == 2
    assert direct.compiled == {}


def test_a_descriptor_among_tensors_goes_through_triton(stub: Stub) -> None:
    direct, kernel = stub
    for _ in range(2):
        direct[(1,)](Address(0), SimpleNamespace(base=Address(16)))
    assert len(kernel.dispatched) == 2


def test_threads_share_what_was_compiled(stub: Stub) -> None:
    direct, kernel = stub
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            direct[(1,)](Address(16))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert 1 <= len(kernel.dispatched) <= 8
    assert len(kernel.dispatched) + len(kernel.calls or ()) == 400


# The exported file


def test_calls_of_an_exported_function_take_the_direct_way(no_gpu: StubDriver) -> None:
    program, graph = chain(3)
    module: Any = load_with_stubs(program, graph)
    kernels = [getattr(module, name) for name in kernel_names(module)]
    assert len(kernels) == 3
    x, w = (torch.zeros([program.sizes[d] for d in t.dims], dtype=torch.float16) for t in program.inputs)
    for _ in range(3):
        assert module.stubbed(x, w).shape == (16, 48)
    assert [len(k.kernel.dispatched) for k in kernels] == [1, 1, 1]
    odd = torch.zeros(16 * 64 + 1, dtype=torch.float16)[1:].view(16, 64)
    module.stubbed(odd, w)
    assert [len(k.kernel.dispatched) for k in kernels] == [2, 1, 1]
    with pytest.raises(ValueError, match="X should be contiguous"):
        module.stubbed(torch.zeros(64, 16, dtype=torch.float16).mT, w)


def test_weights_that_could_be_trained_cost_nothing_where_no_gradient_is_recorded(no_gpu: StubDriver) -> None:
    program, graph = chain(1)
    module: Any = load_with_stubs(program, graph)
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.nn.Parameter(torch.zeros(64, 48, dtype=torch.float16))
    assert not module._is_plain((x, w))
    with torch.no_grad():
        assert module._is_plain((x, w))
    with torch.inference_mode():
        assert module._is_plain((x, w))


def test_overhead_without_a_gpu(no_gpu: StubDriver) -> None:
    """The bound is far above what is usual, for machines that are busy with other things."""
    time = measure(1)
    assert time.launches == 1
    assert time.overhead_us is not None
    assert 0.5 < time.overhead_us < 50
    assert f"overhead {time.overhead_us:.2f} µs: {time.call_us:.2f} µs a call, its 1 bare launches" in str(time)


def test_bare_launches_are_those_of_the_call(no_gpu: StubDriver) -> None:
    program, graph = chain(2)
    module: Any = load_with_stubs(program, graph)
    calls: list[tuple[Any, ...]] = []
    kernels = [module.k0, module.k1]
    for k in kernels:
        k.kernel = StubKernel(calls)
    inputs = [torch.zeros(16, 64, dtype=torch.float16), torch.zeros(64, 48, dtype=torch.float16)]
    outputs, scratch = module._empty_outputs("cpu"), module.make_scratch("cpu")
    x, w, y, b = (t.data_ptr() for t in (*inputs, *outputs, *scratch))
    bare = bare_launches(lambda: module.launch(inputs, outputs, scratch), kernels)
    assert calls == []
    for start in bare:
        start()
    assert [c[9:] for c in calls] == [(x, w, b), (b, y)]
    module.launch(inputs, outputs, scratch)
    assert calls[2:] == calls[:2]


def test_where_triton_launches_in_its_own_way_the_overhead_is_not_known(no_gpu: StubDriver) -> None:
    kernel = DirectLaunch(StubKernel([], OtherCompiled))
    launch: Callable[[], None] = lambda: kernel[(1,)](Address(0))  # noqa: E731
    time = cpu_time(launch, launch, [kernel])
    assert (time.launches_us, time.overhead_us, time.launches) == (None, None, 0)
    assert "overhead" not in str(time)


def test_a_cuda_graph_is_of_inputs_that_are_right_and_on_a_gpu() -> None:
    program, graph = chain(1)
    module: Any = load_export(export_source(program, graph, schedule_of(graph)))
    x, w = torch.zeros(16, 64, dtype=torch.float16), torch.zeros(64, 48, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"W should have the dtype torch.float16"):
        module.stubbed_graph(x, w.float())
    with pytest.raises(ValueError, match="a CUDA graph needs inputs on a CUDA device, not on cpu"):
        module.stubbed_graph(X=x, W=w)


def test_the_compile_farm_takes_an_exported_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors have no data, and what it compiles is for a GPU that is not there."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    program, graph = chain(2)
    inputs, outputs = ([TensorSpec(t.name, tuple(program.sizes[d] for d in t.dims), t.dtype) for t in side]
                       for side in (program.inputs, program.outputs))  # fmt: skip
    job = Candidate("exported", export_source(program, graph, schedule_of(graph)))
    with CompileFarm(90, workers=1) as farm:
        ((_, kernels),) = farm.compile_all([job], tuple(inputs), tuple(outputs))
    assert not isinstance(kernels, Failure)
    assert [k.name for k in kernels] == ["k0", "k1"]


# On a GPU


@pytest.fixture(scope="module")
def source() -> str:
    """Two kernels: the square of X·W, after a buffer."""
    if not torch.cuda.is_available() or triton.knobs.runtime.interpret:
        pytest.skip("no GPU, or kernels are interpreted")
    program, graph = chain(2)
    return export_source(program, graph, schedule_of(graph))


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
    assert len(exported.k0.compiled) == 3  # all aligned, X not, neither
    assert len(exported.k1.compiled) == 1


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
    assert re.search(r"^CPU +overhead \d+\.\d\d µs: .* its 2 bare launches", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.gpu
def test_gpu_overhead(exported: Any) -> None:
    x, w = on_gpu(6)
    exported.stubbed(x, w)
    outputs, scratch = exported._empty_outputs(x.device), exported.make_scratch(x.device)
    kernels = [exported.k0, exported.k1]
    with torch.inference_mode():
        time: CpuTime = cpu_time(
            lambda: exported.stubbed(x, w), lambda: exported.launch((x, w), outputs, scratch), kernels
        )
    print(time)
    assert time.launches == 2
    assert time.overhead_us is not None
    assert time.overhead_us < 10, str(time)
