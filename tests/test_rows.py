"""Tables in one test: each row is looked at, and each that fails is named."""

from __future__ import annotations

import pytest

from tests.rows import rows

SEEN: list[tuple[int, str]] = []


@rows("n", range(3))
@rows(("a", "b"), [("x", "y"), pytest.param("z", "w", id="named")])
def looked_at(n: int, a: str, b: str) -> None:
    SEEN.append((n, a + b))
    assert n != 1 or a != "z", "not this one"


def test_every_row_is_looked_at_and_those_that_fail_are_named() -> None:
    SEEN.clear()
    with pytest.raises(BaseExceptionGroup, match="1 of 3 rows") as found:
        looked_at()
    assert [(n, text) for n in range(3) for text in ("xy", "zw")] == SEEN
    (outer,) = found.value.exceptions
    assert outer.__notes__ == ["in the row 1"] and isinstance(outer, BaseExceptionGroup)
    (inner,) = outer.exceptions
    assert inner.__notes__ == ["in the row z, w"] and "not this one" in str(inner)


@rows("n", [1, 2])
def test_fixtures_are_given_to_every_row(n: int, request: pytest.FixtureRequest) -> None:
    assert request.node.name == "test_fixtures_are_given_to_every_row" and n
