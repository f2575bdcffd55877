"""Specs: what a good one means, and every mistake in a bad one, word for word."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.errors import ChangeError, SpecError
from mirage_cli.ir.program import Program
from mirage_cli.spec.idioms import IDIOMS
from mirage_cli.spec.reader import MAX_BYTES, Spec, SpecFileError, load_spec, parse_spec
from mirage_cli.spec.vocabulary import FUNCTIONS, RESERVED
from mirage_cli.verify.float64 import reference64
from tests.rows import rows

ROOT = Path(__file__).parents[1]
ERRORS = ROOT / "golden" / "errors"
SPECS = sorted((ROOT.parent / "search_specs").glob("*.yaml"))

Tensors = Mapping[str, torch.Tensor]


def written(
    program: str, outputs: str, inputs: str = "X[m,k] Y[m,k] W[k,n] G[k] L:int32[m] S[i,j]", **keys: str
) -> str:
    """The text of a spec. inputs, outputs: `X[m,k] L:int32[m]`; keys: further lines."""
    keys = {"dims": "{m: 4, k: 6, n: 3, i: 5, j: 5, b: 2}"} | keys
    lines = ["name: test", *(f"{key}: {value}" for key, value in keys.items())]
    for word, tensors in (("inputs", inputs), ("outputs", outputs)):
        lines.append(f"{word}:")
        for text in tensors.split():
            head, _, axes = text.rstrip("]").partition("[")
            name, _, dtype = head.partition(":")
            lines.append(f"  {name}: {{dims: [{axes}]{f', dtype: {dtype}' if dtype else ''}}}")
    return "\n".join([*lines, "program: |", *(f"  {line}" for line in program.strip().split("\n"))]) + "\n"


def read(program: str, outputs: str = "O[m,k]", **keys: str) -> Program:
    return parse_spec(written(program, outputs, **keys)).at()


def equations(program: Program) -> list[str]:
    return [str(e) for e in program.eqns]


def mistakes(text: str) -> list[str]:
    """The messages alone."""
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    return [d.message for d in caught.value.diagnostics]


# -- mistakes


@rows("path", sorted(ERRORS.glob("*.yaml")))
def test_every_mistake_is_reported_word_for_word(path: Path) -> None:
    expected = path.with_suffix(".txt").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    if expected.split(": ")[1] == "warning":
        assert "\n".join(map(str, parse_spec(text, path.name).warnings)) + "\n" == expected
        return
    with pytest.raises(SpecError) as caught:
        parse_spec(text, path.name)
    assert str(caught.value) + "\n" == expected


@rows("path", sorted(ERRORS.glob("*.txt")))
def test_every_caret_points_at_its_line(path: Path) -> None:
    """Line and column are those of the file, and the text above the caret is that line, tabs and all."""
    spec = path.with_suffix(".yaml").read_text(encoding="utf-8").splitlines()
    shown = path.read_text(encoding="utf-8").splitlines()
    places = [(i, *line.split(":")[1:3]) for i, line in enumerate(shown) if line.startswith(f"{path.stem}.yaml:")]
    assert places
    for i, line, column in places:
        if not spec:
            continue
        source = spec[int(line) - 1]
        assert shown[i + 1] == "    " + source.replace("\t", " ")
        assert shown[i + 2] == " " * (3 + int(column)) + "^"
        assert int(column) <= len(source) + 1


WRITE = {name: text.partition("write ")[2] for name, text in IDIOMS.items() if "write " in text and "O[" not in text}
SETTING = """
name: t
dims: {m: 4, a: 6, j: 6, d: 3, q: 4, s: 5}
inputs: {x: [m, a], y: [m, a], Q: [q, d], K: [s, d], V: [s, d], T: {dims: [m], dtype: int32, below: a}}
outputs: {O: [m, a]}
program: |
  mask = x > 0
  low = 0
  high = 1
  scale = 2
  O = x + y
"""


@rows("name", WRITE)
def test_what_an_idiom_says_to_write_can_be_read(name: str) -> None:
    parse_spec(f"{SETTING}  idiom = {WRITE[name]}\n")


def test_mistakes_come_in_the_order_of_the_file() -> None:
    text = (ERRORS / "several_mistakes.yaml").read_text()
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    places = [(d.line, d.column) for d in caught.value.diagnostics]
    assert places == sorted(set(places))
    assert len(places) == 13


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"name: ok\nsource: caf\xe9\n")
    with pytest.raises(SpecFileError, match=r"bad\.yaml:2: a spec is UTF-8 text, and byte 20 is not$"):
        load_spec(path)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SpecFileError, match=r"a spec is at most 1 MiB, and this file has 1048577 bytes$"):
        load_spec(path)
    with pytest.raises(SpecFileError, match=r"none\.yaml: No such file or directory\n +`mirage init"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(SpecFileError, match="Is a directory"):
        load_spec(tmp_path)


def test_a_file_of_1_mib_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    good = written("O = X + 1", "O[m,k]").encode()
    path.write_bytes(good + b"#" * (MAX_BYTES - len(good)))
    assert load_spec(path).name == "test"


def test_control_characters_are_refused_where_they_are_and_not_shown() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(written("O = X * \x1b[31m", "O[m,k]"), "bad.yaml")
    line = len(written("", "O[m,k]").splitlines())
    assert str(caught.value).split("\n")[1:] == [
        f"bad.yaml:{line}:11: error: not YAML: the character 0x1b cannot be part of it",
        "      O = X *  [31m",
        "              ^",
    ]


def test_a_line_that_is_too_long_is_not_shown() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(written(f"O = X + {'a' * 500}", "O[m,k]"))
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize("deep", ["-" * 50_000 + "X", "(" * 50_000 + "X", "X" + ".a" * 50_000, "2 ** " * 90 + "2"])
def test_expressions_of_any_depth_do_no_harm(deep: str) -> None:
    assert len(mistakes(written(f"O = {deep}", "O[m,k]"))) == 1


def test_names_that_only_python_knows_are_unknown() -> None:
    for name in ("__builtins__", "__import__", "print", "self", "torch", "np", "X.shape"):
        assert len(mistakes(written(f"O = X * {name}", "O[m,k]"))) == 1


def test_python_warns_of_nothing() -> None:
    """Spellings that Python's own parser warns about; warnings are errors in this run."""
    assert mistakes(written("O = X + 1if X else 2", "O[m,k]"))
    assert mistakes(written("O = X + '\\d'", "O[m,k]"))


