"""Values that are computed once, whichever program instance, kernel or μGraph asks for them.

Program instances differ in few of the axes that a value depends on, and the μGraphs of one program in few of their
operators: of what the tests of one program compute, three quarters have been computed before. An operator gives the
same for the same operands, so a value is known by its operator and the identity of its operands, as in hash consing
(Ershov 1958). What is loaded is known by the content of the memory and the place in it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any  # values of the semantics: residues, or arrays of float64

import numpy as np

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.verify.semantics import Memory

MOST_BYTES = 1 << 27
"""Of the values that are kept. The tests of most programs at reduced sizes take 0.1 to 60 MB."""
ENTRY_BYTES = 1 << 9
"""What an entry takes beside its arrays."""


class Remembered:
    """Values by what they are made of. An entry keeps its operands alive: no other object has their identity.

    Each time that half of the bytes are taken, what nobody has asked for since the last time is forgotten.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self.values: dict[tuple[Hashable, ...], tuple[Any, tuple[Any, ...]]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._older = self.values, self._numbers
        self._next = count()

    def value(self, key: tuple[Hashable, ...], operands: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """operands: the objects whose identities are in the key."""
        if (found := self.values.get(key)) is None:
            found = self._older[0].get(key) or (compute(), operands)
            self._makes_room(sum(x.nbytes for x in _arrays(found[0]).values()))
            self.values[key] = found
        return found[0]

    def number(self, said: Hashable) -> int:
        """One number for all that are equal, which takes less time to compare. None is given twice."""
        if (found := self._numbers.get(said)) is None:
            found = self._older[1].get(said)
            self._makes_room(0)
            self._numbers[said] = found = next(self._next) if found is None else found
        return found

    def _makes_room(self, array_bytes: int) -> None:
        if self.bytes > self.most_bytes // 2:
            self._older = self.values, self._numbers
            self.values, self._numbers, self.bytes = {}, {}, 0
        self.bytes += ENTRY_BYTES + array_bytes


class Contents:
    """What tensors in memory hold while a μGraph runs, where that stays as it is: what several kernels write to, or
    what is given and written to, changes."""

    def __init__(self, graph: MuGraph, memories: Mapping[str, Memory]) -> None:
        changes = Counter(t.name for t in graph.inputs)
        for kernel in graph.kernels:
            changes.update({s.buffer for s in kernel.stores})
        self.changing = frozenset(name for name, n in changes.items() if n > 1)
        self.memories = memories
        self.known: dict[str, Hashable] = {}

    def of(self, name: str) -> Hashable:
        """The hash of a tensor that is written, or what names one that is given; None where it changes."""
        if name in self.changing:
            return None
        if name not in self.known:
            self.known[name] = content(self.memories[name].whole())
        return self.known[name]


def content(value: Any) -> bytes:
    """The same for equal values alone: a hash, which processors have instructions for."""
    arrays = _arrays(value)
    rest = {name: getattr(value, name) for name in value.__slots__ if name not in arrays}
    found = hashlib.sha256(repr(sorted(rest.items())).encode(), usedforsecurity=False)
    for name, x in arrays.items():
        found.update(f"{name} {x.dtype} {x.shape}".encode())
        found.update(np.ascontiguousarray(x).data)
    return found.digest()


def _arrays(value: Any) -> dict[str, np.ndarray]:
    slots: tuple[str, ...] = getattr(value, "__slots__", ())
    return {name: x for name in slots if isinstance(x := getattr(value, name), np.ndarray)}
