"""Random specs for tests, and the smallest spec that still fails.

`random_spec(seed)` is the text of a valid spec. Its domains are guarded: what goes under a logarithm or a root or below
a division is positive by construction, and magnitudes stay within what a float16 intermediate can hold.
"""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import yaml

from mirage_cli.errors import MirageError
from mirage_cli.ir.derived import lower
from mirage_cli.spec.reader import parse_spec

NAMES = [*"ABCDEFG", *(f"A{i}" for i in range(1, 20))]
SIZES = (1, 3, 7, 16, 33, 64, 100, 257)
DTYPES = ("float16", "bfloat16", "float32")
AXES = "mnkhd"
INPUTS = "XWVU"
MORE_AXES = AXES + "pqr"
FEW_AXES = "uvw"
MORE_INPUTS = INPUTS + "YZST"
LONG_EVERY = 10
"""Of so many seeds one is a long program: up to about 30 operators, 8 inputs, 8 dimensions, 4 outputs."""
SPACE = 1 << 13
"""Points of the space of any one equation, so that Triton's interpreter takes about a second."""
GROWTH = 2
"""The degree in its inputs that a value may have."""


@dataclass(frozen=True)
class Draft:
    """A spec in parts. Options of tensors: `dims` and, where they differ from the default, `dtype` and `scale`."""

    dims: Mapping[str, int]
    dtype: str
    inputs: Mapping[str, Mapping[str, Any]]
    lines: tuple[tuple[str, str], ...]
    outputs: Mapping[str, Mapping[str, Any]]

    @property
    def text(self) -> str:
        dims = ", ".join(f"{d}: {n}" for d, n in self.dims.items())
        parts = ["name: random", f"dims: {{{dims}}}", f"dtype: {self.dtype}", "inputs:"]
        parts += [f"  {name}: {_options(t)}" for name, t in self.inputs.items()]
        parts += ["program: |", *(f"  {name} = {e}" for name, e in self.lines)]
        parts += ["outputs:", *(f"  {name}: {_options(t)}" for name, t in self.outputs.items())]
        return "\n".join(parts) + "\n"

    @classmethod
    def parse(cls, text: str) -> Draft:
        """The inverse of `text`."""
        whole = yaml.safe_load(text)
        inputs, outputs = (
            {n: t if isinstance(t, dict) else {"dims": t} for n, t in whole[key].items()}
            for key in ("inputs", "outputs")
        )
        lines = [line.split(" = ", 1) for line in whole["program"].strip().split("\n")]
        return cls(whole["dims"], whole["dtype"], inputs, tuple((n, e) for n, e in lines), outputs)

    def pruned(self) -> Draft:
        """Without equations, inputs and axes that no output needs."""
        need, lines = {*self.outputs, *(d for t in self.outputs.values() for d in t["dims"])}, []
        for name, e in reversed(self.lines):
            if name.partition("[")[0] in need:
                need |= names(e) | names(name)
                lines.append((name, e))
        inputs = {n: t for n, t in self.inputs.items() if n in need}
        need |= {d for t in inputs.values() for d in (*t["dims"], t.get("below"))}
        return replace(
            self, dims={d: n for d, n in self.dims.items() if d in need}, inputs=inputs, lines=tuple(reversed(lines))
        )


def _options(t: Mapping[str, Any]) -> str:
    if "inout" in t:
        return f"{{inout: {t['inout']}}}"
    dims = f"[{', '.join(t['dims'])}]"
    kept = ("dtype", "scale", "below", "padded", "distinct", "strides")
    rest = "".join(f", {k}: {str(t[k]).lower() if isinstance(t[k], bool) else t[k]}" for k in kept if k in t)
    return f"{{dims: {dims}{rest}}}" if rest else dims


