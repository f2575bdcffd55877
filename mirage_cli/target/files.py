"""Users' files: read where they are regular and of a sensible size, written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell connects to a command, which may be a pipe: its other end is known to be there."""

SPECS = (".yaml", ".yml")
"""How the names of specs end. Nothing else that is written ends so."""


class FileTooLargeError(OSError):
    """A file of more bytes than are read."""

    def __init__(self, path: Path, most_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(errno.EFBIG, f"at most {most_bytes >> 20} MiB are read, and this file has more", str(path))


def open_regular(path: Path) -> BinaryIO:
    """A regular file, or a pipe that the shell made, to be read. Raises OSError.

    A device is never read and a FIFO never waited for.
    """
    piped = str(path).startswith(PIPES)
    file = os.fdopen(os.open(path, os.O_RDONLY | (0 if piped else os.O_NONBLOCK)), "rb")
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) or (piped and stat.S_ISFIFO(mode)):
        return file
    file.close()
    raise _not_regular(path, mode)


def check_regular(path: Path) -> None:
    """Raises OSError where something else than a regular file is there, or it cannot be told."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise _not_regular(path, mode)


def _not_regular(path: Path, mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return OSError(errno.EINVAL, "this is no regular file", str(path))


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of what `open_regular` opens. Raises OSError, FileTooLargeError."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
        size = os.fstat(file.fileno()).st_size
    if len(data) > most_bytes:
        raise FileTooLargeError(path, most_bytes, max(size, len(data)))
    return data


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or leaves what was there. Raises OSError."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Generator[TextIO]:
    """A new file that takes the place of `path` once it has been written to its end. Its permissions stay, and a link
    stays a link. What is no regular file, such as /dev/stdout, is written as it is, and no reader of a FIFO waited for.
    "-" is stdout. A spec that is there stays. Raises OSError."""
    if str(path) == "-":
        yield sys.stdout
        return
    if path.exists() and not path.is_file():
        with _open_special(path) as file:
            yield file
        return
    real = Path(os.path.realpath(path))
    if real.suffix in SPECS and real.exists():
        raise OSError(errno.EEXIST, "a spec is there, and is not overwritten: name another file", str(path))
    partial = real.with_name(f".mirage-{secrets.token_hex(8)}")
    try:
        mode = real.stat().st_mode if real.exists() else None
        if mode is not None and not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with partial.open("x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            partial.chmod(stat.S_IMODE(mode))
        partial.replace(real)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _open_special(path: Path) -> TextIO:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        reason = "nobody reads this FIFO" if error.errno == errno.ENXIO else error.strerror
        raise OSError(error.errno, reason, str(path)) from None
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8")
