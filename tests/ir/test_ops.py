"""Every column of every row of OPS and DERIVED, against the row's float64 reference or definition.

The columns that speak to an interpreter (`field`, `canon`) are run twice: by the real interpreter, and by one whose
combinators are float64 arithmetic, where they have to give the reference's numbers.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_cli.algebra.canonical import Algebra, Form
from mirage_cli.algebra.safe import program_forms
from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.access import plain
from mirage_cli.ir.derived import DERIVED, derived_equation, lower
from mirage_cli.ir.op import Op, Type, result_type
from mirage_cli.ir.ops import OPS, flops_of, power_of_two
from mirage_cli.ir.program import Arg, Builder, Eqn, Program, Tensor
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.verify.degree import ASSUMPTIONS, outside
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_program
from mirage_cli.verify.residues import Residues, same
from mirage_cli.verify.rounding import RoundEveryResult
from mirage_cli.verify.semantics import Named
from tests.rows import rows

Array = NDArray[Any]

SIZES = {"m": 3, "k": 16, "j": 16}
ORDER = tuple(SIZES)
AXES = (("m", "k"), ("k",), ("m", "k"))
"""Of the arguments, so that operators of two also broadcast."""
MASKS = {name: row.masks for name, row in OPS.items() if row.masks}
"""Which arguments are masks."""


def kinds(*wanted: str) -> list[str]:
    return [name for name, row in OPS.items() if row.kind in wanted]


IDENTITIES = [n for n, row in OPS.items() if row.cast and row.known == "exactly"]
"""Casts, which are one function of real numbers."""
POWERS = [name for name, row in OPS.items() if row.numbers]
ELEMENTWISE, REDUCTIONS, CONTRACTIONS, RENAMES = map(kinds, ("elementwise", "reduction", "contraction", "rename"))


# -- one operator as a program


@dataclass(frozen=True)
class Case:
    """A program around one operator, its inputs, and what it has to compute.

    args: the operator's own arguments, as arrays with an axis for m and one for k, or numbers.
    """

    program: Program
    inputs: tuple[Array, ...]
    args: tuple[Any, ...]
    expected: Array

    @property
    def eqn(self) -> Eqn:
        """The operator's own equation."""
        return next(e for e in self.program.eqns if e.out == "R")


def domain(row: Op) -> tuple[tuple[float, float], ...]:
    return row.domain * row.arity if len(row.domain) == 1 else row.domain[: row.arity]


def drawn(low: float, high: float, shape: tuple[int, ...], seed: int) -> Array:
    """In an interval, its ends among them, and values near 0 where it has them; exact in float32. Every other one is
    a multiple of 1/4, so that arguments are equal in places."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, math.prod(shape))
    x[::2] = np.round(4 * x[::2]) / 4
    edges = [low, high, *(v for v in (0.001, -0.05, 0.11, -0.09) if low < v < high)][: x.size]
    x[: len(edges)] = edges
    return rng.permutation(x).reshape(shape).astype(np.float32).astype(np.float64)


def case(row: Op, axes: tuple[str, ...] = (), *, integers: bool = False, fewer: bool = False) -> Case:
    """The operator on data from its domain, or on small positive integers, as those that take nothing else.

    fewer: the first argument lacks an axis too. Masks come from the sign of an input, and a mask as result chooses
    between two numbers, so that inputs and output are numbers.
    """
    integers = integers or row.integers
    intervals = [(low, high) if low < high else None for low, high in domain(row)]
    dims = [("m",) if fewer and i == 0 else AXES[i] for i in range(row.arity)]
    masks = MASKS.get(row.name, ())
    tensors: list[Tensor] = []
    inputs: list[Array] = []
    for i, interval in enumerate(intervals):
        if interval:
            whole = integers and i not in masks
            shape = tuple(SIZES[d] for d in dims[i])
            inputs.append(np.random.default_rng(i).integers(1, 5, shape) if whole else drawn(*interval, shape, i))
            tensors.append(Tensor(f"X{i}", dims[i], "int32" if whole else "float32"))
    if not tensors:  # a leaf stands beside an input
        tensors, inputs = [Tensor("X0", ("m", "k"), "float32")], [drawn(-2, 2, (3, 16), 0)]

    b = Builder(tensors, ORDER)
    arrays = {
        t.name: x.reshape([SIZES[d] if d in t.dims else 1 for d in "mk"]) for t, x in zip(tensors, inputs, strict=True)
    }
    args: list[Arg] = []
    values: list[Any] = []
    for i, interval in enumerate(intervals):
        name = f"X{i}"
        args.append(
            b.emit("gt", name, Fraction(0)) if i in masks else name if interval else Fraction(domain(row)[i][0])
        )
        values.append(arrays[name] > 0 if i in masks else arrays[name] if interval else domain(row)[i][0])
    result = b.known[b.emit(row.name, *args, axes=axes, out="R")]
    expected = reference(
        row, [np.asarray(x, dtype=None if i in masks else np.float64) for i, x in enumerate(values)], axes
    )
    if row.result == "bool":
        b.emit("where", "R", Fraction(3, 2), Fraction(-1, 2), out="O")
        expected = np.where(expected, 1.5, -0.5)
    elif row.kind == "leaf":
        b.emit("add", "X0", "R", out="O")
        expected = arrays["X0"] + np.reshape(expected, [SIZES[d] if d in result.dims else 1 for d in "mk"])
    else:
        b.emit("mul", "R", Fraction(1, 2), out="O")
        expected = expected * 0.5
    output = Tensor("O", b.known["O"].dims, "float32")
    program = Program("one", tuple(SIZES.items()), "float32", tuple(tensors), tuple(b.eqns), (output,))
    return Case(program, tuple(inputs), tuple(values), np.reshape(expected, [SIZES[d] for d in output.dims]))


def reference(row: Op, args: list[Any], axes: tuple[str, ...]) -> Any:
    """The `ref` column alone."""
    with np.errstate(all="raise"):
        if row.kind == "leaf":
            return row.ref(SIZES[axes[0]])
        return row.ref(*args, **(over(axes) if row.kind in ("reduction", "contraction") else {}))


def over(axes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The keyword that tells a reduction its axes."""
    return {"axis": tuple("mk".index(a) for a in axes)} if axes else {}


