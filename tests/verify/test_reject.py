"""The must-reject list: wrong μGraphs and wrong executions, each refused by the net that claims to see it."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mirage_cli.ir.access import Tables, is_plain
from mirage_cli.ir.mugraph import Kernel, Store, split_axis
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.reach import Limit, Linear
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.verify import interpret
from mirage_cli.verify.axisclasses import same_axes
from mirage_cli.verify.equivalence import DOUBTFUL, DOUBTFUL_IN_PART, IN_FLOAT64, Verdict, check_equivalence
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_mugraph, run_program
from mirage_cli.verify.proof import proved
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.residues import aligned
from mirage_cli.verify.semantics import At, ScheduleFailure, Window
from mirage_cli.verify.structure import structure_problem
from tests.mugraphs import CASES, Case, Write, case, matmul
from tests.mutations import ACCESSES, mutate, rederived
from tests.rows import rows
from tests.seeds import over_seeds
from tests.verify.test_interpret import agrees_in_float64, floats


@pytest.mark.parametrize("name", CASES)
@over_seeds(range(5))
def test_right_graphs_are_accepted(name: str, seed: int) -> None:
    verdict = check_equivalence(CASES[name].program, CASES[name].graph, seed)
    assert verdict.ok, verdict
    assert verdict.net == "field"
    assert 0 < verdict.bound < 1e-12


MANY_ROOTS = """
mugraph many_roots float32
dims m=32 k=64 n=48
input X f32[m, k]
input W f32[n]
output Y f32[]
kernel k0 generated m:loop k:loop n:loop
  X = load X[m, k]
  W = load W[n]
  S[m, k, n] = add(X, W)
  A[m, k, n] = sqrt(S)
  Y[] = sum(A; m, k, n)
  store Y[] = Y
"""


def many_roots(w: Write) -> None:
    w.add("S", "X", "W")
    w.sqrt("A", "S")
    w.sum("Y", "A", over="m k n")


def test_signs_that_no_draw_could_check_are_owned_up_to() -> None:
    """Too many roots meet for all of them to be of squares, at the least sizes too."""
    many = case(MANY_ROOTS, many_roots)
    assert DOUBTFUL in check_equivalence(many.program, many.graph, 0).assumes
    for name in ("roots", "rmsnorm_linear"):
        assert DOUBTFUL not in check_equivalence(CASES[name].program, CASES[name].graph, 0).assumes


@pytest.mark.parametrize("root", ["sqrt(P)", "sqrt(C)"])
def test_a_sign_that_no_draw_could_check_is_told_in_float64(root: str) -> None:
    right = CASES["roots"]
    text = canonical_text(right.graph)
    assert "  B[m, n] = sqrt(P)\n" in text
    graph = parse_mugraph(text.replace("  B[m, n] = sqrt(P)\n", f"  C[m, n] = mul(P, -1)\n  B[m, n] = {root}\n"))
    verdict = check_equivalence(right.program, graph, 1108, tests=1)
    assert verdict.ok == (root == "sqrt(P)"), verdict


SQUARED_ROOTS = """
mugraph squared_roots float32
dims m=32 k=64 n=48
input X f32[m, k]
input V f32[n]
input W f32[m]
output Y f32[m]
kernel k0 generated m:grid k:loop n:loop
  X = load X[m, k]
  V = load V[n]
  W = load W[m]
  T[m, k, n] = sub(X, V)
  A[m, k, n] = abs(T)
  B[m, k, n] = add(A, 1)
  C[m, k, n] = pow(B, -1/2)
  D[m] = sum(C; k, n)
  Y[m] = mul(D, W)
  store Y[m] = Y
"""


def squared_roots(w: Write) -> None:
    w.sub("T", "X", "V")
    w.abs("A", "T")
    w.sqrt("R", "A")
    w.square("S", "R")
    w.add("B", "S", 1)
    w.rsqrt("C", "B")
    w.mul("P", "C", "W")
    w.sum("Y", "P", over="k n")


@over_seeds(range(4))
def test_squared_roots_that_no_draw_could_check_are_compared_in_float64(seed: int) -> None:
    """In fields the square of a root of a non-square is another number; the algebra proves that it is the same."""
    right = case(SQUARED_ROOTS, squared_roots)
    verdict = check_equivalence(right.program, right.graph, seed)
    assert verdict.ok and verdict.proved and IN_FLOAT64 in verdict.assumes
    assert verdict.bound == 1 and "no bound on a false accept" in verdict.claim


@pytest.mark.parametrize(
    "edit",
    [("add(A, 1)", "add(A, 1000001/1000000)"), ("-1/2", "-1/3"), ("abs(T)", "gelu(T)"), ("sub(X, V)", "add(X, V)")],
)
def test_wrong_algebra_below_squared_roots_is_refused(edit: tuple[str, str]) -> None:
    right = case(SQUARED_ROOTS, squared_roots)
    assert not check_equivalence(right.program, parse_mugraph(SQUARED_ROOTS.replace(*edit)), 0).ok


ROOT = """
mugraph root float32
dims m=32
input X f32[m]
output Y f32[m]
kernel k0 generated m:grid
  X = load X[m]
  A[m] = sqrt(X)
  Y[m] = add(A, 0)
  store Y[m] = Y
