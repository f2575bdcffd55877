"""One test of all rows of a table: a test for each costs more than a row that takes a millisecond or two."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def rows(names: str | Sequence[str], table: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, in one test, which looks at every row and raises what all that fail have raised."""
    arguments = [n.strip() for n in names.split(",")] if isinstance(names, str) else [*names]
    each = [(x,) if isinstance(names, str) else tuple(getattr(x, "values", x)) for x in table]
    assert each and all(len(x) == len(arguments) for x in each)

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(*args: Any, **others: Any) -> None:
            problems: list[BaseException] = []
            for row in each:
                try:
                    test(*args, **dict(zip(arguments, row, strict=True)), **others)
                except (Exception, pytest.fail.Exception) as problem:
                    problem.add_note(f"in the row {', '.join(map(str, row))}")
                    problems.append(problem)
            if problems:
                raise BaseExceptionGroup(f"{len(problems)} of {len(each)} rows", problems)

        own = inspect.signature(test)
        left = [p for p in own.parameters.values() if p.name not in arguments]
        all_rows.__signature__ = own.replace(parameters=left)  # type: ignore[attr-defined]
        return all_rows

    return decorated