def cases(row: Op, integers: bool = False) -> list[Case]:
    """The operator over each number of axes, and with arguments that lack some."""
    match row.kind:
        case "leaf":
            return [case(row, (a,)) for a in "mk"]
        case "reduction":
            return [case(row, axes, integers=integers) for axes in (("k",), ("m",), ("m", "k"))]
        case "contraction":
            return [case(row, ("k",), integers=integers)]
        case "rename":
            return [case(row, ("k", "j"), integers=integers)]
        case _:
            return [case(row, integers=integers, fewer=fewer) for fewer in (False, True)[: row.arity]]


def assert_close(got: Any, expected: Array, tolerance: float) -> None:
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


# -- the interpreters


def through_float(c: Case) -> Array:
    """The slow, obvious interpreter."""
    inputs = {t.name: Named(t.dims, x) for t, x in zip(c.program.inputs, c.inputs, strict=True)}
    out = run_program(lower(c.program), inputs, FloatSemantics(c.program.sizes))["O"]
    return np.transpose(out.data, [out.dims.index(d) for d in c.program.outputs[0].dims])


def tensors(c: Case) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in c.inputs]


def through_reference64(c: Case) -> Array:
    return reference64(c.program, tensors(c))[0].numpy()


def through_torch(c: Case) -> Array:
    """The text for users."""
    scope: dict[str, Any] = {"torch": torch}
    exec(torch_source(c.program), scope)
    return scope["reference"](*tensors(c)).double().numpy()


def mugraph_text(p: Program, roles: str) -> str:
    """The whole program as one kernel."""
    lines = [f"mugraph g {p.dtype}", "dims " + " ".join(f"{d}={n}" for d, n in p.dims)]
    lines += [f"input {t}" for t in p.inputs] + [f"output {t}" for t in p.outputs]
    lines += [f"kernel k0 generated {roles}", *(f"  {t.name} = load {t.name}[{', '.join(t.dims)}]" for t in p.inputs)]
    lines += [f"  {e}" for e in p.eqns] + [f"  store {t.name}[{', '.join(t.dims)}] = {t.name}" for t in p.outputs]
    return "\n".join(lines) + "\n"


def kernel_source(p: Program, tile: int = 4) -> str:
    """The Triton text, with blocks that do not divide the sizes along m."""
    p = lower(p)
    used = {d for t in (*p.inputs, *p.outputs) for d in t.dims} | {d for e in p.eqns for d in (*e.dims, *e.axes)}
    axes = [d for d in ORDER if d in used]
    whole = any(a == "m" for e in p.eqns if e.op not in kinds("leaf", "rename") for a in e.axes)
    role = {d: "tile" if d != "m" or whole or "j" in used else "grid" for d in axes}
    graph = parse_mugraph(mugraph_text(p, " ".join(f"{d}:{r}" for d, r in role.items())))
    tiles = (("m", tile),) if role.get("m") == "grid" else ()
    return kernels_source(graph, Schedule({"k0": KernelSchedule(tiles, tuple(axes), 4, 2, 1, 1)}))


def through_triton(c: Case) -> Array:
    module = load_export(kernel_source(c.program))
    (made,), sizes = c.program.outputs, c.program.sizes
    out = torch.full(
        [sizes[d] for d in made.dims], -1 if made.dtype == "int32" else math.nan, dtype=getattr(torch, made.dtype)
    )
    given = [x.float() if x.is_floating_point() else x.int() for x in tensors(c)]
    with np.errstate(all="ignore"):  # lanes past the end of a dimension may hold anything
        module.launch(given, [out], module.make_scratch("cpu"))
    return out.double().numpy()


COLUMNS: Mapping[str, tuple[Callable[[Case], Array], float]] = {
    "ref, in the interpreter": (through_float, 1e-12),
    "torch, for float64": (through_reference64, 1e-12),
    "torch, for users": (through_torch, 1e-12),
    "triton": (through_triton, 2e-6),
}


REQUIRED = [f.name for f in fields(Op) if f.default is MISSING]


@rows("column", REQUIRED)
def test_a_row_that_lacks_a_required_column_does_not_import(column: str) -> None:
    columns = {f.name: getattr(OPS["tanh"], f.name) for f in fields(Op)}
    assert Op(**columns) == OPS["tanh"]
    assert {"known", "growth", "commutes", "takes_infinity"} <= set(REQUIRED)
    del columns[column]
    with pytest.raises(TypeError, match=f"missing 1 required .*argument: '{column}'"):
        Op(**columns)


@rows("column", ["known", "growth"])
def test_a_row_that_says_what_no_reader_knows_does_not_import(column: str) -> None:
    with pytest.raises(AssertionError, match="row tanh"):
        replace(OPS["tanh"], **{column: "surely"})


def test_an_opaque_function_that_is_new_is_assumed_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    new = replace(OPS["tanh"], name="new", field=lambda F, x: F.fn("new", x), canon=lambda A, x: A.fn("new", x))
    monkeypatch.setitem(OPS, "new", new)  # type: ignore[arg-type]
    tensors = (Tensor("X", ("m", "k"), "float16"), Tensor("W", ("k", "j"), "float16"))
    b = Builder(tensors, ORDER)
    b.emit("new", b.emit("dot", "X", "W", axes=("k",)), out="O")
    output = Tensor("O", b.known["O"].dims, "float16")
    program = Program("one", tuple(SIZES.items()), "float16", tensors, tuple(b.eqns), (output,))
    graph = parse_mugraph(mugraph_text(program, "m:grid j:grid k:tile"))
    verdict = check_equivalence(program, graph, 0)
    assert verdict.ok
    assert ASSUMPTIONS["fn"] in verdict.assumes
    assert any(x.startswith("new (") for x in outside(graph.kernels[0].body))


@rows("name", [n for n, row in OPS.items() if row.known != "exactly"])
def test_a_verdict_lists_what_it_knows_less_of(name: str) -> None:
    e = Eqn("R", name, ("X",) * OPS[name].arity, (), ("m",), "float")
    assert outside([e]) == (f"{name} ({ASSUMPTIONS[OPS[name].known]})",)


