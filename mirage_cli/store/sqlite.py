"""sqlite-utils without pandas. It imports pandas wherever that is installed, for types of it that nothing here uses,
and every command would wait for that: half a second of the 1.7 that a stored answer took on an H200's host."""

from __future__ import annotations

import sys

_known = "pandas" in sys.modules
if not _known:
    sys.modules["pandas"] = None  # pyright: ignore[reportArgumentType] - as the import system's documentation has it
try:
    from sqlite_utils.db import Database as Tables
finally:
    if not _known:
        del sys.modules["pandas"]

__all__ = ["Tables"]
