"""Sweeps over seeds: many in one test, since each test costs more than most seeds do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest


def over_seeds(seeds: range, in_one: int = 50) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test for each of these values of its `seed`, up to `in_one` of them in one test.

    A failure names its seed. A seed that is skipped leaves the others; where all are, the test is. What one seed
    changes by `monkeypatch` would be there for the next: such tests take one seed each.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        others = [p for p in inspect.signature(body).parameters.values() if p.name != "seed"]
        assert "monkeypatch" not in {p.name for p in others}

        @functools.wraps(body)
        def test(some: range, **arguments: Any) -> None:
            skipped: list[BaseException] = []
            for seed in some:
                try:
                    body(seed=seed, **arguments)
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise
            if len(skipped) == len(some):
                raise skipped[0]

        del test.__wrapped__  # whose arguments pytest would ask for
        own = inspect.Parameter("some", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([own, *others])  # type: ignore[attr-defined]
        batches = [seeds[i : i + in_one] for i in range(0, len(seeds), in_one)]
        return pytest.mark.parametrize("some", batches, ids=lambda some: f"{some[0]}-{some[-1]}")(test)

    return decorate