class _Asked:
    """An interpreter, and its own values, that notes which combinators a field column asks for."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.exponents: set[Fraction] = set()

    def __getattr__(self, name: str) -> Callable[..., _Asked]:
        def combinator(*args: Any, **_: bool) -> _Asked:
            self.names.add(name)
            self.exponents |= {args[1]} if name == "pow" else set()
            return self

        return combinator

    def __and__(self, other: _Asked) -> _Asked:
        return self

    __or__ = __xor__ = __and__

    def __invert__(self) -> _Asked:
        return self


def test_what_the_finite_fields_know_exactly_they_compute_without_functions() -> None:
    """A field column that asks for an opaque function, an exponential, a root or an order says so in `known`."""
    asks = {
        "fn": "fn", "symmetric": "fn", "exp": "exponential", "log": "exponential", "less": "mask", "equal": "mask",
        "mask": "mask", "extremum": "extremum", "reduce_extremum": "extremum", "integer": "fn",
    }  # fmt: skip
    for row in OPS.values():
        if row.kind == "leaf" or row.growth == "raised":
            continue
        asked = _Asked()
        row.field(asked, *(_Asked(),) * row.arity, *([("k",)] if row.kind in ("reduction", "contraction") else []))
        want = {asks[a] for a in asked.names if a in asks}
        want |= {"root"} if any(f.denominator != 1 for f in asked.exponents) else set()
        assert want == ({row.known} - {"exactly"}), row.name


@rows("name", [n for n in ELEMENTWISE + CONTRACTIONS if OPS[n].arity == 2 and n not in POWERS])
def test_commutes_says_whether_operands_may_be_exchanged(name: str) -> None:
    row, algebra = OPS[name], Algebra()
    x, y = (algebra.input(n, plain(("k",))) for n in "XY")
    axes = [("k",)] if row.kind == "contraction" else []
    assert (row.canon(algebra, x, y, *axes) is row.canon(algebra, y, x, *axes)) == row.commutes
    a, b = (np.random.default_rng(i).integers(-1, 2, (4, 8)).astype(float) for i in (0, 1))
    with np.errstate(all="ignore"):
        results = [row.ref(*args, *([1] if axes else [])) for args in ((a, b), (b, a))]
    assert np.array_equal(*results, equal_nan=True) == row.commutes


@rows("column", COLUMNS)
@rows("name", [n for n in OPS if n not in RENAMES])
def test_every_column_computes_the_reference(name: str, column: str) -> None:
    through, tolerance = COLUMNS[column]
    if column == "triton" and name in IDENTITIES:
        tolerance = max(tolerance, torch.finfo(getattr(torch, name)).eps / 2)
    for c in cases(OPS[name]):
        assert_close(through(c), c.expected, tolerance)


INTEGERS = [(n, c) for n in (*ELEMENTWISE, *REDUCTIONS, *CONTRACTIONS) for c in COLUMNS]


@rows(("name", "column"), [pytest.param(*x, id="-".join(x)) for x in INTEGERS])
def test_every_column_takes_integers(name: str, column: str) -> None:
    """And gives what the reference gives for the same numbers in float64."""
    through, tolerance = COLUMNS[column]
    for c in cases(OPS[name], integers=True):
        assert_close(through(c), c.expected, tolerance)


@rows("name", RENAMES)
@rows("column", [c for c in COLUMNS if c != "triton"])
def test_renaming_moves_nothing(name: str, column: str) -> None:
    """The pairs of a Gram matrix, x[m, k] · x[m, j] summed over m."""
    x = Tensor("X0", ("m", "k"), "float32")
    b = Builder((x,), ORDER)
    b.emit("dot", "X0", b.emit(name, "X0", axes=("k", "j")), axes=("m",), out="O")
    data = drawn(-2, 2, (3, 16), 0)
    expected = np.einsum("mk,mj->kj", data, OPS[name].ref(data))
    program = Program(
        "gram", tuple(SIZES.items()), "float32", (x,), tuple(b.eqns), (Tensor("O", ("k", "j"), "float32"),)
    )
    assert_close(COLUMNS[column][0](Case(program, (data,), (data,), expected)), expected, 1e-12)


@rows("name", CONTRACTIONS)
def test_large_blocks_use_the_text_of_a_contraction(name: str) -> None:
    """Small ones are multiplied out."""
    tensors = (Tensor("X", ("m", "k"), "float16"), Tensor("Y", ("k", "j"), "float16"))
    b = Builder(tensors, ORDER)
    b.emit(name, "X", "Y", axes=("k",), out="O")
    sizes = (("m", 16), ("k", 16), ("j", 16))
    text = kernel_source(Program("g", sizes, "float16", tensors, tuple(b.eqns), (Tensor("O", ("m", "j"), "float16"),)))
    assert OPS[name].triton.format("X", "Y") in text


# -- kinds, axes, types


@rows("name", OPS)
def test_rows_are_complete(name: str) -> None:
    row = OPS[name]
    assert row.name == name
    assert name.isidentifier()
    assert row.doc
    assert row.arity == {"leaf": 0, "rename": 1, "reduction": 1, "contraction": 2}.get(row.kind, row.arity)
    assert len(row.domain) in (1, row.arity)
    assert all(low <= high for low, high in row.domain)
    assert (row.result == "branches") == (name in MASKS and row.arity == 3)
    assert row.result in ("int", "float") or row.kind != "leaf"
    reduces = row.kind in ("reduction", "contraction")
    assert (row.identity is not None) == bool(row.joins) == reduces
    assert not row.joins or OPS[row.joins].all_reduce
    assert bool(row.numbers) == (row.growth == "raised")
    for column in (row.field, row.canon):
        names = list(inspect.signature(column).parameters.values())
        variadic = any(p.kind == p.VAR_POSITIONAL for p in names)
        axes = row.kind in ("reduction", "contraction", "leaf") or (row.kind == "rename" and column is row.canon)
        assert variadic or len(names) == 1 + row.arity + axes


@rows("name", OPS)
@rows("template", ["triton", "torch"])
def test_templates_use_every_argument_and_nothing_else(name: str, template: str) -> None:
    row = OPS[name]
    used = {field for _, field, _, _ in string.Formatter().parse(getattr(row, template)) if field is not None}
    count = {"leaf": 1, "reduction": 2}.get(row.kind, row.arity)
    assert used == {str(i) for i in range(count)}
    if row.kind == "rename" or (row.kind == "leaf" and template == "triton"):
        assert getattr(row, template) == "{0}"  # those who write the text have it already


def test_the_text_of_a_power_is_python() -> None:
    """Kernels have products and roots in its place, which depend on the exponent."""
    row, x = OPS["pow"], drawn(*domain(OPS["pow"])[0], (8,), 0)
    for c in (2, 3, -1, 0.5):
        scope: dict[str, Any] = {"x": x}
        exec(f"y = {row.triton.format('x', c)}", scope)
        np.testing.assert_allclose(scope["y"], row.ref(x, c))


@rows("name", OPS)
def test_shape_rule(name: str) -> None:
    """Axes are those of the arguments without the reduced ones, in the program's order, as numpy broadcasts them."""
    row = OPS[name]
    for c in cases(row):
        e = c.eqn
        if row.kind == "rename":
            assert e.dims == ("m", "j")
            continue
        given = {d for a in e.values for d in c.program.values()[a].dims} | (set(e.axes) if name == "index" else set())
        gone = set(e.axes) if row.kind in ("reduction", "contraction") else set()
        assert e.dims == tuple(d for d in ORDER if d in given - gone)
        values = [np.asarray(x) for x in c.args]
        shape = np.shape(reference(row, values, e.axes))
        assert math.prod(shape) == math.prod(SIZES[d] for d in e.dims)


