"""What this machine's libraries offer for a program: the contestants of `mirage bench --against library`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.program import Eqn, Program, Tensor
from mirage_cli.pipeline.bench.convolution import convolution_source
from mirage_cli.pipeline.bench.sdpa import attention_sources, flashinfer_sources
from mirage_cli.tune.bench import baseline
from mirage_cli.tune.measure import Candidate, Problem

LIBRARY = "library"


def library(program: Program, problem: Problem) -> dict[str, Candidate]:
    """By what it is called: PyTorch as it is and compiled, also with packed weights and with its own convolution, and
    every attention."""
    found = {name: baseline(name, problem) for name in ("eager", "compile")}
    if (packed := packed_source(program)) is not None:
        with_packed = replace(problem, reference_source=packed)
        found |= {f"{name}, packed weights": baseline(name, with_packed) for name in ("eager", "compile")}
    if (convolution := convolution_source(program)) is not None:
        with_convolution = replace(problem, reference_source=convolution)
        found |= {f"{name}, convolution": baseline(name, with_convolution) for name in ("eager", "compile")}
    sources = attention_sources(program) | flashinfer_sources(program)
    found |= {n: Candidate(n, source, kind="function", timeout_s=60.0) for n, source in sources.items()}
    return {n: replace(c, id=f"{LIBRARY}: {n}") for n, c in found.items()}


def packed_source(program: Program) -> str | None:
    """Products of one value with several weights as one product with the weights side by side in memory.

        dot(X, W1, k), dot(X, W2, k)  -->  (X @ [W1 | W2]).split(...)

    The text defines `pack(inputs)`, which adds the packed weights to the inputs, and `reference(*packed)`. Of
    several such values, the one with the largest weights is taken. None where there is none, and where outputs are
    parts of others.
    """
    if program.parts:
        return None
    group = max(_groups(program), key=lambda g: sum(_elements(program, e) for e in g), default=())
    if not group:
        return None
    sizes, inputs = program.sizes, {t.name: t for t in program.inputs}
    (x, *_), axes = group[0].values, group[0].axes
    weights = [inputs[e.values[1]] for e in group]
    rows = tuple(d for d in program.values()[x].dims if d not in axes)
    columns = [tuple(d for d in w.dims if d not in axes) for w in weights]
    products = [Tensor(e.out, (*rows, *c), program.dtype) for e, c in zip(group, columns, strict=True)]
    front, back = program.around([Tensor(x, (*rows, *axes), program.dtype)], products)
    orders = [tuple(w.dims.index(d) for d in (*axes, *c)) for w, c in zip(weights, columns, strict=True)]
    inner, widths = prod(sizes[d] for d in axes), [prod(sizes[d] for d in c) for c in columns]
    shapes = [tuple(sizes[d] for d in t.dims) for t in products]
    return f"""\
import torch


{torch_source(front, "front")}

{torch_source(back, "back")}

def pack(inputs):
    weights = [inputs[i] for i in {[program.inputs.index(w) for w in weights]}]
    matrices = [w.permute(order).reshape({inner}, -1) for w, order in zip(weights, {orders})]
    return [*inputs, torch.cat(matrices, 1)]


def reference(*packed):
    *inputs, weights = packed
    products = (front(*inputs).reshape(-1, {inner}) @ weights).split({widths}, 1)
    return back(*inputs, *(p.reshape(shape) for p, shape in zip(products, {shapes})))
"""


def _groups(program: Program) -> list[Sequence[Eqn]]:
    """Products of the same value over the same axes with inputs that share no other axis with it and that nothing else
    reads."""
    dims = {name: set(x.dims) for name, x in program.values().items()}
    weights = {t.name for t in program.inputs if t.dtype == program.dtype}
    reads = [v for e in program.eqns for v in e.values]
    groups: dict[tuple[str, tuple[str, ...]], list[Eqn]] = {}
    for e in program.eqns:
        if e.op == "dot" and len(e.values) == 2:
            for x, w in (e.values, e.values[::-1]):
                if w in weights and reads.count(w) == 1 and dims[x] & dims[w] == set(e.axes):
                    groups.setdefault((x, e.axes), []).append(replace(e, args=(x, w)))
                    break
    return [g for g in groups.values() if len(g) > 1]


def _elements(program: Program, e: Eqn) -> int:
    """Of the weights of a product."""
    return prod(program.sizes[d] for d in program.values()[e.values[1]].dims)
