"""What is worked out once: the results of methods, by their arguments, kept in the object for as long as it lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar  # Any: arguments and results


class Keeps(Protocol):
    """An object that keeps what was worked out for it."""

    @property
    def worked_out(self) -> dict[Any, Any]: ...


K = TypeVar("K", bound=Keeps)
P = ParamSpec("P")
T = TypeVar("T")
_NOTHING = object()


def once(work_out: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """For a method, or a function whose first argument is such an object; all others are hashable. What raises is asked
    anew the next time."""

    @functools.wraps(work_out)
    def known(self: K, *args: P.args, **named: P.kwargs) -> T:
        key = work_out, args, *named.items()
        found = self.worked_out.get(key, _NOTHING)
        if found is _NOTHING:
            found = self.worked_out[key] = work_out(self, *args, **named)
        return found

    return known
