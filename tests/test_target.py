"""TARGETS and KNOBS: every row is plausible, every spelling is found, every mistake is answered with what is right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_cli import knobs
from mirage_cli.errors import KnobError, TargetError
from mirage_cli.target import REPRESENTATIVE, TARGETS, Target, driver_version, find_target, from_device


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_rows_are_consistent(target: Target) -> None:
    assert find_target(target.name) is target
    assert target.arch in REPRESENTATIVE and target.arch == f"sm_{target.sm}"
    assert target.fp32_flops_per_us < target.tf32_flops_per_us * 1.3 < target.tensor_flops_per_us * 1.3
    assert target.dram_bytes_per_us < target.l2_bytes_per_us
    assert target.smem_per_block_bytes == target.smem_per_sm_bytes - 1024  # the driver keeps 1 KiB of each block
    fma_per_clock = target.fp32_flops_per_us / target.sms / target.clock_mhz / 2
    assert 60 < fma_per_clock < 140, "64 or 128 fused multiply-adds a clock and multiprocessor"


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


@pytest.mark.parametrize(
    ("knob", "text"), [(knobs.DEBUG, "4"), (knobs.DEBUG, "yes"), (knobs.WORKERS, "0"), (knobs.WORKERS, "-1")]
)
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
    monkeypatch.setattr("mirage_cli.target.DRIVER_FILE", file)
    assert driver_version() == "570.86.15"
    file.unlink()
    monkeypatch.setenv("PATH", "")
    assert driver_version() is None
