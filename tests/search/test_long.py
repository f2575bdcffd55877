"""Layers of models in one program: what a search of them looks at is bounded.

`python -m mirage_cli search tests/long_programs/*.yaml --no-tune` searches them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.search import generator
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.expand import Space, equations
from mirage_cli.search.generator import Prices, _Search, search  # pyright: ignore[reportPrivateUsage]
from mirage_cli.search.roles import Costed, Implementation
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.target.gpus import find_target
from tests.programs import program
from tests.searched import BEST, searched

LONG = Path(__file__).parents[1] / "long_programs"
H200 = find_target("h200")


@pytest.mark.parametrize("path", sorted(LONG.glob("*.yaml")), ids=lambda p: p.stem)
def test_they_are_long(path: Path) -> None:
    assert len(lower(load_spec(path).at()).eqns) > 30


@pytest.mark.parametrize(
    ("name", "looked_at", "kernels", "us"),
    [("decoder_layer_norm_block", 16500, 12, 202.0), ("gemma_block", 27000, 15, 405.0)],
)
def test_few_kernels_are_priced(name: str, looked_at: int, kernels: int, us: float) -> None:
    """No plan has so few kernels as the bound allows and is near the fused one's time: the search ends for what kernels
    need and take at least, within seconds."""
    found = search(lower(merge_axes(load_spec(LONG / f"{name}.yaml").at())), H200)
    assert found.stopped == "exhausted"
    assert found.enumerated < looked_at
    assert len(found.candidates[0].graph.kernels) <= kernels
    assert found.candidates[0].predicted_us < us


def test_a_kernel_computes_nothing_that_no_target_needs() -> None:
    """A node may have a class in passing that an expansion computes as well."""
    text = "Y = rms_norm(X; k) | N = mul(Y, G) | P = dot(N, W; k) | R = rms_norm(P; d) | O = mul(R, H)"
    d = decompose(program("m=64 k=256 d=64", "X[m,k] G[k] W[k,d] H[d]", text))
    space, dead = Space(d, Bounds()), 0
    for e in space.expansions(d.outputs):
        written = equations(d, e)
        used = {v for q in written.eqns for v in q.values} | {written.value[t] for t in e.targets}
        assert {q.out for q in written.eqns} <= used
        assert {name for name, *_ in written.loads} <= used
        dead += len(e.leaves) > len(written.loads)
    assert dead


def test_no_kernel_is_priced_behind_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many the step at hand would still price. What is there by then is the answer."""
    block = lower(merge_axes(load_spec(LONG / "mixture_block.yaml").at()))
    real, count = _Search.price, [0]
    prices: Prices = {}  # of the kernels that several of these searches look at

    def counted(run: _Search, plan: Implementation) -> Costed | None:
        count[0] += 1
        return real(run, plan)

    monkeypatch.setattr(_Search, "price", counted)
    for priced in (700, 800, 900):
        count[0] = 0
        late = search(block, H200, deadline=lambda most=priced: count[0] >= most, prices=prices)
        assert count[0] == priced and late.stopped == "budget"
        assert late.as_written in late.candidates and len(late.candidates) > 1


def test_the_ways_to_compute_a_kernel_end_at_the_deadline() -> None:
    d = decompose(lower(merge_axes(load_spec(LONG / "mixture_block.yaml").at())))
    space, asked = Space(d, Bounds()), [0]

    class TimeUpError(Exception):
        pass

    def ask() -> None:
        asked[0] += 1
        if asked[0] == 3:
            raise TimeUpError

    longest = max(((f,) for f in d.nodes), key=lambda targets: space.rank[targets[0]])
    with pytest.raises(TimeUpError):
        space.expansions(longest, ask)
    assert asked[0] == 3


def test_no_kernel_makes_more_than_two_intermediates() -> None:
    """Nor two of different shapes: what a kernel count rules out is not looked at. A search of the mixture block spent
    half of its time on such states, and its bounds on what leads to them."""
    text = "A = dot(X, U; k) | B = dot(X, V; k) | C = dot(X, W; k) | D = dot(X, T; k) | a = mul(A, B) | b = mul(C, a)"
    d = decompose(program("m=64 k=64 n=64 p=32", "X[m,k] U[k,n] V[k,n] W[k,n] T[k,p]", f"{text} | O = mul(D, b)", "O"))
    run = _Search(d, H200, Bounds(), True, {})
    A, B, C, D = (f for name in "ABCD" for f in d.forms[name])
    found = [run.chains.least_kernels(frozenset(some)) for some in ([A, B], [A, D], [A, B, C], [A, B, C, D])]
    assert found == [1, 2, 2, 3]
    assert run.chains.least_kernels(frozenset(d.outputs)) == 1


def test_one_kernel_makes_all_products_of_a_normalised_input_that_others_read() -> None:
    """Queries, keys and values of fewer heads, and what turns the halves of queries and keys."""
    text = """
name: turned
dims: {b: 8, k: 4096, h: 32, g: 8, e: 128}
dtype: bfloat16
inputs: {X: [b, k], G: [k], Q: [h, e, k], K: [g, e, k], V: [g, e, k], C: [e], S: [e]}
program: |
  Y = rms_norm(X, k) * G
  q = dot(Y, Q, k)
  p = dot(Y, K, k)
  A = q * C + where(index(e) < 64, -q[b, h, e + 64], q[b, h, e - 64]) * S
  B = p * C + where(index(e) < 64, -p[b, g, e + 64], p[b, g, e - 64]) * S
  D = dot(Y, V, k)
outputs: {A: [b, h, e], B: [b, g, e], D: [b, g, e]}
"""
    best = searched(parse_spec(text).at(), BEST).plans[0]
    first, last = best.graph.kernels
    assert len(first.stores) == 3 and {e.op for e in first.body} >= {"dot"}
    assert len(last.stores) == 2 and all(e.op != "dot" for e in last.body)


def test_a_few_plans_near_the_best_are_found_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of a decoded token by chunks was predicted at 1.04 times its time without, and was never timed."""
    monkeypatch.setattr(generator, "WIDENING", (0.96, 1.1, 1.4))  # times that of operators fused in turn
    of = program("m=8 k=4096 n=2048", "X[m,k] W[k,n] G[k]", "y = rms_norm(X; k) | z = mul(y, G) | O = dot(z, W; k)")
    found = search(of, H200, bounds=Bounds(widening=1))
    near = [c for c in found.candidates if c.predicted_us < 1.15 * found.candidates[0].predicted_us]
    assert len(near) >= generator.FEW
    assert found.pruned["plans that are much slower"]
    monkeypatch.setattr(generator, "FEW", 1000)
    once = search(of, H200, bounds=Bounds(widening=1))
    assert (once.enumerated, once.pruned) == (found.enumerated, found.pruned), "it widens once"
