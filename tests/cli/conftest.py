"""The fixtures that run command lines, for all files of this folder."""

from tests.cli.test_cli import found, mirage, searched

__all__ = ["found", "mirage", "searched"]
