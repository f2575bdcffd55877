"""This machine's first GPU as the driver describes it, and whether torch can use one. Neither imports torch: that takes
seconds, and an answer from the database should take less."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LIBRARY = "libcuda.so.1"
MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 16, 38, 75, 76
"""CUdevice_attribute, in cuda.h."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the driver says of a GPU. arch: as in "sm_90"."""

    name: str
    arch: str
    sms: int
    l2_bytes: int


def first_device() -> Device | None:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves; None where the driver is not there, or has none to offer."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, len(name), device):
        return None
    values: list[int] = []
    for attribute in (MAJOR, MINOR, MULTIPROCESSORS, L2_BYTES):
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    major, minor, sms, l2_bytes = values
    return Device(name.value.decode(errors="replace"), f"sm_{major}{minor}", sms, l2_bytes)


def device_count() -> int:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return 0
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def torch_has_cuda() -> bool:
    """Whether the torch that would be imported is a build for CUDA, by the version that it was made with."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    try:
        text = Path(torch.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None
