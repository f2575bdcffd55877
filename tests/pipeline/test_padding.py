"""Tables that hold -1, which names nothing: 0 is read there, and nothing is written. Windows that tables place, which
may reach beyond their tensor where the program says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.access import access_text
from mirage_cli.ir.access_text import parse_access
from mirage_cli.ir.footprint import apart, is_injective
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.testdata import DISTRIBUTIONS, draw
from tests.pipeline.test_random import problem
from tests.searched import BEST
from tests.selfchecks import check_itself
from tests.spec.test_spec import mistakes

TARGET = find_target("h200")
APPEND = """
name: append
dims: {t: 12, g: 2, e: 16, n: 32, s: 64, pages: 5, page: 8, slots: pages*page}
inputs:
  K: [t, n]
  E: [s, e]
  pos: {dims: [t], dtype: int64, below: s, padded: true}
  slot: {dims: [t], dtype: int64, below: slots, distinct: true, padded: true}
  KC: [pages, page, g, e]
program: |
  KC[slot[t] // 8, slot[t] % 8, g, e] = K[t, g*16 + e] * 2
  O = E[pos[t], e] + 1
outputs:
  O: [t, e]
  KC: {inout: KC}
"""
PROGRAMS = {
    "rows and slots": APPEND,
    "pages of which some are not there": """
name: pages
dims: {b: 3, h: 2, d: 32, s: 64, pages: 20, page: 16, p: 4}
dtype: bfloat16
inputs:
  Q: [b, h, d]
  P: {dims: [b, p], dtype: int32, below: pages, padded: true}
  K: [pages, page, h, d]
program: |
  O = softmax(dot(Q, K[P[b, s // 16], s % 16, h, d], d), s)
outputs: {O: [b, h, s]}
""",
    "packed sequences by offsets and lengths": """
name: varlen
dims: {n: 4, t: 48, q: 24, s: 24, h: 2, d: 16}
inputs:
  Q: [t, h, d]
  K: [t, h, d]
  V: [t, h, d]
  F: {dims: [n], dtype: int32, below: t}
  L: {dims: [n], dtype: int32, below: s}
program: |
  A = dot(pad(Q, 0)[F[n] + q, h, d], pad(K, 0)[F[n] + s, h, d], d) / d ** 0.5
  M = index(s) <= index(q) and index(s) <= L[n]
  O = dot(softmax(where(M, A, -inf), s), pad(V, 0)[F[n] + s, h, d], s)
outputs: {O: [n, q, h, d]}
""",
    "pages in one list, each sequence from an offset on": """
name: csr
dims: {b: 3, b1: 4, h: 2, g: 2, d: 16, s: 12, ps: 4, pages: 7, n: 6}
inputs:
  Q: [b, h, g, d]
  K: [pages, ps, h, d]
  F: {dims: [b1], dtype: int32, below: 7, drawn: sorted}
  P: {dims: [n], dtype: int32, below: pages}
  L: {dims: [b], dtype: int32, below: 5}
program: |
  k = K[pad(P, 0)[F[b] + s // 4], s % 4, h, d]
  A = where(index(s) < (F[b + 1] - F[b] - 1) * 4 + L, dot(Q, k, d) * d ** -0.5, -inf)
  O = dot(softmax(A, s), k, s)
  E = logsumexp(A, s)
outputs: {O: [b, h, g, d], E: {dims: [b, h, g], dtype: float32}}
""",
    "bags of rows": """
name: bags
dims: {b: 6, j: 8, n: 20, v: 30, k: 16}
dtype: float32
inputs:
  E: [v, k]
  I: {dims: [n], dtype: int64, below: v, padded: true}
  F: {dims: [b], dtype: int32, below: 13}
program: |
  O = sum(E[I[F[b] + j], k], j)
outputs: {O: [b, k]}
""",
    "a mask and integers": """
name: mask
dims: {m: 7, v: 9, k: 5}
inputs:
  M: {dims: [v, k], dtype: bool}
  N: {dims: [v], dtype: int32}
  X: [m, k]
  T: {dims: [m], dtype: int32, below: v, padded: true}
program: |
  O = where(M[T[m], k], X, -1) + N[T[m]]
outputs: {O: [m, k]}
""",
    "results, and another number outside": """
name: neighbours
dims: {n: 21, j: 4, h: 2, d: 8, q: 6, w: 3}
dtype: float32
inputs:
  X: [n, h, d]
  N: {dims: [n, j], dtype: int32, below: n, padded: true}
  P: {dims: [q], dtype: int32, below: 7, padded: true}
program: |
  r = sigmoid(sum(X, d))
  O = sum(r[N[n, j], h] * pad(X, 2)[N[n, j], h, d], j)
  M = max(pad(r, -inf)[N[n, j], h], j)
  B = r[3 * P[q] + w, h]
outputs: {O: [n, h, d], M: [n, h], B: [q, w, h]}
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_tables_that_name_nothing(name: str, interpreter: Interpreter) -> None:
    assert problem(PROGRAMS[name], interpreter) is None


def exported(text: str) -> tuple[Program, str]:
    program = parse_spec(text).at()
    plan = search_program(program, TARGET, Options(bounds=BEST, tune=False)).plans[0]
    return program, export_source(program, plan.graph, plan.schedule)


def test_an_exported_function_writes_nothing_where_a_table_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = exported(APPEND)
    append = load_export(source).append
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    torch.manual_seed(0)
    k, e = torch.randn(12, 32).half(), torch.randn(64, 16).half()
    for nothing in (0, 3, 12):
        cache = torch.randn(5, 8, 2, 16).half()
        pos, slot = torch.randint(0, 64, (12,)), torch.randperm(40)[:12]
        pos[:nothing] = slot[12 - nothing :] = -1
        want, rows = cache.clone().view(40, 2, 16), slot >= 0
        want[slot[rows]] = 2 * k.view(12, 2, 16)[rows]
        read = torch.where((pos >= 0)[:, None], e[pos], 0) + 1
        torch.testing.assert_close(append(k, e, pos, slot, cache), read)
        assert torch.equal(cache.view(40, 2, 16), want)


def test_pytorch_reads_another_number_where_a_table_names_nothing() -> None:
    program = parse_spec(PROGRAMS["results, and another number outside"]).at()
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(program), names)
    x, n, p = torch.randn(21, 2, 8), torch.randint(-1, 21, (21, 4)), torch.tensor([-1, 0, 6, -1, 3, 5])
    o, m, b = names["reference"](x, n.int(), p.int())
    r, some = x.sum(2).sigmoid(), (n >= 0)[..., None]
    weights, rows = torch.where(some, r[n], 0.0), torch.where(some[..., None], x[n], 2.0)
    torch.testing.assert_close(o, (weights[..., None] * rows).sum(1))
    torch.testing.assert_close(m, torch.where(some, r[n], -torch.inf).amax(1))
    places = 3 * p[:, None] + torch.arange(3)
    torch.testing.assert_close(b, torch.where((p >= 0)[:, None, None], r[places], 0.0))


def test_pytorch_reads_zero_beyond_a_table() -> None:
    text = """
name: listed
dims: {b: 3, s: 4, v: 5, n: 6}
inputs: {E: [v], P: {dims: [n], dtype: int32, below: v}, F: {dims: [b], dtype: int32, below: 7}}
program: O = E[pad(P, 0)[F[b] - 1 + s]]
outputs: {O: [b, s]}
"""
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(parse_spec(text).at()), names)
    rows, listed, first = torch.randn(5), torch.tensor([4, 3, 2, 1, 4, 3]), torch.tensor([0, 2, 6])
    around = torch.cat([torch.zeros(1).long(), listed, torch.zeros(4).long()])
    want = rows[around[first[:, None] + torch.arange(4)]]
    torch.testing.assert_close(names["reference"](rows, listed.int(), first.int()), want)


def test_pytorch_writes_without_a_look_at_the_data() -> None:
    """What depends on data in its shapes cannot be part of a CUDA graph."""
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(parse_spec(APPEND).at()), names)
    cache, rows = torch.randn(5, 8, 2, 16), torch.randn(12, 32)
    given = rows, torch.randn(64, 16), torch.zeros(12).long(), torch.zeros(12).long(), cache
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        names["reference"](*(fake.from_tensor(x) for x in given))
    slots = torch.full((12,), -1)
    before = cache.clone()
    names["reference"](*given[:3], slots, cache)
    assert torch.equal(cache, before)
    slots[7] = 11
    names["reference"](*given[:3], slots, cache)
    before.view(40, 2, 16)[11] = 2 * rows[7].view(2, 16)
    assert torch.equal(cache, before)


def test_other_integers_are_refused_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    append = load_export(exported(APPEND)[1]).append
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    k, e, cache = torch.randn(12, 32).half(), torch.randn(64, 16).half(), torch.zeros(5, 8, 2, 16).half()
    pos, slot = torch.zeros(12, dtype=torch.int64), torch.full((12,), -1)
    slot[4] = -2
    with pytest.raises(ValueError, match="slot should be from -1 to 39, and holds -2 to -1"):
        append(k, e, pos, slot, cache)
    slot[4] = slot[5] = 7
    with pytest.raises(ValueError, match="slot should hold no number twice"):
        append(k, e, pos, slot, cache)
    assert not cache.any()


@pytest.mark.parametrize(("named", "fewer"), [("// 8) + -1 >= 0", "// 8) + -1 >= 1"), ("pos_at >= 0", "pos_at >= 1")])
def test_a_file_that_leaves_out_more_fails_its_own_check(named: str, fewer: str) -> None:
    _, source = exported(APPEND)
    assert named in source, source
    for text, code in ((source, 0), (source.replace(named, fewer), 1)):
        done = check_itself(text)
        assert done.code == code, done


def test_test_data_have_some_that_name_nothing() -> None:
    (x,) = draw(DISTRIBUTIONS[0], [(64,)], [torch.int64], [(64, "distinct", True)], 1, torch.device("cpu"), 0)
    named = x[x >= 0]
    assert 0 < (x == -1).sum() < 24 and x.min() == -1
    assert len(named.unique()) == len(named)


def test_the_floor_counts_rows_that_are_named() -> None:
    with_padding, without = (parse_spec(APPEND.replace(", padded: true", x)).at() for x in (", padded: true", ""))
    assert floor_of(with_padding, TARGET) == floor_of(without, TARGET) > 0


SIZES = {"m": 12, "v": 40, "w": 8}


@pytest.mark.parametrize(
    ("access", "once"),
    [
        ("T{-1, v}[m]", True),
        ("T{-1, v}[m]//8, T{-1, v}[m]%8", True),
        ("T{-1, v}[m]*8 + w", True),
        ("T{-1, v}[m] + 1", False),  # -1 names the first
        ("T{-1, v}[m]//8 + 1, T{-1, v}[m]%8", False),
        ("T{-1, v}[m]*4 + w", False),
        ("U{-1, v}[m]", False),
    ],
)
def test_rows_are_written_once_where_minus_one_is_none_of_them(access: str, once: bool) -> None:
    found = parse_access(access)
    assert access_text(found) == access
    distinct = {"T": ("m",)}
    assert is_injective(found, SIZES, distinct) == once
    if once:
        assert not apart(found, found, SIZES, distinct)


BAD = {
    "padded floats": ("X: {dims: [m, k], padded: true}", "O = X * 2", "padded is of integers"),
    "padded without an end": ("T: {dims: [m], dtype: int32, padded: true}", "O = X * T", "T needs `below` too"),
    "a result that is read at -1": (
        "T: {dims: [m], dtype: int32, below: m, padded: true}",
        "O = (X * 2)[T[m] // 2 + 1, k]",
        "where T holds -1, this reads m all the same",
    ),
    "a table that is read at -1": (
        "T: {dims: [m], dtype: int32, below: m, padded: true}",
        "O = X[T[T[m]], k]",
        "pad(T, 0)[...] reads 0 where nothing is",
    ),
    "a window that may leave, unsaid": (
        "T: {dims: [m], dtype: int32, below: m}",
        "O = sum(X[T[m] + k, k], k)",
        "pad(input, 0)[...] reads 0 where nothing is",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_none_is_said(name: str) -> None:
    declared, program, message = BAD[name]
    own = "" if declared.startswith("X") else "  X: [m, k]\n"
    text = f"name: bad\ndims: {{m: 8, k: 4}}\ninputs:\n{own}  {declared}\nprogram: {program}\noutputs: {{O: [m, k]}}\n"
    assert any(message in x for x in mistakes(text)), mistakes(text)
