"""The identity of what a program computes: one for all ways to write it, and another for any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.callers import Kernels, Settings
from mirage_cli.pipeline.computed import computed_hash
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import cut, exported
from mirage_cli.spec.graph import Graph, dot, mean, rms_norm
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.store import Database

SPEC = """
name: norm
dims: {m: 4, k: 64, n: 32}
dtype: bfloat16
inputs: {X: [m, k], G: [k], W: [n, k], V: [n, k], T: {dims: [m], dtype: int32, below: k}}
program: |
  Y = rms_norm(X, k, eps=1e-5) * G
  A = dot(Y, W, k)
  O = where(index(n) <= T, A * sigmoid(A), -inf) + dot(Y, V, k)
outputs: {O: [m, n]}
"""


def program(*changes: tuple[str, str]) -> Program:
    text = SPEC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_spec(text).at()


@pytest.mark.parametrize(
    "change",
    [
        ("name: norm", "name: other"),
        ("rms_norm(X, k, eps=1e-5) * G", "G * X * rsqrt(mean(square(X), k) + 0.00001)"),
        ("rms_norm(X, k, eps=1e-5) * G", "X / sqrt(mean(X * X, k) + 9.999999747378752e-06) * G"),
        ("A * sigmoid(A)", "silu(A)"),
        ("dot(Y, V, k)", "dot(V * G, rms_norm(X, k, eps=1e-5), k)"),
        ("W: [n, k]", "W: {dims: [n, k], scale: 0.02}"),
    ],
)
def test_another_way_to_write_it_is_the_same(change: tuple[str, str]) -> None:
    assert computed_hash(program(change)) == computed_hash(program())


@pytest.mark.parametrize(
    "change",
    [
        ("1e-5", "1e-6"),
        ("dot(Y, W, k)", "dot(Y, V, k)"),
        ("dot(Y, V, k)\n", "dot(Y, W, k)\n"),
        ("<=", "<"),
        ("-inf", "0"),
        ("m: 4", "m: 5"),
        ("m: 4", "m: {min: 1, max: 8, tune: [4]}"),
        ("bfloat16", "float16"),
        ("O: [m, n]", "O: [n, m]"),
        ("O: [m, n]", "O: {dims: [m, n], dtype: float32}"),
        ("V: [n, k]", "V: [k, n]"),
        ("V: [n, k]", "V: {dims: [n, k], strides: [100, 1]}"),
        ("V: [n, k]", "V: {dims: [n, k], dtype: float32}"),
        ("below: k", "below: 32"),
        ("below: k", "below: k, padded: true"),
        ("below: k", "below: k, distinct: true"),
        ("rms_norm(X, k, eps=1e-5) * G", "rms_norm(X * G, k, eps=1e-5)"),
    ],
)
def test_another_program_is_another(change: tuple[str, str]) -> None:
    assert computed_hash(program(change)) != computed_hash(program())


def test_where_infinities_are_added_the_text_says_what_it_is() -> None:
    """A sum with an infinity is not what a form takes it for."""
    one, other = (program(("-inf) +", f"0) + {x} +")) for x in ("inf - inf", "0"))
    assert computed_hash(one) != computed_hash(other)
    assert computed_hash(one) == computed_hash(program(("name: norm", "name: b"), ("-inf) +", "0) + inf - inf +")))


def written(anew: bool, scale: float) -> Graph:
    g = Graph("region", dims={"m": 4, "k": 64, "n": 32})
    x, w = g.input("X", "m", "k"), g.input("W", "k", "n", scale=scale)
    y = x / (mean(x * x, "k") + 1e-6) ** 0.5 if anew else rms_norm(x, "k")
    g.output("O", dot(y, w, "k"), "m", "n")
    return g


def test_what_was_stored_first_stands_for_all_that_compute_the_same(tmp_path: Path) -> None:
    one, other, third = written(False, 0.02), written(True, 0.5), Graph("region", dims={"m": 4})
    third.output("O", third.input("X", "m") * 2, "m")
    with Kernels(Settings("h200", db=tmp_path / "mirage.db")) as kernels:
        assert [x.text for x in kernels.standing([one, other, third])] == [one.text(), one.text(), third.text()]
        kernels.store.put_spec("0", "region", "no spec")
        kernels.store.put_spec("1", "region", other.text())
    with Kernels(Settings("h200", db=tmp_path / "mirage.db")) as kernels:
        assert [x.text for x in kernels.standing([one, third])] == [other.text(), third.text()]
    with Database(tmp_path / "mirage.db") as store:
        assert store.specs_named("another") == []


def test_a_mask_of_numbers_is_a_mask() -> None:
    """AOTAutograd makes numbers of a mask of bits."""

    def by_bits(q: torch.Tensor, k: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, torch.arange(9) <= n)

    def by_numbers(q: torch.Tensor, k: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, torch.where(torch.arange(9) <= n, 0.0, -torch.inf))

    def filled(q: torch.Tensor, k: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(9).masked_fill(~(torch.arange(9) <= n), -torch.inf)
        return F.scaled_dot_product_attention(q, k, k, mask)

    inputs = torch.randn(2, 7, 8), torch.randn(2, 9, 8), torch.tensor([3])
    found = [cut(exported(as_module(f), inputs)).regions for f in (by_bits, by_numbers, filled)]
    one, other, third = ([r.graph.text() for r in some] for some in found)
    assert one == other and len(one) == 1
    assert "+" not in third[0]
