"""An interrupt, whatever it ends, leaves what was found: as the result of its program, and in the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_cli.ir.program import Program
from mirage_cli.pipeline import optimize as story
from mirage_cli.pipeline import predicting
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.searching import Failed, Found, Options, search_program
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.results import Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target

SPEC = parse_spec("""
name: projection
dims: {m: 4, k: 32, n: 16}
inputs:
  X: [m, k]
  W: {dims: [k, n], scale: 0.2}
program: O = silu(dot(X, W, k))
outputs:
  O: [m, n]
""")
PROGRAM = SPEC.at()
TARGET = find_target("h200")


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def until_interrupted(store: Database, options: Options) -> list[object]:
    """The results that come before KeyboardInterrupt does."""
    found: list[object] = []
    with Session(TARGET, options, store, has_gpu=False) as session:
        results = story.optimize(session, [(PROGRAM, SPEC.text), (SPEC.at({"m": 8}), SPEC.text)])
        with pytest.raises(KeyboardInterrupt):
            found.extend(results)
    return found


def test_what_was_searched_is_the_result_where_an_interrupt_ends_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "check_offline", stopped)
    store = Database(tmp_path / "mirage.db")
    (result,) = until_interrupted(store, Options())
    assert isinstance(result, Result) and result.best is not None
    assert not result.best.checked and result.search.stopped == "interrupted"
    stored = store.best(key_of(PROGRAM, TARGET, False))
    assert stored is not None and stored.result.best is not None and stored.mugraph == result.best.id


def test_an_interrupted_search_takes_no_stored_kernels_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans are unchecked."""
    store, key = Database(tmp_path / "mirage.db"), key_of(PROGRAM, TARGET, False)
    with Session(TARGET, Options(top=1), store, has_gpu=False) as session:
        (checked,) = story.optimize(session, [(PROGRAM, SPEC.text)])
    assert isinstance(checked, Result) and checked.best is not None and checked.best.checked
    before = store.best(key)

    def interrupted(session: Session, programs: list[tuple[Program, str]]) -> Iterator[Result | Found | Failed]:
        for program, _ in programs:
            yield search_program(program, TARGET, session.options, interrupted=lambda: True)

    monkeypatch.setattr(story, "searched", interrupted)
    (result,) = until_interrupted(store, Options(fresh=True))
    assert isinstance(result, Result) and result.cached and result.best == checked.best
    assert store.best(key) == before
