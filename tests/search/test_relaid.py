"""Inputs that are copied into another memory order, or rounded, before products read them."""

from dataclasses import replace

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Options, search_program, searched_behind_copies
from mirage_cli.search.generator import SearchResult, search
from mirage_cli.search.relaid import relaid
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.codegen.test_triton import check
from tests.searched import BEST

H200 = find_target("h200")
CONVOLUTION = """\
name: convolution
dims: {b: 4, c: 64, e: 128, y: 62, x: 62, i: 3, j: 3, h: 64, w: 64}
dtype: float16
inputs:
  X: [b, c, h, w]
  W: {dims: [e, c, i, j], scale: 0.02}
  B: [e]
program: |
  O = relu(dot(X[b, c, y + i, x + j], W, c, i, j) + B)
outputs:
  O: [b, e, y, x]
"""


def program(*changes: tuple[str, str]) -> Program:
    text = CONVOLUTION
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return lower(parse_spec(text).at())


def orders(p: Program) -> dict[str, tuple[str, ...]]:
    return {name: t.dims for name, t in relaid(p, search(p, H200), H200).items()}


def test_a_convolution_with_channels_first_reads_copies_with_channels_last() -> None:
    found = search_program(program(), H200, Options(tune=False))
    assert not found.rejected
    best = found.plans[0]
    copies, product = best.graph.kernels
    assert {t.name: t.dims for t in best.graph.buffers} == {
        "X_laid": ("b", "h", "w", "c"),
        "W_laid": ("c", "i", "j", "e"),
    }
    assert {s.buffer for s in copies.stores} == {"X_laid", "W_laid"} == {x.buffer for x in product.loads} - {"B"}
    in_place = min(p.predicted_us for p in found.plans if not any("laid" in t.name for t in p.graph.buffers))
    assert best.predicted_us < in_place
    assert best.schedule.fits(best.graph)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param((), {"X": ("b", "h", "w", "c"), "W": ("c", "i", "j", "e")}, id="single elements"),
        pytest.param((("[e, c, i, j]", "[i, j, c, e]"),), {"X": ("b", "h", "w", "c")}, id="a weight read in lines"),
        pytest.param((("c: 64", "c: 63"),), {"W": ("c", "i", "j", "e")}, id="no axis whose lines begin at 16 bytes"),
        pytest.param(
            (
                ("X: [b, c, h, w]", "X: [b, h, w, c]"),
                ("[b, c, y + i, x + j]", "[b, y + i, x + j, c]"),
                ("[e, c, i, j]", "[i, j, c, e]"),
            ),
            {},
            id="all read in lines",
        ),
        pytest.param(
            (("float16", "float32"),),
            {"X": ("b", "h", "w", "c"), "W": ("c", "i", "j", "e")},
            id="single elements of four bytes",
        ),
    ],
)
def test_what_is_copied_is_what_products_load_element_by_element(
    changes: tuple[tuple[str, str], ...], expected: dict[str, tuple[str, ...]]
) -> None:
    assert orders(program(*changes)) == expected


def test_what_names_positions_is_not_copied_nor_a_mask() -> None:
    """A copy is a product by 1, which masks have none of: diagonals that an attention keeps had no kernel."""
    p = program()
    result = search(p, H200)
    for change in ({"below": 7}, {"dtype": "bool"}):
        inputs = tuple(replace(t, **change) if t.name == "X" else t for t in p.inputs)
        assert relaid(replace(p, inputs=inputs), result, H200).keys() == {"W"}


@pytest.mark.parametrize(
    "weight", [pytest.param("[e, c, i, j]", id="both copied"), pytest.param("[i, j, c, e]", id="one copied")]
)
@pytest.mark.parametrize("axis", ["b", "e"])
def test_inputs_with_axes_of_sizes_that_differ_by_call_are_copied_too(weight: str, axis: str) -> None:
    text = CONVOLUTION.replace("[e, c, i, j]", weight)
    size = {"b": "b: 4", "e": "e: 128"}[axis]
    text = text.replace(size, f"{axis}: {{min: 1, max: 256, tune: [{size.split()[1]}]}}")
    (tuned,) = parse_spec(text).programs()
    found = search_program(tuned, H200, Options(tune=False))
    assert not found.rejected
    laid = {t.name for p in found.plans for t in p.graph.buffers} & {"X_laid", "W_laid"}
    assert "X_laid" in laid


ODD = """\
name: odd
dims: {m: 35, n: 37, h: 69, k: 131}
dtype: float16
inputs:
  A: [m, k]
  B: {dims: [h, k], scale: 0.1}
  C: {dims: [n, h], scale: 0.1}
program: |
  O = dot(relu(dot(A, B, k)), C, h)
outputs:
  O: [m, n]
"""
"""Rows of A and B begin at odd elements."""


def dense(graph: MuGraph) -> set[str]:
    """What a library reads or writes."""
    return {x.buffer for k in graph.kernels if k.kind == "library" for x in (*k.loads, *k.stores)}