def test_a_size_is_a_product_of_axes_and_numbers() -> None:
    text = written("O = X[m, k]", "O[m,k]", "X[m,k]", dims="{m: 4, h: 2, k: 3 * h * 5}")
    spec = parse_spec(text)
    assert spec.at().sizes["k"] == 30
    assert spec.at({"h": 7}).sizes["k"] == 105


def test_a_size_is_that_of_another_axis() -> None:
    text = written("O = dot(X, rename(X, m=n), k)", "O[m,n]", "X[m,k]", dims="{m: 4, n: m, k: 8}")
    assert parse_spec(text).at({"m": 7}).sizes["n"] == 7
    assert mistakes(text.replace("n: m", "n: rows")) == ["the size of n is a positive integer, not 'rows'"]
    own = (
        "n is a product that is not in front: a size is a product of axes that have a number, and of products in front"
    )
    assert mistakes(text.replace("n: m", "n: n")) == [f"{own} of it"]


def test_a_size_is_that_of_a_product_in_front() -> None:
    dims = "{m: 4, h: 2, k: 3*h, e: k, w: 2*e}"
    spec = parse_spec(written("O = X + sum(Y, e, w)", "O[m,k]", "X[m,k] Y[e,w]", dims=dims))
    assert {"k": 6, "e": 6, "w": 12}.items() <= spec.at().sizes.items()
    assert spec.at({"h": 5}).sizes["w"] == 30
    squares = ", ".join(f"{b}: {a}*{a}" for a, b in pairwise("abcdefg"))
    found = mistakes(written("O = X", "O[m]", "X[m]", dims="{m: 4, a: 65536, " + squares + "}"))
    assert found == [f"the size of {x} is at most 1099511627776" for x in "cdefg"]


def test_sizes_of_an_override_are_checked() -> None:
    spec = parse_spec(written("O = X * (1 / (k - 1))", "O[m,k]"), "good.yaml")
    for dims, message in (
        ({"M": 2}, "good.yaml at M=2: no axis is called M; the axes are m, k, n, i, j, b\n    help: did you mean `m`?"),
        ({"m": 0}, "good.yaml at m=0: a size is a positive integer up to 1099511627776"),
    ):
        with pytest.raises(ChangeError) as wrong:
            spec.at(dims)
        assert str(wrong.value) == message
    with pytest.raises(SpecError) as caught:
        spec.at({"k": 1, "m": 2})
    (mistake,) = caught.value.diagnostics
    assert mistake.message == "at k = 1, m = 2: this arithmetic on numbers has no result"
    with pytest.raises(ChangeError) as wrong:
        spec.at(dtype="fp16")
    known = "the dtype is one of float16, bfloat16, float32"
    assert str(wrong.value) == f"good.yaml at dtype fp16: {known}\n    help: did you mean `float16`?"


# -- fuzzing


JUNK = "\t\n :,-{}[]()'\"&*!|>%@#=<.+0189eXkm_\\\u00b5\u2028\x00"


def mutated(text: str, rng: random.Random) -> str:
    """The text after a few deletions, doublings and insertions of characters."""
    for _ in range(rng.randint(1, 3)):
        i, n = rng.randrange(len(text)), rng.choice((1, 1, 1, 2, 5, 20))
        old = text[i : i + n]
        new = rng.choice(("", old + old, "".join(rng.choices(JUNK, k=min(n, 5))) + old, rng.choice(text) + old))
        text = text[:i] + new + text[i + n :]
    return text


def refusal(path: Path) -> SpecError | SpecFileError | None:
    """Reads a spec at all its instances; any other exception is a bug."""
    try:
        load_spec(path).programs()
    except (SpecError, SpecFileError) as error:
        return error
    return None


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_mutated_specs_are_read_or_refused(start: int, tmp_path: Path) -> None:
    refused = 0
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        text = mutated(rng.choice(SPECS).read_text(encoding="utf-8"), rng)
        path = tmp_path / "mutated.yaml"
        path.write_text(text, encoding="utf-8")
        found = refusal(path)
        refused += found is not None
        if isinstance(found, SpecError):
            assert found.diagnostics
            assert all(1 <= d.column <= len(d.source) + 1 for d in found.diagnostics if d.source)
    assert 10 <= refused < 50


