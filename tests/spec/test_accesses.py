"""Accesses that are mistakes of a spec, each with what is said about it, and where."""

from __future__ import annotations

import re

import pytest

from mirage_cli.errors import SpecError
from mirage_cli.spec.reader import parse_spec

SPEC = """name: bad
dims: {{m: 4, k: 8, n: 6, h: 2, d: 4, w: 14, p: 4, pages: 16, page: 4, slots: pages*page}}
inputs:
  X: [m, k]
  Y: [m, n]
  K: [pages, page, k]
  V: [pages, page, k]
  R: [slots, k]
  slot: {{dims: [m], dtype: int64, below: slots, distinct: true}}
  other: {{dims: [m], dtype: int64, below: slots}}
  P: {{dims: [m, p], dtype: int32, below: pages, distinct: true}}
  L: {{dims: [m], dtype: int32, below: 16}}
  T: {{dims: [m], dtype: int32}}
  F: {{dims: [m], dtype: float32}}
program: |
  Z = X * 2
  {program}
outputs:
  Z: [m, k]
"""


def spec(program: str) -> str:
    """With what the program writes among the outputs."""
    written = [name for name in "KRO" if re.search(rf"^ *{name}\b.* = ", program, re.MULTILINE)]
    outputs = ["  O: [m, w]\n" if name == "O" else f"  {name}: {{inout: {name}}}\n" for name in written]
    return SPEC.format(program=program) + "".join(outputs)


