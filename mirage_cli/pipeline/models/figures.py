"""What kernels take beside Inductor's code for the same nodes, as it was once measured on this GPU: kept in the
database, so that a process that starts anew measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.models.beside import Beside
from mirage_cli.pipeline.written import without_header
from mirage_cli.store.records import Key
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target


@dataclass(frozen=True)
class Figures:
    """Of this GPU. A kernel is known by the text of its file: another schedule is another kernel."""

    store: Database
    target: Target

    def of(self, kernel: Kernel) -> Beside | None:
        """What was measured of a kernel, if it was."""
        found = self.store.beside(self.key(kernel), without_header(kernel.source))
        return None if found is None else Beside(*found)

    def keep(self, kernel: Kernel, beside: Beside) -> None:
        self.store.put_beside(self.key(kernel), without_header(kernel.source), beside.kernel_us, beside.inductor_us)

    def of_model(self, text: str, kernels: Sequence[Kernel]) -> Beside | None:
        """What was measured of a model as a whole. text: of what stands around the kernels."""
        found = self.store.beside(self.key(kernels[0]), self.whole(text, kernels))
        return None if found is None else Beside(*found)

    def keep_model(self, text: str, kernels: Sequence[Kernel], beside: Beside) -> None:
        key, whole = self.key(kernels[0]), self.whole(text, kernels)
        self.store.put_beside(key, whole, beside.kernel_us, beside.inductor_us)

    def whole(self, text: str, kernels: Sequence[Kernel]) -> str:
        return "\n".join(["model", text, *(without_header(k.source) for k in kernels)])

    def key(self, kernel: Kernel) -> Key:
        return key_of(kernel.program, self.target, True)
