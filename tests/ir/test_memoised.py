"""What a method makes of its arguments is worked out once for each object."""

from __future__ import annotations

from typing import Any

import pytest

from mirage_cli.ir.once import once


class Asked:
    def __init__(self) -> None:
        self.worked_out: dict[Any, Any] = {}
        self.asked: list[tuple[object, ...]] = []

    @once
    def none(self, *args: object, last: object = None) -> None:
        self.asked.append((*args, last))

    @once
    def other(self, x: int) -> int:
        self.asked.append((x,))
        return 10 // x


def test_each_object_is_asked_once_for_each_answer_none_among_them() -> None:
    first, second = Asked(), Asked()
    for _ in range(2):
        assert first.none(1, 2) is None
        assert first.none(1, last=2) is None
        assert first.other(1) == 10
        assert second.none(1, 2) is None
    assert first.asked == [(1, 2, None), (1, 2), (1,)]
    assert second.asked == [(1, 2, None)]


def test_what_raises_is_asked_again() -> None:
    x = Asked()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            x.other(0)
    assert x.asked == [(0,)] * 2
