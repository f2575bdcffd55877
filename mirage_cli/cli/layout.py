"""Tables as plain aligned text: as wide as they are in files and pipes, and as wide as the terminal on one.

Where a sheet is wider than the terminal, columns of prose are wrapped; where that is not enough, each row becomes a
list of its cells. Nothing is cut: an id that is shown can be copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

GAP = "  "
LEAST_PROSE = 16
"""Characters of a column of prose below which rows become lists."""


@dataclass(frozen=True, slots=True)
class Column:
    """right: figures, aligned at the right. prose: may be wrapped."""

    name: str
    right: bool = False
    prose: bool = False


def figures(*names: str) -> tuple[Column, ...]:
    return tuple(Column(n, right=True) for n in names)


@dataclass(slots=True)
class Sheet:
    """A table that can be printed. Without names of columns it is a list of names with what belongs to them."""

    title: str
    columns: Sequence[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])

    def add(self, *cells: object) -> None:
        assert len(cells) == len(self.columns), "a cell for each column"
        self.rows.append(tuple(map(str, cells)))

    def lines(self, width: int | None) -> list[tuple[str, str]]:
        """The text with its styles, where lines are at most this long, as far as whole words allow. None: as long as
        they are."""
        title = [(line, "bold") for line in textwrap.wrap(self.title, width or 10_000, break_on_hyphens=False)]
        widths = [max(map(cell_len, cells)) for cells in self._by_column()]
        room = None if width is None else width - len(GAP) * (len(widths) - 1)
        if room is not None and sum(widths) > room:
            narrower = self._wrapped(widths, room)
            if narrower is None:
                return [*title, *(line for row in self.rows for line in self._listed(row, width or 0))]
            widths = narrower
        head = [(self._line([c.name for c in self.columns], widths), "dim")] if self._named else []
        return [*title, *head, *((line, "") for row in self.rows for line in self._row(row, widths))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line, style in self.lines(options.max_width if console.is_terminal else None):
            yield Text(line, style=style)

    @property
    def _named(self) -> bool:
        return any(c.name for c in self.columns)

    def _by_column(self) -> list[list[str]]:
        names = [c.name for c in self.columns]
        return [[name, *(row[i] for row in self.rows)] for i, name in enumerate(names)]

    def _wrapped(self, widths: Sequence[int], room: int) -> list[int] | None:
        """Widths that fit, where columns of prose are narrow enough; None where they would be too narrow."""
        prose = [i for i, c in enumerate(self.columns) if c.prose and widths[i] > LEAST_PROSE]
        left = room - sum(w for i, w in enumerate(widths) if i not in prose)
        if not prose or left < LEAST_PROSE * len(prose):
            return None
        total = sum(widths[i] for i in prose)
        found = list(widths)
        for i in prose:
            found[i] = max(LEAST_PROSE, left * widths[i] // total)
        while sum(found) > room:
            found[max(prose, key=found.__getitem__)] -= 1
        return found

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = (
            " " * (w - cell_len(x)) + x if c.right else x + " " * (w - cell_len(x))
            for x, w, c in zip(cells, widths, self.columns, strict=True)
        )
        return GAP.join(padded).rstrip()

    def _row(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = [
            [x] if cell_len(x) <= w else textwrap.wrap(x, w, break_long_words=False, break_on_hyphens=False)
            for x, w in zip(row, widths, strict=True)
        ]
        deep = max(map(len, cells), default=0)
        return [self._line([c[i] if i < len(c) else "" for c in cells], widths) for i in range(deep)]

    def _listed(self, row: Sequence[str], width: int) -> list[tuple[str, str]]:
        """A row as a list: its first cell, and the others with their names beneath."""
        if not self._named:
            return [(line, "") for line in _hanging("", f"{row[0]}: {' '.join(row[1:])}", width)]
        rest = [(c.name, x) for c, x in zip(self.columns[1:], row[1:], strict=True) if x]
        deepest = max((cell_len(name) for name, _ in rest), default=0)
        starts = (GAP + name + " " * (deepest - cell_len(name)) + GAP for name, _ in rest)
        lines = (line for start, (_, x) in zip(starts, rest, strict=True) for line in _hanging(start, x, width))
        return [(row[0] or "-", "bold"), *((line, "") for line in lines)]


def _hanging(start: str, text: str, width: int) -> list[str]:
    """Lines of a text behind a first word, the others beneath its beginning."""
    indent = " " * cell_len(start) if start else GAP
    return textwrap.wrap(
        text,
        max(width, cell_len(start) + 20),
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]


def named(title: str, rows: Iterable[tuple[str, object]]) -> Sheet:
    """Names, and what belongs to each."""
    return Sheet(title, (Column(""), Column("", prose=True)), [(f"  {name}", str(x)) for name, x in rows])
