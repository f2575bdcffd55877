"""The entry of the command line: `main` runs a command and ends the process with its exit code.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 the input or the machine is at fault,
2 wrong command line, 3 found nothing better than the baseline, 4 `bench --check` found a regression,
130 interrupted.

The commands are in `commands`, which takes a moment to import; an interrupt is answered from the first one on.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any  # the classes of click, which typer brings along

if TYPE_CHECKING:
    import typer

TWICE_S = 0.2


def main() -> None:
    """Run the command line; errors of the input or the machine end in a message and exit code 1."""
    _open_streams()
    interrupts = Interrupts()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where the shell ignores them
        signal.signal(signal.SIGINT, interrupts)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` does
        signal.signal(signal.SIGHUP, interrupts)
    signal.signal(signal.SIGTERM, interrupts)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices here are small: threads cost more than they save
    from mirage_cli.cli import commands

    code = 130
    try:
        interrupts.begun = True
        code = _run(commands)
    except KeyboardInterrupt:
        pass
    except Exception:  # what an interrupt has raised on its way, whatever it is
        if not interrupts.seen:
            raise
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # all is printed: nothing is left to interrupt
        signal.signal(sent, signal.SIG_IGN)
    if interrupts.seen or code == 130:
        if not interrupts.seen:
            sys.stderr.write("interrupted\n")
        sys.exit(130)
    sys.exit(code)


def _open_streams() -> None:
    """Opens the null device in the place of each standard stream that is closed: the next file would be it."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115


class Interrupts:
    """What Ctrl-C, SIGTERM and SIGHUP do: before anything has begun, they end the process; then, they raise
    KeyboardInterrupt.

    seen: whether there was one. An import that is interrupted may lose the exception, or make another of it. `timeout`
    and supervisors send one signal to the process and again to its group: two within TWICE_S are one.
    """

    def __init__(self) -> None:
        self.begun = False
        self.last_s = -math.inf

    @property
    def seen(self) -> bool:
        return self.last_s > -math.inf

    def __call__(self, *_: object) -> None:
        if not self.begun:
            os.write(2, b"interrupted\n")
            os._exit(130)
        now_s = time.monotonic()
        if now_s - self.last_s < TWICE_S:
            return
        if not self.seen:
            os.write(2, b"interrupted: keeping what was found\n")
        self.last_s = now_s
        raise KeyboardInterrupt


def _run(commands: ModuleType) -> int:
    from io import TextIOWrapper

    import typer

    from mirage_cli.errors import MirageError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the terminal's encoding has no μ
    try:
        code = _command_line(commands.app)(prog_name="mirage", standalone_mode=False) or 0  # the code of a typer.Exit
        sys.stdout.flush()
    except MirageError as error:
        commands.err.print(f"error: {error}", style="red")
        code = 1
    except typer.Abort:
        code = 130
    except OSError as error:  # a reader that is gone, a full disk, a file that cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print would fail again
        if not isinstance(error, BrokenPipeError):
            commands.err.print(f"error: {error.filename or 'output'}: {error.strerror or error}", style="red")
        code = 1
    except Exception as error:  # click's usage errors, which say what was expected
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        error.show()  # type: ignore[attr-defined]
        code = 2
    return code


@cache
def _command_line(app: typer.Typer) -> Any:
    """What parses the arguments of every command: read from the signatures of all of them, which takes 40 ms."""
    from typer.main import get_command

    return get_command(app)