"""
WRONG_ROOT = ROOT.replace(
    "  Y[m] = add(A, 0)\n",
    "  B[m] = neg(A)\n  i[m] = index(m)\n  first[m] = eq(i, 0)\n  Y[m] = where(first, B, A)\n",
)


def root(w: Write) -> None:
    w.sqrt("A", "X")
    w.add("Y", "A", 0)


@over_seeds(range(20))
def test_every_element_is_compared_also_below_roots(seed: int) -> None:
    """One element is wrong, and in doubt in half of the residues of a draw."""
    right = case(ROOT, root)
    assert check_equivalence(right.program, right.graph, seed).ok
    assert not check_equivalence(right.program, parse_mugraph(WRONG_ROOT), seed, tests=1).ok


NORMS = """
mugraph norms float32
dims m=32 k=64 h=16 d=24
input X f32[m, k]
input W f32[h, k, d]
output Y f32[m, h, d]
kernel k0 generated m:grid h:grid d:tile k:loop
  X = load X[m, k]
  W = load W[h, k, d]
  Q[m, h, d] = dot(X, W; k)
  S[m, h, d] = square(Q)
  N[m, h] = sum(S; d)
  R[m, h] = rsqrt(N)
  Y[m, h, d] = mul(Q, R)
  store Y[m, h, d] = Y
"""
WRONG_NORMS = NORMS.replace("mul(Q, R)", "mul(Z, R)").replace(
    "  S[m, h, d]",
    "  i[m] = index(m)\n  last[m] = ge(i, 4)\n  T[m, h, d] = mul(Q, 2)\n  Z[m, h, d] = where(last, T, Q)\n  S[m, h, d]",
)


def norms(w: Write) -> None:
    w.dot("Q", "X", "W", over="k")
    w.square("S", "Q")
    w.sum("N", "S", over="d")
    w.sqrt("R", "N")
    w.div("Y", "Q", "R")


@pytest.mark.parametrize("most", [1, 1 << 21])
def test_rows_whose_roots_meet_agree_in_doubt_where_draws_are_large(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Each row has a root in every head, so that many draws are needed for squares under all of them. After the first,
    elements in doubt have to agree; a wrong one does not, be it in doubt or not."""
    monkeypatch.setattr("mirage_cli.verify.equivalence.MOST_DRAWN", most)
    right = case(NORMS, norms)
    assumed: set[str] = set()
    for seed in range(4):
        verdict = check_equivalence(right.program, right.graph, seed)
        assert verdict.ok and verdict.bound < 1e-12
        assumed |= {*verdict.assumes}
        assert not check_equivalence(right.program, parse_mugraph(WRONG_NORMS), seed, tests=1).ok
    assert (DOUBTFUL_IN_PART in assumed) == (most == 1) and DOUBTFUL not in assumed


def norms_squared(w: Write) -> None:
    norms(w)
    w.eqns.pop()
    w.square("T", "R")
    w.mul("Y", "Q", "T")


@over_seeds(range(4))
def test_what_differs_in_doubt_is_drawn_until_it_is_certain(seed: int) -> None:
    """The square of a root of a non-square is not what is under it."""
    text = NORMS.replace("  R[m, h] = rsqrt(N)\n", "").replace("mul(Q, R)", "mul(Q, N)")
    right = case(text, norms_squared)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mirage_cli.verify.equivalence.MOST_DRAWN", 1)
        verdict = check_equivalence(right.program, right.graph, seed)
    assert verdict.ok and not {DOUBTFUL, DOUBTFUL_IN_PART, IN_FLOAT64} & {*verdict.assumes}


@dataclass(frozen=True)
class Wrong:
    """A right μGraph with one edit that makes it wrong; `edits` are (old, new) pairs of text."""

    of: str
    edits: tuple[tuple[str, str], ...]
    net: str
    says: str = "computes another"


SPLIT_SUMS = (
    ("  F[h, q, s_split] = exp_sub(Mp, M)\n", ""),
    ("  Lw[h, q, s_split] = mul(Lp, F)\n", ""),
    ("  Uw[h, q, e, s_split] = mul(Up, F)\n", ""),
    ("sum(Lw;", "sum(Lp;"),
    ("sum(Uw;", "sum(Up;"),
)

MERGE = """kernel k1 generated m:grid n:grid k_split:loop
  P = load P[k_split, m, n]
  Y[m, n] = sum(P; k_split)
  store Y[m, n] = Y
"""

