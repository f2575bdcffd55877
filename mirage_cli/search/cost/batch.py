"""Many schedules of one kernel as columns, and the elements that their blocks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import mul
from typing import Any  # columns of numpy, or numbers: the same formulas hold for both

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.schedule import KernelSchedule, whole_blocks
from mirage_cli.search.cost.work import Formed, Model
from mirage_cli.search.roles import BESIDE_SCAN, MAX_BLOCK

Array = NDArray[np.float64]
MAX_ACCUMULATORS = 33792
"""Elements that the accumulators of a program instance have at most."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Many schedules of one kernel as columns, which have an entry for each schedule.

    block: the block's size along every axis. place: the place of every axis in the order. The others are the choices of
    a schedule under their own names (`ir.schedule`): numbers as they are, words as 0 or 1.
    """

    block: Mapping[str, Array]
    place: Mapping[str, Array]
    split: Array
    warps: Array
    stages: Array
    overlap: Array
    descriptors: Array
    relay: Array
    early: Array
    fetch: Array
    ahead: Array
    lead: Array
    share: Array
    tf32x3: Array
    unroll: Array

    def some(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Batch:
        """The columns of some schedules: of those where it is true, or of those at these places."""
        block, place = ({d: x[which] for d, x in columns.items()} for columns in (self.block, self.place))
        return Batch(block, place, *(getattr(self, f.name)[which] for f in fields(Batch)[2:]))

    def counts(self, m: Model, sizes: Mapping[str, int]) -> Array:
        """Of each schedule, how many of a block it has in another form of the kernel (`Model.formed`); 0 where it has
        the kernel as it is."""
        found, several = m.windows(sizes), m.groups(sizes)
        if several is not None:
            own = self.block[several.axis]
            return np.where([several.many(int(n)) for n in own], own, 0.0)
        return self.unroll * (self.block[found.along] if found is not None and found.along else 1.0)

    def formed(self, made: Formed) -> Batch:
        """The same schedules of the kernel in another form."""
        names, gone, one = made.form.names, made.form.gone, np.ones_like(self.warps)
        block = {names.get(d, d): one if d in names else n for d, n in self.block.items() if d not in gone}
        block |= {d: one * n for d, n in whole_blocks(made.form.kernel, made.sizes).items()}
        place = {names.get(d, d): n for d, n in self.place.items() if d not in gone}
        for x in made.form.inside:
            beside = [place[d] for d in x.beside if d in place] or [one * len(place)]
            place[x.axis] = reduce(np.minimum, beside) - 0.5 if x.in_front else reduce(np.maximum, beside) + 0.5
        return replace(self, block=block, place=place, unroll=np.zeros_like(self.unroll))

    @staticmethod
    def of(m: Model, schedules: Sequence[KernelSchedule], sizes: Mapping[str, int]) -> Batch:
        count = len(schedules)
        block = {d: np.full(count, float(n)) for d, n in whole_blocks(m.kernel, sizes).items()}
        for i, (d, _) in enumerate(schedules[0].tiles):
            block[d] = np.array([s.tiles[i][1] for s in schedules], dtype=np.float64)
        orders = {order: i for i, order in enumerate(dict.fromkeys(s.order for s in schedules))}
        which = np.array([orders[s.order] for s in schedules])
        place = {d: np.array([float(order.index(d)) for order in orders])[which] for d in block}
        named = [{**s.numbers, **s.words} for s in schedules]
        columns = ([n[f.name] for n in named] for f in fields(Batch)[2:])
        return Batch(block, place, *(np.array(c, dtype=np.float64) for c in columns))


def elements_of(block: Mapping[str, Array] | Mapping[str, float], axes: Sequence[str]) -> Any:
    """Of a block over these axes."""
    blocks: list[Any] = [block[a] for a in axes]
    return reduce(mul, blocks) if blocks else 1.0


def held(m: Model, block: Mapping[str, Array] | Mapping[str, float], zero: Array | float) -> tuple[Any, Any]:
    """Elements of the largest value, and of all accumulators."""
    largest = reduce(np.maximum, (elements_of(block, v) for v in m.values), zero + 1.0)
    largest = reduce(np.maximum, (elements_of(block, v) * n * BESIDE_SCAN for v, n in m.scanned), largest)
    return largest, sum((elements_of(block, a) for a in m.accumulators), zero)


def fits(largest: Array | float, accumulated: Array | float) -> Any:
    """Whether a program instance may hold so many elements."""
    return (largest <= MAX_BLOCK) & (accumulated <= MAX_ACCUMULATORS)