TYPES = {"f": "float", "i": "int", "b": "bool"}


@rows("name", OPS)
def test_the_type_of_the_result_is_the_references(name: str) -> None:
    """Of integers: an integer where the reference gives one, unless its text in Triton computes in floats."""
    row = OPS[name]
    decimal = re.search(r"\d\.\d", row.triton) is not None
    for integers in (False, True):
        for c in cases(row, integers):
            kind = TYPES[np.asarray(reference(row, list(c.args), c.eqn.axes)).dtype.kind]
            in_floats = integers and (decimal or row.kind == "contraction")
            assert c.eqn.type == ("float" if in_floats else kind)


@rows("name", [n for n in OPS if OPS[n].result in ("same", "branches")])
def test_one_float_makes_the_result_a_float(name: str) -> None:
    row = OPS[name]
    masks = MASKS.get(name, ())
    ints: tuple[Type, ...] = tuple("bool" if i in masks else "int" for i in range(row.arity))
    assert result_type(row, ints) == "int"
    for i in range(row.arity):
        if i not in masks:
            assert result_type(row, (*ints[:i], "float", *ints[i + 1 :])) == "float"


# -- numbers in the row


@rows("name", OPS)
def test_an_operator_costs_at_least_one_flop_for_each_step_of_its_text(name: str) -> None:
    row = OPS[name]
    if row.kind in ("leaf", "rename"):
        assert row.flops == 0
        return
    tree = ast.parse(row.triton.format(*"xyz"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) != "float"]
    steps = len(calls) + sum(isinstance(n, ast.BinOp | ast.UnaryOp | ast.Compare) for n in ast.walk(tree))
    assert max(1, steps) <= row.flops <= 160


def jumps(c: Case) -> bool:
    """Whether the yardstick takes the operator for one that jumps, before which it moves no input."""
    with RoundEveryResult(torch.float32) as mode:
        through_torch(c)
    return mode.jumped


@rows("name", [n for n in OPS if OPS[n].kind != "leaf" and OPS[n].result != "bool"])
def test_jumps_says_what_the_yardstick_takes_for_a_jump(name: str) -> None:
    row = OPS[name]
    assert {jumps(c) or row.result == "int" for c in cases(row)} == {row.jumps}


@rows("name", [n for n in OPS if OPS[n].kind != "leaf"])
def test_an_operator_is_defined_and_well_conditioned_on_its_domain(name: str) -> None:
    """Float32 arguments, the ends of the domain among them, give nearly what float64 ones give, but at a jump."""
    row = OPS[name]
    for c in cases(row):
        if row.result == "bool" or jumps(c):
            continue
        exact = reference(row, list(c.args), c.eqn.axes)
        assert np.isfinite(exact).all()
        bent = [x * (1 + 2**-24) if np.asarray(x).dtype.kind == "f" else x for x in c.args]
        near = reference(row, bent, c.eqn.axes)
        np.testing.assert_allclose(near, exact, rtol=2e-6, atol=2e-6)


@rows("name", [n for n in ELEMENTWISE if n not in POWERS])
def test_zero_says_what_padding_becomes(name: str) -> None:
    """The strongest promise that holds. Of more than two arguments none is made, and by comparisons none."""
    row = OPS[name]
    (c, *_) = cases(row)
    gone: list[bool] = []
    for which in ({0}, {1}, set(range(row.arity))):
        zeros = [np.zeros_like(x) if i in which else x for i, x in enumerate(c.args)]
        with np.errstate(all="ignore"):
            gone.append(not np.any(row.ref(*zeros)))
    first, second, every = gone
    either = first and second and row.arity == 2
    holds = "either" if either else "all" if every else "first" if first else "never"
    assert row.zero == (holds if row.arity < 3 and row.known != "mask" else "never")


@rows("name", [n for n in OPS if n in POWERS or OPS[n].kind in ("reduction", "leaf", "rename")])
def test_zero_is_said_of_functions_and_products_alone(name: str) -> None:
    assert OPS[name].zero == "never"


@rows("name", [n for n, row in OPS.items() if row.linear])
def test_linear_says_of_which_sum_it_is(name: str) -> None:
    row = OPS[name]
    args = [drawn(-2, 2, (8,), i) for i in range(row.arity)]
    np.testing.assert_array_equal(row.ref(*args), sum(c * x for c, x in zip(row.linear, args, strict=True)))


