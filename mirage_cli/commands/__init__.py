"""The commands, one module for each group. They alone print results and pick exit codes."""

# In the order of `mirage --help`.
# isort: off
from mirage_cli.commands import search
from mirage_cli.commands import bench
from mirage_cli.commands import found
from mirage_cli.commands import cache
from mirage_cli.commands import doctor
# isort: on

from mirage_cli.commands.shared import app, err

__all__ = ["app", "bench", "cache", "doctor", "err", "found", "search"]