# -- good specs


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_the_specs_of_this_project_are_good_at_every_instance(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    assert spec.description
    assert spec.source
    assert not spec.warnings
    programs = spec.programs()
    assert len(programs) == max(1, len(spec.instances))
    for p, changes in zip(programs, spec.instances or ({},), strict=True):
        assert p.sizes == dict(spec.dims) | changes
        assert p.name == spec.name
        for t in p.outputs:
            assert set(p.values()[t.name].dims) == set(t.dims)


def test_a_program_prints_as_its_equations() -> None:
    spec = load_spec(ROOT.parent / "search_specs" / "gqa_prefill.yaml")
    assert str(spec.at({"q": 16, "s": 32})) == (
        "program gqa_prefill\n"
        "dims q=16 s=32 h=8 g=4 d=128 e=128\n"
        "input Q f16[q, h, g, d]\n"
        "input K f16[s, h, d]\n"
        "input V f16[s, h, e]\n"
        "  t0[q, s, h, g] = dot(Q, K; d)\n"
        "  A[q, s, h, g] = div(t0, 11.313708498984761)\n"
        "  t2[q] = index(q)\n"
        "  t3[s] = index(s)\n"
        "  t4[q, s] = ge(t2, t3)\n"
        "  t5[q, s, h, g] = where(t4, A, -inf)\n"
        "  P[q, s, h, g] = softmax(t5; s)\n"
        "  O[q, h, g, e] = dot(P, V; s)\n"
        "output O f16[q, h, g, e]\n"
    )


MEANS: dict[str, tuple[str, Callable[[Tensors], torch.Tensor]]] = {
    "exp": ("exp(X)", lambda t: t["X"].exp()),
    "exp2": ("exp2(X)", lambda t: 2 ** t["X"]),
    "log": ("log(square(X) + 1)", lambda t: (t["X"] ** 2 + 1).log()),
    "sqrt": ("sqrt(abs(X))", lambda t: t["X"].abs() ** 0.5),
    "rsqrt": ("rsqrt(square(X) + 1)", lambda t: (t["X"] ** 2 + 1) ** -0.5),
    "square": ("square(X)", lambda t: t["X"] * t["X"]),
    "abs": ("abs(X)", lambda t: torch.maximum(t["X"], -t["X"])),
    "neg": ("neg(X)", lambda t: 0 - t["X"]),
    "reciprocal": ("reciprocal(X)", lambda t: 1 / t["X"]),
    "integer": ("integer(X * 3) / 1", lambda t: torch.where(t["X"] < 0, (t["X"] * 3).ceil(), (t["X"] * 3).floor())),
    "sigmoid": ("sigmoid(X)", lambda t: 1 / (1 + (-t["X"]).exp())),
    "silu": ("silu(X)", lambda t: t["X"] / (1 + (-t["X"]).exp())),
    "relu": ("relu(X)", lambda t: t["X"].clamp(min=0)),
    "gelu": ("gelu(X)", lambda t: t["X"] * 0.5 * (1 + torch.erf(t["X"] / math.sqrt(2)))),
    "tanh": ("tanh(X)", lambda t: t["X"].tanh()),
    "maximum": ("maximum(X, Y)", lambda t: torch.where(t["X"] > t["Y"], t["X"], t["Y"])),
    "minimum": ("minimum(X, G)", lambda t: torch.where(t["X"] < t["G"], t["X"], t["G"])),
    "sum": ("X + sum(X, k) + sum(Y, m, k)", lambda t: t["X"] + t["X"].sum(1, keepdim=True) + t["Y"].sum()),
    "mean": ("X + mean(X, k) + mean(Y, k, m)", lambda t: t["X"] + t["X"].mean(1, keepdim=True) + t["Y"].mean()),
    "max": ("X + max(X, k) + max(Y, m)", lambda t: t["X"] + t["X"].amax(1, keepdim=True) + t["Y"].amax(0)),
    "prod": ("X + prod(Y, k) - prod(G, k)", lambda t: t["X"] + (t["Y"].prod(1, keepdim=True) - t["G"].prod())),
    "min": ("X + min(X, k) + min(Y, m)", lambda t: t["X"] + t["X"].amin(1, keepdim=True) + t["Y"].amin(0)),
    "dot": ("X + dot(X, G, k) + dot(X, Y, m, k) + dot(X, Y, m)",
            lambda t: t["X"] + (t["X"] @ t["G"])[:, None] + (t["X"] * t["Y"]).sum() + (t["X"] * t["Y"]).sum(0)),
    "softmax": ("softmax(X, k) + softmax(Y, k, m)",
                lambda t: t["X"].exp() / t["X"].exp().sum(1, keepdim=True) + t["Y"].exp() / t["Y"].exp().sum()),
    "logsumexp": ("X + logsumexp(X, k) + logsumexp(Y, m, k)",
                  lambda t: t["X"] + t["X"].exp().sum(1, keepdim=True).log() + t["Y"].exp().sum().log()),
    "rms_norm": ("rms_norm(X, k) + rms_norm(Y, m, eps=1/2)",
                 lambda t: t["X"] / (t["X"].square().mean(1, keepdim=True) + 1e-6) ** 0.5
                 + t["Y"] / (t["Y"].square().mean(0) + 0.5) ** 0.5),
    "layer_norm": ("layer_norm(X, k) + layer_norm(Y, m, k, eps=2)",
                   lambda t: (t["X"] - t["X"].mean(1, keepdim=True))
                   / (t["X"].var(1, keepdim=True, unbiased=False) + 1e-5) ** 0.5
                   + (t["Y"] - t["Y"].mean()) / (t["Y"].var(unbiased=False) + 2) ** 0.5),
    "rename": ("X + dot(S, rename(S, i=j, j=i), i, j)", lambda t: t["X"] + (t["S"] * t["S"].T).sum()),
    "slices": ("X + sum(Y[m, n + 2], n) + X[m, 5]",
               lambda t: t["X"] + t["Y"][:, 2:5].sum(1, keepdim=True) + t["X"][:, 5:]),
    "axes that are two": ("X + sum(Y[m, 3 * b + n] * index(b), b, n)",
                          lambda t: t["X"] + t["Y"][:, 3:].sum(1, keepdim=True)),
    "windows of a result": ("X + sum((X * Y)[m, 2*n + b] * index(b), n, b)",
                            lambda t: t["X"] + (t["X"] * t["Y"])[:, 1::2].sum(1, keepdim=True)),
    "a border of zeros": ("X + sum(Y[m, k + b - 1] * (index(b) + 1), b) + sum((X + 1)[m + b, k], b)",
                          lambda t: t["X"] + torch.nn.functional.pad(t["Y"], (1, 0))[:, :6] + 2 * t["Y"]
                          + t["X"] + 1 + torch.nn.functional.pad(t["X"] + 1, (0, 0, 0, 1))[1:]),
    "a border of a number": ("X + max(pad(Y, -inf)[m, k + b - 1], b) + sum(pad(exp(G), 2)[k + n], n)",
                             lambda t: t["X"] + torch.maximum(t["Y"], torch.nn.functional.pad(
                                 t["Y"], (1, 0), value=-math.inf)[:, :6])
                             + torch.nn.functional.pad(t["G"].exp(), (0, 2), value=2).unfold(0, 3, 1).sum(1)),
    "a diagonal": ("X + sum(S[i, i], i)", lambda t: t["X"] + t["S"].diagonal().sum()),
    "where": ("where(X > 0, Y, -1)", lambda t: torch.where(t["X"] > 0, t["Y"], -1.0)),
    "index": ("X * index(m) + index(k)", lambda t: t["X"] * torch.arange(4)[:, None] + torch.arange(6)),
    "erf": ("erf(X)", lambda t: torch.special.ndtr(t["X"] * math.sqrt(2)) * 2 - 1),
    "erfc": ("erfc(X)", lambda t: torch.special.ndtr(t["X"] * -math.sqrt(2)) * 2),
    "sin": ("sin(X)", lambda t: torch.polar(torch.ones_like(t["X"]), t["X"]).imag),
    "cos": ("cos(X)", lambda t: torch.polar(torch.ones_like(t["X"]), t["X"]).real),
    "floor": ("floor(X * 3)", lambda t: (t["X"] * 3 + 100).long() - 100),
    "ceil": ("ceil(X * 3)", lambda t: 100 - (100 - t["X"] * 3).long()),
    "round": ("round(X * 3) + round(index(k) / 2)",
              lambda t: (t["X"] * 3 + 100.5).long() - 100 + torch.tensor([0, 0, 1, 2, 2, 2])),
    "sign": ("sign(X)", lambda t: t["X"] / t["X"].abs()),
    "log1p": ("log1p(square(X))", lambda t: (t["X"] ** 2 + 1).log()),
    "atan": ("atan(X)", lambda t: t["X"].atan()),
    "signbit": ("where(signbit(X), Y, 1)", lambda t: torch.where(t["X"] < 0, t["Y"], 1.0)),
    "expm1": ("expm1(X)", lambda t: t["X"].exp() - 1),
    "log2": ("log2(square(X) + 1)", lambda t: (t["X"] ** 2 + 1).log() / math.log(2)),
    "power": ("power(X, 3) + power(abs(X), Y)", lambda t: t["X"] ** 3 + (t["Y"] * t["X"].abs().log()).exp()),
    "remainder": ("remainder(X, Y) + X % 0.5 + (7 % -3) + -X % G",
                  lambda t: t["X"] - (t["X"] / t["Y"]).floor() * t["Y"] + t["X"] - (t["X"] * 2).floor() / 2 - 2
                  - t["X"] - (-t["X"] / t["G"]).floor() * t["G"]),
    "floor_divide": ("floor_divide(X, Y) + X // 0.5 + k // 4",
                     lambda t: (t["X"] / t["Y"]).floor() + (t["X"] * 2).floor() + 1),
    "isnan": ("where(isnan(sqrt(X)), Y, 1)", lambda t: torch.where(t["X"] < 0, t["Y"], 1.0)),
    "shift_right": ("shift_right(L, 1) + (L >> index(k)) + (L << 30 >> 30)",
                    lambda t: (t["L"] // 2)[:, None] + (t["L"][:, None] >> torch.arange(6))
                    + ((t["L"] + 2) % 4 - 2)[:, None]),
    "shift_left": ("shift_left(L, 2) + (1 << index(k))", lambda t: 4 * t["L"][:, None] + 2 ** torch.arange(6)),
    "bit_and": ("bit_and(L, 3) + (L & 5) + (index(k) & L)",
                lambda t: (t["L"] % 4)[:, None] + (t["L"] & 5)[:, None] + (torch.arange(6) & t["L"][:, None])),
    "bit_or": ("bit_or(L, index(k)) + (L | 1)", lambda t: (t["L"][:, None] | torch.arange(6)) + (t["L"] | 1)[:, None]),
    "bit_xor": ("bit_xor(L, index(k)) + (5 ^ L)",
                lambda t: (t["L"][:, None] ^ torch.arange(6)) + (t["L"] ^ 5)[:, None]),
    "xor": ("where(xor(X > 0, Y > 0), X, Y)", lambda t: torch.where(t["X"] * t["Y"] < 0, t["X"], t["Y"])),
    "not": ("where(not X > 0 and not (Y > 0 or G > 0), 1/2, 0)",
            lambda t: 0.5 * ((t["X"] <= 0) & (t["Y"] <= 0) & (t["G"] <= 0))),
    "softplus": ("softplus(X)", lambda t: (t["X"].exp() + 1).log()),
    "elu": ("elu(X) + elu(Y, 1/2) + elu(Y, alpha=2)",
            lambda t: torch.where(t["X"] > 0, t["X"], t["X"].exp() - 1)
            + torch.where(t["Y"] > 0, 2 * t["Y"], 2.5 * (t["Y"].exp() - 1))),
    "leaky_relu": ("leaky_relu(X) + leaky_relu(Y, negative_slope=-1)",
                   lambda t: torch.where(t["X"] > 0, t["X"], t["X"] / 100) + t["Y"].abs()),
    "clamp": ("clamp(X, -1/2, 1) + clamp(Y, 0, max=inf)",
              lambda t: torch.where(t["X"] < -0.5, -0.5, torch.where(t["X"] > 1, 1.0, t["X"])) + t["Y"] * (t["Y"] > 0)),
    "+ - * /": ("X + Y * G - X / (G * G + 3)", lambda t: t["X"] + t["Y"] * t["G"] - t["X"] / (t["G"] ** 2 + 3)),
    "** of a number": ("X ** 3 + abs(X) ** 0.5 + abs(Y) ** -1.5",
                       lambda t: t["X"] ** 3 + t["X"].abs().sqrt() + t["Y"].abs() ** -1.5),
    "** of a tensor": ("2 ** X + abs(X) ** Y", lambda t: torch.exp2(t["X"]) + torch.pow(t["X"].abs(), t["Y"])),
    "** binds before unary -": ("-X ** 2 + 2 ** -X", lambda t: -(t["X"] ** 2) + 2 ** -t["X"]),
    "unary + and -": ("-X - -Y + +X * +2", lambda t: t["X"] + t["Y"]),
    "numbers": ("X * (1/2) + 3 - 7/3 * (2 ** 3) ** 0.5 / m", lambda t: t["X"] * 0.5 + 3 - 7 / 3 * math.sqrt(8) / 4),
    "functions of numbers": ("X * exp(1) + sqrt(k) + maximum(m, 3) + abs(-2) + relu(-5)",
                             lambda t: t["X"] * math.e + math.sqrt(6) + 4 + 2),
    "dimensions as numbers": ("X * m / k ** 0.5 - n", lambda t: t["X"] * 4 / math.sqrt(6) - 3),
    "comparisons": ("where(X < Y, 1/2, 0) + where(X <= 0, 2, 0) + where(X >= G, 4, 0) + where(index(k) == L, 8, 0) "
                    "+ where(index(m) != 2, 16, 0)",
                    lambda t: 0.5 * (t["X"] < t["Y"]) + 2 * (t["X"] <= 0) + 4 * (t["X"] >= t["G"])
                    + 8 * (torch.arange(6) == t["L"][:, None]) + 16 * (torch.arange(4) != 2)[:, None]),
    "a chain of comparisons": ("where(-1 < X < Y <= 1, X, 0)",
                               lambda t: t["X"] * ((t["X"] > -1) & (t["X"] < t["Y"]) & (t["Y"] <= 1))),
    "and, or": ("where(X > 0 and Y > 0 or G > 0 and index(k) < 3, 1, -1/4)",
                lambda t: ((t["X"] > 0) & (t["Y"] > 0) | (t["G"] > 0) & (torch.arange(6) < 3)) * 1.25 - 0.25),
    "infinity": ("exp(where(index(k) < L, X, -inf)) + minimum(Y, inf)",
                 lambda t: t["X"].exp() * (torch.arange(6) < t["L"][:, None]) + t["Y"]),
    "a mask with two names": ("M = X > Y\nN = M\nO = where(N, X, Y)", lambda t: torch.maximum(t["X"], t["Y"])),
    "the user's t0": ("B = exp(X * 2)\nt0 = X + 1\nt1 = t0\nO = B * t0 + t1 * (Y - 1)",
                      lambda t: (t["X"] * 2).exp() * (t["X"] + 1) + (t["X"] + 1) * (t["Y"] - 1)),
    "spread over lines": ("(X +  # a comment\n     Y\n  )", lambda t: t["X"] + t["Y"]),
    "two on a line": ("B = X; O = B * 2", lambda t: t["X"] * 2),
    **{n: (f"{n}(X) * 2 + {n}(L)", lambda t: t["X"] * 2 + t["L"][:, None]) for n in ("float16", "bfloat16", "float32")},
    **{n: (f"{n}(X) + X", lambda t, n=n: t["X"].to(getattr(torch, n)).double() + t["X"])
       for n in ("float8_e4m3fn", "float8_e5m2")},
}  # fmt: skip


def test_every_function_has_a_meaning_here() -> None:
    assert set(FUNCTIONS) <= set(MEANS)


def test_values_may_have_the_names_of_functions_that_came_later() -> None:
    old = (
        "exp exp2 log sqrt rsqrt square abs neg reciprocal sigmoid silu relu gelu tanh maximum minimum "
        "sum mean max min dot softmax logsumexp rms_norm layer_norm rename where index"
    )
    assert set(old.split()) == RESERVED
    later = sorted(set(FUNCTIONS) - RESERVED)
    lines = [f"{name} = X * {i + 2}" for i, name in enumerate(later)]
    program = read("\n".join([*lines, f"O = {' + '.join(later)} + floor(floor)"]))
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(program), scope)
    inputs = [torch.randn([program.sizes[d] for d in t.dims]).double() for t in program.inputs]
    x = inputs[0]
    want = sum(range(2, 2 + len(later))) * x + torch.floor(x * (later.index("floor") + 2))
    for got in (*reference64(program, inputs), scope["reference"](*inputs)):  # type: ignore[operator]
        torch.testing.assert_close(got, want)


@rows("name", MEANS)
def test_expressions_mean_what_torch_computes(name: str) -> None:
    text, expected = MEANS[name]
    program = read(text if "O = " in text else f"O = {text}")
    g = torch.Generator().manual_seed(3)
    inputs = {t.name: torch.randn([program.sizes[d] for d in t.dims], generator=g).double() for t in program.inputs}
    inputs["L"] = torch.tensor([0, 2, 6, 3], dtype=torch.int32)
    want = expected(inputs).double()
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(program), scope)
    eager = scope["reference"](*inputs.values())  # type: ignore[operator]
    for got in (*reference64(program, list(inputs.values())), eager):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2", Fraction(1, 2)),
        ("1/3 + 1/6", Fraction(1, 2)),
        ("0.1", Fraction(0.1)),
        ("2 ** 100 / 2 ** 99", Fraction(2)),
        ("(1/3) ** 5", Fraction(1, 243)),
        ("2 ** -2", Fraction(1, 4)),
        ("-3 * -k", Fraction(18)),
        ("m * k - n", Fraction(21)),
        ("k ** 0.5", Fraction(math.sqrt(6))),
        ("log(2)", Fraction(math.log(2))),
        ("maximum(1/3, 1/4)", Fraction(1 / 3)),
        ("9007199254740993 + 1/7", Fraction(9007199254740993 * 7 + 1, 7)),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("2 * -inf", -math.inf),
        ("1 / inf", Fraction(0)),
        ("exp(-inf)", Fraction(0)),
    ],
)  # fmt: skip
def test_arithmetic_on_numbers_is_done_when_the_spec_is_read(text: str, value: Fraction | float) -> None:
    (e,) = read(f"O = X * ({text})").eqns
    assert (e.op, e.args) == ("mul", ("X", value))