@rows("name", [n for n, row in OPS.items() if row.known == "mask" and row.arity == 2])
def test_order_says_what_a_comparison_asks(name: str) -> None:
    row = OPS[name]
    x, y = (np.random.default_rng(i).integers(-2, 3, 64) for i in (0, 1))
    asked = {
        (strict, turned): np.array_equal(row.ref(x, y), ask(y, x) if turned else ask(x, y))
        for strict, ask in ((True, np.less), (False, np.less_equal))
        for turned in (False, True)
    }
    assert [o for o, holds in asked.items() if holds] == ([(row.order.strict, row.order.turned)] if row.order else [])


@rows("name", [n for n, row in OPS.items() if row.exact])
def test_exact_is_the_reference(name: str) -> None:
    row = OPS[name]
    assert row.exact is not None
    args = [Fraction(-7) if row.integers else Fraction(-7, 4), Fraction(3)][: row.arity]
    assert row.exact(*args) == Fraction(float(row.ref(*map(float, args)))) or row.exact(*args) == args[0] / args[-1]
    for many in ([Fraction(2), Fraction(1, 2)], [Fraction(3, 7), Fraction(1 << 20)]) if row.numbers else []:
        assert row.exact(*many) is None


@rows("name", [n for n, row in OPS.items() if row.by_number])
def test_by_number_says_what_division_is(name: str) -> None:
    row = OPS[name]
    x = drawn(-2, 2, (8,), 0)
    np.testing.assert_array_equal(row.ref(x, 4.0), OPS[row.by_number].ref(x, 0.25))


@rows("name", [n for n, row in OPS.items() if row.nearly])
def test_the_quicker_text_is_nearly_the_same(name: str) -> None:
    row = OPS[name]
    assert row.nearly is not None and row.nearly != row.triton
    row = replace(row, triton=row.nearly)
    (c, *_) = cases(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPS, name, row)  # type: ignore[arg-type]
        assert_close(through_triton(c), c.expected, 2e-6)


DEGREES: Mapping[str, Callable[[float, float], tuple[float, float, float]]] = {
    "same": lambda a, b: (a, a, a),
    "add": lambda a, b: (a, b, a * b),
    "sub": lambda a, b: (a, b, a / b),
    "first": lambda a, b: (a, b, a),
}
"""Factors of the first argument, of the second, and of the result."""


@rows("name", OPS)
def test_degree_says_how_common_factors_carry_over(name: str) -> None:
    """The first rule that holds is the row's; of one argument, "same" and "first" are one rule."""
    row = OPS[name]
    if row.result == "bool" or row.kind == "leaf" or name in MASKS:
        assert row.degree == "none"
        return
    for c in cases(row):
        axes = () if row.kind == "rename" else c.eqn.axes
        held: set[str] = set()
        for rule, factors in DEGREES.items():
            *scales, whole = factors(-0.375, 5.0)
            scaled = [x * f for x, f in zip(c.args, scales, strict=False)]
            with np.errstate(all="ignore"):
                if np.allclose(row.ref(*scaled, **over(axes)), whole * reference(row, list(c.args), axes), atol=1e-12):
                    held.add(rule)
        assert row.degree in (held or {"none"})


@rows("whole", [False, True])
@rows("name", [*REDUCTIONS, *CONTRACTIONS])
def test_the_identity_of_a_reduction_changes_nothing(name: str, whole: bool) -> None:
    row = OPS[name]
    e = row.neutral(whole)
    for x in (-3.0, 0.0, 2.0):
        more = np.array([x, e, e])
        args = [more, np.ones(3)][: row.arity]
        assert row.ref(*args, axis=(0,)) == x


@rows("name", [*REDUCTIONS, *CONTRACTIONS])
def test_what_joins_a_reduction_makes_the_whole_of_parts(name: str) -> None:
    row = OPS[name]
    args = [drawn(-2, 2, (8,), i) for i in range(row.arity)]
    parts = [row.ref(*(x[half] for x in args), axis=(0,)) for half in (slice(3), slice(3, 8))]
    np.testing.assert_allclose(OPS[row.joins].ref(*parts), row.ref(*args, axis=(0,)))


@rows("name", [name for name, row in OPS.items() if row.all_reduce])
def test_an_all_reduce_is_the_operator(name: str) -> None:
    """By its name in torch.distributed, and by its meaning."""
    row = OPS[name]
    assert hasattr(torch.distributed.ReduceOp, row.all_reduce)
    assert {"SUM": np.add, "PRODUCT": np.multiply, "MAX": np.maximum, "MIN": np.minimum}[row.all_reduce] is row.ref
    assert name in {r.joins for r in OPS.values()}


# -- meanings for interpreters, in float64


class FloatField:
    """The combinators of `Field` as float64 arithmetic on arrays with an axis for m and one for k."""

    def __init__(self) -> None:
        self.add, self.sub, self.mul, self.div = np.add, np.subtract, np.multiply, np.divide
        self.exp, self.log, self.where = np.exp, np.log, np.where

    def const(self, c: Fraction | float) -> float:
        return float(c)

    def pow(self, x: Array, c: Fraction | float) -> Array:
        return np.power(x, float(c))

    def fn(self, name: str, *args: Array, at_zero: Fraction | None = None) -> Array:
        return OPS[name].ref(*args)

    def symmetric(self, name: str, x: Array, y: Array, *, either: bool) -> Array:
        return OPS[name].ref(x, y)

    def mask(self, name: str, *args: Array) -> Array:
        return OPS[name].ref(*args)

    def integer(self, x: Array) -> Array:
        return np.trunc(x)

    def finite(self, m: Array) -> Array:
        return np.where(np.isinf(m), 0, m)

    def extremum(self, x: Array, y: Array, *, largest: bool) -> Array:
        return (np.fmax if largest else np.fmin)(x, y)

    def less(self, x: Array, y: Array) -> Array:
        return x < y

    def equal(self, x: Array, y: Array) -> Array:
        return x == y

    def sum(self, x: Array, axes: tuple[str, ...]) -> Array:
        return np.add.reduce(x, axis=tuple("mk".index(a) for a in axes))

    def dot(self, x: Array, y: Array, axes: tuple[str, ...]) -> Array:
        return self.sum(x * y, axes)

    def prod(self, x: Array, axes: tuple[str, ...]) -> Array:
        return np.multiply.reduce(x, axis=tuple("mk".index(a) for a in axes))

    def reduce_extremum(self, x: Array, axes: tuple[str, ...], *, largest: bool) -> Array:
        return (np.fmax if largest else np.fmin).reduce(x, axis=tuple("mk".index(a) for a in axes))

    def index(self, axis: str) -> Array:
        return np.arange(SIZES[axis])

    def size(self, axis: str) -> int:
        return SIZES[axis]


