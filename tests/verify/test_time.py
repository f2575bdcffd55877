"""Verification ends when the time is up, and what was not verified to the end is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import mugraph_id
from mirage_cli.pipeline import searching, verifying
from mirage_cli.pipeline.clock import Clock
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cuts import UNVERIFIED
from mirage_cli.search.generator import SearchResult, search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import MOST_ELEMENTS, check_equivalence
from mirage_cli.verify.reduced import elements, small_instance
from mirage_cli.verify.verdict import Verdict, refused

H200 = find_target("h200")
NORMS = """
name: norms
dims: {m: 64, k: 256, n: 256}
dtype: float16
inputs: {X: [m, k], W: [k, n]}
program: |
  Y = dot(rms_norm(X, k), W, k)
  O = rms_norm(Y, n)
outputs: {O: [m, n]}
"""


PAGES = """
name: pages
dims: {b: 8, s: 512, r: 64, w: 576, p: 8, pages: 128, page: 64}
inputs: {C: [pages, page, w], P: {dims: [b, p], dtype: int32, below: pages}}
program: O = sum(C[P[b, s // 64], s % 64, r + 512], s)
outputs: {O: [b, r]}
"""


@pytest.fixture(scope="module")
def program() -> Program:
    return parse_spec(NORMS).at()


@pytest.fixture(scope="module")
def result(program: Program) -> SearchResult:
    return search(lower(program), H200)


@pytest.fixture(scope="module")
def graph(result: SearchResult) -> MuGraph:
    return result.candidates[0].graph


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_test_that_is_cut_short_proves_nothing(program: Program, graph: MuGraph, asked: int) -> None:
    """It ends the first time that it is told to: no draw and no program instance begins then."""
    times = count()
    verdict = check_equivalence(lower(program), graph, 0, end=lambda: next(times) >= asked)
    assert (verdict.ok, verdict.net, verdict.proved) == (False, "time", False)
    assert "longer than there is time for" in str(verdict)
    assert next(times) == asked + 1


def test_it_is_asked_before_every_kernel(program: Program, result: SearchResult) -> None:
    """A draw of a long μGraph takes seconds: to be asked between draws would not do."""
    times, graph = count(), result.as_written.graph
    assert check_equivalence(lower(program), graph, 0, end=lambda: next(times) < 0).ok
    assert next(times) > 2 * sum(k.kind == "generated" for k in graph.kernels)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, result: SearchResult) -> None:
    """What a search finds, without one."""
    monkeypatch.setattr("mirage_cli.search.generator.search", lambda *_, **__: result)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch, known: None) -> None:
    """A search that has used up its budget."""

    class Late(Clock):
        def __init__(self, budget_s: float, interrupted: object, until_s: float) -> None:
            super().__init__(budget_s, lambda: False, until_s)
            self.end_s = time.monotonic()

    monkeypatch.setattr(searching, "Clock", Late)


@pytest.mark.usefixtures("spent")
def test_the_cheapest_plan_and_the_program_as_written_are_verified_behind_the_budget_too(
    program: Program, result: SearchResult
) -> None:
    found = search_program(program, H200, Options(tune=False))
    assert [p.id for p in found.plans] == [result.candidates[0].id, result.as_written.id]
    assert (found.stopped, found.rejected) == ("budget", ())
    assert found.pruned[UNVERIFIED] == len(searching.distinct(result.candidates, result.as_written)) - 2 > 0
    assert found.stats.pruned[UNVERIFIED] == found.pruned[UNVERIFIED]


def test_where_time_may_be_up_a_plan_that_needs_no_search_is_verified_first(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """It is there when no plan that the search finds can be verified any more. No plan is verified twice."""
    asked: list[str] = []

    def check(lowered: Program, graph: MuGraph, seed: int, end: Callable[[], bool]) -> Verdict:
        asked.append(mugraph_id(graph))
        return refused("time", "made up") if len(asked) > 1 else check_equivalence(lowered, graph, seed, end=end)

    monkeypatch.setattr("mirage_cli.verify.equivalence.check_equivalence", check)
    found = search_program(program, H200, Options(tune=False, until_s=time.monotonic() + 3600.0))
    assert [p.id for p in found.plans] == asked[:1]
    assert found.stopped == "budget"
    assert len({*asked}) == len(asked) == 1 + found.pruned[UNVERIFIED]


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.usefixtures("spent")
def test_the_cheapest_plan_is_the_first_and_leaves_time_for_the_program_as_written(
    monkeypatch: pytest.MonkeyPatch, program: Program, result: SearchResult, verified: bool
) -> None:
    """Who waits for a test of many draws has the plan that is worth it, or else the other."""
    given: dict[str, float] = {}

    def check(lowered: Program, graph: MuGraph, seed: int, end: Callable[[], bool]) -> Verdict:
        assert isinstance(end, partial)
        given[mugraph_id(graph)] = end.args[0]
        return check_equivalence(lowered, graph, seed, end=end) if verified else refused("time", "made up")

    monkeypatch.setattr("mirage_cli.verify.equivalence.check_equivalence", check)
    search_program(program, H200, Options(tune=False))
    first, second, *others = given.items()
    assert first == (result.candidates[0].id, verifying.BEHIND_S / 2)
    assert second == (result.as_written.id, verifying.BESIDE * Options().budget_s if verified else verifying.BEHIND_S)
    assert not any(behind_s for _, behind_s in others)


@pytest.mark.usefixtures("spent")
def test_it_does_not_take_forever(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    monkeypatch.setattr(verifying, "BEHIND_S", 0.0)
    found = search_program(program, H200, Options(tune=False))
    assert not found.plans and found.stopped == "budget" and not found.rejected


def test_tests_of_huge_values_are_not_begun(monkeypatch: pytest.MonkeyPatch, program: Program, graph: MuGraph) -> None:
    monkeypatch.setattr("mirage_cli.verify.equivalence.MOST_ELEMENTS", 10)
    verdict = check_equivalence(lower(program), graph, 0)
    assert (verdict.ok, verdict.net) == (False, "time")


def test_what_an_access_reads_is_no_array_of_its_own() -> None:
    """One gathers from all of a table: tests have room for a long table, and for what is read."""
    program = lower(parse_spec(PAGES).at())
    graph = search(program, H200).as_written.graph
    sizes, _ = small_instance(program, graph, 0)
    assert sizes["w"] > 512 and elements(program, sizes) < MOST_ELEMENTS
    assert check_equivalence(program, graph, 0).ok


def checker(interrupted: int, tested: list[int]) -> Callable[..., Verdict]:
    """`check_equivalence`, of which the first few are interrupted."""

    def check(*args: Any, end: Callable[[], bool]) -> Verdict:
        tested.append(len(tested))
        if len(tested) <= interrupted:
            raise KeyboardInterrupt
        return check_equivalence(*args, end=end)

    return check


@pytest.mark.parametrize(("moment_s", "kept"), [(60.0, True), (-1.0, False)])
@pytest.mark.usefixtures("known")
def test_an_interrupt_leaves_a_moment_for_what_is_not_verified_yet(
    monkeypatch: pytest.MonkeyPatch, program: Program, moment_s: float, kept: bool
) -> None:
    monkeypatch.setattr("mirage_cli.pipeline.clock.KEEPING_S", moment_s)
    monkeypatch.setattr("mirage_cli.verify.equivalence.check_equivalence", checker(1, []))
    found = search_program(program, H200, Options(tune=False))
    assert found.stopped == "interrupted"
    assert (len(found.plans) > 1, UNVERIFIED in found.pruned) == (kept, not kept)


@pytest.mark.usefixtures("known")
def test_a_second_interrupt_ends_it(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    tested: list[int] = []
    monkeypatch.setattr("mirage_cli.verify.equivalence.check_equivalence", checker(2, tested))
    with pytest.raises(KeyboardInterrupt):
        search_program(program, H200, Options(tune=False))
    assert len(tested) == 2