def test_a_number_may_have_a_name() -> None:
    program = read("scale = 1 / k ** 2\nhalf = scale * 18\nO = X * half")
    assert equations(program) == ["O[m, k] = mul(X, 0.5)"]


@pytest.mark.parametrize(("symbol", "ops"), [("==", ["gt", "lt", "xor", "not"]), ("!=", ["gt", "lt", "xor"])])
def test_masks_are_compared(symbol: str, ops: list[str]) -> None:
    program = parse_spec(PLAIN.replace("X + 1", f"where((X > 1) {symbol} (X < 2), X, 0)")).at()
    assert [e.op for e in program.eqns] == [*ops, "where"]


@pytest.mark.parametrize("text", ["(X > 1) < (X < 2)", "X == (X < 2)", "(X > 1) == 1"])
def test_other_comparisons_of_masks_are_none(text: str) -> None:
    with pytest.raises(SpecError, match="a mask is no number"):
        parse_spec(PLAIN.replace("X + 1", f"where({text}, X, 0)"))


def test_an_axis_that_is_missing_is_told_once() -> None:
    text = PLAIN.replace("O = X", "O = sum(X[j] * index(j), j)")
    with pytest.raises(SpecError) as error:
        parse_spec(text)
    assert str(error.value).count("no axis is called j; the axes are") == 1


