"""The commands, one module for each group. They alone print results and pick exit codes."""

# In the order of `mirage --help`.
# isort: off
from mirage_cli.cli import search
from mirage_cli.cli import bench
from mirage_cli.cli import found
from mirage_cli.cli import verify
from mirage_cli.cli import report
from mirage_cli.cli import roofline
from mirage_cli.cli import lock
from mirage_cli.cli import cache
from mirage_cli.cli import doctor
from mirage_cli.cli import init
from mirage_cli.cli import trace
from mirage_cli.cli import exportmodel
from mirage_cli.cli import help
# isort: on

from mirage_cli.cli.shared import app, err

__all__ = [
    "app",
    "bench",
    "cache",
    "doctor",
    "err",
    "exportmodel",
    "found",
    "help",
    "init",
    "lock",
    "report",
    "roofline",
    "search",
    "trace",
    "verify",
]