class FloatAlgebra(FloatField):
    """The combinators of `Algebra` likewise. `sort` gives its arguments in either order."""

    def __init__(self, turn: bool) -> None:
        super().__init__()
        self.turn = turn

    def scale(self, x: Array, c: Fraction) -> Array:
        return x * float(c)

    def sort(self, *args: Array) -> list[Array]:
        return list(args[::-1] if self.turn else args)

    def folded(self, name: str, x: Array, axes: tuple[str, ...]) -> Array:
        return OPS[name].ref(x, axis=tuple("mk".index(a) for a in axes))

    def rename(self, x: Array, names: Mapping[str, str]) -> Array:
        assert names == {"k": "j"}
        return x


def meaning(row: Op, column: Callable[..., Any], interpreter: object, c: Case) -> Any:
    """A column applied as the interpreters apply it."""
    args = list(c.args)
    if row.numbers:
        args[1] = Fraction(args[1])
    match row.kind:
        case "leaf":
            return column(interpreter, c.eqn.axes[0])
        case "reduction" | "contraction":
            return column(interpreter, *args, c.eqn.axes)
        case "rename" if column is row.canon:
            return column(interpreter, *args, {"k": "j"})
        case _:
            return column(interpreter, *args)


@rows("name", OPS)
def test_the_field_column_is_the_reference_when_it_is_run_in_float64(name: str) -> None:
    row = OPS[name]
    for c in cases(row):
        np.testing.assert_allclose(
            meaning(row, row.field, FloatField(), c), reference(row, list(c.args), c.eqn.axes), rtol=1e-12, atol=1e-12
        )


@rows("turn", [False, True])
@rows("name", OPS)
def test_the_canonical_form_is_the_reference_when_it_is_run_in_float64(name: str, turn: bool) -> None:
    row = OPS[name]
    for c in cases(row):
        np.testing.assert_allclose(
            meaning(row, row.canon, FloatAlgebra(turn), c),
            reference(row, list(c.args), c.eqn.axes),
            rtol=1e-12,
            atol=1e-12,
        )


# -- meanings for interpreters, in the real ones


SEEDS = range(5, 10)
"""Of one seed, the few elements of a mask may all be alike."""


def through_field(p: Program, seed: int = SEEDS[0]) -> Residues:
    """The result of the operator's own equation."""
    semantics = FieldSemantics(seed, SIZES)
    inputs = {t.name: semantics.field.draw(t.dims, "float") for t in p.inputs}
    own = replace(p, outputs=(replace(p.outputs[0], name="R"),))
    return run_program(lower(own), inputs, semantics)["R"]


def form(algebra: Algebra, p: Program) -> Form:
    return program_forms(algebra, lower(replace(p, outputs=(replace(p.outputs[0], name="R"),))))["R"]


def agree(x: Residues, y: Residues) -> bool:
    if (x.kind == "bool") != (y.kind == "bool") or set(x.dims) != set(y.dims):
        return False
    return bool(same(x, y)[0].all())


@rows("name", OPS)
def test_meanings_have_the_axes_of_the_result_and_follow_from_the_seed(name: str) -> None:
    for c in cases(OPS[name]):
        x = through_field(c.program)
        assert set(x.dims) == set(c.eqn.dims)
        assert x.shape == tuple(SIZES[d] for d in x.dims)
        assert agree(x, through_field(c.program))
        assert (x.kind == "bool") == (c.eqn.type == "bool")
        algebra = Algebra()
        f = form(algebra, c.program)
        assert f.dims == set(c.eqn.dims)
        assert f is form(algebra, c.program)
        assert str(f) == str(form(Algebra(), c.program))
        if c.eqn.values:
            assert not all(agree(x, through_field(c.program, n)) for n in SEEDS[1:])


