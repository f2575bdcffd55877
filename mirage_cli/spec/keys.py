"""The keys of a spec: what each is called, an example of its value, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_cli.ir.program import FLOAT8, INTEGERS

FLOATS = ("float16", "bfloat16", "float32")
RANGE = ("min", "max", "tune")
RANGE_FORM = "{min: 1, max: 8192, tune: [1, 16, 256, 4096]}"


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a spec, or of a tensor in it. form: an example of its value."""

    name: str
    form: str
    doc: str
    required: bool = False


KEYS: Mapping[str, Field] = {
    f.name: f
    for f in (
        Field("name", "rmsnorm_linear", "`[a-z][a-z0-9_]*`; also the exported function's name", required=True),
        Field("description", "RMSNorm and the projection behind it", "for readers"),
        Field("source", "Llama-3-8B attention input", "for readers: where the sizes come from"),
        Field("dims", "{m: 16, h: 32, d: 128, k: h*d}", "every axis by name, with its size, a product of others and of "
              "numbers, or `{min: 1, max: 8192, tune: [1, 16, 256, 4096]}`: any size from `min` to `max`, which "
              "kernels take as an argument, and the sizes to tune for", required=True),
        Field("instances", "[{m: 2}, {m: 2048}]", "sizes to search, each a change to `dims`; left out: `dims` alone"),
        Field("dtype", "float16", f"of inputs and outputs that name none: {', '.join(FLOATS)}; left out: float16"),
        Field("inputs", "{X: [m, k], G: [k]}", "tensors, in the order of the exported function's arguments",
              required=True),
        Field("program", "O = rms_norm(X, k) * G", "assignments, one on a line (behind `|` where there are several)",
              required=True),
        Field("outputs", "{O: [m, n]}", "the results, in the order in which they are returned", required=True),
        Field("tolerance", "4", "the error allowed, in multiples of eager PyTorch's own error against float64; "
              "left out: 4"),
    )
}  # fmt: skip
REQUIRED = tuple(f.name for f in KEYS.values() if f.required)
MAX_BELOW: Mapping[str, int] = {"int8": 1 << 7, "int32": 1 << 30, "int64": 1 << 30}
"""Of integers of these types: kernels count positions in 32 bits."""
TENSOR_TYPES = (*FLOATS, *sorted(FLOAT8), *sorted(INTEGERS), "bool")
TENSOR_KEYS: Mapping[str, Field] = {
    f.name: f
    for f in (
        Field("dims", "[k, n]", "axes in memory order, row-major", required=True),
        Field("dtype", "float32", f"{', '.join((*FLOATS, *sorted(FLOAT8)))}; {', '.join(sorted(INTEGERS))}, whose "
              "values are indices, or numbers beside others; bool, a mask; left out: the spec's"),
    )
}  # fmt: skip
OUTPUT_KEYS: Mapping[str, Field] = {
    **TENSOR_KEYS,
    "inout": Field("inout", "KC", "alone, and the output's own name: an input that is changed in place, not returned"),
}
INPUT_KEYS: Mapping[str, Field] = {
    **TENSOR_KEYS,
    "scale": Field("scale", "0.02", "the standard deviation of an input's test data; left out: 1"),
    "below": Field(
        "below",
        "pages",
        "of integers: they are from 0 on and less than this number, or than the size of "
        "this axis, and what a program makes of others is undefined; needed where the input is an index; left "
        "out: the whole range of int8, of others numbers below the longest axis",
    ),
    "padded": Field(
        "padded",
        "true",
        "whether -1 is among the integers too, which names nothing: 0 is read there, and nothing written; left out: "
        "false",
    ),
    "strides": Field(
        "strides",
        "[3*n, 1]",
        "elements between neighbours along each axis, of a tensor with gaps or in another memory order: numbers, "
        "axes for their sizes, and products; left out: row-major",
    ),
    "distinct": Field("distinct", "true", "whether no two of the integers from 0 on are equal; left out: false"),
    "drawn": Field(
        "drawn",
        "skewed",
        "how integers of test data are drawn: `evenly`; `skewed`, as many from 10 to 100 as from 100 to 1000, which "
        "figures of speed then count; `sorted`, in memory order; `bits`, of int32 without `below`: words of which each "
        "bit may be set, negative ones too; left out: evenly",
    ),
}
