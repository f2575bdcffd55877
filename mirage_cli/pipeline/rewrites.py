"""Other programs that compute the same, and are searched instead of a program or beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from mirage_cli.ir.merge import beside_in_products
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.blocked import blocked
from mirage_cli.ir.rewrites.joined import by_parts, outputs_by_parts
from mirage_cli.ir.rewrites.pieces import in_pieces
from mirage_cli.ir.rewrites.running import LEAST, in_scans
from mirage_cli.ir.rewrites.selected import selected
from mirage_cli.ir.rewrites.separable import separable
from mirage_cli.ir.rewrites.skewed import by_entries, over_entries, skewed
from mirage_cli.ir.rewrites.windowed import by_rows


@dataclass(frozen=True, slots=True)
class Rewrite:
    """made: what it makes of a lowered program with merged axes, or None. instead: whether that is searched in place of
    the program, and is what the rows below are given."""

    made: Callable[[Program], Program | None]
    instead: bool = False


REWRITES = (
    Rewrite(selected, instead=True),
    Rewrite(beside_in_products, instead=True),
    Rewrite(in_pieces, instead=True),
    Rewrite(by_rows),
    Rewrite(skewed, instead=True),
    Rewrite(separable, instead=True),
    Rewrite(partial(over_entries, in_order=True), instead=True),
    Rewrite(partial(in_scans, long=LEAST)),
    Rewrite(in_scans, instead=True),
    Rewrite(blocked),
    Rewrite(by_entries),
    Rewrite(over_entries),
    Rewrite(by_parts),
    Rewrite(outputs_by_parts),
)


def forms_of(program: Program) -> Iterator[Program]:
    """The forms of a program that are searched, each made when it is asked for: first the one in its place."""
    beside: list[tuple[Rewrite, Program]] = []
    for rewrite in REWRITES:
        if rewrite.instead:
            program = rewrite.made(program) or program
        else:
            beside.append((rewrite, program))
    yield program
    for rewrite, given in beside:
        if (made := rewrite.made(given)) not in (None, program):
            yield made
