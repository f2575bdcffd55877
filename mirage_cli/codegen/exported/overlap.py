"""Whether a kernel is started before the one in front has ended (programmatic dependent launch), by what that one is.

Behind a kernel that releases nothing early, a small kernel takes up to 0.6 µs longer where it is started so, and one
that fetches much while it waits up to 0.9 µs less (one H200). So schedules may ask for patience: to be started so only
behind a kernel that does release early. While a CUDA graph is captured, the kernel in front is known. Exported files
carry this text.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from types import ModuleType
from typing import Any  # the driver's library, which has no types

SHARED = "mirage_kernels"
"""A module that all exported files of a process share."""
CAPTURING, KERNEL_NODE = 1, 0  # CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_GRAPH_NODE_TYPE_KERNEL
NEEDED = ("cuStreamGetCaptureInfo_v3", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2")  # of CUDA 12.3 and later


def releasing_kernels() -> set[int]:
    """The driver's handles of kernels that let the next one start early, of all exported files."""
    module = sys.modules.setdefault(SHARED, ModuleType(SHARED))
    return module.__dict__.setdefault("releasing", set())


class KernelNode(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("pointers", ctypes.c_void_p * 4),
    )


@functools.cache
def driver_library() -> Any:
    """The driver's functions; None where one of them is missing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if all(hasattr(library, name) for name in NEEDED) else None


def starts_early(stream: int) -> bool:
    """Whether the next kernel on this stream is to be started early: in a capture, behind a kernel that releases it.

    Outside of captures nobody knows what is in front, and where it releases nothing, launches take longer than that.
    """
    library = driver_library()
    if library is None:
        return True
    status, count = ctypes.c_int(), ctypes.c_size_t()
    nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
    found = (ctypes.byref(x) for x in (status, nodes, edges, count))
    status_at, nodes_at, edges_at, count_at = found
    error = library.cuStreamGetCaptureInfo_v3(
        ctypes.c_void_p(stream), status_at, None, None, nodes_at, edges_at, count_at
    )
    if error or status.value != CAPTURING:
        return True
    return count.value == 1 and kernel_of(library, nodes[0]) in releasing_kernels()


def kernel_of(library: Any, node: int) -> int | None:
    """The handle of the kernel that a node of a graph starts; None where the node is no kernel."""
    kind, parameters = ctypes.c_int(), KernelNode()
    if library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) or kind.value != KERNEL_NODE:
        return None
    if library.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(parameters)):
        return None
    return parameters.function
