"""The gate of `mirage bench --check`: the rows of a benchmark beside those of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.errors import EarlierBenchError
from mirage_cli.ir.program import title
from mirage_cli.pipeline.bench.benchmark import Document
from mirage_cli.store.records import Identity, identity
from mirage_cli.target.files import read_bytes

MAX_BYTES = 1 << 28
"""Of an earlier run's file: one row with its samples has some ten thousand."""
THRESHOLD = 5.0
"""Percent."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A kernel now and before. problem: how it is worse, beginning with `slower`, `wrong`, `failed` or `missing`; None
    where it is not. was_us: None without an earlier row."""

    spec: str
    dims: Mapping[str, int]
    dtype: str
    was_us: float | None
    now_us: float | None
    problem: str | None

    @property
    def name(self) -> str:
        return title(self.spec, self.dtype, self.dims.items())


def read_rows(path: Path, gpu: str, context: str) -> list[Document]:
    """The rows of an earlier run's file, all of this GPU, in this context. Raises EarlierBenchError."""
    try:
        rows = json.loads(read_bytes(path, MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise EarlierBenchError(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise EarlierBenchError(path, f"not JSON: {error}") from None
    if isinstance(rows, dict):
        rows = rows.get("results")  # earlier versions wrote the list alone
    if not isinstance(rows, list) or not all(_is_row(r) for r in rows):
        raise EarlierBenchError(path, "this is no file of `mirage bench --json`")
    if not rows:
        raise EarlierBenchError(path, "this file has no rows to compare with")
    if others := sorted({str(r.get("gpu")) for r in rows} - {gpu}):
        raise EarlierBenchError(path, f"this file is of {', '.join(others)}, and the GPU here is {gpu}")
    if others := sorted({c for c in map(_context, rows) if c is not None} - {context}):
        again = f"name it with --context, or make the file anew with --context {context}"
        raise EarlierBenchError(path, f"this file's times are of the context {', '.join(others)}; {again}")
    return rows


def _context(r: Document) -> str | None:
    """That a row's kernel was timed in; an earlier version's only one is the chain. None where it was not timed."""
    c = r["contestants"].get("mirage")
    return str(c.get("context", "chain")) if c and c["median_us"] is not None else None


def _is_row(r: object) -> bool:
    if not isinstance(r, dict) or not {"spec", "dims", "dtype", "contestants"} <= set(r):
        return False
    if not isinstance(r["dims"], dict) or not all(isinstance(n, int) for n in r["dims"].values()):
        return False
    c = r["contestants"].get("mirage") if isinstance(r["contestants"], dict) else {}
    return c is None or (isinstance(c, dict) and {"median_us", "spread_us"} <= set(c))


def _identity(r: Document) -> Identity:
    return identity(str(r["spec"]), r["dims"], str(r["dtype"]))


def asked_for(
    rows: Sequence[Document],
    specs: Collection[str],
    sizes: Sequence[Mapping[str, int]],
    dtype: str | None,
    elsewhere: Collection[Identity] = (),
) -> list[Document]:
    """The rows of an earlier run that a run of these specs (all, where none is named) at one of these sizes repeats.

    elsewhere: what other shards run.
    """
    return [
        r
        for r in rows
        if (not specs or r["spec"] in specs)
        and dtype in (None, r["dtype"])
        and any(all(r["dims"].get(d) == n for d, n in chosen.items()) for chosen in sizes)
        and _identity(r) not in elsewhere
    ]


def compare(
    before: Sequence[Document] | None, after: Sequence[Document], threshold: float = THRESHOLD
) -> list[Compared]:
    """Every row of either run; before: None where there is no earlier run, and a row is only wrong or failed by itself.

    A kernel is `slower` by more than the threshold, in percent, and both spreads; `missing` where one run alone has it.
    """
    old, new = ({_identity(r): r for r in rows} for rows in (before or (), after))
    found: list[Compared] = []
    for which in {**old, **new}:
        row = new.get(which) or old[which]
        was, now = (rows[which]["contestants"].get("mirage") if which in rows else None for rows in (old, new))
        if which not in new:
            problem = "missing: only the earlier run has it"
        elif which not in old and before is not None:
            problem = "missing: the earlier run has no such row"
        else:
            problem = _worse(was, now, threshold)
        was_us, now_us = ((x["median_us"] or None) if x else None for x in (was, now))
        found.append(Compared(row["spec"], row["dims"], row["dtype"], was_us, now_us, problem))
    return found


def _worse(was: Document | None, now: Document | None, threshold: float) -> str | None:
    """How a kernel's figures are worse than before."""
    if now is None or not now["median_us"]:
        return f"failed: {(now or {}).get('failure') or 'no time was measured'}"
    if now["wrong"]:
        return f"wrong: {now['wrong']}"
    if was is None or not was["median_us"]:
        return None
    if now["median_us"] > (1 + threshold / 100) * was["median_us"] + was["spread_us"] + now["spread_us"]:
        return f"slower: {now['median_us']:.2f} µs, was {was['median_us']:.2f} µs"
    return None
