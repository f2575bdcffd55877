"""`mirage lock`: the file that pins the kernels of specs, for `mirage search --locked`."""

from __future__ import annotations

from mirage_cli.cli.shared import (
    LOCK_FILE,
    DatabaseFile,
    Dims,
    Dtype,
    LockFile,
    Specs,
    TargetName,
    choose_target,
    command,
    of_one_gpu,
    out,
    read,
    reading_store,
)
from mirage_cli.errors import NothingToLockError


@command(
    "mirage search specs/*.yaml",
    "mirage lock specs/*.yaml                     writes mirage.lock, to be committed",
    "mirage search specs/*.yaml --locked          fails where a kernel differs from it",
)
def lock(
    specs: Specs,
    lock_file: LockFile = LOCK_FILE,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
) -> None:
    """Pin the stored kernels of specs in a lock file.

    It names for each size the μGraph, the schedule, the GPU and the versions. `mirage search --locked` fails where any
    of them would change: measured kernels are locked for machines with that GPU, predicted ones for those without.
    """
    from mirage_cli.cli.tables import sizes_text
    from mirage_cli.pipeline.locked import pinned, write_lock

    programs = [p for p, _ in read(specs, dim, dtype)]
    with reading_store(db) as store:
        taken = [key.gpu_name for key, _ in of_one_gpu(store, programs, target).values()]
        chosen, here = choose_target(taken[0] if taken else target)
        found = [pinned(store, program, chosen, here) for program in programs]
    pins = [pin for pin in found if pin]
    if len(pins) < len(found):
        without = [f"{p.name} {sizes_text(p.sizes)}" for p, pin in zip(programs, found, strict=True) if not pin]
        raise NothingToLockError(chosen.name, without)
    write_lock(lock_file, pins)
    out.print(f"{lock_file}: {len(pins)} kernel{'s' * (len(pins) != 1)}")