def test_results_have_their_own_names_and_no_name_twice() -> None:
    program = read("B = exp(X * 2) + 1\nt0 = B * B\nt2 = t0 + (B - 1)\nO = t2")
    names = [e.out for e in program.eqns]
    assert len(names) == len(set(names))
    assert {"B", "t0", "t2", "O"} < set(names)
    assert equations(program)[-1] == "O[m, k] = mul(t2, 1)"


def test_axes_are_matched_by_name_in_the_order_of_the_dimensions() -> None:
    program = read("A = G + X\nB = W * L\nO = dot(A, B, m, k)", outputs="O[n]")
    assert equations(program) == ["A[m, k] = add(G, X)", "B[m, k, n] = mul(W, L)", "O[n] = dot(A, B; m, k)"]


def test_outputs_come_in_their_own_order_and_memory_order() -> None:
    program = read("A = X * 2\nB = sum(A, m)\nC = A * W", outputs="C[n,m,k] B:float32[k] A[k,m]")
    assert [str(t) for t in program.outputs] == ["C f16[n, m, k]", "B f32[k]", "A f16[k, m]"]
    x, w = torch.rand(4, 6), torch.rand(6, 3)
    others = [torch.zeros(4, 6), w, torch.zeros(6), torch.zeros(4, dtype=torch.int32), torch.zeros(5, 5)]
    c, b, a = reference64(program, [x, *others])
    torch.testing.assert_close(a, 2 * x.T.double())
    torch.testing.assert_close(b, 2 * x.double().sum(0))
    torch.testing.assert_close(c, torch.einsum("mk,kn->nmk", 2 * x.double(), w.double()))


