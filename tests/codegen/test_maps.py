"""Planned launches of kernels that read tensors in boxes: the same arguments as Triton's launcher would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.nvidia import driver as nvidia
from triton.tools.tensor_descriptor import TensorDescriptor

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.exported.direct import Plan, first_call
from mirage_cli.codegen.exported.maps import KEPT_MAPS, RecordedBoxKernel
from tools.launch_overhead import StubCompiled, StubDriver, StubKernel, c_launcher, chain, schedule_of

MAP = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [16, 16], "fp4_padded": False}
SHAPE, STRIDES, BOX = [64, 32], [32, 1], [16, 16]


class Encoder(StubDriver):
    """Makes maps of what the hardware would be told, and counts them."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        # As Triton 3.6 and 3.7 call it.
        self.utils = SimpleNamespace(fill_tma_descriptor=self.fill, fill_tma_descriptor_tiled=self.fill)

    def fill(self, *args: Any) -> tuple[Any, ...]:
        self.made.append(args)
        return ("map", *args)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    stub = Encoder()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=stub))
    return stub


def launcher(calls: list[Any], metadata: list[Any] | None) -> Any:
    """Triton's launcher for X and Y by pointers and X and W by descriptors, up to where C takes over."""
    signature = {"X": "*fp16", "X_desc": "tensordesc<fp16[16, 16]>", "Y": "*fp16", "W_desc": "tensordesc<fp16[16, 16]>"}
    return c_launcher(nvidia.wrap_handle_tensordesc(lambda *args: calls.append(flat(args)), signature, metadata))


def flat(args: tuple[Any, ...]) -> list[Any]:
    """The arguments; those of the kernel are a list of their own in Triton 3.7. A tensor is its address."""
    *others, last = args
    args = (*others, *last) if isinstance(last, list | tuple) and (not last or last[0] != "map") else args
    return [x.data_ptr() if hasattr(x, "data_ptr") else x for x in args]


