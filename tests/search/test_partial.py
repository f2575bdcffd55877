"""What the cost model takes for stores that write parts of sectors."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost import model
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.work import models
from mirage_cli.target.gpus import find_target

H200 = find_target("h200")
N = 1 << 22


def graph(stores: str, out: str = "n, c", dtype: str = "bf16") -> MuGraph:
    """Copies of X[n] into O."""
    return parse_mugraph(f"""
mugraph g {"bfloat16" if dtype == "bf16" else "float32"}
dims n={N} c=4 w={4 * N}
input X {dtype}[n]
output O {dtype}[{out}]
kernel k0 generated n:grid
  X = load X[n]
  A[n] = mul(X, 2)
  B[n] = add(X, 1)
{stores}
""")


def term_us(g: MuGraph, term: str, limit: str, tile: int = 256) -> float:
    (m,) = models(g).values()
    batch = Batch.of(m, [KernelSchedule((("n", tile),), ("n",), 4, 2)], g.sizes)
    whole, without = (model.estimate(m, batch, g.sizes, H200, w) for w in ((), (term,)))
    assert (whole.us >= without.us).all()
    return float((whole.busy[limit] - without.busy[limit])[0])


def partial_us(g: MuGraph, tile: int = 256) -> float:
    """Of tiles of which a thread has two elements in a row."""
    return term_us(g, "partial", "L2", tile)


def written(*at: str) -> str:
    return "\n".join(f"  store O[{i}] = {v}" for i, v in zip(at, "ABAB", strict=False))


def sectors_us(n: float) -> float:
    return n * 32 * H200.costs.partial / H200.l2_bytes_per_us


@pytest.mark.parametrize(
    ("stores", "sectors"),
    [
        (written("n, 0"), N / 2),  # threads write 16 bytes apart
        (written("n, 0", "n, 1"), N),  # two of four are no block
        (written("n, 0", "n, 1", "n, 2", "n, 3"), 0),
    ],
)
def test_parts_of_records(stores: str, sectors: float) -> None:
    assert partial_us(graph(stores)) == pytest.approx(sectors_us(sectors))


@pytest.mark.parametrize(
    ("stores", "sectors"),
    [
        (written("n"), 0),
        (written("2*n"), N / 4),
        (written("2*n", "2*n + 1"), 0),
        (written("4*n", "4*n + 2"), N),
    ],
)
def test_every_second_element(stores: str, sectors: float) -> None:
    stores = stores.replace("2*n", "n*2").replace("4*n", "n*4")
    assert partial_us(graph(stores, "w")) == pytest.approx(sectors_us(sectors))


def test_wide_elements_far_apart_are_a_sector_each() -> None:
    assert partial_us(graph(written("n*4"), "w", "f32")) == pytest.approx(sectors_us(N))


def test_one_element_at_a_time_has_no_block_to_be_in_turns_in() -> None:
    whole = graph(written("n*2", "n*2 + 1"), "w")
    assert partial_us(whole, 1) == pytest.approx(sectors_us(N / 4)) and not np.any(partial_us(whole, 2))


def test_gaps_come_from_memory_and_go_back() -> None:
    """Of every second element of two bytes: the sectors are read, and written whole."""
    filled_us = term_us(graph(written("n*2"), "w"), "filled", "memory")
    assert filled_us == pytest.approx((4 + 2) * N / H200.dram_bytes_per_us)
    assert term_us(graph(written("n*2", "n*2 + 1"), "w"), "filled", "memory") == 0


def test_what_stores_of_one_kernel_write_side_by_side_has_no_gaps() -> None:
    """Of three stores, each leaves what the others write. Of a block of more than one position they are one store."""
    three = graph(written("n*3", "n*3 + 1", "n*3 + 2"), "w")
    assert term_us(three, "filled", "memory", 1) == 0 < partial_us(three, 1)
    assert term_us(three, "filled", "memory") == 0 == partial_us(three)
    two = term_us(graph(written("n*3", "n*3 + 1"), "w"), "filled", "memory")
    assert two == pytest.approx(2 * (3 + 1) * N / H200.dram_bytes_per_us)  # 3 bytes for each of 2
    elsewhere = term_us(graph(written("n*3", f"n*3 + {3 * (N // 3)}"), "w"), "filled", "memory")
    assert elsewhere == pytest.approx(2 * (6 + 4) * N / H200.dram_bytes_per_us)