MIXED = written(
    "O = dot(X * A, W, k) + dot(B, X, k)\nP = where(index(m) < L, O, 0)",
    "O[m,n] P:float32[m,n]",
    "X:float32[m,k] A[k] B:float16[k,n] W:bfloat16[k,n] L:int32[n]",
    dtype="bfloat16",
)


def types(program: Program) -> dict[str, str]:
    return {t.name: t.dtype for t in (*program.inputs, *program.outputs)}


def test_dtypes_may_be_mixed() -> None:
    mixed = {"X": "float32", "A": "bfloat16", "B": "float16", "W": "bfloat16", "L": "int32", "P": "float32"}
    assert types(parse_spec(MIXED).at()) == mixed | {"O": "bfloat16"}


def test_a_dtype_from_outside_replaces_the_specs_own_alone() -> None:
    """Tensors that were given another dtype, or integers, keep theirs."""
    program = parse_spec(MIXED).at(dtype="float32")
    assert program.dtype == "float32"
    assert types(program) == {
        "X": "float32", "A": "float32", "B": "float16", "W": "float32", "L": "int32", "O": "float32", "P": "float32",
    }  # fmt: skip
    assert [p.dtype for p in parse_spec(MIXED).programs(dtype="float16")] == ["float16"]


def test_sizes_from_outside_replace_instances_and_change_numbers() -> None:
    spec = parse_spec(written("O = X * k ** 2", "O[m,k]", instances="[{m: 8}, {m: 2, k: 3}]"))
    assert [p.sizes["m"] for p in spec.programs()] == [8, 2]
    assert [equations(p) for p in spec.programs()] == [["O[m, k] = mul(X, 36)"], ["O[m, k] = mul(X, 9)"]]
    (program,) = spec.programs({"k": 10})
    assert (program.sizes["m"], program.sizes["k"]) == (4, 10)
    assert equations(program) == ["O[m, k] = mul(X, 100)"]