class Boxes:
    """A planned launch of a stub kernel with descriptors of both inputs."""

    def __init__(self, metadata: list[Any] | None, run: Callable[[Any], Any] = lambda run: run) -> None:
        self.calls: list[Any] = []
        self.run = launcher(self.calls, metadata)

        def compiled(_: object) -> StubCompiled:
            result = StubCompiled(None)
            result._run = run(self.run)
            return result

        self.kernel = StubKernel([], compiled)
        self.recorded = RecordedBoxKernel(self.kernel)
        self.plans: dict[int, Plan] = {}

    def first(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        self.recorded[(5,)](x, descriptor(x), y, descriptor(w))

    def by_triton(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> list[Any]:
        """What Triton's launcher hands to C."""
        compiled = StubCompiled(None)
        args = x, descriptor(x), y, descriptor(w)
        self.run(5, 1, 1, 7, compiled.function, compiled.packed_metadata, None, None, None, *args)
        return self.calls.pop()

    def __call__(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        if 0 not in self.plans:
            first_call(self.plans, 0, [self.recorded], [x, w], lambda: self.first(x, w, y))
            return
        (start,) = self.plans[0].bind(7)
        start(*(t.data_ptr() for t in (x, x, y, w)))


def descriptor(x: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor(x, SHAPE, STRIDES, BOX)


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.zeros(SHAPE, dtype=torch.float16) for _ in range(count)]


@pytest.mark.parametrize("metadata", [[MAP, MAP], [], None])
def test_the_arguments_are_those_that_triton_makes(metadata: list[Any] | None, encoder: Encoder) -> None:
    """With maps (sm_90), and where the kernel was compiled to do without."""
    boxes = Boxes(metadata)
    x, w, y, z = tensors(4)
    boxes(x, w, y)
    assert len(boxes.kernel.dispatched) == 1
    for args in ((x, w, y), (z, x, y), (x, x, w)):
        boxes(*args)
        assert boxes.calls.pop() == boxes.by_triton(*args)
    assert len(boxes.kernel.dispatched) == 1


def test_a_map_is_made_once_for_each_address(encoder: Encoder) -> None:
    boxes = Boxes([MAP, MAP])
    x, w, y, z = tensors(4)
    for a in (x, w, x, z, w, x):
        boxes(a, w, y)
    assert [m[0] for m in encoder.made] == [t.data_ptr() for t in (w, w, x, z)]
    (step,) = boxes.plans[0].steps
    assert {i: len(m) for i, m in step.expand.maps} == {1: 3, 3: 1}


def test_a_map_is_made_once_for_each_address_and_shape_of_a_call(encoder: Encoder) -> None:
    """Where the tensor's shape differs by call, the address comes with it."""
    boxes = Boxes([MAP, MAP])
    x, w, y = tensors(3)
    boxes(x, w, y)
    encoder.made.clear()
    (start,) = boxes.plans[0].bind(7)
    for rows in (3, 64, 3, 5, 64):
        start(x.data_ptr(), (x.data_ptr(), (rows, 32), (32, 1)), y.data_ptr(), w.data_ptr())
        taken = boxes.calls.pop()
        compiled = StubCompiled(None)
        args = x, TensorDescriptor(x, [rows, 32], STRIDES, BOX), y, descriptor(w)
        boxes.run(5, 1, 1, 7, compiled.function, compiled.packed_metadata, None, None, None, *args)
        assert plain(taken) == plain(boxes.calls.pop())
    (step,) = boxes.plans[0].steps
    assert {i: len(m) for i, m in step.expand.maps} == {1: 3, 3: 1}


def plain(args: list[Any]) -> list[Any]:
    """Shapes and strides within maps as tuples."""
    return [tuple(tuple(x) if isinstance(x, list) else x for x in a) if isinstance(a, tuple) else a for a in args]


def test_maps_are_kept_up_to_a_number(encoder: Encoder) -> None:
    boxes = Boxes([MAP, MAP])
    many = tensors(KEPT_MAPS + 7)
    for x in many:
        boxes(x, many[0], many[1])
    (step,) = boxes.plans[0].steps
    assert len(dict(step.expand.maps)[1]) == 6  # the first call made none here


def test_memory_is_not_kept(encoder: Encoder) -> None:
    boxes = Boxes([MAP, MAP])
    x, w, y = tensors(3)
    for _ in range(2):
        boxes(x, w, y)
    (step,) = boxes.plans[0].steps
    assert [m.descriptor.base for _, m in step.expand.maps] == [None, None]


@pytest.mark.parametrize(
    "other",
    [lambda _: 5, lambda _: len, lambda _: SimpleNamespace(launch=len), lambda _: SimpleNamespace(launch=launcher)],
)
def test_an_unknown_launcher_is_left_to_triton(other: Callable[[Any], Any], encoder: Encoder) -> None:
    boxes = Boxes([MAP, MAP], other)
    for _ in range(2):
        boxes(*tensors(3))
    assert len(boxes.kernel.dispatched) == 2
    assert boxes.plans == {}


def test_files_carry_this_only_where_kernels_have_descriptors() -> None:
    program, graph = chain(2)
    with_boxes = export_source(program, graph, schedule_of(graph, descriptors=True))
    assert "k0 = RecordedBoxKernel(k0)\nk1 = RecordedKernel(k1)\n" in with_boxes
    assert "TensorMaps" not in export_source(program, graph, schedule_of(graph))


# On a GPU


@pytest.fixture(scope="module")
def exported() -> Any:
    """The square of X·W, whose operands are read through descriptors."""
    program, graph = chain(2)
    return load_export(export_source(program, graph, schedule_of(graph, descriptors=True)))


def draw(seed: int, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(seed)
    x, w = (torch.randn(n + offset, generator=g, device="cuda").half()[offset:] for n in (16 * 64, 64 * 48))
    return (x / 8 if offset == 0 else x.div_(8)).view(16, 64), w.view(64, 48)


def expect(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    torch.testing.assert_close(y.float(), (x.float() @ w.float()).square(), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_gpu_descriptors_at_many_addresses(exported: Any) -> None:
    """More than are kept, twice over, and some that the hardware takes no descriptor of."""
    data = [draw(seed, offset=seed % 9 == 8) for seed in range(KEPT_MAPS + 9)]
    results = [exported.stubbed(*args) for args in data * 2]
    for y, (x, w) in zip(results, data * 2, strict=True):
        expect(y, x, w)
    if torch.cuda.get_device_capability()[0] >= 9:
        assert len(exported._PLANS) == 1


@pytest.mark.gpu
def test_gpu_captured_descriptors_outlive_those_that_are_kept(exported: Any) -> None:
    x, w = draw(0)
    replay = exported.stubbed_graph(x, w)
    others = [draw(seed) for seed in range(KEPT_MAPS + 1)]
    for args in others:
        exported.stubbed(*args)
    x.copy_(draw(5)[0])
    expect(replay(), x, w)


@pytest.mark.gpu
def test_gpu_python_file_of_descriptors(exported: Any, tmp_path: Path) -> None:
    assert exported._check_this_file()