MUST_REJECT: Mapping[str, Wrong] = {
    "swapped W1 and W2": Wrong(
        "gated_mlp", (("load W1[", "load tmp["), ("load W2[", "load W1["), ("load tmp[", "load W2[")), "field"
    ),
    "tile dropped: contraction over a grid axis": Wrong("lora", (("k:loop", "k:grid"),), "structure", "grid axis"),
    "partial result stored as a whole": Wrong(
        "attention", (("s:loop", "s:split"),), "structure", "uses a partial result"
    ),
    "missing rescale in the merge": Wrong("split_attention", SPLIT_SUMS, "field"),
    "rescale of the denominator alone": Wrong("split_attention", (("sum(Uw;", "sum(Up;"),), "field"),
    "rescale by the wrong difference": Wrong("split_attention", (("exp_sub(Mp, M)", "exp_sub(M, Mp)"),), "field"),
    "missing merge: chunk axis never summed": Wrong(
        "split_matmul",
        (
            ("store P[k_split, m, n]", "store Y[m, n]"),
            ("buffer P f32[k_split, m, n]\n", ""),
            (MERGE, ""),
        ),
        "structure",
        "stores a partial result as a whole",
    ),
    "unsynchronised split: merged before it is summed": Wrong(
        "split_matmul", ((MERGE, ""), ("kernel k0", MERGE + "kernel k0")), "structure", "loads P before it is stored"
    ),
    "unsynchronised split: summed and merged by one kernel": Wrong(
        "split_matmul",
        (
            (
                "  store P[k_split, m, n] = Y\n" + MERGE,
                "  P = load P[k_split, m, n]\n  Z[m, n] = sum(P; k_split)\n"
                "  store P[k_split, m, n] = Y\n  store Y[m, n] = Z\n",
            ),
            ("k:split", "k:split k_split:loop"),
        ),
        "structure",
        "loads P before it is stored",
    ),
    "a chunk too few in the merge": Wrong(
        "split_matmul",
        (
            (
                "Y[m, n] = sum(P; k_split)",
                "i[k_split] = index(k_split)\n  C[k_split] = gt(i, 0)\n"
                "  Q[m, n, k_split] = where(C, P, 0)\n  Y[m, n] = sum(Q; k_split)",
            ),
        ),
        "field",
    ),
    "merge by a maximum": Wrong("split_matmul", (("sum(P; k_split)", "max(P; k_split)"),), "field"),
    "off-by-one mask: ge becomes gt": Wrong("causal_attention", (("ge(iq, is)", "gt(iq, is)"),), "field"),
    "mask the wrong way round": Wrong("causal_attention", (("ge(iq, is)", "ge(is, iq)"),), "field"),
    "masked with 0 instead of -inf": Wrong("causal_attention", (("A, -inf", "A, 0"),), "field"),
    "off-by-one window, beyond the reduced sizes": Wrong("window", (("1024", "1023"),), "field"),
    "a window one too wide, beyond the reduced sizes": Wrong("window", (("1024", "1025"),), "field"),
    "the index behind": Wrong(
        "chosen", (("B, i, 64)", "B, j, 64)"), ("= index(n)", "= index(n)\n  j[n] = add(i, 1)")), "field"
    ),
    "the last index of equal ones": Wrong("chosen", (("min(L; n)", "max(L; n)"), ("min(P;", "max(P;")), "field"),
    "indices of chunks merged by their sum": Wrong("chosen", (("min(P;", "sum(P;"),), "field"),
    "the place of the least": Wrong("chosen", (("max(Y; n)", "min(Y; n)"),), "field"),
    "a place that is another": Wrong("chosen", (("eq(Y, M)", "ge(Y, M)"),), "field"),
    "an index as a floating-point number": Wrong(
        "chosen",
        (("T[m] = min(P; n_split)", "F[m] = min(P; n_split)\n  T[m] = div(F, 1)"),),
        "structure",
        "k3 stores float in T",
    ),
    "a mask as a number": Wrong(
        "decided", (("store B[m, k] = B", "store B[m, k] = N"),), "structure", "stores int in B"
    ),
    "a number as a mask": Wrong(
        "decided", (("store Q[m, k] = Q", "store Q[m, k] = B"),), "structure", "stores bool in Q"
    ),
    "a mask of larger ones alone": Wrong("decided", (("ge(X, S)", "gt(X, S)"),), "field"),
    "a mask inverted": Wrong("decided", (("ge(X, S)", "lt(X, S)"),), "field"),
    "a mask beside the count inverted": Wrong(
        "decided", (("store B[m, k] = B", "Z[m, k] = not(B)\n  store B[m, k] = Z"),), "field"
    ),
    "all for any": Wrong("decided", (("H[m] = max(N; k)", "H[m] = min(N; k)"),), "field"),
    "any but for the first": Wrong(
        "decided",
        (
            (
                "H[m] = max(N; k)",
                "i[k] = index(k)\n  Z[k] = gt(i, 0)\n  G[m, k] = and(B, Z)\n"
                "  O[m, k] = where(G, 1, 0)\n  H[m] = max(O; k)",
            ),
        ),
        "field",
    ),
    "any that holds everywhere": Wrong("decided", (("gt(H, 0)", "ge(H, 0)"),), "field"),
    "a count that begins with 1": Wrong(
        "decided", (("store C[m] = C", "Z[m] = add(C, 1)\n  store C[m] = Z"),), "field"
    ),
    "a whole number rounded down": Wrong("decided", (("round(D)", "floor(D)"),), "field"),
    "whole numbers without their bound": Wrong("decided", (("minimum(U, 127)", "mul(U, 1)"),), "field"),
    "wrong scale": Wrong("attention", (("0.125", "0.25"),), "field"),
    "scale dropped": Wrong("attention", (("mul(A, 0.125)", "mul(A, 1)"),), "field"),
    "operand order: the load's axes swapped": Wrong("gram_square", (("load W[k, n]", "load W[n, k]"),), "field"),
    "wrong omap: the store's axes swapped": Wrong("gram_square", (("store Y[m, n]", "store Y[n, m]"),), "field"),
    "axes of unequal size swapped": Wrong(
        "matmul", (("load W[k, n]", "load W[n, k]"),), "structure", "reads W by indices, which no library does"
    ),
    "changed clamp bound": Wrong("two_outputs", (("minimum(R, 6)", "minimum(R, 7)"),), "field"),
    "clamp dropped": Wrong("two_outputs", (("maximum(P, 0)", "mul(P, 1)"),), "field"),
    "maximum over the wrong axis": Wrong(
        "gram",
        (("dot(X, Z; k)", "dot(X, Z; k)\n  A[i] = max(X; k)\n  B[i, j] = add(Y, A)"), ("] = Y\n", "] = B\n")),
        "field",
    ),
    "minimum for maximum": Wrong("two_outputs", (("max(Y; n)", "min(Y; n)"),), "field"),
    "divided by the wrong sum": Wrong("attention", (("sum(E; s)", "sum(B; s)"),), "field"),
    "mean over the wrong size": Wrong("rmsnorm_linear", (("size(k)", "size(n)"),), "field"),
    "epsilon dropped": Wrong("rmsnorm_linear", (("add(V, 1/100000)", "add(V, 0)"),), "field"),
    "epsilon changed": Wrong("layer_norm", (("1/100000", "1/1000000"),), "field"),
    "mean forgotten": Wrong("layer_norm", (("sub(X, A)", "mul(X, 1)"),), "field"),
    "sign of a logarithm's argument": Wrong(
        "logsumexp", (("  G[m] = log(L)", "  N[m] = neg(L)\n  G[m] = log(N)"),), "field", "roots and logarithms"
    ),
    "sign under a root": Wrong(
        "rmsnorm_linear", (("  R[m] = sqrt(D)", "  N[m] = neg(D)\n  R[m] = sqrt(N)"),), "field", "roots and logarithms"
    ),
    "shift not added back": Wrong("logsumexp", (("add(G, M)", "add(G, 0)"),), "field"),
    "stale buffer: read before it is written": Wrong(
        "nested", (("X = load X[m, k]", "X = load X[m, k]\n  Z = load H[m, n]"),), "structure", "before it is stored"
    ),
    "hole: an output that nothing writes": Wrong(
        "two_outputs", (("  store T[m] = T\n", ""),), "structure", "nothing writes"
    ),
    "overlapping store: an output written twice": Wrong(
        "two_outputs", (("store T[m] = T", "store T[m] = T\n  store Y[m, n] = R"),), "structure", "written 2 times"
    ),
    "a grid axis missing from the store": Wrong(
        "gram", (("output Y f16[i, j]", "output Y f16[i]"), ("store Y[i, j]", "store Y[i]")), "structure", "outputs"
    ),
    "another slice": Wrong("packed", (("V = load X[s, h*16 + d + 128]", "V = load X[s, h*16 + d + 64]"),), "field"),
    "slices exchanged": Wrong("packed", (("64]", "0]"), ("128]", "64]"), (" + 0]", " + 128]")), "field"),
    "off-by-one slice": Wrong("packed", (("h*16 + d + 64]", "h*16 + d + 65]"),), "field"),
    "an axis that is two, with another stride": Wrong("packed", (("G[h*16 + d]", "G[h*15 + d]"),), "field"),
    "an axis that is two, the wrong way round": Wrong("packed", (("G[h*16 + d]", "G[d*4 + h]"),), "field"),
    "a slice beyond the end": Wrong("packed", (("d + 128]", "d + 129]"),), "field"),
    "a slice of nothing": Wrong("packed", (("d + 128]", "d + 192]"),), "field"),
    "an index that 32 bits do not hold": Wrong(
        "packed", (("d + 128]", "d + 2147483776]"),), "structure", "reads X along n from 2147483776 to 2147483839"
    ),
    "windows with another step": Wrong("windows", (("y*2 + i", "y + i"),), "field"),
    "windows transposed": Wrong("windows", (("y*2 + i", "i*2 + y"),), "field"),
    "windows too far along": Wrong("windows", (("y*2 + i", "y*2 + i + 1"),), "field"),
    "windows at the wrong end": Wrong("windows", (("y*2 + i", "y*2 + i + 2"),), "field"),
    "a border too wide": Wrong("border", (("y + i - 1", "y + i - 2"),), "field"),
    "a border on the other side": Wrong("border", (("y + i - 1", "y + i"),), "field"),
    "a kernel turned around": Wrong("border", (("y + i - 1", "y - i + 1"),), "field"),
    "a border that is not 0": Wrong(
        "border", (("P[y, c, i] = mul(X, W)", "Z[y, c, i] = add(X, 1)\n  P[y, c, i] = mul(Z, W)"),), "field"
    ),
    "the kernel of a convolution transposed": Wrong("convolution", (("load W[i, j,", "load W[j, i,"),), "field"),
    "windows of a convolution transposed": Wrong(
        "convolution", (("[y + i - 1, x + j - 1", "[y + j - 1, x + i - 1"),), "field"
    ),
    "a row for a diagonal": Wrong("diagonal", (("X[y, y]", "X[y, 0]"),), "field"),
    "a diagonal beside the diagonal": Wrong("diagonal", (("X[y, y]", "X[y, y + 1]"),), "field"),
    "a half too far": Wrong("halves", (("d - 32", "d - 33"),), "field"),
    "a half too near": Wrong("halves", (("d + 32", "d + 31"),), "field"),
    "halves exchanged": Wrong("halves", (("sub(A, B)", "sub(B, A)"),), "field"),
    "pages of another size": Wrong("paged", (("s//16]", "s//15]"),), "field"),
    "half the page": Wrong("paged", (("s%16", "s%8"),), "field"),
    "a page for a place in it": Wrong("paged", (("s//16]", "s%4]"),), "field"),
    "a place for a page": Wrong("paged", (("s%16", "s//16"),), "field"),
    "the next page": Wrong("paged", (("s//16]", "s//16 + 1]"),), "field"),
    "pages of another row": Wrong("paged", (("P{pages}[b,", "P{pages}[b + 1,"),), "field"),
    "one page before": Wrong("paged", (("K[P{pages}[b, s//16],", "K[P{pages}[b, s//16] - 1,"),), "field"),
    "pages in order, without their table": Wrong("paged", (("P{pages}[b, s//16]", "b*4 + s//16"),), "field"),
    "tables exchanged": Wrong("experts", (("W[E{e}[t]", "W[F{e}[t]"), ("B[F{e}[t]", "B[E{e}[t]")), "field"),
    "one table for both": Wrong("experts", (("B[F{e}[t]", "B[E{e}[t]"),), "field"),
    "the row before in a table": Wrong("experts", (("E{e}[t]", "E{e}[t - 1]"),), "field"),
    "a table of larger numbers": Wrong("experts", (("E{e}[t]", "E{k}[t]"),), "structure", "k0 looks up E"),
    "a table that is none": Wrong("experts", (("E{e}[t]", "B{e}[t, n]"),), "structure", "k0 looks up B"),
    "a table with another axis": Wrong("experts", (("E{e}[t]", "E{e}[t, n]"),), "structure", "k0 gives E 2 axes"),
    "a table that is not there": Wrong("experts", (("E{e}[t]", "H{e}[t]"),), "structure", "k0 loads H"),
    "looked up once for twice": Wrong("rotated", (("S[T{m}[T{m}[m]]", "S[T{m}[m]"),), "field"),
    "turned less far": Wrong("rotated", (("(d + 32)%64", "(d + 31)%64"),), "field"),
    "not turned round": Wrong("rotated", (("(d + 32)%64", "d + 32"),), "field"),
    "groups of another size": Wrong("rotated", (("d//8", "d//7"),), "field"),
    "groups one behind another": Wrong("rotated", (("d//8", "d%8"),), "field"),
    "another position": Wrong("rotated", (("index(T{m}[m])", "index(m)"),), "field"),
    "rows one position too short": Wrong("ragged", (("le(i, L)", "lt(i, L)"),), "field"),
    "rows one position too long": Wrong(
        "ragged", (("C[t, s] = le(i, L)", "N[t] = add(L, 1)\n  C[t, s] = le(i, N)"),), "field"
    ),
    "the length of the row before": Wrong("ragged", (("L[B{b}[t]]", "L[B{b}[t] - 1]"),), "field"),
    "the length of another row": Wrong("ragged", (("L[B{b}[t]]", "L[B{b}[t - 1]]"),), "field"),
    "keys beyond a row weigh 1": Wrong("ragged", (("where(C, A, -inf)", "where(C, A, 0)"),), "field"),
    "chunks beyond a row count as much as others": Wrong(
        "ragged", (("mul(Lp, F)", "mul(Lp, 1)"), ("mul(Up, F)", "mul(Up, 1)")), "field"
    ),
    "a part one too far along": Wrong("parts", (("p + 48]", "p + 47]"),), "field", "stray store: O[0, 47]"),
    "a part beyond the end": Wrong("parts", (("p + 48]", "p + 49]"),), "structure", "stores O along w from 49 to 64"),
    "a part that is missing": Wrong(
        "parts", (("  store O[m, p + 48] = B\n", ""),), "structure", "only 1 of the 2 parts"
    ),
    "a part twice": Wrong(
        "parts", (("store O[m, n] = A", "store O[m, n] = A\n  store O[m, n] = A"),), "structure", "written 3 times"
    ),
    "a part over another": Wrong("parts", (("p + 48]", "p + 30]"),), "field", "stray store: O[0, 30]"),
    "a part read before it is whole": Wrong(
        "parts", (("X = load X[m, p*4]", "X = load O[m, p*4]"),), "structure", "and read"
    ),
    "parts exchanged": Wrong("in_turn", (("8] = Z", "8] = Y"), ("r] = Y", "r] = Z")), "field", "computes another Y"),
    "parts in another turn": Wrong(
        "in_turn", (("store O[m, c*16 + r]", "store O[m, c*8 + r]"),), "field", "overlapping"
    ),
    "parts the wrong way round": Wrong(
        "in_turn", (("store O[m, c*16 + r]", "store O[m, r*8 + c]"),), "field", "overlapping store"
    ),
    "an element twice": Wrong(
        "in_turn", (("store O[m, c*16 + r]", "store O[m, c*6 + r]"),), "structure", "stores elements of O twice"
    ),
    "rows too early": Wrong(
        "append", (("t + 100, d] =", "t + 99, d] ="),), "structure", "reads K where it may have been overwritten"
    ),
    "rows too late": Wrong("append", (("t + 100, d] =", "t + 101, d] ="),), "field", "hole"),
    "rows turned around": Wrong("append", (("t + 100, d] =", "-t + 115, d] ="),), "field", "hole"),
    "rows that are written are read": Wrong(
        "append", (("load K[l, d]", "load K[l + 1, d]"),), "structure", "may have been overwritten"
    ),
    "appended to the slot behind": Wrong(
        "slots",
        (
            ("slot{slots}[t]%16, g, f] =", "(slot{slots}[t] + 1)%16, g, f] ="),
            (
                "slot{slots}[t]//16, slot{slots}[t]%16, g, f + 8] =",
                "slot{slots}[t]//16, (slot{slots}[t] + 1)%16, g, f + 8] =",
            ),
        ),
        "structure",
        "stores elements of KC twice",
    ),
    "appended to the slot of another token": Wrong(
        "slots",
        (("VC[place{slots}[t]//16, place{slots}[t]%16", "VC[slot{slots}[t]//16, slot{slots}[t]%16"),),
        "field",
        "",
    ),
    "appended by the slots alone, without their table": Wrong(
        "slots", (("VC[place{slots}[t]//16, place{slots}[t]%16", "VC[t//16, t%16"),), "field", ""
    ),
    "a page for a place in it, and a place for the page": Wrong(
        "slots",
        (("VC[place{slots}[t]//16, place{slots}[t]%16", "VC[place{slots}[t]%4, place{slots}[t]//4"),),
        "field",
        "",
    ),
    "appended at another stride of pages": Wrong(
        "slots",
        (("place{slots}[t]//16, place{slots}[t]%16", "place{slots}[t]//17, place{slots}[t]%16"),),
        "structure",
        "stores elements of VC twice",
    ),
    "appended to half of each page": Wrong(
        "slots",
        (("place{slots}[t]//16, place{slots}[t]%16", "place{slots}[t]//16, place{slots}[t]%8"),),
        "structure",
        "stores elements of VC twice",
    ),
    "appended beyond the last page": Wrong(
        "slots",
        (("VC[place{slots}[t]//16", "VC[place{slots}[t]//16 + 1"),),
        "structure",
        "stores VC along pages from 1 to 4",
    ),
    "keys and values exchanged": Wrong(
        "slots",
        (("store KC[", "store tmp["), ("store VC[", "store KC["), ("store tmp[", "store VC[")),
        "structure",
        "written",
    ),
    "one half of the keys for the other": Wrong(
        "slots",
        (
            (
                "store KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f] = K1",
                "store KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f] = K2",
            ),
            ("g, f + 8] = K2", "g, f + 8] = K1"),
        ),
        "field",
        "computes another K1",
    ),
    "the halves of a rotation exchanged": Wrong(
        "slots",
        (("B1 = load B[t, g, f]", "B1 = load B[t, g, f + 8]"), ("B2 = load B[t, g, f + 8]", "B2 = load B[t, g, f]")),
        "field",
    ),
    "a table whose integers are distinct by its own word": Wrong(
        "ring",
        (("input N i32[] below s\n", "input N i32[] below s distinct\n"),),
        "structure",
        "is not one of the program",
    ),
    "a table whose integers need not be distinct": Wrong(
        "slots",
        (("place i64[t] below slots distinct", "place i64[t] below slots"),),
        "structure",
        "is not one of the program",
    ),
    "a row for what names nothing": Wrong("padded", (("pos{-1, s}[t], e]", "(pos{-1, s}[t] + 1)//2, e]"),), "field"),
    "appended to a slot that is none": Wrong(
        "padded",
        (("store KC[slot{-1, slots}[t]//16,", "store KC[(slot{-1, slots}[t] + 1)//17,"),),
        "structure",
        "KC twice",
    ),
    "a table that is padded taken for one that is not": Wrong(
        "padded", (("pos{-1, s}[t]", "pos{s}[t]"),), "structure", "k0 looks up pos"
    ),
    "appended one place behind the length": Wrong("lengths", (("L{48}[b]%16", "(L{48}[b] + 1)%16"),), "field", ""),
    "appended to the first page": Wrong("lengths", (("L{48}[b]//16 + 1]", "L{48}[b]//16]"),), "field", ""),
    "a length off by one": Wrong(
        "lengths", (("L{48}[b]//16 + 1]", "(L{48}[b] + 1)//16 + 1]"),), "structure", "stores elements of K twice"
    ),
    "a stale page: it is read in the call that appends to it": Wrong(
        "lengths", (("load K[P{pages}[b, 0]", "load K[P{pages}[b, 1]"),), "field", ""
    ),
    "a page of another sequence": Wrong("lengths", (("load K[P{pages}[b, 0]", "load K[P{pages}[2 - b, 0]"),), "field"),
    "a page by its number, which may be the one that is written": Wrong(
        "lengths", (("load K[P{pages}[b, 0]", "load K[b"),), "field", ""
    ),
    "a ring that goes on from the place behind": Wrong(
        "ring", (("(t + N{s}[])%32", "(t + N{s}[] + 1)%32"),), "field", ""
    ),
    "a ring that goes backwards": Wrong("ring", (("(t + N{s}[])%32", "(t - N{s}[])%32"),), "field", ""),
    "a ring that is too short": Wrong(
        "ring", (("(t + N{s}[])%32", "(t + N{s}[])%16"),), "structure", "stores elements of K twice"
    ),
    "rows of another input": Wrong(
        "append", (("store K[t + 100, d]", "store X[t, d]"),), "structure", "nothing writes K"
    ),
    "another element type": Wrong("gram", (("output Y f16", "output Y f32"),), "structure", "outputs"),
}

