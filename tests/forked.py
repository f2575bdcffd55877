"""Command lines of mirage in processes that are forked from the template of the tests (`tune.template`), which has
imported what they need. Tests of how processes start and end start them afresh, as users do."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from mirage_cli.tune.child import started
from mirage_cli.tune.template import AT, Forked, template

COMMAND = "from mirage_cli.cli.main import main; main()"
FILE = """
import runpy, sys
sys.modules.update({name: None for name in sys.modules if name.partition(".")[0] == "mirage_cli"})
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A file of Python, which cannot import this package."""


@contextlib.contextmanager
def one_template() -> Iterator[None]:
    """All that this process starts, and what that starts, is forked from one template, if nobody has named one."""
    named, os.environ[AT] = os.environ.get(AT), template()
    yield
    if named is None:
        del os.environ[AT]


class Command:
    """A process with as much of `subprocess.Popen` as the tests ask for. It ends with the process that has started
    it, or when nobody refers to it any more."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self.pid, self.wait = forked.pid, forked.wait

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def kill(self) -> None:
        self._forked.send_signal(9)


def command(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], out: IO[bytes], err: IO[bytes], code: str = COMMAND
) -> Command:
    """A command line of mirage, or of other code, in a session of its own. It prints to these files."""
    ours, theirs = Pipe()
    interprets = env.get("TRITON_INTERPRET", "0")
    forked = started(__name__, theirs.fileno(), err, {**env, "TRITON_INTERPRET": interprets}, kernels=True)
    assert isinstance(forked, Forked)
    theirs.close()
    prints_to = f"/proc/{os.getpid()}/fd/{out.fileno()}"
    ours.send((code, tuple(arguments), str(folder), dict(env), prints_to))
    result = Command(forked)
    assert ours.recv()  # it has opened the file
    ours.close()
    return result


def ran(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], code: str = COMMAND, most_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """A command line, or other code, that has ended. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        returned = command(arguments, folder, env, out, err, code).wait(most_s)
        shown = [(f.seek(0), f.read().decode())[1] for f in (out, err)]
    return subprocess.CompletedProcess(arguments, returned, *shown)


def prepare() -> None:
    importlib.import_module("mirage_cli.cli.commands")
    importlib.import_module("mirage_cli.pipeline.predicting")


def main(
    connection: Connection[bool, object],
    code: str,
    arguments: tuple[str, ...],
    folder: str,
    env: dict[str, str],
    out: str,
) -> None:
    """The process: runs code as `python -P -c` does, and ends as Python does."""
    os.dup2(os.open(out, os.O_WRONLY | os.O_APPEND), 1)
    connection.send(True)
    connection.close()
    os.chdir(folder)
    at = os.environ[AT]
    os.environ.clear()
    os.environ.update({**env, AT: at})
    sys.argv[:] = ["mirage", *arguments]
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        raise
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
