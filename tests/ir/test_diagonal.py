"""Products of several groups as one: what a kernel becomes, and which kernels have such groups."""

from __future__ import annotations

import pytest

from mirage_cli.ir.diagonal import at_schedule, groups
from mirage_cli.ir.form import KernelForm
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.ir.text import parse_mugraph

PRODUCT = """
mugraph product float16
dims m=640 g=12 k=16 n=8
input X f16[m, g, k]
input W f16[g, k, n]
input B f16[g, n]
output O f16[m, g, n]
kernel k0 generated m:grid g:grid n:grid k:tile
  X = load X[m, g, k]
  W = load W[g, k, n]
  B = load B[g, n]
  P[m, g, n] = dot(X, W; k)
  O[m, g, n] = add(P, B)
  store O[m, g, n] = O
"""
CHAIN = """
mugraph chain float16
dims m=640 g=12 k=16 l=8 n=8
input X f16[m, g, k]
input V f16[k, l, g]
input W f16[g, l, n]
output O f16[m, g, n]
kernel k0 generated m:grid g:grid n:grid k:tile l:tile
  X = load X[m, g, k]
  V = load V[k, l, g]
  W = load W[g, l, n]
  H[m, g, l] = dot(X, V; k)
  i[g] = index(g)
  R[m, g, l] = mul(H, i)
  O[m, g, n] = dot(R, W; l)
  store O[m, g, n] = O
"""


def form(text: str, count: int) -> KernelForm | None:
    graph = parse_mugraph(text)
    (k,) = graph.kernels
    order = tuple(d for d, _ in k.roles)
    s = KernelSchedule(tuple((d, count if d == "g" else 16) for d in k.with_role("grid", "loop")), order)
    made = at_schedule(graph, k, s, graph.sizes)
    assert made is None or made.original(made.schedule(s)) == s
    return made


def loads(made: KernelForm | None) -> list[str]:
    assert made is not None
    return [f"{x.out} = {x.buffer}[{', '.join(map(str, x.access))}]" for x in made.kernel.loads]


def test_the_second_operand_lies_outside_of_its_tensor_between_groups() -> None:
    """X[m, 4*u + q, k] and W[4*u + p + 12*(q - p), k, n]; what is added has the groups of the result."""
    made = form(PRODUCT, 4)
    assert loads(made) == ["X = X[m, g_0*4 + g_2, k]", "W = W[g_2*12 - g_1*11 + g_0*4, k, n]", "B = B[g_0*4 + g_1, n]"]
    assert made is not None and dict(made.axes) == {"g_0": 3, "g_1": 4, "g_2": 4}
    assert [str(e) for e in made.kernel.body] == [
        "P[m, g_0, g_1, n] = dot(X, W; k, g_2)",
        "O[m, g_0, g_1, n] = add(P, B)",
    ]
    assert dict(made.kernel.roles)["g_1"] == "tile" and made.parts == {"W": 1 / 4}


def test_each_group_reads_its_own_matrix_alone() -> None:
    """Of all places of a block those with p = q, and no others, lie inside of the tensor."""
    made = form(PRODUCT, 4)
    assert made is not None
    (index,) = (x.access[0] for x in made.kernel.loads if x.buffer == "W")
    at = index.positions(("g_0", "g_1", "g_2"), {"g_0": (0, 3), "g_1": (0, 4), "g_2": (0, 4)})
    for (u, p, q), group in (
        (place, int(at[place])) for place in ((u, p, q) for u in range(3) for p in range(4) for q in range(4))
    ):
        assert group == 4 * u + p if p == q else not 0 <= group < 12


def test_products_in_a_row_sum_an_axis_each() -> None:
    """What the second sums is where the first has its result; positions are counted along the axis of their value."""
    made = form(CHAIN, 2)
    assert made is not None
    assert [str(e) for e in made.kernel.body] == [
        "H[m, g_0, g_2, l] = dot(X, V; k, g_3)",
        "i[g_0, g_2] = index(g_0*2 + g_2)",
        "R[m, g_0, g_2, l] = mul(H, i)",
        "O[m, g_0, g_1, n] = dot(R, W; l, g_2)",
    ]
    assert loads(made)[1:] == ["V = V[k, l, g_3*12 - g_2*11 + g_0*2]", "W = W[g_2*12 - g_1*11 + g_0*2, l, n]"]


