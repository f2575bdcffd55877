"""The entry of the command line: `main` runs a command and ends the process with its exit code.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 the input or the machine is at fault,
2 wrong command line, 3 found nothing better than the baseline, 130 interrupted.

The commands are in `commands`, which takes a moment to import; an interrupt is answered from the first one on.
"""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; errors of the input or the machine end in a message and exit code 1."""
    try:
        code = _run(_commands())
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once more changes nothing
        sys.stderr.write("interrupted\n")
    sys.exit(code)


def _commands() -> ModuleType:
    """The commands. While they are imported, an interrupt ends the process at once: imports can lose an exception."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where the shell ignores interrupts
        signal.signal(signal.SIGINT, _leave)
    from mirage_cli import commands

    signal.signal(signal.SIGINT, handler)
    return commands


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def _run(commands: ModuleType) -> int:
    from io import TextIOWrapper

    import typer

    from mirage_cli.errors import MirageError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the terminal's encoding has no μ
    try:
        code = commands.app(prog_name="mirage", standalone_mode=False) or 0  # which returns the code of a typer.Exit
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