SQUARE = """
mugraph gram_square float16
dims m=64 k=64 n=64
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  Y[m, n] = dot(X, W; k)
  store Y[m, n] = Y
"""
"""A product of square matrices: wrong axes keep every shape."""

FOUND = re.compile(r"\(\w+\[.*\]: expected (\(\d.*\)|\S+), got (\(\d.*\)|\S+); seed \d+, sizes \w+=\d")
"""A counterexample: the element, both values, seed and sizes."""

PLACE = re.compile(
    r"\bk\d\b|\binput |the outputs|nothing writes \w+|\w+ is written \d+ times|\w+ has another size"
    r"|parts of \w+ are written|\w+ is written in parts|\w+ is read where"
)
"""The kernel or the tensor that is unsound."""

RIGHT: Mapping[str, Case] = {**CASES, "gram_square": case(SQUARE, matmul)}


def edited(wrong: Wrong) -> str:
    text = RIGHT[wrong.of].text
    for old, new in wrong.edits:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("name", MUST_REJECT)
@over_seeds(range(3))
def test_wrong_graphs_are_refused(name: str, seed: int) -> None:
    wrong = MUST_REJECT[name]
    verdict = check_equivalence(RIGHT[wrong.of].program, parse_mugraph(edited(wrong)), seed, tests=1)
    assert not verdict.ok
    assert verdict.net == wrong.net, verdict
    assert wrong.says in verdict.detail
    assert verdict.claim == f"refused by {wrong.net}" and not verdict.proved
    if verdict.net == "structure":
        assert PLACE.search(verdict.detail), verdict
    else:
        assert tells(verdict, seed * 1009), verdict


