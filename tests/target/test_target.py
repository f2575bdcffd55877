"""TARGETS and KNOBS: every row is plausible, every spelling is found, every mistake is answered with what is right."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import KnobError, TargetError
from mirage_cli.target import device, knobs
from mirage_cli.target.gpus import (
    REPRESENTATIVE,
    TARGETS,
    Costs,
    Target,
    driver_version,
    find_target,
    from_device,
    local_target,
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_rows_are_consistent(target: Target) -> None:
    assert find_target(target.name) is target
    assert target.arch in REPRESENTATIVE and target.arch == f"sm_{target.sm}"
    assert target.fp32_flops_per_us < target.tf32_flops_per_us * 1.3 < target.tensor_flops_per_us * 1.3
    assert target.dram_bytes_per_us < target.l2_bytes_per_us
    assert target.smem_per_block_bytes == target.smem_per_sm_bytes - 1024  # the driver keeps 1 KiB of each block
    fma_per_clock = target.fp32_flops_per_us / target.sms / target.clock_mhz / 2
    assert 60 < fma_per_clock < 140, "64 or 128 fused multiply-adds a clock and multiprocessor"


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_constants_of_the_cost_model_are_positive_and_parts_are_parts(target: Target) -> None:
    costs = asdict(target.costs)
    assert all(x > 0 for x in costs.values())
    parts = ("traffic", "simd", "few_warps", "tf32x3", "ieee", "held", "waste", "shown", "exposed", "library_memory")
    assert all(costs[name] < 1 for name in parts)
    assert all(re.search(rf"\b{name}\b", Costs.__doc__ or "") for name in costs), "each is explained"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("H100 SXM", "h100"),
        ("sm_90", "h100"),
        ("SM_100A", "b200"),
    ],
)
def test_a_target_has_many_spellings(text: str, name: str) -> None:
    assert find_target(text).name == name


def test_an_unknown_target_lists_the_known() -> None:
    with pytest.raises(TargetError, match=r"'h300'.*auto, a100.*sm_120"):
        find_target("h300")


def test_a_device_is_recognised_or_scaled_from_its_architecture() -> None:
    assert from_device("NVIDIA H200", "sm_90", 132, 50 << 20).name == "h200"
    pcie = from_device("NVIDIA H100 PCIe", "sm_90", 114, 50 << 20)
    assert (pcie.sms, pcie.arch) == (114, "sm_90")
    assert pcie.fp32_flops_per_us == pytest.approx(66.9e6 * 114 / 132)
    with pytest.raises(TargetError, match="sm_70"):
        from_device("Tesla V100", "sm_70", 80, 6 << 20)


@pytest.mark.parametrize("knob", knobs.KNOBS, ids=lambda k: k.name)
def test_knobs_have_a_default_and_a_name(knob: knobs.Knob[object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert knob.name.startswith("MIRAGE_") and knob.doc
    monkeypatch.delenv(knob.name, raising=False)
    default = knob.value()
    monkeypatch.setenv(knob.name, "")
    assert knob.value() == default, "empty means unset"


@pytest.mark.parametrize(("knob", "text"), [(knobs.WORKERS, "yes"), (knobs.WORKERS, "0"), (knobs.WORKERS, "-1")])
def test_a_bad_value_is_refused(knob: knobs.Knob[object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knob.name, text)
    with pytest.raises(KnobError, match=f"{knob.name} is '{text}'; expected"):
        knob.value()


def test_workers_follow_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRAGE_WORKERS", raising=False)
    assert 1 <= knobs.WORKERS.value() <= (os.cpu_count() or 1)
    monkeypatch.setenv("MIRAGE_WORKERS", "3")
    assert knobs.WORKERS.value() == 3


def test_the_driver_names_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version:\n")
    monkeypatch.setattr("mirage_cli.target.gpus.DRIVER_FILE", file)
    assert driver_version() == "570.86.15"
    file.unlink()
    monkeypatch.setenv("PATH", "")
    assert driver_version() is None


class Driver:
    """libcuda with one GPU, in Python. failing: the call that answers with an error."""

    def __init__(self, attributes: Mapping[int, int], failing: str = "") -> None:
        self.attributes, self.failing = attributes, failing

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 100 * (self.failing == "cuInit")

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        return 101 * (self.failing == "cuDeviceGet")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = self.attributes[attribute]
        return 1 * (self.failing == "cuDeviceGetAttribute")


H200 = {16: 132, 38: 50 << 20, 75: 9, 76: 0}
BUILDS = {
    "cuda: Optional[str] = '12.8'\n": True,
    "cuda = '12.8'\n": True,
    "cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n": False,
}


@pytest.mark.parametrize("failing", ["", "cuInit", "cuDeviceGet", "cuDeviceGetAttribute"])
def test_the_driver_describes_its_first_gpu(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(H200, failing))
    monkeypatch.setattr("mirage_cli.target.gpus.torch_has_cuda", lambda: True)
    assert device.device_count() == (0 if failing == "cuInit" else 2)
    if failing:
        assert device.first_device() is None and local_target() is None
    else:
        assert device.first_device() == device.Device("NVIDIA H200", "sm_90", 132, 50 << 20)
        assert local_target() is find_target("h200")


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LIBRARY", "libno-such-driver.so.1")
    assert device.first_device() is None and device.device_count() == 0


@pytest.mark.parametrize("text", BUILDS)
def test_a_gpu_needs_a_torch_that_was_built_for_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(H200))
    (tmp_path / "version.py").write_text(text, encoding="utf-8")
    found = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(device, "find_spec", lambda _: found)
    assert device.torch_has_cuda() == BUILDS[text]
    assert (local_target() is not None) == BUILDS[text]
    (tmp_path / "version.py").unlink()
    assert not device.torch_has_cuda()
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    assert not device.torch_has_cuda()


def test_what_torch_says_of_itself_is_read_without_it() -> None:
    torch = pytest.importorskip("torch")
    assert device.torch_has_cuda() == (torch.version.cuda is not None)
