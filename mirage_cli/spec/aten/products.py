"""ATen's contractions, and attention."""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.magnitudes import is_floating
from mirage_cli.spec.aten.operands import both, chosen, hiding, mask_of, number_of
from mirage_cli.spec.aten.reductions import amax, softmax
from mirage_cli.spec.aten.row import Rows, dtype_name, overloadless
from mirage_cli.spec.aten.shapes import diagonal, repeat_interleave, stack, transpose, unbind

aten = Rows()
EXACT = 1 << 24
"""Float32 has all whole numbers up to this."""


@aten("aten.mm", products=1)
def _mm(a: Array, b: Array) -> Array:
    return p.einsum("mk,kn->mn", a, b)


@aten("aten._int_mm", products=1, with_node=True)
def _int_mm(t: Trace, node: Any, a: Array, b: Array) -> Array:
    """Of bytes. Kernels add up blocks in int32, and the blocks in float32: where float32 does not count as far as the
    sum may go, it is taken if all that read it make floating-point numbers of it anyway."""
    if a.shape[1] << 14 > EXACT and not read_as_floats(node, t):
        raise Unsupported("its sums may be beyond 2^24, and are read as whole numbers")
    return _mm(a, b)


def read_as_floats(node: Any, t: Trace) -> bool:
    """Whether all that reads a node makes floating-point numbers of it, if need be behind what moves it."""
    return all(is_floating(x) or (moves_alone(x, node, t) and read_as_floats(x, t)) for x in node.users)


def moves_alone(user: Any, node: Any, t: Trace) -> bool:
    """Whether a node has the elements of another one, and their type."""
    return t.moves(user) and getattr(user.meta.get("val"), "dtype", None) == node.meta["val"].dtype


@aten("aten._weight_int8pack_mm", products=1)
def _weight_int8pack_mm(x: Array, w: Array, scales: Array) -> Array:
    return both(operator.mul, p.einsum("mk,nk->mn", x, w), scales)


@aten("aten._scaled_mm", products=1, with_node=True)
def _scaled_mm(_: Trace, node: Any, a: Array, b: Array, left: Array, right: Array, bias: Array | None = None,
               of_result: Array | None = None, *_options: Any, **_named: Any) -> Array:  # fmt: skip
    """Of float8, with one scale of each operand, or one of each row and column."""
    blocks = {*left.shape[1:], *right.shape[:-1]} - {1}
    if blocks or of_result is not None or node.meta["val"].dtype.itemsize == 1:
        raise Unsupported("scales of blocks, or of a result of float8")
    made = both(lambda x, u, v: x * u * v, _mm(a, b), left, right)
    return made if bias is None else both(operator.add, made, bias)


@aten("aten.mv", products=1)
def _mv(a: Array, b: Array) -> Array:
    return p.einsum("mk,k->m", a, b)


@aten("aten.dot", "aten.inner", products=1)
def _dot(a: Array, b: Array) -> Array:
    return p.einsum("k,k->", a, b)


@aten("aten.outer")
def _outer(a: Array, b: Array) -> Array:
    return p.einsum("m,n->mn", a, b)


@aten("aten.linalg_cross")
def _cross(a: Array, b: Array, dim: int = -1) -> Array:
    x, y = (unbind(number_of(v), dim) for v in (a, b))
    pairs = [(x[i], y[j], x[j], y[i]) for i, j in ((1, 2), (2, 0), (0, 1))]
    return stack([p.elementwise(lambda u, v, w, z: u * v - w * z, *some) for some in pairs], dim)


@aten("aten.bmm", products=1)
def _bmm(a: Array, b: Array) -> Array:
    return p.einsum("bmk,bkn->bmn", a, b)


@aten("aten.matmul", products=1)
def matmul(a: Array, b: Array) -> Array:
    batch = "abcdefgh"
    left, right = len(a.dims), len(b.dims)
    if left == 1 or right == 1:
        rows, columns = "m" * (left > 1), "n" * (right > 1)
        lead = batch[: max(left, right) - 2] if max(left, right) > 2 else ""
        a_at = (lead if left > 1 else "") + rows + "k"
        b_at = (lead if right > 1 else "") + "k" + columns
        return p.einsum(f"{a_at},{b_at}->{lead}{rows}{columns}", a, b)
    lead = batch[: max(left, right) - 2]
    return p.einsum(f"{lead[len(lead) - left + 2 :]}mk,{lead[len(lead) - right + 2 :]}kn->{lead}mn", a, b)


@aten("aten.addmm", products=1)
def _addmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _mm(a, b), beta, alpha)


@aten("aten.baddbmm", products=1)
def _baddbmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _bmm(a, b), beta, alpha)


def scaled_sum(c: Array, product: Array, beta: float, alpha: float) -> Array:
    if beta == 0:  # what is in c does not count, whatever it is
        return both(operator.mul, product, alpha)
    return both(lambda x, y: x * beta + y * alpha if (beta, alpha) != (1, 1) else x + y, c, product)


@aten("aten.addmv", products=1)
def _addmv(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _mv(a, b), beta, alpha)


@aten("aten.addbmm", products=1)
def _addbmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, p.einsum("bmk,bkn->mn", a, b), beta, alpha)


@aten("aten.addr")
def _addr(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _outer(a, b), beta, alpha)


