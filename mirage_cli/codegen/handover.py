"""Where a kernel waits for the one in front, and where it lets the one behind start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from mirage_cli.ir.access import lookups_of
from mirage_cli.ir.mugraph import Load, Store
from mirage_cli.ir.placement import Loop, Placement
from mirage_cli.ir.program import Eqn

Unit: TypeAlias = Load | Eqn | Loop | tuple[Store, ...]
"""What the wait may stand before: a step outside loops, the stores of straight code, or a loop."""


class HandOver(NamedTuple):
    """at_once: whether the kernel behind may start before this one waits. wait, release: before which unit this kernel
    waits, and lets the one behind start; None for never. The wait comes first where they are the same."""

    at_once: bool
    wait: int | None
    release: int | None


def units(placement: Placement, awaited: Collection[str]) -> tuple[Unit, ...]:
    """In the order in which they are written. Of straight code, loads from where a table says come behind others, as
    they wait for the table; but none comes behind the first load of what is awaited."""

    def order(x: Load | Eqn) -> tuple[bool, int]:
        return (False, len(lookups_of(x.access))) if isinstance(x, Load) else (True, 0)

    found: list[Unit] = []
    for segment in placement.segments:
        if isinstance(segment, Loop):
            found.append(segment)
        else:
            before = [*takewhile(lambda x: not waits(x, awaited), segment.steps)]
            found += [*sorted(before, key=order), *sorted(segment.steps[len(before) :], key=order)]
            found += [segment.stores] if segment.stores else []
    return tuple(found)


def hand_over(
    some: Sequence[Unit], awaited: Collection[str] | None, first: bool, relays: bool, early: bool, releases: bool
) -> HandOver:
    """awaited: what may be read only after the wait; None where there is no wait. first: whether it is the first kernel
    of a launch, which waits at once: what comes before the launch may have made its inputs. early: whether the kernel
    behind may start as soon as this one has waited, not only when its loops are done. releases: whether there is a
    kernel that waits by itself.
    """
    wait = None
    if awaited is not None:
        wait = 0 if first else next((i for i, x in enumerate(some) if waits(x, awaited)), None)
    done = max((i + 1 for i, x in enumerate(some) if isinstance(x, Loop)), default=0)
    start = 0 if early else done
    if relays or not releases or (awaited is not None and wait is None):
        return HandOver(relays, wait, None)
    return HandOver(False, wait, start if wait is None else max(start, wait))


def waits(x: Unit, awaited: Collection[str]) -> bool:
    """Whether it reads what the kernel in front has written, or writes: that one may still be reading."""
    if isinstance(x, Loop):
        return bool(x.stores) or any(waits(s, awaited) for s in x.steps)
    if isinstance(x, Load):
        return not set(awaited).isdisjoint(x.buffers)
    return isinstance(x, tuple) or any(a.table in awaited for a in x.looks_up)
