"""Writes what a tuned database measured as the file that `tests/tune/test_tuner.py` judges the tuner on.

`python -m tools.record_measurements DB OUT.json.gz`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.recorded import read_store, write_recorded

if __name__ == "__main__":
    database, out = map(Path, sys.argv[1:])
    write_recorded(out, read_store(database))