def test_a_spec_without_instances_has_one() -> None:
    for keys in ({}, {"instances": "[]"}, {"instances": "[{}]"}):
        assert [p.sizes["m"] for p in parse_spec(written("O = X", "O[m,k]", **keys)).programs()] == [4]


def test_everything_that_is_optional() -> None:
    spec: Spec = parse_spec(
        "name: no\n"
        "description: 12:30\n"
        "source: yes\n"
        "dims: {y: 4_096, n: 2}\n"
        "tolerance: 1e1\n"
        "inputs: {X: {dims: [y, n], scale: 2e-2}, Z: []}\n"
        "program: O = X * Z\n"
        "outputs: {O: [n, y]}\n"
    )
    assert (spec.name, spec.description, spec.source, spec.dtype) == ("no", "12:30", "yes", "float16")
    program = spec.at()
    assert program.sizes == {"y": 4096, "n": 2}
    assert program.tolerance == 10
    assert [t.scale for t in program.inputs] == [0.02, 1]
    assert read("O = X").tolerance == 4


@pytest.mark.parametrize(
    "program",
    [
        "program: O = X * 2 + Y",
        "program: 'O = X * 2 + Y'",
        'program: "A = X * 2\\nO = A + Y"',
        "program: |\n  A = X * 2\n  O = A + Y",
        "program: |+\n\n      # double\n      A = X * 2\n\n      O = A + Y\n\n",
        "program: >\n  O = X * 2 +\n  Y",
        "program: O = X * 2\n  + Y",
        "program: |\r\n  A = X * 2\r\n  O = A + Y\r",
    ],
)
def test_a_program_may_be_written_as_yaml_allows(program: str) -> None:
    text = f"name: t\ndims: {{m: 2}}\ninputs: {{X: [m], Y: [m]}}\noutputs: {{O: [m]}}\n{program}\n"
    x, y = torch.rand(2, 2).double()
    (o,) = reference64(parse_spec(text).at(), [x, y])
    assert torch.equal(o, x * 2 + y)


def test_an_input_and_an_axis_that_are_not_used_are_warnings_and_no_mistakes() -> None:
    spec = parse_spec(written("O = X", "O[m,k]", "X[m,k] Y[m]", dims="{m: 4, k: 6, p: 3}"))
    unused = ["the input Y is never used", "the axis p is never used"]
    assert [(d.severity, d.message) for d in spec.warnings] == [("warning", message) for message in unused]
    assert [t.name for t in spec.at().inputs] == ["X", "Y"]


PLAIN = "name: n\ndims: {m: 4}\ninputs: {X: [m]}\nprogram: |\n  O = X + 1\noutputs: {O: [m]}\n"


def sum_of_two(each: int) -> str:
    """O = A + B, of so many axes each, which have none in common."""
    a, b = ([f"{x}{i}" for i in range(each)] for x in "ab")
    text = PLAIN.replace("m: 4", ", ".join(f"{d}: 2" for d in [*a, *b])).replace("X + 1", "A + B")
    text = text.replace("X: [m]", f"A: [{', '.join(a)}], B: [{', '.join(b)}]")
    return text.replace("O: [m]", f"O: [{', '.join([*a, *b])}]")


