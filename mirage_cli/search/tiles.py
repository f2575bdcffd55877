"""Block sizes, chunks, warps and orders of axes that are worth a try for a kernel, before anything was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.program import WIDEST_BYTES
from mirage_cli.ir.schedule import MIN_COLUMNS, MIN_DOT, KernelSchedule, exchanged, next_power_of_two, whole_blocks
from mirage_cli.search.cost.batch import Batch, elements_of, fits, held
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.occupancy import added_up
from mirage_cli.search.cost.work import Formed, Model
from mirage_cli.target.gpus import Target

SHORT = 64
"""Elements of axes that are held whole, up to which tiles of an axis that is walked beside them need not be short."""
MOST_BLOCKS = 1 << 16
"""Choices of blocks of one kernel."""
BEST_OF_PART = 3
"""Choices of blocks of one of several parts, for each choice along the axes that it shares."""
UNEVEN = (4.0, 8.0, 16.0)
"""Chunks of a loop that data end, at least."""
MANY_BLOCKS = 8.0
"""Of a multiprocessor, for which chunks are tried too: blocks of single warps, as many as its registers have room for.
4096 x 14336 weights of 4 bits with 16 rows, blocks of 64 columns: four chunks take 14.1 us on an H200, two 14.7."""
MOST_TERMS = 16
"""Terms of a sum that a thread may have all of."""
MOST_ALONE = 2048
"""Elements of a block that a single warp is tried for where all that it does is to load and sum: 64 in each thread."""
MADE_OF_BITS = 256
"""Elements of an operand that a thread makes of bits, where fewer warps are tried for that. 16 rows with 4096 x 14336
weights of 4 bits took 14.1 us on an H200 with 128 columns, 128 deep, and two warps, 15.9 with four; in words along the
sum 16.1 and 19.5 (results/h200)."""
ROWS, MORE_ROWS = (4, 7, 2, 1), (1, 2, 4, 7, 8, 14, 16)
"""Positions along the axis that windows overlap along, of those that are in registers: where structures are ranked, the
first two of these that may be; and among all choices. Pictures often have a multiple of 7 rows."""
GROUPS, MORE_GROUPS = (2, 4), (2, 4, 8, 16)
"""Of products that are small for the matrix units, how many a block has as one; the same."""
MOST_BEYOND = 8
"""Such an axis is so many times as long, at least, as what its last block reaches beyond its end."""
DEEP = (32, 64)
"""Positions that a block of a product sums over, where short axes fill a part of it."""
DEPTHS = (3.0, 5.0)
"""Stages of loops, before anything was measured."""


def tile_options(m: Model, sizes: Mapping[str, int], *, coarse: bool) -> dict[str, list[int]]:
    """Block sizes to try for every dimension that is not held whole; `coarse` for ranking structures."""
    matrix, batch = m.matrix_axes(sizes), m.batch_axes(sizes)
    walked = (d for d, r in m.kernel.roles if r != "tile")
    single = {*batch, *(m.rows or ())} | ({*m.kernel.with_role("loop")} if m.rows is not None else set())
    return {d: [1] if d in single else _options(m, d, sizes, coarse, matrix) for d in walked}


def _options(m: Model, d: str, sizes: Mapping[str, int], coarse: bool, matrix: frozenset[str]) -> list[int]:
    size = sizes[d]
    top = next_power_of_two(size)
    if d in matrix:
        return _of_products(m, d, sizes, coarse, matrix)
    if d in m.grid:
        choices = sorted({1, min(4, top), min(64, top), 512}) if coarse else [2**n for n in range(11)]
        if len(m.kernel.roles) == 1:
            choices += [2048] if coarse else [2048, 4096]  # as many of fewer elements take longer to start than to work
    else:
        choices = [64, 512, 2048] if coarse else [32, 64, 128, 256, 512, 1024, 2048, 4096]
        whole = prod(whole_blocks(m.kernel, sizes).values())
        if len(m.kernel.with_role("loop", "split")) > 1 or whole > SHORT or top < choices[0]:
            choices = [1, 8, *choices]  # blocks are of all these axes together, or each is a step of its own
        elif whole > 1:  # threads are busy with what is held whole, and few have to add up what each has walked
            choices = [8, *choices] if coarse else [4, 8, 16, *choices]
        if len(m.kernel.roles) == 1:
            choices = [*choices, 8192, 16384]  # and here of no other: what is in flight hides the latency of memory
    return [t for t in choices if t <= top] or [top]


def _of_products(m: Model, d: str, sizes: Mapping[str, int], coarse: bool, matrix: frozenset[str]) -> list[int]:
    """Along an axis of the matrix units' operands."""
    size, top = sizes[d], next_power_of_two(sizes[d])
    walked = d in m.kernel.with_role("loop", "split")
    choices = [16, 32, 64, 128, 256]
    held = 1 if walked else held_beside(m, d, sizes)
    if held > 1:  # a side's axes have a block together
        choices = [t // held for t in choices if t > held] or [1]
    elif coarse:
        choices = choices[1:] if walked else choices[:-1]
    fitting = [t for t in choices if t <= top] or [MIN_DOT]
    if (least := least_tile(m, d, sizes)) < MIN_DOT:
        fitting = [least, *fitting]
    several = len(matrix & set(m.grid)) > 2  # of which one block cannot hold MIN_DOT of each
    batched = any(d in p.batch for p in m.multiplied)  # beside another product, of which it is a row
    single = [1] if d in m.grid and (size < MIN_DOT or several or batched or (not coarse and top <= 256)) else []
    of_side = d in m.grid and any(d in side and len(side) > 1 for side in m.sides)
    if of_side and size < MIN_DOT:
        single = [1, top]  # of which a block may have all, beside another axis of the side
    if walked and any(d in p.summed and len(p.summed) > 1 for p in m.multiplied):
        single = [1]  # walked one by one: the product sums over blocks of the others, or of all short ones together
        fitting = fitting if size > MIN_DOT else [top] * (top > 1)
        filled = _filled(m, d, sizes)  # by whole short axes: of this one, a few positions fill a block
        fitting = [*fitting, *(n for t in DEEP if filled > 1 and 1 < (n := t // filled) < min(top, MIN_DOT))]
    if of_side and single and held == 1:  # several of each of a side's axes fill it together
        single += [t for t in ((4, 8) if coarse else (2, 4, 8)) if t < min(top, MIN_DOT)]
    return sorted({*single, *fitting})


def _filled(m: Model, d: str, sizes: Mapping[str, int]) -> int:
    """Positions along the short axes that all products sum beside this one, where none of a block of them is left
    empty; 1 where some would be."""
    short = [{a for a in p.summed if a != d and sizes[a] <= MIN_DOT} for p in m.multiplied if d in p.summed]
    filled = prod(sizes[a] for a in short[0]) if short and all(x == short[0] for x in short) else 1
    return filled if filled == next_power_of_two(filled) else 1


def least_tile(m: Model, d: str, sizes: Mapping[str, int]) -> int:
    """The shortest block of an axis that the matrix units take alone, among the first choices: as columns, of a few
    rows beside bytes. What is made of bytes comes to them from registers. Where warpgroups multiply from shared memory,
    single warps with half the columns are up to 1.4 times as slow (results/h200/notes-2026-11-27.md)."""
    return least_columns(m, d, sizes) if d in m.from_bytes else MIN_DOT


def least_columns(m: Model, d: str, sizes: Mapping[str, int]) -> int:
    """The same among all choices: of a few rows, alone on their side of each product, they take fewer columns."""
    products = [p for p in m.multiplied if d in p.left | p.right | p.summed]
    one = frozenset((d,))
    others = [p.right if p.left == one else p.left for p in products if one in (p.left, p.right)]
    alone = len(others) == len(products) and all(prod(sizes[a] for a in side) >= MIN_DOT for side in others)
    return MIN_COLUMNS if alone and sizes[d] <= MIN_COLUMNS else MIN_DOT


def held_beside(m: Model, d: str, sizes: Mapping[str, int]) -> int:
    """Elements that a block has of the axes that are held whole and stand with this one on one side of a product; the
    least of all products."""
    sides = [side for side in m.sides if d in side]
    whole = whole_blocks(m.kernel, sizes)
    return min((prod(whole[a] for a in side if a in whole) for side in sides), default=1)


@dataclass(frozen=True, slots=True)
class Choices:
    """Every choice of tiles, chunks, stages and order that is worth a try, with default warps, as columns."""

    batch: Batch
    axes: tuple[str, ...]
    orders: Sequence[tuple[str, ...]]
    order: NDArray[np.int64]
    """Which of `orders`."""

    def by_arithmetic(self) -> Choices:
        """The same with products of float32 by float32 arithmetic."""
        return replace(self, batch=replace(self.batch, tf32x3=np.zeros_like(self.batch.tf32x3)))

    def shallower(self, which: NDArray[np.bool_]) -> Choices:
        """Some of them with two stages."""
        return replace(self, batch=replace(self.batch, stages=np.where(which, 2.0, self.batch.stages)))

    def some(self, which: NDArray[np.intp]) -> Choices:
        """Some of them, by their places."""
        return replace(self, batch=self.batch.some(which), order=self.order[which])

    def schedule(self, i: int) -> KernelSchedule:
        b = self.batch
        return KernelSchedule(
            tuple((d, int(b.block[d][i])) for d in self.axes),
            self.orders[int(self.order[i])],
            int(b.warps[i]),
            int(b.stages[i]),
            int(b.split[i]),
            overlap=bool(b.overlap[i]),
            descriptors=bool(b.descriptors[i]),
            tf32x3=bool(b.tf32x3[i]),
        )


def choices(
    m: Model,
    sizes: Mapping[str, int],
    target: Target,
    orders: Sequence[tuple[str, ...]],
    *,
    coarse: bool,
    split: int | None = None,
) -> Choices:
    """Those whose blocks fit. split: the number of chunks, where other kernels say it; else numbers that bring the grid
    near whole waves, the powers of two below these, which leave chunks alike more often (4 chunks of 32 tiles took 14.4
    us on an H200, 5 took 17.5), and more where data end the loop: of short chunks, the longest ends soon after the
    others."""
    return _choices(m, _blocks(m, sizes, target, coarse=coarse), sizes, target, orders, coarse=coarse, split=split)


def _choices(
    m: Model,
    block: Mapping[str, NDArray[np.float64]],
    sizes: Mapping[str, int],
    target: Target,
    orders: Sequence[tuple[str, ...]],
    *,
    coarse: bool,
    split: int | None,
) -> Choices:
    axes = tuple(d for d, r in m.kernel.roles if r != "tile")
    one = np.ones(len(next(iter(block.values()))) if block else 1)
    chunks = _chunks(m, block, sizes, target, one, coarse) if split is None or m.split is None else [one * split]
    several = _warps(m, block, one)
    stages = DEPTHS if m.kernel.with_role("loop", "split") else DEPTHS[:1]
    order, stage, chunk, own, tile = _product(len(orders), len(stages), len(chunks), len(several), len(one))
    none = np.zeros(len(tile))
    boxes = target.descriptors and _masked(m, sizes)
    columns = {"overlap": none + target.overlaps, "descriptors": none + boxes, "tf32x3": none + m.single}
    batch = Batch(
        {d: column[tile] for d, column in block.items()},
        {d: np.array([float(o.index(d)) for o in orders])[order] for d in block},
        np.array(chunks)[chunk, tile],
        np.array(several)[own, tile],
        np.array(stages)[stage],
        *(columns.get(f.name, none) for f in fields(Batch)[5:]),
    )
    return Choices(batch, axes, orders, order)


def _chunks(
    m: Model,
    block: Mapping[str, NDArray[np.float64]],
    sizes: Mapping[str, int],
    target: Target,
    one: NDArray[np.float64],
    coarse: bool,
) -> list[NDArray[np.float64]]:
    """Numbers of chunks for each choice of blocks; one where nothing is split."""
    if m.split is None:
        return [one]
    programs = reduce(np.multiply, (np.ceil(sizes[d] / block[d]) for d in m.grid), one)
    most = np.maximum(1, sizes[m.split] // block[m.split])
    wanted = (1.0, 2.0) if coarse else (0.5, 1.0, 2.0, 4.0)
    chunks = [np.maximum(2, np.round(target.sms * w / programs)) for w in wanted]
    if any(w.by_data for w in m.segments):
        chunks += [np.maximum(n, chunks[-1]) for n in (UNEVEN[-1:] if coarse else UNEVEN)]
    chunks += [] if coarse else [np.maximum(2, np.round(target.sms * MANY_BLOCKS / programs))]
    chunks = [np.minimum(most, n) for n in chunks]
    return chunks if coarse else [*chunks, *(np.exp2(np.floor(np.log2(n))) for n in chunks)]


def _warps(m: Model, block: Mapping[str, NDArray[np.float64]], one: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Numbers of warps for each choice of blocks: so many that a thread has about 32 elements of the largest
    accumulator or value that is computed; and fewer where sums are all that warps would meet for, or bits are taken
    apart."""
    largest = reduce(np.maximum, (elements_of(block, axes) for axes in m.computed), one)
    largest = reduce(np.maximum, (added_up(p, block) for w in m.segments for p, _ in w.dots), largest)
    warps = np.where(largest >= 16384, 8.0, np.where(largest >= 1024, 4.0, 1.0))
    alone = np.where(largest <= MOST_ALONE, 1.0, warps)
    several = [warps, alone] if all(w.sums and not w.loop for w in m.segments) and (alone < warps).any() else [warps]
    made = [elements_of(block, e.axes) for w in m.segments for e in w.elementwise if e.made is not None]
    if made:
        several.append(np.clip(reduce(np.maximum, made) / (32 * MADE_OF_BITS), 1.0, warps))
    return several


def _product(*lengths: int) -> tuple[NDArray[np.int64], ...]:
    """Every choice of one place in each of some lists, as columns."""
    return np.unravel_index(np.arange(prod(lengths)), lengths) if lengths else ()


def _masked(m: Model, sizes: Mapping[str, int]) -> bool:
    """Whether masks alone keep a product's loads from what one instruction may load: boxes have none."""
    blocks = (b for w in m.segments if w.dots and w.loop for b in w.blocks)
    rows = (sizes[a] * b.element_bytes for b in blocks if b.lines for a in b.lines.aligned_axes(sizes))
    return any(row % WIDEST_BYTES for row in rows)


def _blocks(m: Model, sizes: Mapping[str, int], target: Target, *, coarse: bool) -> dict[str, NDArray[np.float64]]:
    """The blocks that fit, by axis."""
    return _joined(m, sizes, target, coarse=coarse) if m.several else _fitting(m, sizes, coarse=coarse)


def _fitting(m: Model, sizes: Mapping[str, int], *, coarse: bool) -> dict[str, NDArray[np.float64]]:
    """Of one part. Of the longest lists every second size is left out, until there are few enough."""
    options = tile_options(m, sizes, coarse=coarse)
    while prod(map(len, options.values())) > MOST_BLOCKS:
        longest = max(options, key=lambda d: len(options[d]))
        options[longest] = options[longest][::2]
    chosen = _product(*(len(o) for o in options.values()))
    count = prod(len(o) for o in options.values())
    block = {d: np.array(o, dtype=np.float64)[i] for (d, o), i in zip(options.items(), chosen, strict=True)}
    block |= {d: np.full(count, float(n)) for d, n in whole_blocks(m.kernel, sizes).items()}
    fitting = fits(*held(m, block, np.zeros(count)))
    return {d: column[fitting] for d, column in block.items()}


def _joined(m: Model, sizes: Mapping[str, int], target: Target, *, coarse: bool) -> dict[str, NDArray[np.float64]]:
    """Blocks of parts that run side by side: for each choice along axes that several have, the best of each part."""
    parts = m.parts(m.grid)
    axes = Counter(d for p in parts for d, _ in p.kernel.roles)
    shared = {d for d, n in axes.items() if n > 1}
    rows: list[dict[str, float]] = [{}]
    joined = set[str]()
    for p in parts:
        kept = _best_of_part(p, tuple(sizes.items()), target, coarse, frozenset(shared))
        own = {d for d, _ in p.kernel.roles}
        both = sorted(joined & own)
        joined |= own
        alike: dict[tuple[float, ...], list[dict[str, float]]] = {}
        for row in kept:
            alike.setdefault(tuple(row[d] for d in both), []).append(row)
        rows = [a | b for a in rows for b in alike.get(tuple(a[d] for d in both), ())]
    return {d: np.array([row[d] for row in rows]) for d in axes}


@lru_cache(maxsize=4096)
def _best_of_part(
    p: Model, sizes: tuple[tuple[str, int], ...], target: Target, coarse: bool, shared: frozenset[str]
) -> tuple[dict[str, float], ...]:
    """For each choice along axes that it shares with other parts, the best of a part; nothing where none of its blocks
    fit. Kernels have parts in common."""
    found = choices(p, dict(sizes), target, [default_order(p)], coarse=coarse)
    if not len(found.order):
        return ()
    by_us = np.argsort(estimate(p, found.batch, dict(sizes), target).us, kind="stable")
    block = {d: column[by_us] for d, column in found.batch.block.items()}
    distinct = np.sort(np.unique(_numbered(block.values()), return_index=True)[1])  # of equal blocks the best
    block = {d: column[distinct] for d, column in block.items()}
    _, first, alike = np.unique(
        _numbered([np.zeros(len(distinct)), *(block[d] for d in block if d in shared)]),
        return_index=True,
        return_inverse=True,
    )
    together = np.lexsort((np.arange(len(alike)), first[alike]))  # choices along shared axes, from that of the best on
    begin = np.flatnonzero(np.diff(first[alike][together], prepend=-1))
    place = np.arange(len(together)) - np.repeat(begin, np.diff(begin, append=len(together)))
    kept = together[place < BEST_OF_PART]
    rows = zip(*(column[kept].tolist() for column in block.values()), strict=True)
    return tuple(dict(zip(block, row, strict=True)) for row in rows)


def _numbered(columns: Iterable[NDArray[np.float64]]) -> NDArray[np.int64]:
    """For each row of these columns a number: the same for equal rows."""
    found = np.zeros(1, dtype=np.int64)
    for column in columns:
        values, own = np.unique(column, return_inverse=True)
        found = (found * len(values) + own).astype(np.int64)
    return found


def best_schedule(
    m: Model, sizes: Mapping[str, int], target: Target, split: int | None = None
) -> tuple[float, KernelSchedule] | None:
    """The coarse tiles with the least predicted time, or None where no blocks fit. split: as of `choices`."""
    own = _best_schedule(m, sizes, target, split)
    some = other_forms(m, sizes, coarse=True)
    others = ((made, _best_schedule(made.model, made.sizes, target, split)) for made in some)
    found = [(best[0], made.form.original(best[1])) for made, best in others if best is not None]
    return min([*found, *([own] if own else [])], key=lambda x: x[0], default=None)


def other_forms(m: Model, sizes: Mapping[str, int], *, coarse: bool) -> Iterator[Formed]:
    """The kernel with its windows in registers, for some numbers of positions along the axis that they overlap along:
    each where the last block is full, or less than that. Or with several groups of products as one."""
    found, several = m.windows(sizes), m.groups(sizes)
    counts: list[int] = []
    if found is not None:
        length = sizes[found.along] if found.along else 1
        some = (n for n in (ROWS if coarse else MORE_ROWS) if n <= length and -length % n <= length // MOST_BEYOND)
        counts = [*islice(some, 2 if coarse else None)]
    elif several is not None:
        counts = [n for n in (GROUPS if coarse else MORE_GROUPS) if several.many(n)]
    yield from (made for n in counts if (made := m.formed(n, sizes)) is not None)


def _best_schedule(
    m: Model, sizes: Mapping[str, int], target: Target, split: int | None
) -> tuple[float, KernelSchedule] | None:
    block = _blocks(m, sizes, target, coarse=True)
    if not all(map(len, block.values())):
        return None
    found = _choices(m, block, sizes, target, orders_of(m, sizes, coarse=True), coarse=True, split=split)
    us = estimate(m, found.batch, sizes, target).us
    best = int(us.argmin())
    return (float(us[best]), found.schedule(best)) if np.isfinite(us[best]) else None


def orders_of(m: Model, sizes: Mapping[str, int], *, coarse: bool = False) -> list[tuple[str, ...]]:
    """Orders of block axes that are worth a try: the default; that with rows and columns of products exchanged, which
    coarse estimates tell apart for float32 and for what is made of bytes; and that with short axes first that are held
    whole and summed by no product: a thread then has all of a sum's terms."""
    order = default_order(m)
    found = [order]
    if m.matrix_axes(sizes) and (m.single or m.from_bytes or not coarse):
        found.append(exchanged(m.kernel, order))
    multiplied = {a for e in m.kernel.body if e.op == "dot" for v in e.values for a in m.kernel.value_dims[v]}
    summed = {a for w in m.segments for _, axes in w.sums for a in axes} - multiplied
    short = [d for d in order if d in summed and d in m.whole and sizes[d] <= MOST_TERMS]
    found.append((*short, *(d for d in order if d not in short)))
    return [*dict.fromkeys(found)]


def default_order(m: Model) -> tuple[str, ...]:
    """An order of block axes in which products need no transposition: M before K before N, as far as possible. Axes of
    one side are in memory order."""
    order = [d for d, _ in m.kernel.roles]
    dims = m.kernel.value_dims
    for e in m.kernel.body:
        if e.op == "dot":
            a, b = (set(dims[v]) if isinstance(v, str) else set[str]() for v in e.args)
            rows, columns = [x for x in order if x in a - b], [x for x in order if x in b - a]
            if rows and columns and order.index(rows[0]) > order.index(columns[0]):
                rows, columns = columns, rows
            for x in [x for x in order if x in e.axes and x in a & b]:
                first, last = (
                    max(map(order.index, rows), default=-1),
                    min(map(order.index, columns), default=len(order)),
                )
                if not first < order.index(x) < last:
                    order.remove(x)
                    order.insert(min(map(order.index, columns), default=len(order)), x)
    return _as_in_memory(m.kernel, tuple(order))


def _as_in_memory(kernel: Kernel, order: tuple[str, ...]) -> tuple[str, ...]:
    """The order with the axes of each side of a product as they lie in the tensor that has most of them: neighbours in
    memory are merged to one axis of an operand in their own order alone."""
    for side in dict.fromkeys(side for product in kernel.products for side in product if len(side) > 1):
        lying = max(([d for i in x.access if (d := i.axis) in side] for x in kernel.loads), key=len, default=[])
        kept = iter(lying)
        order = tuple(next(kept) if d in lying else d for d in order)
    return order