# -- wrong executions: the interpreter itself made wrong, as a wrong kernel would be


def without_last_tile(low: int, high: int, tile: int) -> list[tuple[int, int]]:
    ranges = TILES(low, high, tile)
    return ranges[:-1] if len(ranges) > 1 else ranges


def whole_tiles_alone(low: int, high: int, tile: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in TILES(low, high, tile) if j - i == tile] or TILES(low, high, tile)


def overlapping_chunks(size: int, split: int, tile: int) -> list[tuple[int, int]]:
    return [(low, min(high + 1, size)) for low, high in CHUNKS(size, split, tile)]


def every_chunk_whole(size: int, split: int, tile: int) -> list[tuple[int, int]]:
    return [(0, size)] * split


def full_last_tile(low: int, high: int, tile: int) -> list[tuple[int, int]]:
    return [(max(low, j - tile), j) for _, j in TILES(low, high, tile)]


def without_last_instance(kernel: Kernel, *rest: Any) -> list[Any]:
    return list(INSTANCES(kernel, *rest))[:-1]


def without_ragged_instances(kernel: Kernel, *rest: Any) -> list[Any]:
    return [(w, at) for w, at in INSTANCES(kernel, *rest) if all(high - low > 1 for low, high in w.values())]


def at_first_tile(self: Any, s: Store, window: Window, tables: Tables) -> At:
    """Reads are right; a store goes to the first rows."""
    return PLACES(self, s, {d: (0, high - low) for d, (low, high) in window.items()}, tables)