BAD = {
    "too few indices": ("O = X[m]", "X[m]", "1 index is given, and X has the axes m, k"),
    "too many indices": ("O = X[m, k, n]", "X[m", "3 indices are given, and X has the axes m, k"),
    "a float for an index": ("O = X[m, 0.5]", "0.5", "an index is a sum of axes"),
    "an index that is divided by /": ("O = X[m, k / 2]", "k / 2", "an index is an integer: // divides and rounds down"),
    "an axis that is not there": ("O = X[m, q]", "q]", "no axis is called q"),
    "axes that are multiplied": ("O = X[m, h*d]", "h*d", "an axis is multiplied by a number here, not by an axis"),
    "a slice": ("O = X[m, 2:]", "", "a slice is an axis of its own"),
    "a result for an index": ("O = X[m, Z[m, k]]", "Z[m", "Z is no input"),
    "floats in a table": ("O = X[m, F[m]]", "F[m]", "F is float32, and an index is an integer"),
    "a table of unknown range": ("O = X[m, T[m]]", "T[m]", "an index needs to know what T is less than"),
    "an index behind the end": (
        "O = X[m, n + 8]",
        "n + 8",
        "this reads k from 8 to 13, and k has the positions 0 to 7",
    ),
    "an index before the start": ("O = X[m, n - 6]", "n - 6", "this reads k from -6 to -1, and k has the positions"),
    "an index far away": ("O = X[m, 999999999*n]", "999999999*n", "more than 2 ** 30 from the start of k"),
    "a table that names what is not there": (
        "O = V[L[m] + 1, 0, k]",
        "L[m] + 1",
        "from 1 to 16, and pages has the positions 0 to 15: L is below 16",
    ),
    "a table read beyond its end": ("O = V[P[m, m + 1], 0, k]", "m + 1]", "pad(P, 0)[...] reads 0 where nothing is"),
    "division by an axis": ("O = X[m, k // h]", "h]", "an index is divided by a positive number here"),
    "division by zero": ("O = X[m, k % 0]", "0]", "an index is divided by a positive number here"),
    "a mask that is read by indices": ("O = (X > 0)[m, k]", "X > 0)", "a mask is not read by indices"),
    "a number that is read by indices": ("O = 3[m]", "3[m]", "a number is not read by indices"),
    "no number outside": ("O = pad(X, Z)[m, k]", "Z)", "what lies outside is a number"),
    "an input that is not changed": (
        "V[slot[m] // 4, slot[m] % 4, k] = Z",
        "V[slot",
        "V is an input that is not `inout`",
    ),
    "a store behind the end": (
        "R[slot[m] + 1, k] = Z",
        "slot[m] + 1",
        "writes R along slots from 1 to 64, and slots has",
    ),
    "what tables are below, where a store is behind the end": (
        "R[slot[m] + 1, k] = Z",
        "slot[m] + 1",
        "slots has the positions 0 to 63: slot is below slots",
    ),
    "a table that may name rows twice": (
        "R[other[m], k] = Z",
        "other[m], k",
        "for several positions along m, as far as can be told; if other names none twice, declare it `distinct: true`",
    ),
    "places without their pages": (
        "K[slot[m] // 4, 0, k] = Z",
        "slot[m] // 4",
        "may write an element of K twice: they are the same for several",
    ),
    "pages of another size": ("K[slot[m] // 4, slot[m] % 3, k] = Z", "slot[m] // 4", "may write an element of K twice"),
    "rows of sequences that may be of one": (
        "R[16*L[m] // 4, k] = Z",
        "16*L[m] // 4",
        "if L names none twice, declare it",
    ),
    "a ring that is too short": ("R[(m + slot[0]) % 3, k] = Z", "(m + slot[0]) % 3", "may write an element of R twice"),
    "a row twice": (
        "R[slot[m], k] = Z\n  R[slot[m], k] = X",
        "R[slot[m], k] = X",
        "writes elements of R that line 17 writes",
    ),
    "rows of two tables, which may be the same": (
        "R[slot[m], k] = Z\n  R[P[m, 0], k] = X",
        "R[P",
        "this writes elements of R that line 17 writes, as far as can be told",
    ),
    "a read of an `inout` behind its write": (
        "R[slot[m], k] = Z\n  U = sum(R, slots) * X\n  O = U[m, w // 2]",
        "R[slot",
        "that statements behind it read, as far as can be told: let them use the value that is written",
    ),
    "a stale page": (
        "K[P[m, 0], page, k] = Y[m, page] * X\n  U = sum(K[P[m, L[m] // 4], page, k], page)\n  O = U[m, w // 2]",
        "K[P[m, 0]",
        "elements of the `inout` K",
    ),
    "a part that lacks an axis": (
        "R[slot[m], k] = sum(X, k)",
        "sum(X, k)",
        "has the axes m, and the indices on the left m, k",
    ),
    "an axis that the indices lack": (
        "R[slot[m], k] = X * Y",
        "X * Y",
        "this part of R has the axes m, k, n, and the indices on the left m, k",
    ),
    "masks in a float tensor": ("R[slot[m], k] = index(k) > L", "index(k) > L", "this part of R is a mask"),
    "parts of an output that overlap": (
        "O[m, k] = X\n  O[m, k + 6] = Z",
        "O[m, k + 6]",
        "this writes elements of O that line 17 writes",
    ),
    "parts of an output that leave a hole": (
        "O[m, k] = X",
        "O[m, k]",
        "O has 56 elements, and only 32 of them are written",
    ),
}
"""By kind: what stands in the program, the text at the caret, and a part of the message."""


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_access_is_refused_where_it_stands(kind: str) -> None:
    program, at, message = BAD[kind]
    text = spec(program)
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    found = [d for d in caught.value.diagnostics if message in d.message]
    assert found, [d.message for d in caught.value.diagnostics]
    line = text.splitlines()[found[0].line - 1]
    assert line[found[0].column - 1 :].startswith(at), line


def test_there_are_thirty_kinds() -> None:
    assert len(BAD) >= 30
    assert len({message for _, _, message in BAD.values()}) >= 25


@pytest.mark.parametrize(
    "program",
    [
        "R[slot[m], k] = Z",
        "K[slot[m] // 4, slot[m] % 4, k] = Z",
        "K[P[m, L[m] // 4], L[m] % 4, k] = Z",
        "R[(m + slot[0]) % 64, k] = Z",
        "R[slot[m], k] = Z\n  O[m, w] = V[other[m] // 4, w % 4, 0] * Y[m, 0]",
        "K[P[m, 0], page, k] = Y[m, page] * X\n  U = sum(K[P[m, 1], page, k], page)\n  O[m, w] = U[m, w // 2]",
    ],
)
def test_an_access_that_is_told_to_be_right_is_read(program: str) -> None:
    assert parse_spec(spec(program)).at().parts
