"""Programs for tests, from short texts."""

from __future__ import annotations

import re
from typing import Any

from mirage_cli.ir.derived import DERIVED, derived_equation, lower
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Builder, Program, Tensor, parse_number

_LINE = re.compile(r"^(\w+) = (\w+)\((.*)\)$")


def program(dims: str, inputs: str, text: str, outputs: str = "O", dtype: str = "float16") -> Program:
    """The lowered program of a text.

    dims: `m=4 k=8`. inputs: `X[m,k] L:int32[m]`. text: equations as programs print them,
    one per line or with ` | ` between them. outputs: names; their axes are those of the values.
    """
    sizes = tuple((n, int(s)) for n, s in (x.split("=") for x in dims.split()))
    tensors = tuple(_tensor(x, dtype) for x in inputs.split())
    b = Builder(tensors, [n for n, _ in sizes])
    for line in re.split(r"\n| \| ", text.strip()):
        match = _LINE.match(line.strip())
        assert match, line
        out, op, inside = match.groups()
        head, _, tail = inside.partition(";")
        if op in OPS and OPS[op].kind == "leaf":
            head, tail = "", head
        args = tuple(_argument(x) for x in head.split(",") if x.strip())
        axes = tuple(x for x in re.split(r"[\s,=]+", tail.strip()) if x)
        if op in DERIVED:
            b.append(derived_equation(out, op, args, axes, b))
        else:
            b.emit(op, *args, axes=axes, out=out)
    wanted = tuple(Tensor(n, b.known[n].dims, dtype) for n in outputs.split())
    return lower(Program("t", sizes, dtype, tensors, tuple(b.eqns), wanted))


def _tensor(text: str, dtype: str) -> Tensor:
    head, _, dims = text.rstrip("]").partition("[")
    name, _, kind = head.partition(":")
    return Tensor(name, tuple(d for d in dims.split(",") if d), kind or dtype)


def _argument(text: str) -> Arg:
    text = text.strip()
    return text if text.isidentifier() and text != "inf" else parse_number(text)


def result_document(**best: Any) -> dict[str, Any]:
    """The least that the database takes for the document of a result. best: other figures of its best kernel."""
    counts = dict.fromkeys(("classes", "enumerated", "verified", "rejected", "seconds"), 0)
    figures = dict.fromkeys(("time_us", "eager_us", "error_vs_float64", "eager_error_vs_float64"))
    kernel = {"id": "0", "kernels": 1, "status": "measured", "floor_us": 9.0, "schedule": {}}
    return {
        "spec": "t",
        "dims": {},
        "dtype": "float16",
        "seed": 0,
        "search": {**counts, "pruned": {}, "stopped": "exhausted"},
        "best": {**kernel, **figures, **best},
        "top": [],
    }
