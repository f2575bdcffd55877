"""Loads that stand in front of a loop which they were behind: which do, and which must not."""

from __future__ import annotations

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.placement import early_loads
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from tests.codegen.test_triton import check, kernel

LOOP = "for s_k in range("


def residual(m: int = 20, n: int = 24) -> MuGraph:
    return kernel(
        f"m={m} k=64 n={n}; X[m,k] W[k,n] R[m,n]; Y[m,n]",
        "m:grid n:grid k:loop",
        "P[m, n] = dot(X, W; k)\nY[m, n] = add(P, R)",
    )


def in_front(text: str, load: str) -> bool:
    """Whether a load is written in front of the loop over k."""
    return text.index(f"{load} = tl.load(") < text.index(LOOP)


def test_what_is_added_to_a_product_is_there_when_the_loop_ends() -> None:
    g = residual()
    schedule = Schedule.parse("k0: m=16 n=16 k=16 order=m,k,n warps=1 stages=3")
    assert in_front(kernels_source(g, schedule), "R")
    check(g, schedule)


def test_threads_hold_few_registers_meanwhile() -> None:
    """64 · 64 elements of 2 bytes are 64 bytes of each of 128 threads, and 32 of each of 256."""
    schedule = "k0: m=64 n=64 k=16 order=m,k,n warps={} stages=3"
    texts = {n: kernels_source(residual(128, 128), Schedule.parse(schedule.format(n))) for n in (4, 8)}
    assert {n: in_front(text, "R") for n, text in texts.items()} == {4: False, 8: True}


ROWS = """
mugraph g float16
dims m=20 k=64 n=24 s=40
input X f16[m, k]
input W f16[k, n]
input R f16[s, n]
input T i32[m] below s
output Y f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  R = load R[T{s}[m], n]
  P[m, n] = dot(X, W; k)
  Y[m, n] = add(P, R)
  store Y[m, n] = Y
"""


def test_rows_that_a_table_names_come_behind_the_loop_and_the_table_in_front() -> None:
    g = parse_mugraph(ROWS)
    text = kernels_source(g, Schedule.parse("k0: m=16 n=16 k=16 order=m,k,n warps=1 stages=3"))
    assert not in_front(text, "R") and in_front(text, "T_at")


CHANGED = """
mugraph g float16
dims m=20 k=64 n=24
input X f16[m, k]
input W f16[k, n]
input R f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  R = load R[m, n]
  P[m, n] = dot(X, W; k)
  R_0[m, n] = add(P, R)
  store R[m, n] = R_0
"""


def test_what_the_kernel_changes_is_read_where_it_stands() -> None:
    assert early_loads(parse_mugraph(CHANGED).kernels[0]) == frozenset()
    assert early_loads(residual().kernels[0]) == {"R"}


BEHIND = """
mugraph g float16
dims m=20 k=64 n=24
input X f16[m, k]
input W f16[k, n]
input B f16[m, n]
output Y f16[m, n]
buffer R f16[m, n]
kernel k0 generated m:grid n:grid
  B = load B[m, n]
  R[m, n] = exp(B)
  store R[m, n] = R
kernel k1 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  R = load R[m, n]
  P[m, n] = dot(X, W; k)
  Y[m, n] = add(P, R)
  store Y[m, n] = Y
"""


def test_no_loop_waits_for_what_is_needed_behind_it() -> None:
    """Inputs are multiplied while the kernel in front is still at work; without overlap nothing waits."""
    g = parse_mugraph(BEHIND)
    tiles = "k0: m=16 n=16 order=m,n warps=1 stages=2{0}\nk1: m=16 n=16 k=16 order=m,k,n warps=1 stages=3{0}"
    plain, overlapped = (
        kernels_source(g, Schedule.parse(tiles.format(flags))).split("def k1")[1] for flags in ("", " overlap")
    )
    assert in_front(plain, "R")
    assert overlapped.index(LOOP) < overlapped.index("wait_for_data()") < overlapped.index("R = tl.load(")
