"""How the GPU process has Triton launch kernels: in a CUDA graph as exported files do (`codegen.exported.overlap`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any  # Triton's driver and launchers, which have no types

from mirage_cli.codegen.exported.overlap import releasing_kernels, starts_early


class Launches:
    """Takes the place of the class by which Triton's driver makes launchers, from `install` on.

    always: start kernels that can overlap early whatever is in front of them.
    """

    def __init__(self, driver: Any) -> None:
        self.driver, self.make = driver, driver.launcher_cls
        self.always = False

    def install(self) -> None:
        self.driver.launcher_cls = self

    def __call__(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What launches this compiled kernel."""
        run = self.make(source, metadata)
        kernel = source.fn.fn
        patient = kernel.__name__ in kernel.__globals__.get("PATIENT", ())
        return functools.partial(self.start, run, patient) if run.launch_pdl else run

    def start(self, run: Any, patient: bool, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        releasing_kernels().add(function)
        run.launch_pdl = self.always or not patient or starts_early(stream)
        run(x, y, z, stream, function, *rest)

    @contextmanager
    def as_triton(self) -> Generator[None]:
        """Kernels that are loaded meanwhile are launched by Triton's own class."""
        self.driver.launcher_cls = self.make
        try:
            yield
        finally:
            self.install()

    @contextmanager
    def early(self) -> Generator[None]:
        """Meanwhile kernels that can overlap are started early, whatever is in front."""
        self.always = True
        try:
            yield
        finally:
            self.always = False