@rows("name", [n for n in OPS if OPS[n].kind != "leaf"])
def test_meanings_depend_on_every_argument(name: str) -> None:
    """An argument shifted by 1 is another argument, in the field and in the algebra; a mask is turned round."""
    row = OPS[name]
    for c in cases(row):
        algebra = Algebra()
        before = [through_field(c.program, n) for n in SEEDS], form(algebra, c.program)
        for t in c.program.inputs:
            b = Builder(c.program.inputs, ORDER)
            other = b.emit("sub", t.name, Fraction(1)) if int(t.name[1:]) not in MASKS.get(name, ()) else ""
            other = other or b.emit("neg", t.name)
            for e in c.program.eqns:
                b.emit(e.op, *(other if a == t.name else a for a in e.args), axes=e.axes, out=e.out)
            changed = replace(c.program, eqns=tuple(b.eqns))
            assert not all(agree(through_field(changed, n), x) for n, x in zip(SEEDS, before[0], strict=True))
            assert form(algebra, changed) is not before[1]


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of operators that take the same arguments, but for those that differ by rounding alone."""
    names = [n for n in names if n not in IDENTITIES[1:]]
    key = lambda n: (OPS[n].kind, OPS[n].arity, MASKS.get(n))  # noqa: E731
    return [(a, b) for a, b in combinations(names, 2) if key(a) == key(b)]


@rows(("one", "other"), alike(n for n in OPS if n not in POWERS))
def test_operators_with_one_meaning_are_one_function(one: str, other: str) -> None:
    """Different functions differ in the field and in the algebra. Arguments are those of the first."""
    for c, d in zip(cases(OPS[one]), cases(OPS[other]), strict=True):
        e = c.eqn
        swapped = replace(
            c.program, eqns=tuple(replace(x, op=other, type=d.eqn.type) if x is e else x for x in c.program.eqns)
        )
        algebra = Algebra()
        assert form(algebra, c.program) is not form(algebra, swapped)
        assert not agree(through_field(c.program), through_field(swapped))


@rows("name", [n for n in ELEMENTWISE if OPS[n].arity == 2 and n not in POWERS])
def test_an_operator_commutes_in_every_meaning_or_in_none(name: str) -> None:
    row = OPS[name]
    (c, *_) = cases(row)
    x, y = c.args
    with np.errstate(all="ignore"):
        expected = bool(np.array_equal(row.ref(x, y), row.ref(y, x)))
    e = c.eqn
    turned = replace(c.program, eqns=tuple(replace(z, args=z.args[::-1]) if z is e else z for z in c.program.eqns))
    algebra = Algebra()
    assert (form(algebra, c.program) is form(algebra, turned)) == expected
    assert agree(through_field(c.program), through_field(turned)) == expected


@rows("name", [*REDUCTIONS, *CONTRACTIONS])
def test_a_reduction_of_parts_is_joined_to_the_whole(name: str) -> None:
    (c, *_) = cases(OPS[name])
    semantics = FieldSemantics(5, SIZES)
    args = [semantics.field.draw(t.dims, "float") for t in c.program.inputs]

    def part(low: int, high: int) -> Residues:
        at = [replace(x, data=np.take(x.data, range(low, high), axis=x.dims.index("k") + 1)) for x in args]
        return semantics.apply(name, tuple(at), ("k",))

    whole = semantics.apply(name, tuple(args), ("k",))
    dims, shape = whole.dims, whole.shape
    identity = OPS[name].neutral(whole=False)
    empty = semantics.full(Fraction(identity) if math.isfinite(identity) else identity, dims, shape, "float")
    joined = semantics.join(name, semantics.join(name, empty, part(0, 5)), part(5, 16))
    assert agree(joined, whole)


# -- derived operators


def derived_case(name: str, axes: tuple[str, ...], *number: Fraction) -> Case:
    """The operator alone, with another value after it."""
    x = Tensor("X0", ("k", "m"), "float32")
    b = Builder((x,), ORDER)
    e = derived_equation("R", name, ("X0", *number), axes, b)
    b.append(e)
    b.emit("mul", "R", Fraction(1, 2), out="O")
    data = drawn(-2, 2, (16, 3), 0)
    program = Program("one", tuple(SIZES.items()), "float32", (x,), tuple(b.eqns), (Tensor("O", e.dims, "float32"),))
    case = Case(program, (data,), (data,), np.empty(0))
    return replace(case, expected=through_reference64(case))


OVER = [
    (n, axes)
    for n, row in DERIVED.items()
    for axes in ([("k",), ("m",), ("m", "k"), ("k", "m")] if row.over_axes else [()])
]
GIVEN = {name: tuple(Fraction(i + 1, 3) for i, _ in enumerate(row.options)) for name, row in DERIVED.items()}
"""Numbers for all options of a row."""
REQUIRED_NUMBERS = {n: GIVEN[n][: sum(d is None for _, d in row.options)] for n, row in DERIVED.items()}


@rows(("name", "axes"), OVER)
def test_every_column_of_a_derived_operator_is_its_definition(name: str, axes: tuple[str, ...]) -> None:
    """`define` through float64, the slow interpreter and Triton; `torch` as it is."""
    for numbers in dict.fromkeys((REQUIRED_NUMBERS[name], GIVEN[name])):
        c = derived_case(name, axes, *numbers)
        for column in COLUMNS:
            assert_close(COLUMNS[column][0](c), c.expected, COLUMNS[column][1])


@rows("name", DERIVED)
def test_rows_of_derived_operators_are_complete(name: str) -> None:
    row = DERIVED[name]
    assert row.name == name
    assert name not in OPS
    assert row.doc
    options = {option for option, _ in row.options}
    used = {field for _, field, _, _ in string.Formatter().parse(row.torch) if field is not None}
    assert used - options <= ({"0", "dims", "last", "sizes"} if row.over_axes else {"0"})
    assert options <= used
    assert row.moved == ("last" in used)
    assert ("0" in used) != row.moved
    assert row.over_axes or not row.reduces
    defaults = [default for _, default in row.options]
    assert defaults == sorted(defaults, key=lambda d: d is not None)


@rows(("name", "axes"), OVER)
def test_reduces_says_whether_the_axes_disappear(name: str, axes: tuple[str, ...]) -> None:
    """The equation's axes are those of its definition."""
    row, c = DERIVED[name], derived_case(name, axes, *GIVEN[name])
    assert c.eqn.dims == (tuple(d for d in "mk" if d not in axes) if row.reduces else ("m", "k"))
    own = next(e for e in lower(c.program).eqns if e.out == "R")
    assert own.op in OPS
    assert (own.dims, own.type) == (c.eqn.dims, c.eqn.type)


@rows("name", [d.name for d in DERIVED.values() if REQUIRED_NUMBERS[d.name] != GIVEN[d.name]])
def test_an_option_that_is_left_out_has_its_default(name: str) -> None:
    row = DERIVED[name]
    axes = ("k",) if row.over_axes else ()
    defaults = tuple(Fraction(d) for _, d in row.options if d is not None)
    default = derived_case(name, axes, *REQUIRED_NUMBERS[name])
    given = derived_case(name, axes, *REQUIRED_NUMBERS[name], *defaults)
    np.testing.assert_array_equal(default.expected, given.expected)
    np.testing.assert_array_equal(through_torch(default), through_torch(given))
    other = derived_case(name, axes, *REQUIRED_NUMBERS[name], *(d + 3 for d in defaults))
    assert not np.allclose(default.expected, other.expected)
    algebra = Algebra()
    assert form(algebra, default.program) is form(algebra, given.program)


@rows(("one", "other"), list(combinations(DERIVED, 2)))
def test_derived_operators_have_meanings_of_their_own(one: str, other: str) -> None:
    algebra = Algebra()
    programs = [derived_case(n, ("k",) * DERIVED[n].over_axes, *GIVEN[n]).program for n in (one, other)]
    assert form(algebra, programs[0]) is not form(algebra, programs[1])
    assert not agree(*(through_field(p) for p in programs))