def one_further(self: Any, s: Store, window: Window, tables: Tables) -> At:
    """A store by indices goes to the next rows."""
    further = window if is_plain(s.access) else {d: (a + 1, b + 1) for d, (a, b) in window.items()}
    return PLACES(self, s, further, tables)


def a_chunk_too_few(*args: Any) -> dict[str, int]:
    return {d: n - 1 for d, n in CHUNK_SIZES(*args).items()}


def every_mask(kernel: Kernel, loop: Loop) -> tuple[Limit, ...]:
    """As if tiles without a position where a mask holds changed nothing, whatever stands in place of the others."""
    masks = (s.out for s in loop.steps if isinstance(s, Eqn) and s.type == "bool")
    return tuple(Limit(mask, loop.dims[0], False, Linear((), 0)) for mask in masks)


TILES, CHUNKS = interpret.tiles, interpret.chunks
INSTANCES, CHUNK_SIZES = interpret._instances, interpret._chunk_sizes  # pyright: ignore[reportPrivateUsage]
PLACES = interpret._Instances.places  # pyright: ignore[reportPrivateUsage]

WRONG_RUNS: Mapping[str, tuple[str, str, Callable[..., Any]]] = {
    "last tile of a loop dropped": ("attention", "tiles", without_last_tile),
    "ragged tile of a loop dropped": ("rmsnorm_linear", "tiles", whole_tiles_alone),
    "last tile starts early, so that it is full": ("rmsnorm_linear", "tiles", full_last_tile),
    "grid of whole tiles alone: a hole": ("gram", "_instances", without_ragged_instances),
    "last instance does not run: a hole": ("gram", "_instances", without_last_instance),
    "stores overlap: every instance stores at the first tile": ("causal_attention", "_Instances.places", at_first_tile),
    "parts go one element further": ("parts", "_Instances.places", one_further),
    "appended rows go one row further": ("append", "_Instances.places", one_further),
    "the merge reads a chunk too few": ("split_matmul", "_chunk_sizes", a_chunk_too_few),
    "chunks overlap": ("split_matmul", "chunks", overlapping_chunks),
    "unsynchronised split: every instance sums everything": ("split_matmul", "chunks", every_chunk_whole),
    "tiles of a loop left out whose positions count": ("filled", "limits", every_mask),
    "accumulators not rescaled": ("attention", "_Instances.rescaled", lambda self, x, moved, g: x),
    "accumulators rescaled twice": (
        "attention",
        "_Instances.rescaled",
        lambda self, x, moved, g: RESCALED(self, x, moved, 2 * g),
    ),
}
RESCALED = interpret._Instances.rescaled  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_wrong_executions_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, attribute, fault = WRONG_RUNS[name]
    monkeypatch.setattr(f"mirage_cli.verify.interpret.{attribute}", fault)
    verdict = check_equivalence(CASES[of].program, CASES[of].graph, 0, tests=1)
    assert not verdict.ok
    assert verdict.net == "field"
    assert "hole" not in name or verdict.detail.startswith("hole: nothing writes Y[")
    assert "stores" not in name or verdict.detail.startswith("overlapping store: O[")
    assert verdict.counterexample is not None and "seed 0, sizes " in verdict.counterexample


