"""Kernels that are chosen for how fast the model is that they are part of. Times are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_cli.ir.text import canonical_text
from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.models import inmodel
from mirage_cli.pipeline.models.inmodel import CALLS, Choice, choices, keep, kept_beside
from mirage_cli.pipeline.written import read_variant
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.store import Database
from tests.tune.test_tuner import H200, SCALED, searched


def chosen(
    us: Callable[[dict[str, str]], float],
    several: dict[str, Sequence[Any]],
    monkeypatch: pytest.MonkeyPatch,
    within_s: float = 60.0,
) -> tuple[list[Choice], dict[str, str]]:
    """What is chosen where a model of these kernels takes so long, and what it runs by at the end."""
    running = {name: kernels[0] for name, kernels in several.items()}
    monkeypatch.setattr(inmodel, "captured", lambda calls: (len(calls), us(dict(running))))
    monkeypatch.setattr(inmodel, "seconds", lambda graph: graph[0] * graph[1] * 1e-6)
    found = choices(lambda: None, lambda name, kernel: running.update({name: kernel}), several, within_s)  # type: ignore[arg-type]
    return [*found], running


def test_a_model_takes_the_kernels_with_which_it_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is tried beside what was chosen before, of all modules one after the other. Half a percent is no gain."""
    costs = {"a": 10.0, "a2": 8.0, "a3": 9.0, "b": 10.0, "b2": 9.99, "b3": 6.0}

    def us(running: dict[str, str]) -> float:
        return sum(map(costs.__getitem__, running.values())) + 5 * (running["a"] == "a2" and running["b"] == "b")

    several = {"a": ["a", "a2", "a3"], "b": ["b", "b2", "b3"]}
    found, running = chosen(us, several, monkeypatch)
    assert running == {"a": "a3", "b": "b3"}
    steps = [(x.module, x.kernel, round(x.was_us, 6), round(x.us, 6)) for x in found]
    assert steps == [("a", "a3", 20.0, 19.0), ("b", "b3", 19.0, 15.0)]
    assert CALLS > 1


def test_what_there_is_no_time_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    found, running = chosen(lambda r: float(len(r["a"])), {"a": ["aa", "a"]}, monkeypatch, within_s=-1.0)
    assert not found and running == {"a": "aa"}


def test_the_database_answers_with_what_a_model_has_chosen(tmp_path: Path) -> None:
    """And no model chooses again: until it is tuned anew, and others are kept."""
    program = parse_spec(SCALED).at()
    with Database(tmp_path / "mirage.db") as store:
        key = key_of(program, H200, True)

        def kernel() -> Kernel:
            best = store.best(key)
            assert best is not None
            variant = read_variant(store, program, key, best.mugraph, best.result.best.schedule, SimpleNamespace())  # type: ignore[arg-type, union-attr]
            return Kernel(program, best.result, best.source, canonical_text(variant.graph))

        searched(store, lambda s: 11.0 - any(x.overlap for x in s.kernels.values()), in_model=True)
        first = kernel()
        (other,) = kept_beside(store, H200, first)
        assert first.result.best is not None and other.result.best is not None
        assert not other.result.best.schedule.kernels["k0"].overlap and other.source != first.source
        keep(store, H200, other)
        best = store.best(key)
        assert best is not None and best.source == other.source and best.time_us == 11.0
        assert best.result.best == other.result.best and best.result.in_model
        assert best.result.variants == (first.result.best,) and best.result.top[0] == other.result.best
        assert kept_beside(store, H200, kernel()) == []