def test_axes_of_a_block_stand_as_the_groups_do_in_memory() -> None:
    made = form(PRODUCT, 4)
    assert made is not None
    assert made.order(("m", "g", "k", "n")) == ("m", "g_0", "g_2", "k", "g_1", "n")
    made = form(PRODUCT.replace("X f16[m, g, k]", "X f16[m, k, g]").replace("X[m, g, k]", "X[m, k, g]"), 4)
    assert made is not None
    assert made.order(("m", "g", "k", "n")) == ("m", "g_0", "k", "g_2", "g_1", "n")
    made = form(PRODUCT.replace("B f16[g, n]", "B f16[n, g]").replace("B[g, n]", "B[n, g]"), 4)
    assert made is not None
    assert made.order(("m", "g", "k", "n")) == ("m", "g_0", "g_2", "k", "n", "g_1")


@pytest.mark.parametrize("count", [1, 5, 8])
def test_blocks_have_as_many_groups_each(count: int) -> None:
    assert form(PRODUCT, count) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("W[g, k, n]", "W[g - 1, k, n]", id="read outside"),
        pytest.param("W[g, k, n]\n  B", "W[g//2, k, n]\n  B", id="a matrix of two groups"),
        pytest.param("n=8", "n=128", id="many columns"),
        pytest.param("m=640", "m=1", id="no rows"),
        pytest.param("g:grid", "g:tile", id="all groups in a block"),
        pytest.param("dims", "dynamic g=1..12\ndims", id="any number of groups"),
        pytest.param("  P[m", "  V[g, n, k] = exp(W)\n  P[m", id="computed"),
        pytest.param("= add(P, B)", "= add(P, inf)", id="infinite"),
    ],
)
def test_what_has_no_such_groups(old: str, new: str) -> None:
    text = PRODUCT.replace(old, new)
    assert text != PRODUCT
    text = text.replace("dot(X, W", "dot(X, V") if "exp(W)" in text else text
    graph = parse_mugraph(text)
    assert _groups(graph) is None and form(text, 4) is None


MASKED = """
mugraph masked float16
dims m=640 g=12 k=16 n=8
input X f16[m, g, k]
input L i32[g] below 17
input W f16[g, k, n]
output O f16[m, g, n]
buffer P f16[m, g, k]
kernel k0 generated m:grid g:grid k:tile
  X = load X[m, g, k]
  L = load L[g]
  i[k] = index(k)
  t[g, k] = lt(i, L)
  A[m, g, k] = where(t, X, -inf)
  M[m, g] = max(A; k)
  E[m, g, k] = exp_sub(A, M)
  S[m, g] = sum(E; k)
  P[m, g, k] = div(E, S)
  store P[m, g, k] = P
kernel k1 generated m:grid g:grid n:grid k:tile
  P = load P[m, g, k]
  W = load W[g, k, n]
  O[m, g, n] = dot(P, W; k)
  store O[m, g, n] = O
"""


def test_a_group_that_may_have_no_numbers_reaches_no_other() -> None:
    """The softmax of a length of 0, say: zeros times that are no zeros, in whichever kernel it is made."""
    graph = parse_mugraph(MASKED)
    s = KernelSchedule((("m", 16), ("g", 4), ("n", 8)), ("m", "g", "n", "k"))
    assert at_schedule(graph, graph.kernels[1], s, graph.sizes) is None
    finite = parse_mugraph(MASKED.replace("-inf", "-1000").replace("exp_sub(A, M)", "sub(A, M)"))
    assert at_schedule(finite, finite.kernels[1], s, finite.sizes) is not None


def _groups(graph: MuGraph) -> object:
    dynamic = frozenset(r.dim for r in graph.dynamic)
    return groups(graph.kernels[0], tuple(graph.tensors().values()), tuple(graph.sizes.items()), dynamic)
