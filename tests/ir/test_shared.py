"""Programs as PyTorch evaluates them, where rows share a matrix."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.named import by_names
from mirage_cli.ir.rewrites.shared import shared
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.facts import blocks_of, independent_axis
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.numeric import draw_inputs

SPEC = """
name: grouped
dims: {{t: 24, k: 40, n: 16, e: 5, j: 3, b: 2, s: 7, f: 6}}
inputs: {{{inputs}}}
program: |
  {program}
outputs: {{O: [{output}]}}
"""


def table(dims: str) -> str:
    return f"E: {{dims: [{dims}], dtype: int32, below: e}}"


X, W, E = "X: [t, k]", "W: [e, n, k]", table("j")
CASES = {
    "rows of a block": (f"{X}, {W}, {E}", "O = dot(X, W[E[t // 8], n, k], k)", "t, n"),
    "as columns": (f"{X}, W: [e, k, n], {E}", "O = dot(W[E[t // 8], k, n], X, k)", "n, t"),
    "with an activation": (f"{X}, {W}, {E}", "O = softmax(silu(dot(X, W[E[t // 8], n, k], k)), n)", "t, n"),
    "scaled": (
        f"{X}, W: {{dims: [e, n, k], dtype: int8}}, S: [e, n], {E}",
        "O = dot(X, W[E[t // 8], n, k] * S[E[t // 8], n], k)",
        "t, n",
    ),
    "of every other entry": (f"{X}, {W}, {table('f')}", "O = dot(X, W[E[t // 8 * 2], n, k], k)", "t, n"),
    "heads": (
        "Q: [b, t, k], K: [b, s, f, k], V: [b, s, f, n]",
        "O = dot(softmax(dot(Q, K[b, s, t // 4, k], k), s), V[b, s, t // 4, n], s)",
        "b, t, n",
    ),
    "columns of a block": (f"{X}, {W}, {E}", "O = dot(X, W[E[t // 8], n // 4, k], k)", "t, n"),
    "a matrix for each row": (f"{X}, {W}, {table('t')}", "O = dot(X, W[E[t], n, k], k)", "t, n"),
    "as rows": (f"{X}, W: [e, k, n], {table('t')}", "O = dot(X, W[E[t], k, n], k)", "t, n"),
    "several for each row": (
        f"{X}, {W}, P: [t, j], {table('t, j')}",
        "O = sum(dot(X, W[E[t, j], n, k], k) * P, j)",
        "t, n",
    ),
    "none for some": (
        f"{X}, {W}, {table('t').replace('below: e', 'below: e, padded: true')}",
        "O = dot(X, W[E[t], n, k], k)",
        "t, n",
    ),
}


def program(inputs: str, text: str, output: str) -> Program:
    return parse_spec(SPEC.format(inputs=inputs, program=text, output=output)).at()


def most(p: Program) -> int:
    """Elements of the largest value."""
    return max(prod(p.sizes[d] for d in e.dims) for e in p.eqns)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_program_without_a_copy_of_a_matrix_for_each_row(name: str) -> None:
    p = program(*CASES[name])
    for form in (p, lower(p)):
        assert most(by_names(shared(form))) < most(form)
        names: dict[str, object] = {"torch": torch}
        exec(torch_source(form), names)
        inputs = [x.double() if x.is_floating_point() else x for x in draw_inputs(p, "normal", torch.device("cpu"), 3)]
        found = names["reference"](*inputs)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        torch.testing.assert_close(found, reference64(p, inputs)[0])


@pytest.mark.parametrize(
    ("inputs", "text", "output"),
    [
        (f"{X}, {W}, {E}", "O = dot(X, W[E[t // 10], n, k], k)", "t, n"),  # the last block is short
        (f"X: [k], {W}, {E}", "O = dot(X, W[E[t // 8], n, k], k)", "t, n"),  # nothing by position
        (f"{X}, W: [e, n, t], {E}", "O = dot(X, W[E[k // 20], n, t], k)", "t, n"),  # blocks are summed
        (f"{X}, {W}, {E}", "O = dot(X, X * W[E[t // 8], n, k], k)", "t, n"),  # rows of a block differ
        (f"X: [b, k], {W}, {table('b')}", "O = dot(X, W[E[b], n, k], k)", "b, n"),
    ],
)  # fmt: skip
def test_other_programs_are_as_they_were(inputs: str, text: str, output: str) -> None:
    p = lower(program(inputs, text, output))
    assert by_names(shared(p)) is p


def test_axes_that_are_evaluated_in_part_are_taken_in_no_blocks() -> None:
    p = program(*CASES["rows of a block"])
    assert shared(p, frozenset("t")) is p


def test_a_judgement_holds_no_copies() -> None:
    """For one column, a matrix of each block has 8 MB, and copies for each row had 67."""
    p = program(*CASES["rows of a block"]).resized({"t": 4096, "k": 2048, "n": 4096, "e": 32, "j": 512})
    cut = independent_axis(p)
    assert cut is not None
    assert cut[-1] < 10.1 * (512 * 2048 * 8)
    assert not blocks_of(p)


@pytest.mark.parametrize("name", ["a matrix for each row", "several for each row", "none for some"])
@pytest.mark.parametrize("matrices", [1, 3, 5])
def test_rows_that_name_a_matrix_are_taken_in_blocks(name: str, matrices: int) -> None:
    """More rows of a matrix than a block has, and matrices that no row names, against a copy for each row."""
    p = program(*CASES[name]).resized({"t": 300})
    X, W, *P, E = draw_inputs(p, "normal", torch.device("cpu"), 3)
    E = torch.where(matrices > E, E, E.clamp(max=0))
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(p), names)
    found = names["reference"](X.double(), W.double(), *(x.double() for x in P), E)
    copies = torch.einsum("tk,t...nk->t...n", X.double(), W.double()[E.clamp(min=0)])
    copies = torch.where((E >= 0)[..., None], copies, 0)
    torch.testing.assert_close(found, torch.einsum("tjn,tj->tn", copies, P[0].double()) if P else copies)
    torch.testing.assert_close(found, reference64(p, [X, W, *P, E])[0])


def test_a_judgement_holds_no_matrix_for_each_row() -> None:
    """Of 16,384 rows and 128 matrices, copies for one column would take 268 MB."""
    p = program(*CASES["a matrix for each row"]).resized({"t": 16384, "k": 2048, "n": 1536, "e": 128})
    cut = independent_axis(p)
    assert cut is not None and cut[-1] < 32 << 20