WORDS = [
    *range(-130, 131),
    *(s * n for s in (1, -1) for n in (3, 7, 1 << 24, (1 << 24) + 1, (1 << 31) - 1)),
    -(1 << 31),
]
"""Integers of 32 bits, the ends among them."""
DIVISORS = [1, 2, 3, 7, 16, 100, -1, -2, -3, -100, (1 << 30) + 1, (1 << 31) - 1, -(1 << 31)]
LONG = 1 << 11
"""Elements of a row of these: a kernel takes thousands of pairs in little more time than a few."""
OF_INTEGERS = [n for n, row in OPS.items() if row.of_integers or row.integers]


@rows("column", COLUMNS)
@rows("name", OF_INTEGERS)
def test_what_is_of_integers_is_exact_in_32_bits(name: str, column: str) -> None:
    """And the quotient of -2 ** 31 and -1, which has more, is left out."""
    row = OPS[name]
    others = DIVISORS if row.of_integers else [*range(-2, 35)] if not row.commutes else WORDS[::3]
    pairs = [(x, y) for x in WORDS for y in others if (x, y) != (-(1 << 31), -1)]
    count = SIZES["m"] * LONG
    for start in range(0, len(pairs), count):
        some = np.resize(np.array(pairs[start : start + count]), (count, 2)).T.reshape(2, SIZES["m"], LONG)
        made = exact_case(name, some)
        np.testing.assert_array_equal(COLUMNS[column][0](made), made.expected)


def exact_case(name: str, given: NDArray[np.int64]) -> Case:
    """The operator of two tensors of integers, as an integer."""
    x, y = given
    tensors = tuple(Tensor(f"X{i}", ("m", "k"), "int32") for i in (0, 1))
    b = Builder(tensors, ORDER)
    b.emit(name, "X0", "X1", out="O")
    output = Tensor("O", ("m", "k"), "int32")
    sizes = SIZES | dict(zip(("m", "k"), x.shape, strict=True))
    program = Program("one", tuple(sizes.items()), "float32", tensors, tuple(b.eqns), (output,))
    inputs = (x.astype(np.int32), y.astype(np.int32))
    return Case(program, inputs, inputs, np.asarray(OPS[name].ref(x, y)).astype(np.float64))


@rows("name", [n for n, row in OPS.items() if row.whole])
def test_whole_says_between_which_numbers_results_lie(name: str) -> None:
    row = OPS[name]
    assert row.whole is not None
    some, counts = [(-9, 7), (-5, -2), (0, 0), (2, 6), (0, 5), (-3, 0)], [(3, 3), (0, 2), (1, 4), (-2, 1), (8, 8)]
    for x, y in [(x, y) for x in some for y in [*some, *counts]]:
        found = row.whole(x, y) if row.arity - len(row.masks) > 1 else row.whole(x)
        if found is None:
            continue
        values = [np.arange(low, high + 1) for low, high in (x, y)]
        given = np.meshgrid(*values) if row.arity - len(row.masks) > 1 else values[:1]
        for masks in [[np.bool_(m)] for m in (False, True)] if row.masks else [[]]:
            made = row.ref(*masks, *given)
            assert found[0] <= made.min() and made.max() <= found[1], (x, y)


@rows("name", [n for n, row in OPS.items() if row.simpler])
def test_what_is_simpler_of_a_number_is_the_same(name: str) -> None:
    simpler = OPS[name].simpler
    assert simpler is not None
    for n in (0, 1, 4, 15, 30):
        found = simpler(Fraction(n))
        if found is not None:
            x = np.array(WORDS)
            with np.errstate(over="ignore"):
                other = OPS[found[0]].ref(x.astype(np.int32), np.int32(found[1]))
            np.testing.assert_array_equal(OPS[name].ref(x, np.array(n)), other)


@rows("name", [n for n, row in OPS.items() if row.by_power])
def test_what_divides_by_a_power_of_2_is_the_same_of_the_power(name: str) -> None:
    by_power = OPS[name].by_power
    assert by_power is not None
    for n in range(31):
        found = by_power(lambda op, *args: OPS[op].ref(*(np.asarray(a).astype(np.int64) for a in args)), WORDS, n)
        np.testing.assert_array_equal(found, OPS[name].ref(np.array(WORDS), 1 << n))


@rows("name", [n for n, row in OPS.items() if row.of_powers])
def test_the_text_of_powers_of_two_is_the_reference(name: str) -> None:
    row = OPS[name]
    for n in (0, 1, 4, 7):
        for x in (*range(-130, 131), (1 << 31) - 1, -(1 << 31)):
            assert eval(row.of_powers.format("x", 1 << n, (1 << n) - 1, n)) == row.ref(x, 1 << n), (x, n)  # noqa: S307


def test_powers_of_two_are_known() -> None:
    found = [
        power_of_two(x) for x in (Fraction(1), Fraction(8), Fraction(6), Fraction(0), Fraction(-2), Fraction(1, 2))
    ]
    assert found == [0, 3, None, None, None, None] and power_of_two(4.0) is None


def test_operations_with_numbers_cost_what_they_become() -> None:
    root, quotient = OPS["sqrt"].flops, OPS["div"].flops
    assert [flops_of("div", ("x", n)) for n in ("y", Fraction(3), Fraction(1, 8))] == [quotient, quotient, 1.0]
    assert [flops_of("pow", ("x", Fraction(n, 2))) for n in (1, 2, 3, 4, 6)] == [root, 0.0, root + 1, 1.0, 2.0]
    assert flops_of("pow", ("x", Fraction(-3, 2))) == quotient + root + 1
    assert flops_of("pow", ("x", Fraction(-1, 2))) == OPS["rsqrt"].flops
    assert flops_of("pow", ("x", Fraction(1, 3))) == OPS["pow"].flops
    assert [flops_of("floor_divide", ("x", Fraction(n))) for n in (16, 12)] == [1.0, OPS["floor_divide"].flops]