def names(expression: str) -> set[str]:
    """Every name in an expression, those of axes and of functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(expression)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


# -- generation


@dataclass(frozen=True)
class Value:
    """What the generator knows of a value. growth: its degree in the inputs. positive: nowhere below zero."""

    axes: frozenset[str]
    growth: int = 1
    positive: bool = False


UNARY: tuple[tuple[str, int, bool], ...] = (
    ("silu({0})", 1, False),
    ("gelu({0})", 1, False),
    ("sigmoid({0})", 0, True),
    ("relu({0})", 1, True),
    ("tanh({0})", 0, False),
    ("abs({0})", 1, True),
    ("square({0})", 2, True),
    ("-{0}", 1, False),
    ("exp(tanh({0}))", 0, True),
    ("exp(-abs({0}))", 0, True),
    ("exp2(minimum({0}, 2))", 0, True),
    ("log(abs({0}) + 1)", 0, True),
    ("log(square({0}) + 0.5)", 0, False),
    ("sqrt(abs({0}))", 1, True),
    ("sqrt(square({0}) + 1)", 1, True),
    ("rsqrt(square({0}) + 1)", 0, True),
    ("rsqrt(abs({0}) + 0.5)", 0, True),
    ("reciprocal(abs({0}) + 1)", 0, True),
    ("(abs({0}) + 1) ** {1}", 0, True),
    ("{0} ** 2", 2, True),
    ("{0} ** 3", 3, False),
    ("{0} * {1}", 1, False),
    ("{0} + {1}", 1, False),
    ("{1} - {0}", 1, False),
    ("{0} / {2}", 1, False),
    ("{0} * {2} ** -0.5", 1, False),
    ("maximum({0}, {1})", 1, False),
    ("minimum({1}, {0})", 1, False),
    ("softplus({0})", 1, True),
    ("elu({0})", 1, False),
    ("leaky_relu({0}, {1})", 1, False),
    ("clamp({0}, -1, {1})", 0, False),
    ("erf({0})", 0, False),
    ("sin({0})", 0, False),
    ("cos({0})", 0, False),
    ("floor({0} * 2)", 1, False),
    ("ceil({0})", 1, False),
    ("round({0} / {1})", 1, False),
    ("sign({0})", 0, False),
    ("log1p(abs({0}))", 1, True),
    ("expm1(-abs({0}))", 0, False),
    ("log2(abs({0}) + 1)", 0, True),
    ("(abs({0}) + 1) ** sin({0})", 0, True),
    ("{0} % {1}", 0, True),
    ("{0} // {1}", 1, False),
    ("where(not isnan({0}), {0}, {1})", 1, False),
    ("where(xor({0} > 0, index({2}) % 2 > 0), {0}, {1})", 1, False),
)
"""Template of argument, number and axis; the factor by which the degree grows; whether the result is positive."""
POSITIVE = ("sqrt({0})", "log({0} + 1)", "({0} + 1) ** {1}", "rsqrt({0} + 1)", "1 / ({0} + 0.5)")
"""Templates for arguments that are nowhere below zero."""
NUMBERS = ("0.125", "2", "0.5", "1.5")
EXPONENTS = ("-1", "0.5", "-0.5", "-2")


class _Generator:
    kinds: tuple[str, ...] = (
        "unary", "unary", "positive", "binary", "binary", "reduce", "reduce", "norm", "dot", "dot", "dot",
        "rename", "where", "masked",
    )  # fmt: skip

    def __init__(self, seed: int, long: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.long = long
        axes = rng.sample(MORE_AXES, rng.randint(5, 8)) if long else rng.sample(AXES, rng.randint(3, 5))
        self.dims = {d: rng.choice(SIZES) for d in axes}
        if rng.random() < 0.3:  # two axes of one size, which a rename needs
            a, b = rng.sample(axes, 2)
            self.dims[a] = self.dims[b]
        self.dtype = rng.choice(DTYPES)
        self.inputs: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Value] = {}
        self.lines: list[tuple[str, str]] = []
        for name in MORE_INPUTS[: rng.randint(4, 8)] if long else INPUTS[: rng.randint(1, 4)]:
            self.input(name)
        self.integers: str | None = None

    def fits(self, axes: frozenset[str]) -> bool:
        return prod(self.dims[d] for d in axes) <= SPACE

    def input(self, name: str) -> None:
        rng = self.rng
        while True:
            axes = rng.sample(sorted(self.dims), rng.choice((1, 2, 2, 2, 3)))
            if self.fits(frozenset(axes)):
                break
        self.inputs[name] = {"dims": axes}
        if rng.random() < 0.1:
            self.inputs[name]["dtype"] = "float32"
        if rng.random() < 0.3:
            self.inputs[name]["scale"] = rng.choice((0.02, 0.1, 0.5))
        self.values[name] = Value(frozenset(axes))

    def pick(self) -> str:
        """A value, later ones more often; in a long program inputs that nothing has used yet too."""
        known = list(self.values)
        if self.long and self.rng.random() < 0.25:
            used = {n for _, e in self.lines for n in names(e)}
            if fresh := [n for n in self.inputs if n in self.values and n not in used]:
                return self.rng.choice(fresh)
        return self.rng.choice(known[-2:] if self.rng.random() < 0.6 else known)

    def spec(self) -> Draft:
        rng = self.rng
        wanted = rng.randint(8, 20) if self.long else rng.randint(2, 7)
        while len(self.lines) < wanted:
            made: tuple[str, Value] | None = getattr(self, rng.choice(self.kinds))()
            if made is None or made[1].growth > GROWTH or not self.fits(made[1].axes):
                continue
            name = NAMES[len(self.lines)]
            self.lines.append((name, made[0]))
            self.values[name] = made[1]
        used = {n for _, e in self.lines for n in names(e)}
        last = [n for n, _ in self.lines if n not in used]
        middle = [n for n, _ in self.lines if n in used]
        most = 4 if self.long else 3
        outputs = sorted(last[-most:] + rng.sample(middle, min(len(middle), rng.choice((0, 0, 0, 1, 2)))))[-most:]
        return Draft(
            self.dims, self.dtype, self.inputs, tuple(self.lines), {n: self.output(n) for n in outputs}
        ).pruned()

    def output(self, name: str) -> dict[str, Any]:
        axes = [d for d in self.dims if d in self.values[name].axes]
        if self.rng.random() < 0.3:
            self.rng.shuffle(axes)
        return {"dims": axes} | ({"dtype": "float32"} if self.rng.random() < 0.2 else {})

    def axes_of(self, x: str) -> list[str]:
        return sorted(self.values[x].axes)

    # -- operators

    def unary(self) -> tuple[str, Value] | None:
        x, rng = self.pick(), self.rng
        template, growth, positive = rng.choice(UNARY)
        v = self.values[x]
        number = rng.choice(EXPONENTS if "**" in template else NUMBERS)
        text = template.format(x, number, rng.choice(sorted(self.dims)))
        if v.growth * 2 > GROWTH and "square" in text:
            return None
        return text, Value(v.axes, v.growth * growth, positive)

    def positive(self) -> tuple[str, Value] | None:
        x, v = next(((n, v) for n, v in reversed(self.values.items()) if v.positive), (None, None))
        if x is None or v is None:
            return None
        return self.rng.choice(POSITIVE).format(x, self.rng.choice(EXPONENTS)), Value(v.axes, v.growth, True)

    def binary(self) -> tuple[str, Value]:
        x, y = self.pick(), self.pick()
        a, b = self.values[x], self.values[y]
        op = self.rng.choice("+-**/mM")
        axes, both = a.axes | b.axes, a.positive and b.positive
        if op == "*":
            return f"{x} * {y}", Value(axes, a.growth + b.growth, both)
        if op == "/":
            below = f"({y} + 1)" if b.positive else f"(abs({y}) + 0.5)"
            return f"{x} / {below}", Value(axes, a.growth, a.positive)
        if op in "mM":
            return f"{'minimum' if op == 'm' else 'maximum'}({x}, {y})", Value(axes, max(a.growth, b.growth), both)
        return f"{x} {op} {y}", Value(axes, max(a.growth, b.growth), both and op == "+")

    def reduce(self) -> tuple[str, Value] | None:
        x, rng = self.pick(), self.rng
        v = self.values[x]
        if not v.axes:
            return None
        over = rng.sample(self.axes_of(x), min(len(v.axes), rng.choice((1, 1, 1, 2))))
        op = rng.choice(("sum", "mean", "max", "min", "logsumexp"))
        return f"{op}({x}, {', '.join(over)})", Value(v.axes - set(over), v.growth, v.positive and op != "logsumexp")

    def norm(self) -> tuple[str, Value] | None:
        x, rng = self.pick(), self.rng
        if not self.values[x].axes:
            return None
        op, axis = rng.choice(("softmax", "rms_norm", "layer_norm")), rng.choice(self.axes_of(x))
        option = rng.choice(("", ", eps=0.001")) if op != "softmax" else ""
        return f"{op}({x}, {axis}{option})", Value(self.values[x].axes, 0, op == "softmax")

    def dot(self) -> tuple[str, Value] | None:
        x, y, rng = self.pick(), self.pick(), self.rng
        a, b = self.values[x], self.values[y]
        shared = sorted(a.axes & b.axes)
        if not shared or not self.fits(a.axes | b.axes):
            return None
        over = rng.sample(shared, min(len(shared), rng.choice((1, 1, 1, 2))))
        return f"dot({x}, {y}, {', '.join(over)})", Value((a.axes | b.axes) - set(over), a.growth + b.growth)

    def rename(self) -> tuple[str, Value] | None:
        x = self.pick()
        v = self.values[x]
        pairs = [(a, b) for a in self.axes_of(x) for b in self.dims if b not in v.axes and self.dims[a] == self.dims[b]]
        if not pairs:
            return None
        old, new = self.rng.choice(sorted(pairs))
        return f"rename({x}, {old}={new})", replace(v, axes=v.axes - {old} | {new})

    def where(self) -> tuple[str, Value] | None:
        x, rng = self.pick(), self.rng
        v = self.values[x]
        if not v.axes:
            return None
        mask, axes = self.mask(x)
        other = rng.choice(("0", "-1", self.pick()))
        o = self.values.get(other, Value(frozenset(), 0))
        text = f"where({mask}, {x}, {other})" if rng.random() < 0.7 else f"where({mask}, {other}, {x})"
        return text, Value(v.axes | axes | o.axes, max(v.growth, o.growth))

    def mask(self, x: str) -> tuple[str, frozenset[str]]:
        """A mask over an axis of a value, and its axes."""
        rng = self.rng
        a = rng.choice(self.axes_of(x))
        sign = rng.choice(("<", "<=", ">", ">=", "==", "!="))
        kind = rng.random()
        if kind < 0.4:
            b = rng.choice(sorted(self.dims))
            more = rng.choice(("", "", f" and index({a}) < {self.dims[a] - 1}", f" or index({b}) == 0"))
            return f"index({a}) {sign} index({b}){more}", frozenset({a, b})
        if kind < 0.7:
            return f"index({a}) {sign} {rng.randint(0, self.dims[a])}", frozenset({a})
        if self.integers is None:
            self.integers = "L"
            self.inputs["L"] = {"dims": [rng.choice(sorted(self.dims))], "dtype": "int32"}
        return f"index({a}) {sign} {self.integers}", frozenset({a, *self.inputs["L"]["dims"]})

    def masked(self) -> tuple[str, Value] | None:
        """A causal softmax, logsumexp or maximum: no row is masked out whole."""
        x, rng = self.pick(), self.rng
        if len(self.axes_of(x)) < 2:
            return None
        a, b = rng.sample(self.axes_of(x), 2)
        inside = f"where(index({a}) >= index({b}), {x}, -inf)"
        op = rng.choice(("softmax", "softmax", "logsumexp", "max"))
        v = self.values[x]
        if op == "softmax":
            return f"softmax({inside}, {b})", Value(v.axes, 0, True)
        return f"{op}({inside}, {b})", Value(v.axes - {b}, v.growth)


class _Accesses(_Generator):
    """Programs that read slices, windows and axes that are two, of inputs and of results, and rows that tables name.
    Some write an output in parts."""

    kinds = (*_Generator.kinds, *["access"] * 5, *["gather"] * 5)

    def __init__(self, seed: int, long: bool) -> None:
        super().__init__(seed, long)
        self.dims |= {d: self.rng.choice((2, 3, 4, 8, 16)) for d in self.rng.sample(FEW_AXES, 3)}
        self.rare = random.Random(f"rare {seed}")

    def spec(self) -> Draft:
        draft = super().spec()
        return self.in_parts(draft) if self.rng.random() < 0.3 else draft

    def in_parts(self, draft: Draft) -> Draft:
        """With one output written by indices: two axes as one, side by side with its double, or every other row."""
        rng = self.rng
        name = rng.choice(sorted(draft.outputs))
        dims = list(draft.outputs[name]["dims"])
        if not dims:
            return draft
        at = rng.randrange(len(dims))
        d, n = dims[at], draft.dims[dims[at]]
        kind = rng.choice(("merged", "beside", "every other"))
        if kind == "merged" and at + 1 < len(dims):
            behind = dims.pop(at + 1)
            size, written = n * draft.dims[behind], [(f"{draft.dims[behind]}*{d} + {behind}", name)]
        elif kind == "every other":
            size, written = 2 * n, [(f"2*{d}", f"{name} * 2"), (f"2*{d} + 1", name)]
            if self.rare.random() < 0.5:
                return self.turned(draft, name, at)
        else:
            size, written = 2 * n, [(d, name), (f"{d} + {n}", f"-{name}")]
        lines = [(f"O[{', '.join([*dims[:at], index, *dims[at + 1 :]])}]", e) for index, e in written]
        whole = {**draft.outputs[name], "dims": [*dims[:at], "o", *dims[at + 1 :]]}
        outputs = {n: t for n, t in draft.outputs.items() if n != name} | {"O": whole}
        return replace(draft, dims=draft.dims | {"o": size}, lines=(*draft.lines, *lines), outputs=outputs)

    def turned(self, draft: Draft, name: str, at: int) -> Draft:
        """With an output as one factor of a rotation of pairs, along one of its axes: what it turns lies side by side
        in a tensor, and so does the result, which may be written over it."""
        dims = draft.outputs[name]["dims"]
        d, size = dims[at], 2 * draft.dims[dims[at]]

        def pair(tensor: str, n: int) -> str:
            return f"{tensor}[{', '.join([*dims[:at], f'2*{d}' + ' + 1' * n, *dims[at + 1 :]])}]"

        inputs = {**draft.inputs, "R": {"dims": [*dims[:at], "o", *dims[at + 1 :]]}}
        to = self.rare.choice("OR")
        turns = [(pair(to, 0), f"re * {name} - im * 0.5"), (pair(to, 1), f"im * {name} + re * 0.5")]
        whole = {"inout": "R"} if to == "R" else inputs["R"]
        outputs = {n: t for n, t in draft.outputs.items() if n != name} | {to: whole}
        lines = (*draft.lines, ("re", pair("R", 0)), ("im", pair("R", 1)), *turns)
        return replace(draft, dims=draft.dims | {"o": size}, inputs=inputs, lines=lines, outputs=outputs)

    def access(self) -> tuple[str, Value] | None:
        """X[m, 8*h + d + 3]: of one axis of a value, one or two others, which it may have already (a diagonal)."""
        x, rng = self.pick(), self.rng
        v = self.values[x]
        if not v.axes:
            return None
        order = self.inputs[x]["dims"] if x in self.inputs else [d for d in self.dims if d in v.axes]
        old = rng.choice(order)
        others = sorted(self.dims.keys() - ({old} if rng.random() < 0.2 else v.axes))
        if not others:
            return None
        new = rng.sample(others, min(len(others), rng.choice((1, 2, 2))))
        steps = [rng.choice((1, 1, self.dims[new[-1]], 2, 3)) for _ in new[:-1]] + [rng.choice((1, 1, 1, 2))]
        left = self.dims[old] - 1 - sum(c * (self.dims[d] - 1) for c, d in zip(steps, new, strict=True))
        beyond = rng.random() < 0.3
        if left < 0 and not beyond:
            return None
        terms = " + ".join(d if c == 1 else f"{c}*{d}" for c, d in zip(steps, new, strict=True))
        start = rng.randint(-2, self.dims[old] - 1) if beyond else rng.choice((0, left, rng.randint(0, left)))
        of = f"pad({x}, {rng.choice((0, -1, 2))})" if rng.random() < 0.3 else x
        indices = ", ".join(f"{terms} + {start}" if d == old else d for d in order)
        return f"{of}[{indices}]", Value(v.axes - {old} | {*new}, v.growth)

    def gather(self) -> tuple[str, Value] | None:
        """X[m, T[h] + 2], X[m, d // 4], X[m, (d + 3) % 8]: an axis of a value by quotients, remainders and tables."""
        x, rng = self.pick(), self.rng
        v = self.values[x]
        if not v.axes:
            return None
        order = self.inputs[x]["dims"] if x in self.inputs else [d for d in self.dims if d in v.axes]
        old = rng.choice(order)
        new = rng.choice(sorted(self.dims))
        size, length = self.dims[old], self.dims[new]
        by = rng.choice((2, 3, 4, 8, 16))
        kind = rng.choice(("quotient", "remainder", "table", "table", "pages", "both"))
        if kind == "quotient" and (length - 1) // by < size:
            text = f"{new} // {by} + {rng.choice((0, size - 1 - (length - 1) // by))}"
        elif kind == "remainder":
            n = rng.randint(1, size)
            text = f"({new} * {rng.choice((1, 1, 2, -1))} + {rng.randint(0, size)}) % {n} + {rng.choice((0, size - n))}"
        elif kind == "table":
            text = self.table([(new, length)], old, x in self.inputs)
        elif kind == "pages" and size >= by:
            page = self.table([(f"{new} // {by}", -(-length // by))], size // by, x in self.inputs)
            text = page and f"{page} * {by} + {new} % {by}"
        elif kind == "both":
            other = rng.choice(sorted(self.dims))
            text = self.table([(new, length), (f"{other} % {by}", min(by, self.dims[other]))], old)
        else:
            return None
        if not text:
            return None
        axes = frozenset({*names(text)} & self.dims.keys())
        if not self.fits(v.axes - {old} | axes):
            return None
        of = x
        if kind in ("table", "pages") and x in self.inputs and self.rare.random() < 0.25:
            of, text = f"pad({x}, 0)", f"{text} + {self.rare.randint(-2, 3)}"
        return f"{of}[{', '.join(text if d == old else d for d in order)}]", Value(v.axes - {old} | axes, v.growth)

    def table(self, read: list[tuple[str, int]], below: str | int, padded: bool = False) -> str:
        """A table with an axis for each of these positions, of which there are so many; looked up there. padded: it may
        hold -1."""
        dims: list[str] = []
        for position, length in read:
            fitting = [d for d in self.dims if self.dims[d] >= length and d not in dims]
            if not fitting:
                return ""
            dims.append(position if position in fitting else self.rng.choice(fitting))
        known = [n for n in "IJKH" if self.inputs.get(n, {}).get("dims", dims) == dims]
        known = [n for n in known if self.inputs.get(n, {}).get("below", below) == below]
        if not known:
            return ""
        name = self.rng.choice(known)
        kind = self.rng.choice(("int32", "int32", "int64"))
        nothing = {"padded": True} if padded and self.rare.random() < 0.25 else {}
        self.inputs.setdefault(name, {"dims": dims, "dtype": kind, "below": below} | nothing)
        return f"{name}[{', '.join(p for p, _ in read)}]"


def random_spec(seed: int, *, accesses: bool = False) -> str:
    """The text of a valid spec, with accesses where they are asked for. The same seed gives the same text."""
    long = seed % LONG_EVERY == LONG_EVERY - 1
    while True:
        draft = (_Accesses if accesses else _Generator)(seed, long).spec()
        if accesses and not any("[" in e for _, e in draft.lines):
            seed += 1_000_003
            continue
        if draft.lines and draft.inputs and valid(draft):
            return draft.text
        seed += 1_000_003


def valid(draft: Draft) -> bool:
    """Whether the spec language takes the draft, and no equation, as lowered, has a large space."""
    try:
        program = lower(parse_spec(draft.text).at())
    except MirageError:
        return False
    sizes = program.sizes
    return all(prod(sizes[d] for d in {*e.dims, *(e.axes if e.op == "dot" else ())}) <= SPACE for e in program.eqns)


# -- shrinking


def shrink(spec_text: str, fails: Callable[[str], bool], budget_s: float = 120.0) -> str:
    """A spec for which `fails` still holds and from which no single simplification that was tried can be made."""
    draft = Draft.parse(spec_text)
    deadline = time.monotonic() + budget_s
    tried: set[str] = set()
    progress = True
    while progress:
        progress = False
        for smaller in simpler(draft):
            if time.monotonic() > deadline:
                return draft.text
            if smaller.text in tried:
                continue
            tried.add(smaller.text)
            if valid(smaller) and fails(smaller.text):
                draft, progress = smaller, True
                break
    return draft.text


def simpler(draft: Draft) -> Iterator[Draft]:
    """Every single simplification, those that take away most first."""
    program = parse_spec(draft.text).at()
    dims_of = {n: list(v.dims) for n, v in program.values().items()}
    outputs = draft.outputs
    for name, _ in draft.lines[:-1]:
        if {name} != set(outputs):
            yield replace(draft, outputs={name: {"dims": dims_of.get(name, [])}}).pruned()
    if len(outputs) > 1:
        for gone in outputs:
            yield replace(draft, outputs={n: t for n, t in outputs.items() if n != gone}).pruned()
    for i in reversed(range(len(draft.lines))):  # a value becomes an input
        name = draft.lines[i][0]
        if name not in outputs and name in dims_of:
            lines = draft.lines[:i] + draft.lines[i + 1 :]
            yield replace(draft, lines=lines, inputs={**draft.inputs, name: {"dims": dims_of[name]}}).pruned()
    for i, (name, e) in enumerate(draft.lines):
        for part in parts(e):
            lines = (*draft.lines[:i], (name, part), *draft.lines[i + 1 :])
            yield replace(draft, lines=lines).pruned()
            if list(outputs) == [name]:
                inner = {d for n in names(part) if n in dims_of for d in dims_of[n]}
                for dims in (inner, inner - names(part)):
                    ordered = [d for d in draft.dims if d in dims]
                    yield replace(draft, lines=lines, outputs={name: {"dims": ordered}}).pruned()
    if draft.dtype != "float32":
        yield replace(draft, dtype="float32")
    for key in ("inputs", "outputs"):
        tensors: Mapping[str, Mapping[str, Any]] = getattr(draft, key)
        for name, t in tensors.items():
            for option in t.keys() - ({"dims"} if t.get("dtype") != "int32" else {"dims", "dtype"}):
                yield replace(draft, **{key: {**tensors, name: {k: x for k, x in t.items() if k != option}}})
            ordered = [d for d in draft.dims if d in t["dims"]]
            if ordered != list(t["dims"]):
                yield replace(draft, **{key: {**tensors, name: {**t, "dims": ordered}}})
    for size in sorted(set(draft.dims.values())):
        for smaller in (s for s in (1, 2, 3, 7, 16, 17, 33) if s < size):
            same = [d for d, n in draft.dims.items() if n == size]
            for group in ([same] if len(same) > 1 else []) + [[d] for d in same]:
                yield replace(draft, dims=draft.dims | dict.fromkeys(group, smaller))


def parts(expression: str) -> Iterator[str]:
    """The expression with one operation replaced by one of its operands."""
    for node in ast.walk(ast.parse(expression, mode="eval").body):
        if not isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.BoolOp):
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and not (isinstance(node, ast.Call) and child is node.func):
                start, end = node.col_offset, node.end_col_offset
                inside = ast.get_source_segment(expression, child)
                yield ast.unparse(ast.parse(f"{expression[:start]}({inside}){expression[end:]}"))
