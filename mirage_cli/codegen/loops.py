"""The loops of one kernel as Triton source: which there are to write, from where to where they go."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from mirage_cli.codegen.access import specialized
from mirage_cli.codegen.expressions import Expressions
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.reach import Linear, limits
from mirage_cli.ir.schedule import KernelSchedule, chunk_length

MIN_PEELED = 4
"""Tiles of a loop from which on those that need no mask get a loop without it."""


class Loops(Expressions):
    """Expressions in loops."""

    def __init__(self, graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> None:
        super().__init__(graph, kernel, schedule, sizes)
        self.limits = {x: limits(kernel, x) for x in self.placement.loops}
        self.specialized = specialized(graph, kernel, schedule, sizes)

    def ranges(self, loop: Loop) -> list[tuple[str, str, frozenset[str]]]:
        """The loops to write: from where, to where, and which masks hold all the way."""
        d = loop.dims[0]
        first, last = self.span(loop)
        found = self.limits[loop]
        if not found:
            return [(first, last, frozenset())]
        tile = self.block[d]
        above, below = ([self.reach(x.limit) for x in found if x.lower == lower] for lower in (False, True))
        masks = ", ".join(self.name(x.mask) for x in found)
        if above:
            last = f"min({last}, {', '.join(f'{most} + 1' for _, most in above)})"
        if below:
            self.line(f"begin_{d} = max({first}, {', '.join(self.aligned(least, tile) for least, _ in below)})")
            first = f"begin_{d}"
        self.line(f"end_{d} = {last}", f"outside these bounds, {masks} would make all that is added up zero")
        last = f"end_{d}"
        if ceil(self.sizes[d] / tile) < MIN_PEELED or self.specialized:
            return [(first, last, frozenset())]
        true = frozenset(x.mask for x in found)
        ranges: list[tuple[str, str, frozenset[str]]] = []
        if below:
            whole = ", ".join(self.aligned(f"{most} + {tile - 1}", tile) for _, most in below)
            self.line(f"whole_{d} = min(max({first}, {whole}), {last})", "from here on they hold for whole tiles")
            ranges.append((first, f"whole_{d}", frozenset()))
            first = f"whole_{d}"
        if above:
            whole = ", ".join(self.aligned(f"{least} + 1", tile) for least, _ in above)
            self.line(f"rest_{d} = max({first}, min({last}, {whole}))", "up to here they hold for whole tiles")
            return [*ranges, (first, f"rest_{d}", true), (f"rest_{d}", last, frozenset())]
        return [*ranges, (first, last, true)]

    def span(self, loop: Loop) -> tuple[str, str]:
        """From where to where a loop over one dimension goes in this program instance."""
        d = loop.dims[0]
        if d != self.kernel.split or len(loop.dims) > 1:
            return "0", f"SIZE_{d}"
        length = chunk_length(self.sizes[d], self.schedule.split, self.block[d])
        first, last = f"chunk * {length}", f"chunk * {length} + {length}"
        return first, last if self.sizes[d] == length * self.schedule.split else f"min({last}, SIZE_{d})"

    @staticmethod
    def aligned(position: str, tile: int) -> str:
        """The start of the tile that has this position."""
        return f"({position}) // {tile} * {tile}" if tile > 1 else position

    def reach(self, x: Linear) -> tuple[str, str]:
        """The least and the most that a linear expression can be in this program instance."""
        low, high = [str(x.constant)] * bool(x.constant), [str(x.constant)] * bool(x.constant)
        for (kind, name), c in x.terms:
            if kind == "value":
                block = bool(self.axes(self.dims[name]))
                ends = [f"tl.{f}({self.name(name)})" if block else self.name(name) for f in ("min", "max")]
            else:
                ends = self.extent(name)
            for texts, end in ((low, ends[c < 0]), (high, ends[c > 0])):
                texts.append(end if c == 1 else f"{c} * ({end})")
        return " + ".join(low) or "0", " + ".join(high) or "0"

    def extent(self, d: str) -> list[str]:
        """The first and the last position along a dimension that does not move here."""
        last = self.block[d] - 1
        if d not in self.kernel.with_role("grid") or self.sizes[d] <= self.block[d]:
            return ["0", str(self.sizes[d] - 1)]
        start = f"t_{d} * {self.block[d]}" if last else f"t_{d}"
        return [start, f"{start} + {last}" if last else start]

    def header(self, loop: Loop, first: str, last: str, together: int = 1) -> None:
        """The loop over the tiles of its dimensions together; over one alone, from `first` up to `last`, `together`
        tiles an iteration."""
        split, dims = self.kernel.split, loop.dims
        kind, hints = ("tl.range", ", warp_specialize=True") if self.specialized else ("range", "")
        if len(dims) == 1:
            (d,) = dims
            first, last = self.bound(first), self.bound(last)
            self.line(f"for s_{d} in {kind}({first}, {last}, {self.block[d] * together}{hints}):")
            self.depth += 1
            self.positions(d, f"s_{d}", True)
            self.depth -= 1
            return
        dims = tuple(sorted(dims, key=lambda d: d != split))
        trips = [ceil(self.sizes[d] / self.block[d]) for d in dims]
        count = str(prod(trips))
        if split is not None and dims[0] == split:
            length = chunk_length(self.sizes[split], self.schedule.split, self.block[split])
            rest = f"min(SIZE_{split} - chunk * {length}, {length})"
            self.line(f"t_{split} = ({rest} + {self.block[split] - 1}) // {self.block[split]}", "tiles of this chunk")
            count = f"t_{split} * {prod(trips[1:])}"
        self.line(f"for step in {kind}(0, {self.bound(count)}{hints}):", f"tiles of {', '.join(dims)} together")
        self.depth += 1
        for i, d in enumerate(dims):
            inner = prod(trips[i + 1 :])
            start = f"(step // {inner}{f' % {trips[i]}' if i else ''}) * {self.block[d]}"
            if d == split:
                start = f"chunk * {chunk_length(self.sizes[d], self.schedule.split, self.block[d])} + {start}"
            self.positions(d, start, True)
        self.depth -= 1

    @staticmethod
    def bound(text: str) -> str:
        """A bound of a loop, which is a constant or for `bound` (blocks.py)."""
        constant = text.isdecimal() or (text.isidentifier() and text.startswith("SIZE_"))
        return text if constant else f"bound({text})"
