"""Users' files: read where they are regular and of a sensible size, written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell connects to a command, which may be a pipe: its other end is known to be there."""


class FileTooLargeError(OSError):
    """A file of more bytes than are read."""

    def __init__(self, path: Path, most_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(errno.EFBIG, f"at most {most_bytes >> 20} MiB are read, and this file has more", str(path))


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file, or of a pipe that the shell made. Raises OSError, FileTooLargeError.

    A device is never read and a FIFO never waited for.
    """
    piped = str(path).startswith(PIPES)
    with os.fdopen(os.open(path, os.O_RDONLY | (0 if piped else os.O_NONBLOCK)), "rb") as file:
        about = os.fstat(file.fileno())
        mode = about.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode) and not (piped and stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "this is no regular file", str(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise FileTooLargeError(path, most_bytes, max(about.st_size, len(data)))
    return data


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or leaves what was there. Raises OSError."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Generator[TextIO]:
    """A new file that takes the place of `path` once it has been written to its end. Its permissions stay, and a link
    stays a link. What is no regular file, such as /dev/stdout, is written as it is. Raises OSError."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    real = Path(os.path.realpath(path))
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