def test_rows_that_begin_at_no_multiples_of_16_bytes_are_copied_to_ones_that_do() -> None:
    p = lower(parse_spec(ODD).at())
    assert orders(p) == {"A": ("m", "k"), "B": ("h", "k"), "C": ("n", "h")}
    found = search_program(p, H200, Options(tune=False))
    assert not found.rejected
    behind = [x for x in found.plans if {"A_laid", "B_laid"} <= {t.name for t in x.graph.buffers} - dense(x.graph)]
    assert behind
    for plan in behind:
        strides = {t.name: t.strides for t in plan.graph.buffers if t.dims[-1] == "k"}
        assert strides == {"A_laid": (136, None), "B_laid": (136, None)}
        check(plan.graph, plan.schedule, p)


def test_rows_that_are_aligned_stay_where_they_are() -> None:
    p = lower(parse_spec(ODD.replace("A: [m, k]", "A: {dims: [m, k], strides: [136, 1]}")).at())
    assert orders(p) == {"B": ("h", "k"), "C": ("n", "h")}
    even = ODD.replace("k: 131", "k: 136").replace("h: 69", "h: 72")
    assert orders(lower(parse_spec(even).at())) == {}


@pytest.mark.parametrize(("k", "h"), [(130, 70), (132, 76)])
def test_rows_that_are_read_in_pieces_are_copied_too(k: int, h: int) -> None:
    """Of 4 bytes and of 8."""
    p = lower(parse_spec(ODD.replace("k: 131", f"k: {k}").replace("h: 69", f"h: {h}")).at())
    assert orders(p) == {"A": ("m", "k"), "B": ("h", "k"), "C": ("n", "h")}


def test_long_rows_of_intermediates_are_aligned_at_other_sizes_too() -> None:
    p = lower(parse_spec(ODD).at())
    graphs = [x.graph for x in search_program(p, H200, Options(tune=False)).plans]
    rows = [(g, t) for g in graphs for t in g.buffers if t.dims == ("m", "k")]
    assert rows
    for graph, t in rows:
        for k, stride in ((131, 136), (136, 0), (100, 104), (9, 0)):  # 0: aligned, or shorter than a line
            found = graph.resized({**graph.sizes, "k": k}).tensors()[t.name].strides
            assert found == ((stride, None) if stride and t.name not in dense(graph) else ())
    assert {t.name in dense(g) for g, t in rows} == {True, False}  # a library's have no gaps


def test_copies_are_stored_without_masks_in_the_room_of_their_rows() -> None:
    p = lower(parse_spec(ODD).at())
    plan = next(
        x for x in search_program(p, H200, Options(tune=False)).plans if "A_laid" in {t.name for t in x.graph.buffers}
    )
    text = kernels_source(plan.graph, plan.schedule)
    (line,) = (x for x in text.splitlines() if "tl.store(A_laid_ptr" in x)
    assert "in_k" not in line
    assert "torch.empty_strided((35, 136), (136, 1), dtype=torch.float16, device=device)[..., :131]" in text


MIXED = """\
name: mixed
dims: {m: 2048, k: 4096, n: 2048}
dtype: float32
inputs:
  X: [m, k]
  W: {dims: [k, n], scale: 0.02}
program: |
  O = dot(bfloat16(X), bfloat16(W), k)
outputs:
  O: [m, n]
"""


def test_what_products_take_rounded_is_rounded_once() -> None:
    """A weight in float32 for a product in bfloat16, as of a mixed precision, is rounded by a kernel of its own."""
    p = lower(parse_spec(MIXED).at())
    found = search_program(p, H200, Options(bounds=BEST, tune=False))
    best = found.plans[0]
    assert not found.rejected
    assert {t.name: t.dtype for t in best.graph.buffers} == {"X_laid": "bfloat16", "W_laid": "bfloat16"}
    assert best.predicted_us < 0.8 * next(x.predicted_us for x in found.plans if x.id == found.as_written)


@pytest.mark.parametrize(
    ("changes", "rounded"),
    [
        pytest.param((), {"X", "W"}, id="both"),
        pytest.param((("bfloat16(W)", "bfloat16(W) + 0 * W[0, 0]"),), {"X"}, id="one that is read as it is too"),
        pytest.param((("  O = dot(bfloat16(X)", "  O = sum(X, k) * dot(bfloat16(X)"),), {"W"}, id="the other"),
        pytest.param((("bfloat16(W)", "bfloat16(float16(W))"),), {"X", "W"}, id="rounded twice"),
    ],
)
def test_what_is_read_in_float32_too_is_not_rounded(changes: tuple[tuple[str, str], ...], rounded: set[str]) -> None:
    text = MIXED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    assert orders(lower(parse_spec(text).at())).keys() == rounded


