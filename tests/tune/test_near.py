"""Kernels for dynamic sizes near those where they were timed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.near import Timed, between, expected_us, sizes_near, worth_having

LORA = """
name: lora
dims: {m: {min: 1, max: 4096, tune: [256]}, k: 4096, n: 4096, r: 16}
inputs: {X: [m, k], W: [k, n], A: [k, r], B: [r, n]}
program: O = dot(X, W, k) + dot(dot(X, A, k), B, r)
outputs: {O: [m, n]}
"""
TARGET = find_target("h200")


@cache
def found() -> tuple[ScheduledGraph, ...]:
    (program,) = parse_spec(LORA).programs()
    return tuple(search(lower(merge_axes(program)), TARGET).candidates[:4])


def resized(c: ScheduledGraph, m: int) -> MuGraph:
    return c.graph.resized({"m": m})


def test_where_it_was_timed_a_kernel_is_expected_to_take_what_it_took() -> None:
    some = [Timed(c.graph, c.schedule, 20.0 + i) for i, c in enumerate(found())]
    us = expected_us(some, [{"m": 256}, {"m": 400}], TARGET)
    assert us[:, 0] == pytest.approx([t.us for t in some])
    assert (us[:, 1] >= us[:, 0] * 0.99).all()


def test_elsewhere_the_ratio_of_measured_to_predicted_holds() -> None:
    c = found()[0]
    at = [{"m": m} for m in (100, 256, 300)]
    (predicted, twice) = expected_us([Timed(c.graph, c.schedule, None), Timed(c.graph, c.schedule, 40.0)], at, TARGET)
    assert twice == pytest.approx(predicted * 40.0 / predicted[1])
    (moved,) = expected_us([Timed(resized(c, 1024), c.schedule, None)], at, TARGET)
    assert moved == pytest.approx(predicted)


def test_sizes_near_are_of_the_range_from_half_to_twice() -> None:
    near = [at["m"] for at in sizes_near(found()[0].graph)]
    assert near == [128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448, 480, 512]
    assert [at["m"] for at in sizes_near(resized(found()[0], 1))] == [1, 2]
    assert max(at["m"] for at in sizes_near(resized(found()[0], 4096))) == 4096
    assert between(5, 40) == {8, 16, 32}


def test_kernels_are_had_that_bring_something_the_most_useful_first() -> None:
    us = np.array([[10.0, 10, 10, 10], [10, 10, 9, 9], [20, 9.95, 20, 20], [9, 8, 11, 11], [10, 10, 9.1, 9.1]])
    assert worth_having(us, [0], 3, 0.01) == [3, 1]
    assert worth_having(us, [0], 1, 0.01) == [3]
    assert worth_having(us, [0, 3], 3, 0.01) == [1]
    assert worth_having(us, [0], 3, 0.2) == []
    assert worth_having(us[:1], [0], 3, 0.01) == []


def test_what_does_not_fit_at_some_size_is_had_for_the_others() -> None:
    us = np.array([[10.0, 10.0], [np.inf, 5.0]])
    assert worth_having(us, [0], 3, 0.01) == [1]
