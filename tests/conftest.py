"""Triton's interpreter stands in for a GPU, except in a run of the GPU tests alone, which need the compiler.

Processes are forked from one template, which the workers of a run share. Most tests share those of their worker that
interpret or compile kernels.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.forked import one_template

if TYPE_CHECKING:
    from mirage_cli.tune.compilefarm import CompileFarm
    from mirage_cli.tune.interpreted import Interpreter


INDUCTOR = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no processes beside it, which import torch too
    "TORCHINDUCTOR_VEC_ISA_OK": "0",  # no trials of what the machine's vector units compile
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
"""What makes Inductor start sooner, where it compiles little."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}
"""For the processes of a run: memory of tensors is used again, and not given back and mapped anew. Page faults were a
quarter of the time of some tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module imports what reads these variables once. A value that is already set stays.

    The matrices of the tests are small: threads of one test only wait for those of the test beside it.
    """
    if config.getoption("markexpr", "").strip() != "gpu":
        for name, value in {"TRITON_INTERPRET": "1", **INDUCTOR}.items():
            os.environ.setdefault(name, value)
    for name, value in {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **ALLOCATOR}.items():
        os.environ.setdefault(name, value)
    own = ExitStack()
    own.enter_context(one_template())
    config.add_cleanup(own.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are marked with `gpu` need one, and kernels that are compiled for it. Behind the imports of all tests:
    kernels that are interpreted here are interpreted as in a process of `tune.interpreted`. Tests that share searches
    (`tests.searched`) come first: a worker that has tests in a row searches once."""
    from tests.searched import searched

    items.sort(key=lambda item: getattr(getattr(item, "module", None), "searched", None) is not searched)
    if os.environ.get("TRITON_INTERPRET") == "1":
        from mirage_cli.tune.triton_interpreter import like_a_gpu

        with suppress(ImportError):  # without Triton
            like_a_gpu()
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch
        import triton

        if not torch.cuda.is_available() or triton.knobs.runtime.interpret:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no GPU, or kernels are interpreted"))


def pytest_collection_finish() -> None:
    """The modules stay: the garbage collector need not look at what is in them. What tests make is mostly freed without
    it: it looks as seldom as in a search (`pipeline.searching`)."""
    from mirage_cli.pipeline.searching import SELDOM

    gc.freeze()
    gc.set_threshold(*SELDOM)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A process that judges kernels in the interpreter, started when first asked."""
    from mirage_cli.tune.interpreted import Interpreter

    with Interpreter() as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's disk cache, where processes of `farm` leave the stages of what they compile."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="session")
def farm(triton_cache: Path) -> Iterator[Callable[[int], CompileFarm]]:
    """For each architecture a process that compiles, started when first asked."""
    from mirage_cli.tune.compilefarm import CompileFarm

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(triton_cache))
        yield cache(lambda arch: stack.enter_context(CompileFarm(arch, workers=1)))


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """No test finds a graph that another has compiled."""
    config = sys.modules.get("torch._functorch.config")
    with nullcontext() if config is None else config.patch(enable_autograd_cache=False):
        yield