@pytest.mark.parametrize(
    ("a", "b", "copied"), [("k, m", "k, n", True), ("m, k", "k, n", False), ("m, k", "n, k", False)]
)
def test_one_operand_of_float32_lies_along_the_sum(a: str, b: str, copied: bool) -> None:
    """A warpgroup's second operand of TF32 does: 2048³ take 201 us on an H200, 290 with both across."""
    text = f"""\
name: product
dims: {{m: 2048, n: 1984, k: 2048}}
dtype: float32
inputs:
  A: [{a}]
  B: [{b}]
program: |
  O = dot(A, B, k)
outputs:
  O: [m, n]
"""
    found = search_program(lower(parse_spec(text).at()), H200, Options(bounds=BEST, tune=False))
    assert not found.rejected
    best = found.plans[0].graph
    assert [t.dims for t in best.buffers] == ([("n", "k")] if copied else [])
    assert len(best.kernels) == 1 + copied


NIBBLES = """\
name: nibbles
dims: {m: 8, k: 4096, half: 2048, n: 14336, groups: 32}
dtype: DTYPE
inputs:
  X: [m, k]
  W: {dims: [n, half], dtype: int8}
  S: {dims: [n, groups], scale: 0.0003}
program: |
  B = W[n, (k + SHIFT) // 2]
  Q = where(index(k) % 2 == 0, B % 16, B // 16 + 8)
  O = dot(X, (Q - 8) * S[n, k // 128], k)
outputs:
  O: [m, n]
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_that_share_a_byte_are_read_as_they_lie(dtype: str) -> None:
    """A loop in phases reads the bytes along the sum, side by side. From the middle of a byte on it has none."""
    aligned, within = (NIBBLES.replace("DTYPE", dtype).replace("SHIFT", n) for n in ("0", "1"))
    assert "W" not in orders(lower(parse_spec(aligned).at()))
    assert "W" in orders(lower(parse_spec(within).at()))


BIAS = """\
name: bias
dims: {b: 512, h: 4, q: 49, s: 49, d: 32, e: 32, n: 169}
dtype: float16
inputs:
  Q: [b, h, q, d]
  K: [b, h, s, d]
  V: [b, h, s, e]
  T: {dims: [q, s], dtype: int32, below: n}
  W: [n, h]
program: |
  O = dot(softmax(dot(Q, K, d) / d ** 0.5 + W[T[q, s], h], s), V, s)
outputs:
  O: [b, h, q, e]
"""


def looked_up(*changes: tuple[str, str]) -> list[tuple[str, ...]]:
    """The orders of what is laid out that tables name."""
    text = BIAS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    p = lower(parse_spec(text).at())
    return [dims for name, dims in orders(p).items() if name not in {t.name for t in p.inputs}]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param((), [("h", "q", "s")], id="for each batch"),
        pytest.param(
            (("[q, s], dtype", "[s, q], dtype"), ("T[q, s]", "T[s, q]")), [("h", "s", "q")], id="as the table"
        ),
        pytest.param((("W[T[q, s], h]", "W[T[q, s], h] * W[T[q, s], h]"),), [], id="what is made of it is as small"),
        pytest.param(
            (("b: 512", "b: 1"), ("Q: [b,", "Q: ["), ("K: [b,", "K: ["), ("V: [b,", "V: ["), ("O: [b,", "O: [")),
            [],
            id="once",
        ),
    ],
)
def test_a_bias_that_is_looked_up_for_each_score_is_laid_out_once(
    changes: tuple[tuple[str, str], ...], expected: list[tuple[str, ...]]
) -> None:
    assert looked_up(*changes) == expected


def test_what_is_laid_out_is_what_tables_name() -> None:
    p = parse_spec(BIAS.replace("b: 512", "b: 5")).at()
    found = search_program(parse_spec(BIAS).at(), H200, Options(bounds=BEST, tune=False))
    assert not found.rejected
    best = found.plans[0]
    copy, attention = best.graph.kernels
    (laid,) = best.graph.buffers
    assert {s.buffer for s in copy.stores} == {laid.name} <= {x.buffer for x in attention.loads}
    assert not {x.buffer for x in attention.loads} & {"T", "W"}
    check(best.graph.resized(p.sizes), best.schedule, lower(p))


def test_copies_are_there_before_a_search_ends() -> None:
    """Plans that need no search say that they are worth it."""
    found = search_program(program(), H200, Options(tune=False, searching_s=1e-6))
    assert found.stopped == "budget"
    assert {t.name for t in found.plans[0].graph.buffers} >= {"X_laid", "W_laid"}


def test_plans_that_need_no_search_are_kept_where_a_search_ends_with_slower_ones() -> None:
    """Its time may end before its own plans are fused."""
    text = "name: sums\ndims: {m: 64, n: 64}\ninputs: {X: [m, n]}\nprogram: O = sum(X * X, n)\noutputs: {O: [m]}\n"
    form = lower(parse_spec(text).at())
    fast = search(form, H200, deadline=lambda: True)
    assert not relaid(form, fast, H200)
    slow = replace(fast, candidates=tuple(replace(c, predicted_us=2 * c.predicted_us) for c in fast.candidates))

    def searched(_: Program, searches: bool = True) -> SearchResult:
        return slow if searches else fast

    found, _ = searched_behind_copies(form, H200, searched)
    assert found.candidates[0].predicted_us == fast.candidates[0].predicted_us
