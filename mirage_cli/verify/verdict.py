"""Verdict: what was found about a μGraph, in words that say no more than is known (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any, Literal

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.verify.degree import Claim, outside

Net = Literal["structure", "field"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "does this μGraph compute this program?".

    net: "structure" if it is refused before any arithmetic, else "field".
    bound: for an accepted μGraph, an upper bound on the probability (over the seed) that a wrong one is accepted, under
        `assumes`. 0 for a refused one: a refusal is never wrong about the μGraph as scheduled.
    assumes: what the bound rests on beyond Schwartz and Zippel's lemma; empty for rational functions.
    detail: one sentence for people.
    counterexample: which element of which output differs, with the seed and sizes that show it.
    claim: what is known, in few words: that it is "proved" or "tested", and below what a false accept is.
    proved: the canonical form of what the μGraph computes is that of the program.
    tests: seed, sizes, tiles and chunks of every test that it passed.
    outside: what occurs in the program or the μGraph that the bound does not speak about.
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
            return "\n".join([self.claim, *tested, *(f"  outside the bound: {x}" for x in self.outside)])
        return f"refused by {self.net}: {self.detail}" + (f" ({self.counterexample})" if self.counterexample else "")

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """What `dataclasses.asdict` gave, read back; of a version that made no claim, that of its bound."""
        found = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in Verdict.__slots__}
        if not found.get("claim"):
            found["claim"] = _claim(False, found["bound"]) if found["ok"] else f"refused by {found['net']}"
        return Verdict(**found)


def accepted(program: Program, graph: MuGraph, passed: Sequence[Claim], proved: bool) -> Verdict:
    """The verdict on a μGraph that has passed these tests. proved: its canonical form is the program's."""
    bound = prod(c.bound for c in passed)
    assumes = tuple(dict.fromkeys(a for c in passed for a in c.assumes))
    eqns = (*program.eqns, *(e for k in graph.kernels for e in k.body))
    doubts = [a for a in assumes if not any(a in x for x in outside(eqns))]
    dtypes = sorted({program.dtype, *(t.dtype for t in graph.tensors().values() if t.dtype != "int32")})
    rounding = f"rounding in {', '.join(dtypes)} (judged on the kernel, in floating point)"
    rest = f", assuming {', '.join(assumes)}" if assumes else ""
    detail = f"tested over finite fields: false accept below {bound:.1e}{rest}"
    return Verdict(
        True,
        "field",
        bound,
        detail,
        assumes=assumes,
        claim=_claim(proved, bound),
        proved=proved,
        tests=tuple(c.at for c in passed),
        outside=(*outside(eqns), *doubts, rounding),
    )


def refused(net: Net, detail: str, counterexample: str | None = None) -> Verdict:
    return Verdict(False, net, 0.0, detail, counterexample, claim=f"refused by {net}")


def _claim(proved: bool, bound: float) -> str:
    """Proof is of the algebra alone: what is done in which tile, and stored where, is tested."""
    tested = f"tested, {_below(bound)}"
    return f"proved: equal canonical forms; tiles, loops, maps, masks and stores {tested}" if proved else tested


def _below(bound: float) -> str:
    """The smallest power of two that is above the bound."""
    return "no bound on a false accept" if bound >= 1 else f"false accept below 2^-{max(0, ceil(-log2(bound)) - 1)}"