@pytest.mark.parametrize("fault", [without_last_tile, whole_tiles_alone, full_last_tile])
def test_wrong_executions_are_refused_in_float64_too(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = case(SQUARED_ROOTS.replace("m:grid", "m:tile"), squared_roots)
    monkeypatch.setattr("mirage_cli.verify.interpret.tiles", fault)
    verdict = check_equivalence(right.program, right.graph, 0, tests=1)
    assert not verdict.ok and verdict.counterexample is not None
    assert (
        "computes another Y" in verdict.detail
        and "; seed 0, " in verdict.counterexample
        and verdict.counterexample.endswith("in float64")
    )


# -- mutations


MUTATIONS = int(os.environ.get("MIRAGE_MUTATIONS", "200"))
INDICES = MUTATIONS // 5
"""Of each program that reads by indices."""


def test_wrong_mutations_are_refused() -> None:
    """So many wrong mutations, by float64 or by their structure. None may pass the finite fields, and none the algebra;
    each refusal says where the structure is unsound, or which element differs at which seed and sizes."""
    rng = random.Random(20250)
    wrong, seed = 0, 0
    faults: list[tuple[str, Verdict]] = []
    while wrong < MUTATIONS:
        seed += 1
        right = rng.choice(list(CASES.values()))
        mutant = mutate(right.graph, rng)
        if mutant is None:
            continue
        verdict = check_equivalence(right.program, mutant, seed, tests=1)
        unsound = structure_problem(right.program, mutant) is not None
        if unsound or not all(agrees_in_float64(right, mutant, 1000 + s) for s in range(3)):
            wrong += 1
            told = PLACE.search(verdict.detail) if unsound else tells(verdict, seed * 1009)
            named = verdict.net == ("structure" if unsound else "field") and told
            faults += [] if not verdict.ok and named else [(f"{right.name}, seed {seed}", verdict)]
            if not unsound and proved(right.program, mutant, same_axes(right.program, mutant)):
                faults.append((f"{right.name}, seed {seed}: the algebra takes it for right", verdict))
    assert not faults


@pytest.mark.parametrize("name", [c.name for c in CASES.values() if any(i.axis != d for d, i in c.graph.accesses())])
def test_wrong_accesses_are_refused(name: str) -> None:
    """Loads and stores of other elements at full sizes, some of which reduced sizes might not reach. Which of them are
    wrong is told by float64 at full sizes."""
    right = CASES[name]
    kernels = right.graph.kernels
    sizes = right.graph.sizes | {split_axis(k.split): 1 for k in kernels if k.split}
    whole = Schedule({k.name: KernelSchedule(tuple(sizes.items()), tuple(sizes)) for k in kernels})
    inputs = floats(right.program, 0)
    want = run_program(right.program, inputs, FloatSemantics(right.program.sizes))
    rng = random.Random(name)
    wrong = 0
    for seed in range(INDICES):
        at = rng.randrange(len(right.graph.kernels))
        kernel = rng.choice(ACCESSES)(right.graph.kernels[at], right.graph, rng)
        kernel = kernel and rederived(kernel, right.graph)
        if kernel is None:
            continue
        mutant = replace(right.graph, kernels=(*right.graph.kernels[:at], kernel, *right.graph.kernels[at + 1 :]))
        sound = structure_problem(right.program, mutant) is None
        with suppress(ScheduleFailure if sound else Exception):
            got = run_mugraph(mutant, whole, inputs, FloatSemantics(right.program.sizes), program=right.program)
            if all(np.allclose(aligned(want[t.name].data, want[t.name].dims, t.dims), got[t.name].data)
                   for t in right.program.outputs):  # fmt: skip
                continue
        wrong += 1
        verdict = check_equivalence(right.program, mutant, seed, tests=1)
        assert not verdict.ok, canonical_text(mutant)
        assert not sound or not proved(right.program, mutant, same_axes(right.program, mutant))
    assert wrong > INDICES // 4


def tells(verdict: Verdict, seed: int) -> bool:
    """Whether a refusal says what differs, and gives seed and sizes to see it again."""
    found = verdict.counterexample or ""
    if verdict.detail.startswith("computes another"):
        return FOUND.search(str(verdict)) is not None and f"; seed {seed}, sizes " in found
    known = (
        "hole: ",
        "stray store: ",
        "store outside: ",
        "overlapping store: ",
        "race: ",
        "roots and logarithms",
        "an output was undefined",
    )
    return verdict.detail.startswith(known) and found.startswith(f"seed {seed}")


def test_verdict_is_a_function_of_the_seed() -> None:
    wrong = parse_mugraph(edited(MUST_REJECT["wrong scale"]))
    first, again, other = (check_equivalence(CASES["attention"].program, wrong, s) for s in (1, 1, 2))
    assert first == again
    assert first.counterexample != other.counterexample


@rows("name", CASES)
def test_reduced_sizes_exercise_tiles_that_do_not_divide(name: str) -> None:
    graph = CASES[name].graph
    sizes, schedule = small_instance(CASES[name].program, graph, 0)
    for k in graph.kernels:
        for d, tile in schedule.kernels[k.name].tiles if k.name in schedule.kernels else ():
            if d in sizes:
                assert sizes[d] > tile
                assert sizes[d] % tile