@aten("aten.linear", products=1)
def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    lead = "abcdefgh"[: len(x.dims) - 1]
    made = p.einsum(f"{lead}k,nk->{lead}n", x, weight)
    return made if bias is None else both(operator.add, made, bias)


@aten("aten.einsum", products=1)
def _einsum(equation: str, operands: Sequence[Array], **_: Any) -> Array:
    left, right = in_full(equation.replace(" ", ""), [len(x.dims) for x in operands]).split("->")
    labels, arrays = zip(*map(on_diagonals, left.split(","), operands), strict=True)
    return p.einsum(f"{','.join(labels)}->{right}", *arrays)


def on_diagonals(labels: str, x: Array) -> tuple[str, Array]:
    """The elements at which positions with one letter are equal, and a letter for each position that is left."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            first, second = labels.index(c), labels.rindex(c)
            x = diagonal(x, 0, first, second)
            labels = "".join(d for i, d in enumerate(labels) if i not in (first, second)) + c
    return labels, x


@aten("aten._trilinear", products=2)
def _trilinear(a: Array, b: Array, c: Array, first: Sequence[int], second: Sequence[int], third: Sequence[int],
               summed: Sequence[int], *_: Any) -> Array:  # fmt: skip
    """The sum of products of three tensors, along some of the positions that they have once they are given these new
    ones."""
    letters = "abcdefgh"[: len(a.dims) + len(first)]
    at = [without(letters, new) for new in (first, second, third)]
    return p.einsum(f"{','.join(at)}->{without(letters, summed)}", a, b, c)


def without(letters: str, places: Sequence[int]) -> str:
    return "".join(c for i, c in enumerate(letters) if i not in places)


def in_full(equation: str, ranks: Sequence[int]) -> str:
    """The equation with letters for an ellipsis, and with its result: by default what stands before an ellipsis in the
    operands, then the letters that occur once, in order."""
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    lengths = [n - len(labels.replace("...", "")) for labels, n in zip(operands, ranks, strict=True)]
    longest = max((n for labels, n in zip(operands, lengths, strict=True) if "..." in labels), default=0)
    free = [c for c in string.ascii_letters if c not in equation][:longest]
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        right = "..." + "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    given = (labels.replace("...", "".join(free[longest - n :])) for labels, n in zip(operands, lengths, strict=True))
    return f"{','.join(given)}->{right.replace('...', ''.join(free))}"


FUSED = tuple(
    f"aten._scaled_dot_product_{x}attention"
    for x in ("flash_", "efficient_", "cudnn_", "fused_attention_overrideable_")
)
"""What PyTorch makes of attention on a GPU. Their masks are numbers."""


@aten(*FUSED, products=2, with_node=True)
def _attention_on_gpu(t: Trace, node: Any, q: Array, k: Array, v: Array, *rest: Any, **named: Any) -> list[Array]:
    flash = "flash" in overloadless(node.target)
    mask = None if flash else rest[0] if rest else named.get("attn_bias")
    more = rest if flash else rest[2:]  # the mask, and whether to return the logsumexp
    dropout, causal = (
        more[i] if len(more) > i else named.get(name) for i, name in enumerate(("dropout_p", "is_causal"))
    )
    return [_attention(t, node, q, k, v, mask, dropout or 0.0, bool(causal), named.get("scale"))]


@aten("aten._scaled_dot_product_flash_attention_for_cpu", products=2, with_node=True)
def _attention_on_cpu(t: Trace, node: Any, q: Array, k: Array, v: Array, dropout: float = 0.0, causal: bool = False,
                      **named: Any) -> list[Array]:  # fmt: skip
    return [_attention(t, node, q, k, v, named.get("attn_mask"), dropout, causal, named.get("scale"))]


@aten("aten.scaled_dot_product_attention", "mirage.attention", products=2, with_node=True)
def _attention(t: Trace, node: Any, q: Array, k: Array, v: Array, mask: Any = None, dropout: float = 0.0,
               causal: bool = False, scale: float | None = None, **_: Any) -> Array:  # fmt: skip
    if dropout:
        raise Unsupported("dropout in training draws numbers")
    if len(q.dims) > 2 and 1 < k.shape[-3] < q.shape[-3]:
        k, v = (repeat_interleave(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = matmul(q, transpose(k, -2, -1))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = both(lambda x: x * factor, scores)
    if causal:
        row, column = t.positions(q.shape[-2]), t.positions(k.shape[-2])
        row = p.viewed(row, [*row.dims, ()])
        scores = p.elementwise(lambda i, j, x: chosen(i >= j, x, -math.inf), row, column, scores)
    if mask is not None:
        given = node.args[3] if len(node.args) > 3 and hasattr(node.args[3], "meta") else None
        boolean = mask.mask or (given is not None and dtype_name(given.meta["val"].dtype) == "bool")
        scores = (
            p.elementwise(lambda m, x: chosen(m, x, -math.inf), mask_of(mask), scores)
            if boolean
            else both(hiding, scores, mask)
        )
    mixed = matmul(softmax(scores, -1), v)
    if mask is None:
        return mixed
    return both(lambda m, x: g.where(m == -math.inf, 0, x), amax(scores, -1, True), mixed)  # of nothing it is 0
