"""Searches that several tests look at: one for each program and worker of a run."""

from __future__ import annotations

from functools import cache

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.search.cuts import Bounds
from mirage_cli.target.gpus import find_target

H200 = find_target("h200")
USERS = Bounds()
"""The bounds that users have."""
BEST = Bounds(plans=1)
"""For tests that look at the best plan alone: a search takes half as long, as few others are looked at and verified."""


@cache
def searched(program: Program, bounds: Bounds = USERS) -> Found:
    """What a search of this program for an H200 finds, however slow the machine is."""
    return search_program(program, H200, Options(budget_s=600.0, bounds=bounds, tune=False))
