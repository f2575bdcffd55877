"""IDIOMS: what users of other libraries write, and what it is in the spec language. A name in this table is no
misspelling of another function, however near."""

from __future__ import annotations

from collections.abc import Mapping

PRODUCT = "a product that sums over the axis k is dot(a, b, k)"
BY_NAME = "axes have names: operators match them, and an output names its order"
VIEW = "an axis is split or joined by indices: X[m, 64*h + d]"
JOIN = "write parts of an output: O[m, n] = a, then O[m, n + 4096] = b"
MASK = "a mask is where(index(q) >= index(s), x, -inf)"
ROWS = "rows that an integer input names are E[T[m], k]"
BROADCAST = "axes that are missing are broadcast: nothing is to be done"
WINDOW = "a window is X[b, y + i, x + j, c], and dot sums over i, j and c"
SLICE = "a slice is an axis of its own: give c its size in `dims`, and read X[c] or X[c + start]"
CHOICE = "a choice is where(mask, x, y)"

IDIOMS: Mapping[str, str] = {
    **dict.fromkeys(
        ("matmul", "mm", "bmm", "baddbmm", "addmm", "linear", "einsum", "tensordot", "inner", "mv"), PRODUCT
    ),
    **dict.fromkeys(("transpose", "permute", "swapaxes", "moveaxis", "t"), BY_NAME),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "rearrange"), VIEW),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack"), JOIN),
    **dict.fromkeys(("tril", "triu", "masked_fill", "causal_mask"), MASK),
    **dict.fromkeys(("gather", "take", "index_select", "embedding", "take_along_dim"), ROWS),
    **dict.fromkeys(("unsqueeze", "squeeze", "expand", "broadcast_to", "repeat", "tile"), BROADCAST),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "unfold", "avg_pool2d", "max_pool2d"), WINDOW),
    **dict.fromkeys(("slice", "narrow", "split", "chunk", "select"), SLICE),
    **dict.fromkeys(
        ("scaled_dot_product_attention", "attention", "sdpa"), "dot(softmax(dot(Q, K, d) * scale, s), V, s)"
    ),
    "arange": "the position along the axis a is index(a)",
    "iota": "the position along the axis a is index(a)",
    "swish": "silu(x)",
    "clip": "clamp(x, low, high)",
    "relu6": "minimum(relu(x), 6)",
    "softmin": "softmax(-x, a)",
    "rsub": "y - x",
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "pow": "x ** y",
    "amax": "max(x, a)",
    "amin": "min(x, a)",
    "norm": "sqrt(sum(x * x, a))",
    "var": "mean(square(x - mean(x, a)), a)",
    "std": "sqrt(mean(square(x - mean(x, a)), a))",
    "tan": "sin(x) / cos(x)",
    "sinh": "(exp(x) - exp(-x)) / 2",
    "cosh": "(exp(x) + exp(-x)) / 2",
    "log10": "log(x) * 0.4342944819",
    "dropout": "programs are of inference, which drops nothing",
    **dict.fromkeys(
        ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "sort", "topk", "fft"), "there is none"
    ),
}
"""The name, and what is said behind `no function is called NAME;`."""
OTHER_DTYPES = frozenset(
    ("float", "double", "half", "float64", "float8", "int", "int16", "uint8", "uint16", "uint32", "uint64", "complex64")
)
"""Types of other libraries: none is a misspelling of one that a spec may name."""
