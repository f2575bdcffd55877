"""The walk through Triton's GPU dialect, on loops as Triton 3.6 and 3.7 write them."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.races import races

BLOCK = "!ttg.memdesc<64x64xf16, #shared, #smem, mutable>"
INDEX = """
      %{0}_next = arith.addi %{0}, %c1_i32 : i32 loc(#loc7)
      %{0}_end = arith.cmpi sge, %{0}_next, %c{1}_i32 : i32 loc(#loc7)
      %{0}_now = arith.select %{0}_end, %c0_i32, %{0}_next : i32 loc(#loc7)"""
COPY = """
      %X_9 = ttg.memdesc_index %X[%write_now] : !ttg.memdesc<{0}x64x64xf16> -> BLOCK loc(#loc5)
      %X_10 = {1} loc(#loc5)
      %X_11 = ttg.async_commit_group tokens %X_10 loc(#loc5)"""
BY_THREADS = (
    "ttg.async_copy_global_to_local %p, %X_9 mask %m {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>> -> BLOCK"
)
BY_BOX = "ttng.async_tma_copy_global_to_local %desc[%i, %j] %X_9, %barrier, %true : !tt.tensordesc<64x64xf16> -> BLOCK"
WAIT = """
      %Y_12:2 = ttng.warp_group_dot_wait %Y_8, %X_6 {{pendings = {0} : i32}} : tensor<f32>, BLOCK loc(#loc9)"""
READ = """
      %X_5 = ttg.async_wait %X_4 {{num = {0} : i32}} loc(#loc5)
      %X_6 = ttg.memdesc_index %X[%read_now] : !ttg.memdesc<{1}x64x64xf16> -> BLOCK loc(#loc5)
      %W_7 = ttg.memdesc_trans %X_6 {{order = array<i32: 1, 0>}} : BLOCK -> BLOCK loc(#loc6)"""
PRODUCT = """
      %Y_8 = ttng.warp_group_dot {0}, %W_7, %Y {{isAsync = true}} : {1} * BLOCK -> tensor<64x64xf32> loc(#loc8)"""


def loop(
    buffers: int = 4,
    pendings: int = 1,
    copy: str = BY_THREADS,
    copies_under_way: int = 2,
    waits_last: bool = False,
    before: str = "",
    left: str = "%X_6",
) -> str:
    """A loop that multiplies block i by itself and copies block i + 3. before: what stands in front of the product."""
    copied, waited = COPY.format(buffers, copy), WAIT.format(pendings)
    carried = "%Y = %cst, %write = %c2_i32, %read = %c-1_i32"
    start = "".join(
        f"""
    %X_{i} = ttg.memdesc_index %X[%c{i}_i32] : !ttg.memdesc<{buffers}x64x64xf16> -> BLOCK loc(#loc5)
    %X_1{i} = ttg.async_copy_global_to_local %p, %X_{i} : tensor<64x64x!tt.ptr<f16>> -> BLOCK loc(#loc5)
    %X_2{i} = ttg.async_commit_group tokens %X_1{i} loc(#loc5)"""
        for i in range(3)
    )
    return (
        f"""#shared = #ttg.nvmma_shared<{{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}}>
module attributes {{"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"}} {{
  tt.func public @k0(%p: !tt.ptr<f16> loc("p"(#loc))) attributes {{noinline = false}} {{
    %true = arith.constant true loc(#loc1)
    %c-1_i32 = arith.constant -1 : i32 loc(#loc1)
{"".join(f"    %c{i}_i32 = arith.constant {i} : i32 loc(#loc1){chr(10)}" for i in range(6))}
    %X = ttg.local_alloc : () -> !ttg.memdesc<{buffers}x64x64xf16, #shared, #smem, mutable> loc(#loc5)
{start}
    %Y:3 = scf.for %k = %c0_i32 to %n step %c1_i32 iter_args({carried}) -> (i32, i32) : i32 {{
{INDEX.format("read", buffers)}{READ.format(copies_under_way, buffers)}{before}
{PRODUCT.format(left, "BLOCK" if left == "%X_6" else "tensor<64x64xf16>")}
{INDEX.format("write", buffers)}{copied + waited if waits_last else waited + copied}
      scf.yield %Y_12#0, %write_now, %read_now : tensor<64x64xf32, #mma>, i32, i32 loc(#loc10)
    }} loc(#loc11)
    %Y_13 = ttng.warp_group_dot_wait %Y#0 {{pendings = 0 : i32}} : tensor<64x64xf32, #mma> loc(#loc11)
    ttg.local_dealloc %X : !ttg.memdesc<{buffers}x64x64xf16, #shared, #smem, mutable> loc(#loc11)
    tt.return loc(#loc12)
  }} loc(#loc)
}} loc(#loc)
"""
    ).replace("BLOCK", BLOCK)


OVERWRITES = "async_copy_global_to_local overwrites buffer 0 of %X"
LEFT = "\n      %L = tt.trans %A {order = array<i32: 1, 0>} : tensor<64x64xf16> -> tensor<64x64xf16> loc(#loc6)"
IN_BRANCH = "\n      scf.if %c {" + WAIT.format(0) + "\n      } loc(#loc6)"
STORED = "\n      ttg.local_store %A, %X_6 : tensor<64x64xf16> -> BLOCK loc(#loc6)"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (loop(), None),
        (loop(buffers=3), OVERWRITES),
        (loop(buffers=3, pendings=0), None),
        (loop(buffers=5, pendings=2), None),
        (loop(buffers=4, pendings=2), OVERWRITES),
        (loop(waits_last=True), OVERWRITES),
        (loop(buffers=5, waits_last=True), None),
        (loop(buffers=3, copy=BY_BOX), "async_tma_copy_global_to_local overwrites buffer 0 of %X"),
        (loop(copy=BY_BOX), None),
        (loop(copies_under_way=3), "warp_group_dot reads buffer 0 of %X, to which a copy may be on its way"),
        (loop(buffers=3, before=IN_BRANCH), OVERWRITES),
        (loop(before=STORED), None),
        (loop(before=LEFT, left="%L"), "tt.trans overwrites the registers of %L"),
        (loop(before=LEFT, left="%L", pendings=0), None),
        (loop(buffers=3).replace("ttg.memdesc_index", "ttg.memdesc_subview"), OVERWRITES),
        (loop(buffers=3).replace("ttg.memdesc_index", "ttg.memdesc_of_another_time"), None),
        (loop(buffers=3).replace("ttg.", "tti."), None),
        ("", None),
    ],
)
def test_what_is_overwritten_or_read_too_early_is_found(text: str, found: str | None) -> None:
    assert (found in (races(text) or "")) if found else races(text) is None