HOSTILE = {
    "an empty file": ("", "a spec is a mapping"),
    "an empty program": (PLAIN.replace("O = X + 1", ""), "the output O is never assigned"),
    "not a number": (PLAIN.replace("X + 1", "X + nan"), "nothing is called nan; the inputs are X"),
    "a number beyond float64": (PLAIN.replace("X + 1", "X * 1e400"), "this number is too large"),
    "infinity less infinity": (PLAIN.replace("X + 1", "X * (inf - inf)"), "has no result"),
    "tensors of many axes": (sum_of_two(500), "a tensor has at most 13 axes, and this one has 500"),
    "an operator of many axes": (sum_of_two(10), "one operator takes at most 13 axes, and here are 20"),
    "a size that is a fraction": (PLAIN.replace("m: 4", "m: 1.5"), "a positive integer, not 1.5"),
    "a large size": (PLAIN.replace("m: 4", f"m: {1 << 41}"), "the size of m is at most 1099511627776"),
    "an output twice": (PLAIN.replace("{O: [m]}", "{O: [m], O: [m]}"), "the key O is given twice"),
    "an output that is an input": (PLAIN.replace("{O:", "{X:"), "the output X is an input"),
    "a number as name": (PLAIN.replace("name: n", "name: 3"), "a name is made of a-z, 0-9 and _"),
    "a number as tensor": (PLAIN.replace("{X:", "{3:"), "'3' cannot name a tensor"),
    "a long name": (PLAIN.replace("name: n", "name: n" + "a" * 10_000), "at most 100 characters"),
    "a long tensor": (PLAIN.replace("{X:", "{X" + "a" * 200 + ":"), "cannot name a tensor"),
    "a deep expression": (PLAIN.replace("X + 1", "-" * 5000 + "X"), "nested too deeply"),
    "a tab": (PLAIN.replace("  O = ", "\tO = "), "not YAML"),
    "a colon in text": ("source: a: b\n" + PLAIN, "text with a colon and a space in it stands in quotes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_spec_is_refused_as_it_is_read(what: str) -> None:
    text, message = HOSTILE[what]
    assert any(message in m for m in mistakes(text))


MASK_NEEDED = "a mask is needed here, such as `index(a) >= index(b)`"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("where(isnan(2), X, 0)", "this asks about numbers alone, whose answer is known"),
        ("where(not X, X, 0)", MASK_NEEDED),
        ("where(xor(X > 0, X), X, 0)", MASK_NEEDED),
        ("X % (X > 0)", "a mask is no number; choose between values with where(mask, x, y)"),
        ("clamp(X)", "min is missing; the form is clamp(x, min, max)"),
        ("clamp(X, max=1)", "min is missing; the form is clamp(x, min, max)"),
        ("clamp(X, 0, 1, min=2)", "min is given twice; the form is clamp(x, min, max)"),
        ("clamp(X, 0, 1, 2)", "4 arguments are given; the form is clamp(x, min, max)"),
        ("clamp(X, 0, X)", "max is a number"),
        ("clamp(Y, -1, 1)", "nothing is called Y; the inputs are X"),
        ("elu(X, alpha=-1)", "alpha is a number that is not negative"),
        ("elu(X, m)", None),
        ("softplus(X, m)", "2 arguments are given; the form is softplus(x)"),
        ("softplus(X, beta=2)", "softplus takes no argument called beta; the form is softplus(x)"),
        ("softplus(2)", "softplus needs a tensor, and this is a number"),
        ("leaky_relu(X, negative_slope=inf)", None),
    ],
)
def test_arguments_of_functions_element_by_element(expression: str, message: str | None) -> None:
    text = PLAIN.replace("X + 1", expression)
    if message is None:
        parse_spec(text)
    else:
        assert [m.split("\n")[0] for m in mistakes(text) if "never used" not in m] == [message]


def test_a_byte_order_mark_and_other_ends_of_lines_mean_nothing(tmp_path: Path) -> None:
    plain = parse_spec(PLAIN).at()
    for text in ("\ufeff" + PLAIN, PLAIN.replace("\n", "\r\n"), PLAIN.replace("\n", "\r")):
        (tmp_path / "spec.yaml").write_bytes(text.encode())
        assert str(load_spec(tmp_path / "spec.yaml").at()) == str(plain)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("X * 10 ** 400", "beyond float64"),
        ("X + 10 ** 400 / 3", "beyond float64"),
        ("X ** (10 ** 30)", "an exponent is at most"),
        ("where(index(m) > 2 ** 70, X, 0)", "beyond 64 bits"),
        ("X * 10 ** 10 ** 10", "has no result"),
        ("X * (1 % 0)", "has no result"),
        ("X * (inf // 2)", "has no result"),
    ],
)
def test_a_number_that_no_kernel_can_hold_is_a_mistake_with_its_place(program: str, message: str) -> None:
    text = f"name: n\ndims: {{m: 4}}\ninputs: {{X: [m]}}\nprogram: |\n  O = {program}\noutputs: {{O: [m]}}\n"
    with pytest.raises(SpecError, match=message) as caught:
        parse_spec(text)
    assert [d.line for d in caught.value.diagnostics] == [5]
