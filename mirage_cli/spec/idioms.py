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
SIZE = "the size of the axis a is a"
CAST = "types are functions, such as bfloat16(x)"

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
        ("scaled_dot_product_attention", "attention", "sdpa"), "write dot(softmax(dot(Q, K, d) * scale, s), V, s)"
    ),
    **dict.fromkeys(("len", "size", "shape"), SIZE),
    **dict.fromkeys(("cast", "astype", "to"), CAST),
    "float": "write float32(x)",
    "half": "write float16(x)",
    "arange": "the position along the axis a is index(a)",
    "iota": "the position along the axis a is index(a)",
    "swish": "write silu(x)",
    "int": "write integer(x)",
    "trunc": "write integer(x) / 1",
    "clip": "write clamp(x, low, high)",
    "relu6": "write minimum(relu(x), 6)",
    **dict.fromkeys(("scatter", "index_put", "index_copy"), "rows that an integer input names are O[T[m], k] = x"),
    **dict.fromkeys(("flip", "roll"), "positions are read by indices: X[m, 127 - d], or X[m, (d + 64) % 128]"),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), "write -softplus(-x)"),
    "hardswish": "write x * clamp(x + 3, 0, 6) / 6",
    "hardsigmoid": "write clamp(x + 3, 0, 6) / 6",
    "mish": "write x * tanh(softplus(x))",
    "softmin": "write softmax(-x, a)",
    "log_softmax": "write x - logsumexp(x, a)",
    "cross_entropy": "of targets T[m], write logsumexp(x, a) - x[m, T[m]]",
    "one_hot": "write where(index(a) == T, 1, 0)",
    "group_norm": "of x[b, g, c, s], each group is layer_norm(x, c, s)",
    "rsub": "write y - x",
    "add": "write x + y",
    "subtract": "write x - y",
    "multiply": "write x * y",
    "divide": "write x / y",
    "pow": "write x ** y",
    "amax": "write max(x, a)",
    "amin": "write min(x, a)",
    "any": "write max(where(mask, 1, 0), a) > 0",
    "all": "write min(where(mask, 1, 0), a) > 0",
    "count_nonzero": "write sum(where(x != 0, 1, 0), a)",
    "norm": "write sqrt(sum(x * x, a))",
    "var": "write mean(square(x - mean(x, a)), a)",
    "std": "write sqrt(mean(square(x - mean(x, a)), a))",
    "tan": "write sin(x) / cos(x)",
    "asin": "write atan(x / sqrt((1 - x) * (1 + x)))",
    "acos": "write 2 * atan(sqrt((1 - x) / (1 + x)))",
    "sinh": "write (exp(x) - exp(-x)) / 2",
    "cosh": "write (exp(x) + exp(-x)) / 2",
    "log10": "write log(x) * 0.4342944819",
    "cumsum": "for x[m, a], give an axis j the size of a, and write sum(where(index(j) <= index(a), x[m, j], 0), j)",
    "cummax": "for x[m, a], give an axis j the size of a, and write max(where(index(j) <= index(a), x[m, j], -inf), j)",
    "cummin": "for x[m, a], give an axis j the size of a, and write min(where(index(j) <= index(a), x[m, j], inf), j)",
    "cumprod": "for x[m, a], give an axis j the size of a, and write prod(where(index(j) <= index(a), x[m, j], 1), j)",
    "argmax": "for the least position, write min(where(x == max(x, a), index(a), a), a)",
    "argmin": "for the least position, write min(where(x == min(x, a), index(a), a), a)",
    "dropout": "programs are of inference, which drops nothing",
    **dict.fromkeys(
        ("atan2", "asinh", "acosh", "atanh", "sort", "topk", "fft"),
        "no operator or function does this",
    ),
}
"""The name, and what is said behind `no function is called NAME;`."""
OTHER_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("float", "fp32", "f32"), "float32"),
    **dict.fromkeys(("fp8", "float8", "e4m3"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2",), "float8_e5m2"),
    **dict.fromkeys(("int", "i32"), "int32"),
    **dict.fromkeys(("long", "i64"), "int64"),
    **dict.fromkeys(("i8",), "int8"),
    **dict.fromkeys(("double", "float64", "int16", "uint8", "uint16", "uint32", "uint64", "complex64"), ""),
}
"""Types of other libraries, and what each is called in a spec; nothing where a spec has none: it is no misspelling."""
