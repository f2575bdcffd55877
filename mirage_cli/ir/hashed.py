"""Frozen values that are keys of caches, or of the sets of a search: the hash of each is worked out once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar  # Any: the values of fields

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """For a frozen dataclass without slots.

    What is cached in a value stays in its process: the hash of a text is another in each.
    """
    work_out = cls.__hash__
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]

    def once(self: T) -> int:
        known = self.__dict__
        try:
            return known["hash"]
        except KeyError:
            found = known["hash"] = work_out(self)
            return found

    def state(self: T) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in names}

    cls.__hash__ = once
    cls.__getstate__ = state  # type: ignore[method-assign]
    return cls
