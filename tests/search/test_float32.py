"""Products of float32: what the cost model says of schedules that were measured.

The table is of results/h100/notes-2026-11-26.md, with all schedules that were timed.
"""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import models
from mirage_cli.target.gpus import find_target

H100 = find_target("h100")
PRODUCT = """\
mugraph product float32
dims j={0} l={1} m={2}
input C f32[j, m]
input D f32[m, l]
output O f32[j, l]

kernel k0 generated j:grid l:grid m:loop
  C = load C[j, m]
  D = load D[m, l]
  O[j, l] = dot(C, D; m)
  store O[j, l] = O
"""
SIZES = ((1801, 2201, 2401), (1804, 2204, 2404), (4096, 4096, 4096))
# fmt: off
MEASURED: tuple[tuple[int, int, int, int, int, str, int, bool, bool, int | None, int | None, int], ...] = (
    # tiles of j, l, m; warps, stages, order, group, tf32x3, descriptors; microseconds of each of the sizes
    (128, 64, 32, 4, 3, "jml", 1, True, False, 1279, 383, 2347),
    (64, 64, 32, 4, 3, "jml", 1, True, False, 1882, 576, 3701),
    (64, 64, 32, 4, 3, "jml", 8, True, False, 1864, 559, 3684),
    (64, 64, 16, 4, 5, "jml", 1, True, False, 1156, 644, 4127),
    (128, 128, 32, 8, 3, "jml", 1, True, False, 1593, 885, 3822),
    (128, 128, 16, 8, 4, "jml", 8, True, False, 1273, 1015, 4413),
    (64, 256, 32, 8, 3, "jml", 1, True, False, 1535, 1206, 7967),
    (64, 64, 32, 2, 3, "jml", 1, True, False, 954, 554, 2560),
    (64, 128, 16, 2, 4, "jml", 1, True, False, 875, 685, 3224),
    (32, 128, 32, 4, 3, "jml", 1, True, False, 656, 405, 2434),
    (32, 64, 32, 4, 3, "jml", 1, True, False, 766, 487, 2863),
    (64, 128, 32, 8, 3, "jml", 1, True, False, 2304, 1258, 8454),
    (128, 64, 64, 4, 2, "jml", 1, True, False, 2293, 512, 2848),
    (64, 128, 32, 4, 3, "jml", 1, False, False, 592, 561, 3025),
    (64, 64, 16, 4, 4, "jml", 1, False, False, 635, 493, 3114),
    (128, 128, 16, 8, 3, "jml", 1, False, False, 984, 768, 3532),
    (128, 64, 16, 4, 4, "jml", 1, False, False, 727, 548, 3308),
    (128, 128, 16, 16, 3, "jml", 8, False, False, 856, 736, 3436),
    (64, 64, 32, 8, 3, "jml", 1, False, False, 694, 570, 3703),
    (64, 128, 32, 4, 3, "jml", 1, True, False, None, 888, 5854),
    (64, 128, 32, 4, 3, "lmj", 1, True, False, None, 278, 1610),
    (64, 128, 32, 4, 3, "jml", 1, True, True, None, 879, 6048),
    (128, 128, 32, 8, 3, "jml", 8, True, True, None, 895, 3974),
    (128, 128, 16, 8, 3, "jml", 1, False, True, None, 724, 3235),
)
# fmt: on


def predicted_us(size: int, rows: list[int]) -> np.ndarray:
    sizes = SIZES[size]
    graph = parse_mugraph(PRODUCT.format(*sizes))
    (m,) = models(graph).values()
    schedules: list[KernelSchedule] = []
    for i in rows:
        *tiles, warps, stages, order, group, tf32x3, boxes = MEASURED[i][:9]
        along = tuple(zip("jlm", tiles, strict=True))
        some = KernelSchedule(
            along, tuple(order), warps, stages, 1, group, overlap=True, tf32x3=tf32x3, descriptors=boxes
        )
        schedules.append(some)
    return estimate(m, Batch.of(m, schedules, graph.sizes), graph.sizes, H100).us


@pytest.mark.parametrize(("size", "correlation"), [(0, 0.7), (1, 0.65), (2, 0.5)])
def test_schedules_are_ranked_as_they_were_measured(size: int, correlation: float) -> None:
    """Before transposition, splitting and copies of 4 bytes had a price, the correlations were -0.5, -0.2 and -0.4."""
    rows = [i for i, r in enumerate(MEASURED) if r[9 + size] is not None]
    measured = np.array([MEASURED[i][9 + size] for i in rows], dtype=float)
    us = predicted_us(size, rows)
    first, second = (np.argsort(np.argsort(x)) for x in (measured, us))
    assert np.corrcoef(first, second)[0, 1] > correlation
    assert measured[np.argsort(us)[:3]].min() < 1.25 * measured.min()
    ratios = us[np.isfinite(us)] / measured[np.isfinite(us)]
    assert 0.85 < np.median(ratios) < 1.15


def test_the_right_operand_of_a_warpgroup_is_transposed_unless_it_lies_along_the_sum() -> None:
    kinds = [(64, 128, "jml"), (128, 64, "jml"), (64, 128, "lmj")]
    rows = [i for kind in kinds for i, r in enumerate(MEASURED) if (r[0], r[1], r[5]) == kind and r[2:5] == (32, 4, 3)]
    wide, narrow, along = predicted_us(2, [i for i in rows if MEASURED[i][7] and not MEASURED[i][8]])
    assert wide > 3 * along and 2 * along > narrow > 1.3 * along  # 5854, 2347 and 1610 us
