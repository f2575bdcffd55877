"""Searches for the best plan alone (`tests.searched`)."""

from __future__ import annotations

from pathlib import Path

from mirage_cli.spec.reader import load_spec
from tests.searched import BEST, searched

SPECS = Path(__file__).parents[1] / "search_specs"


def test_the_best_plan_alone_is_that_of_all_plans() -> None:
    program = load_spec(SPECS / "rmsnorm_linear.yaml").at()
    best, users = searched(program, BEST), searched(program)
    assert (best.plans[0].graph, best.plans[0].schedule) == (users.plans[0].graph, users.plans[0].schedule)
    assert best.enumerated < users.enumerated and len(best.plans) < len(users.plans)
