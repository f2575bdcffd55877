"""Verdict: what was found about a μGraph, in words that say no more than is known (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from sys import float_info
from typing import Any, Literal  # JSON of stored verdicts

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program, tensor_type
from mirage_cli.verify.degree import Claim, outside

Net = Literal["structure", "field", "time"]

NO_BOUND = "no bound on a false accept"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "does this μGraph compute this program?".

    net: "structure" if it is refused before any arithmetic, "time" if there was no time to end the tests, else "field".
    bound: for an accepted μGraph, an upper bound on the probability (over the seed) that a wrong one is accepted, under
        `assumes`. 0 for a refused one: a refusal is never wrong about the μGraph as scheduled.
    assumes: what the bound rests on beyond Schwartz and Zippel's lemma; empty for rational functions.
    detail: one sentence for people.
    counterexample: which element of which output differs, with the seed and sizes that show it.
    claim: what is known, in few words: that it is "proved" or "tested", and below what a false accept is.
    proved: the canonical form of what the μGraph computes is that of the program.
    tests: seed, sizes, tiles and chunks of every test that it passed.
    outside: what occurs in the program or the μGraph for which the bound is no theorem, or says nothing.
    """

    ok: bool
    net: Net
    bound: float
    detail: str
    counterexample: str | None = None
    assumes: tuple[str, ...] = ()
    claim: str = ""
    proved: bool = False
    tests: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.ok:
            tested = [f"  test {i}: {t}" for i, t in enumerate(self.tests, 1)]
            return "\n".join([self.claim, *tested, *(f"  outside the theorem: {x}" for x in self.outside)])
        return f"refused by {self.net}: {self.detail}" + (f" ({self.counterexample})" if self.counterexample else "")

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """What `dataclasses.asdict` gave, read back; of a version that made no claim, that of its bound."""
        claim = data.get("claim") or (_claim(data["bound"]) if data["ok"] else f"refused by {data['net']}")
        return Verdict(
            data["ok"],
            data["net"],
            data["bound"],
            data["detail"],
            data["counterexample"],
            tuple(data["assumes"]),
            claim,
            data.get("proved", False),
            tuple(data.get("tests", ())),
            tuple(data.get("outside", ())),
        )


def accepted(program: Program, graph: MuGraph, passed: Sequence[Claim], proved: bool) -> Verdict:
    """The verdict on a μGraph that has passed these tests. proved: its canonical form is the program's."""
    bound = max(prod(c.bound for c in passed), float_info.min)  # below it a product is lost, not 0
    assumes = tuple(dict.fromkeys(a for c in passed for a in c.assumes))
    eqns = (*program.eqns, *graph.eqns)
    doubts = [a for a in assumes if not any(a in x for x in outside(eqns))]
    dtypes = sorted({program.dtype, *(t.dtype for t in graph.tensors().values() if tensor_type(t) == "float")})
    rounding = f"rounding in {', '.join(dtypes)} (judged on the kernel, in floating point)"
    rest = f", assuming {', '.join(assumes)}" if assumes else ""
    below = f"false accept below {bound:.1e}" if bound < 1 else NO_BOUND
    detail = f"tested over finite fields: {below}{rest}"
    return Verdict(
        True,
        "field",
        bound,
        detail,
        assumes=assumes,
        claim=_claim(bound, _parts(graph) if proved else ""),
        proved=proved,
        tests=tuple(c.at for c in passed),
        outside=(*outside(eqns), *doubts, rounding),
    )


def refused(net: Net, detail: str, counterexample: str | None = None) -> Verdict:
    return Verdict(False, net, 0.0, detail, counterexample, claim=f"refused by {net}")


def _claim(bound: float, proved_but: str = "") -> str:
    """proved_but: what the proof, which is of the algebra alone, leaves to the tests; empty without a proof."""
    tested = f"tested, {_below(bound)}"
    return f"proved: equal canonical forms; {proved_but} {tested}" if proved_but else tested


def _parts(graph: MuGraph) -> str:
    """What a μGraph has besides its algebra."""
    roles = {role for k in graph.kernels if k.kind == "generated" for _, role in k.roles}
    masks = any(OPS[e.op].result == "branches" for e in graph.eqns)
    named = (("tiles", "grid" in roles), ("loops", "loop" in roles), ("chunks", "split" in roles), ("masks", masks))
    return f"{''.join(f'{name}, ' for name, there in named if there)}maps and stores"


def _below(bound: float) -> str:
    """The smallest power of two that is above the bound."""
    return NO_BOUND if bound >= 1 else f"false accept below 2^-{max(0, ceil(-log2(bound)) - 1)}"
