"""Windows that pointers load, in shared memory: what is written and read at once, in the same banks."""

from __future__ import annotations

import pytest

from mirage_cli.ir.schedule import Schedule
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import models
from mirage_cli.target.gpus import find_target
from tests.search.test_forms import CONVOLVED

H200 = find_target("h200")


def operands_us(tiles: str, words: str = "", without: str = "") -> float:
    m = models(CONVOLVED)["k0"]
    order = ",".join(d for d, _ in CONVOLVED.kernels[0].roles)
    s = Schedule.parse(f"k0: {tiles} n=16 i=1 j=1 order={order} warps=4 stages=3 {words}").kernels["k0"]
    batch = Batch.of(m, [s], CONVOLVED.sizes)
    return float(estimate(m, batch, CONVOLVED.sizes, H200, {without}).busy["operands"][0])


@pytest.mark.parametrize(
    ("tiles", "times"),
    [
        pytest.param("b=16 y=4 x=4 g=1", 1 + 2, id="rows of 32 bytes, read by pairs"),
        pytest.param("b=16 y=4 x=4 g=2", 2 + 2, id="of two groups, a block of rows apart"),
        pytest.param("b=8 y=4 x=4 g=4", 4 + 2, id="of four groups"),
        pytest.param("b=8 y=4 x=4 g=8", 4 + 2, id="of which eight threads write four"),
    ],
)
def test_rows_of_three_axes_meet_in_banks(tiles: str, times: int) -> None:
    """An H200 took 35, 37 and 41 us for the first three, and 33, 23 and 24 where boxes load them."""
    more = operands_us(tiles) - operands_us(tiles, without="banks")
    all_loaded = 9 * 16 * 28 * 28 * 512 * 2  # each pixel for each of nine taps
    assert more == pytest.approx(times * all_loaded / H200.smem_bytes_per_us, rel=0.27)  # waves that are not full


@pytest.mark.parametrize(
    ("tiles", "words"), [("b=1 y=4 x=32 g=4", ""), ("b=16 y=4 x=4 g=4", "descriptors")], ids=["two axes", "boxes"]
)
def test_what_is_swizzled_does_not(tiles: str, words: str) -> None:
    assert operands_us(tiles, words) == operands_us(tiles, words, "banks")
