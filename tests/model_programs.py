"""Model-like programs at the sizes of served models, as specs.

`model_spec(seed, index)` is one spec: 3 to 12 operators out of the layers of today's models (norms, projections, gates,
residuals, attention, softmax heads, adapters, poolings), in one of three dtypes. Weights are scaled so that values
keep the magnitude of the activations. Eager PyTorch is expected to take below 3 ms, within a few GB of memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from mirage_cli.errors import MirageError
from mirage_cli.ir.program import Program
from mirage_cli.spec.reader import parse_spec

OPERATORS = range(3, 13)
DTYPES = ("float16",) * 9 + ("bfloat16",) * 7 + ("float32",) * 4
ROWS = (1, 2, 4, 7, 8, 16, 17, 32, 61, 64, 127, 128, 256, 333, 512, 1000, 1021, 1024, 2048, 3001, 4096)
WIDTHS = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 8192)
WIDER = (512, 1024, 1408, 2048, 2560, 4096, 5632, 6144, 8192, 11008, 14336, 16384)
HEADS = (8, 12, 16, 20, 24, 32, 40, 64)
KEYS = (77, 128, 257, 512, 1024, 1500, 2047, 2048, 4096, 8191, 8192)
QUERIES = (1, 16, 64, 197, 256, 512, 1024, 2048)
MAX_EAGER_US = 3000.0
MAX_ELEMENTS = 1 << 27
"""Of one value: judging holds a few of them in float64."""
BYTES_PER_US = 2.0e6
FLOPS_PER_US = {"float16": 3.0e8, "bfloat16": 3.0e8, "float32": 3.0e7}
"""What eager PyTorch reaches at least, roughly."""


@dataclass(frozen=True)
class Value:
    """A value of the program with its axes, in order."""

    name: str
    dims: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


class Writer:
    """A spec that is being written: every method adds what its layer needs, and gives the layer's value."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtype = rng.choice(DTYPES)
        self.dims: dict[str, int] = {}
        self.inputs: dict[str, tuple[tuple[str, ...], float | None]] = {}
        self.lines: list[str] = []
        self.outputs: dict[str, tuple[str, ...]] = {}
        self.counts: dict[str, int] = {}

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def size(self, **choices: tuple[int, ...]) -> None:
        for d, sizes in choices.items():
            self.dims[d] = self.rng.choice(sizes)

    def fresh(self, stem: str) -> str:
        """The stem, with a number from its second use on."""
        self.counts[stem] = n = self.counts.get(stem, 0) + 1
        return stem if n == 1 else f"{stem}{n}"

    def input(self, stem: str, *dims: str, scale: float | None = None) -> Value:
        name = self.fresh(stem)
        self.inputs[name] = dims, scale
        return Value(name, dims)

    def weight(self, stem: str, over: tuple[str, ...], to: tuple[str, ...]) -> Value:
        """A projection's weights, which keep the magnitude of what they are applied to."""
        scale = float(f"{prod(self.dims[d] for d in over) ** -0.5:.1g}")
        return self.input(stem, *over, *to, scale=scale)

    def let(self, stem: str, expression: str, dims: tuple[str, ...]) -> Value:
        name = self.fresh(stem)
        self.lines.append(f"{name} = {expression}")
        return Value(name, dims)

    def output(self, *values: Value) -> None:
        for v in values:
            self.outputs[v.name] = v.dims

    def text(self, name: str) -> str:
        def options(dims: tuple[str, ...], scale: float | None) -> str:
            listed = f"[{', '.join(dims)}]"
            return listed if scale is None else f"{{dims: {listed}, scale: {scale:g}}}"

        dims = ", ".join(f"{d}: {n}" for d, n in self.dims.items())
        parts = [f"name: {name}", f"dims: {{{dims}}}", f"dtype: {self.dtype}", "inputs:"]
        parts += [f"  {n}: {options(*given)}" for n, given in self.inputs.items()]
        parts += ["program: |", *(f"  {line}" for line in self.lines)]
        parts += ["outputs:", *(f"  {n}: {options(d, None)}" for n, d in self.outputs.items())]
        return "\n".join(parts) + "\n"

    # -- layers

    def norm(self, x: Value, axis: str) -> Value:
        """RMSNorm or layer norm, mostly with weights."""
        kind = self.rng.choice(("rms", "rms", "rms", "layer", "layer bias", "plain", "length"))
        if kind == "plain":
            return self.let("Y", f"rms_norm({x}, {axis}, eps=0.00001)", x.dims)
        if kind == "length":
            return self.let("Y", f"{x} * rsqrt(sum({x} * {x}, {axis}))", x.dims)
        gain = self.input("G", axis)
        if kind == "rms":
            return self.let("Y", f"rms_norm({x}, {axis}) * {gain}", x.dims)
        bias = f" + {self.input('B', axis, scale=0.1)}" if kind == "layer bias" else ""
        return self.let("Y", f"layer_norm({x}, {axis}) * {gain}{bias}", x.dims)

    def maybe_norm(self, x: Value, axis: str, p: float = 0.5) -> Value:
        return self.norm(x, axis) if self.chance(p) else x

    def project(self, x: Value, over: tuple[str, ...], to: tuple[str, ...], bias: float = 0.25) -> Value:
        """A linear layer."""
        dims = (*(d for d in x.dims if d not in over), *to)
        added = f" + {self.input('B', *to, scale=0.1)}" if self.chance(bias) else ""
        weights = self.weight("W", over, to)
        return self.let("P", f"dot({x}, {weights}, {', '.join(over)}){added}", dims)

    def activation(self, x: Value | str) -> str:
        return self.rng.choice(("silu({0})", "silu({0})", "gelu({0})", "sigmoid({0})", "square(relu({0}))")).format(x)

    def residual(self, x: Value) -> Value:
        scale = self.rng.choice(("", "", " * 0.5"))
        return self.let("H", f"{self.input('R', *x.dims)} + {x}{scale}", x.dims)

    def tokens(self) -> Value:
        """Activations of some tokens, perhaps of several sequences."""
        self.size(m=ROWS, k=WIDTHS)
        return self.input("X", "m", "k")

    # -- models' parts

    def projections(self) -> None:
        """A norm and the projections behind it."""
        x = self.tokens()
        if self.chance(0.4):
            x = self.residual(x)
            self.output(x)
        y = self.norm(x, "k")
        self.size(n=WIDER)
        self.output(self.project(y, ("k",), ("n",)))
        if self.chance(0.5):
            self.size(j=(128, 256, 512, 1024, 2048))
            self.output(self.project(y, ("k",), ("j",)))
            if self.chance(0.6):
                self.output(self.project(y, ("k",), ("j",)))

    def gated_mlp(self) -> None:
        """A gated feed-forward layer, or the parts of one."""
        y = self.maybe_norm(self.tokens(), "k", 0.6)
        self.size(n=WIDER)
        gate, up = self.project(y, ("k",), ("n",), 0.1), self.project(y, ("k",), ("n",), 0.1)
        h = self.let("H", f"{self.activation(gate)} * {up}", gate.dims)
        if self.chance(0.35):
            self.size(o=WIDTHS)
            h = self.project(h, ("n",), ("o",), 0.1)
        self.output(self.residual(h) if self.chance(0.3) else h)

    def mlp(self) -> None:
        """A projection with bias and activation, and perhaps the one back with the residual."""
        y = self.maybe_norm(self.tokens(), "k", 0.7)
        self.size(n=WIDER)
        p = self.project(y, ("k",), ("n",), 0.8)
        a = self.let("A", self.activation(p), p.dims)
        if self.chance(0.4):
            self.size(o=WIDTHS)
            a = self.residual(self.project(a, ("n",), ("o",), 0.5))
        self.output(a)

    def add_norm(self) -> None:
        """The residual stream: additions, gates and norms, both the stream and its norm as outputs."""
        x = self.tokens()
        if self.chance(0.5):
            x = self.let("H", f"{x} * {self.activation(self.input('Z', *x.dims))}", x.dims)
        h = self.residual(x)
        y = self.norm(h, "k")
        if self.chance(0.4):
            y = self.let("M", f"{y} * (1 + {self.input('S', 'k', scale=0.1)}) + {self.input('T', 'k')}", y.dims)
        if self.chance(0.3):
            y = self.norm(self.residual(y), "k")
        self.output(h, y)

    def gated_norm(self) -> None:
        """A norm of gated values, as behind a state-space layer, and the projection back."""
        x = self.tokens()
        gated = self.let("U", f"{x} * silu({self.input('Z', *x.dims)})", x.dims)
        y = self.norm(gated, "k")
        if self.chance(0.6):
            self.size(n=WIDER)
            y = self.project(y, ("k",), ("n",), 0.1)
        self.output(self.residual(y) if self.chance(0.4) else y)

    def adapter(self) -> None:
        """A projection with a low-rank adapter, perhaps behind a norm or with an activation."""
        y = self.maybe_norm(self.tokens(), "k", 0.3)
        self.size(n=WIDER, r=(4, 8, 16, 32, 64, 128))
        base = self.project(y, ("k",), ("n",), 0.3)
        down = self.weight("A", ("k",), ("r",))
        up = self.weight("B", ("r",), ("n",))
        scale = self.rng.choice(("", " * 2", " * 0.5"))
        o = self.let("O", f"{base} + dot(dot({y}, {down}, k), {up}, r){scale}", base.dims)
        if self.chance(0.3):
            o = self.let("O", self.activation(o), o.dims)
        self.output(o)

    def head(self) -> None:
        """A softmax head: probabilities, or logits with their logsumexp."""
        y = self.maybe_norm(self.tokens(), "k", 0.6)
        self.size(v=(512, 1000, 2048, 4096, 8192, 16384))
        logits = self.project(y, ("k",), ("v",), 0.4)
        if self.chance(0.3):
            logits = self.let("C", f"tanh({logits} / 30) * 30", logits.dims)
        kind = self.rng.choice(("softmax", "log", "both"))
        if kind == "softmax":
            self.output(self.let("O", f"softmax({logits}, v)", logits.dims))
            return
        lse = self.let("L", f"logsumexp({logits}, v)", logits.dims[:-1])
        self.output(self.let("O", f"{logits} - {lse}", logits.dims))
        if kind == "both":
            self.output(lse)

    def router(self) -> None:
        """The router of a mixture of experts: scores of few experts, and the best of them."""
        y = self.norm(self.tokens(), "k")
        self.size(x=(8, 16, 60, 64, 128, 256))
        logits = self.project(y, ("k",), ("x",), 0.3)
        score = self.rng.choice(("softmax({0}, x)", "sigmoid({0})"))
        p = self.let("S", score.format(logits), logits.dims)
        best = self.let("T", f"max({p}, x)", p.dims[:-1])
        self.output(p, best)
        if self.chance(0.4):
            self.output(self.let("N", f"{p} / sum({p}, x)", p.dims))

    def pooling(self) -> None:
        """Tokens pooled to one vector each sequence, and what follows."""
        self.size(b=(1, 2, 4, 8, 16, 32, 64), s=(77, 128, 197, 256, 512, 1024), k=(512, 768, 1024, 1536, 2048))
        x = self.input("X", "b", "s", "k")
        y = self.maybe_norm(x, "k")
        kind = self.rng.choice(("mean", "max", "attention"))
        if kind == "attention":
            query = self.weight("Q", ("k",), ())
            p = self.let("A", f"softmax(dot({y}, {query}, k), s)", ("b", "s"))
            pooled = self.let("P", f"dot({p}, {y}, s)", ("b", "k"))
        else:
            pooled = self.let("P", f"{kind}({y}, s)", ("b", "k"))
        pooled = self.maybe_norm(pooled, "k", 0.7)
        if self.chance(0.5):
            self.size(n=(256, 512, 1000, 1024))
            pooled = self.project(pooled, ("k",), ("n",))
        if self.chance(0.4):
            pooled = self.let("O", f"tanh({pooled})", pooled.dims)
        self.output(pooled)

    def head_norms(self) -> None:
        """Projections into heads, each head normalised."""
        y = self.maybe_norm(self.tokens(), "k")
        self.size(h=HEADS, d=(64, 128))
        for _ in range(self.rng.choice((1, 2))):
            p = self.project(y, ("k",), ("h", "d"), 0.1)
            self.output(self.norm(p, "d"))

    def output_projection(self) -> None:
        """What follows attention: a gate, the contraction over heads, the residual."""
        self.size(m=ROWS, h=HEADS, d=(64, 128), n=WIDTHS)
        t = self.input("T", "m", "h", "d")
        if self.chance(0.6):
            z = self.input("Z", "m", "h", "d")
            t = self.let("U", f"{t} * sigmoid({z})", t.dims)
        t = self.maybe_norm(t, "d", 0.4)
        o = self.residual(self.project(t, ("h", "d"), ("n",), 0.2))
        self.output(o)
        if self.chance(0.4):
            self.output(self.norm(o, "n"))

    def linear_attention(self) -> None:
        """Attention without a softmax, by positive features, causal or not."""
        self.size(h=HEADS, q=(128, 256, 512, 1024, 2048), d=(64, 128))
        self.dims |= {"s": self.dims["q"], "e": self.dims["d"]}
        q, k = self.input("Q", "h", "q", "d", scale=0.1), self.input("K", "h", "s", "d", scale=0.1)
        v = self.input("V", "h", "s", "e", scale=0.1)
        feature = self.rng.choice(("relu({0})", "exp({0})", "square({0})", "{0}"))
        fq, fk = (self.let("F", feature.format(x), x.dims) if feature != "{0}" else x for x in (q, k))
        a = self.let("A", f"dot({fq}, {fk}, d)", ("h", "q", "s"))
        if self.chance(0.4):
            a = self.let("C", f"where(index(q) >= index(s), {a}, 0)", a.dims)
        o = self.let("O", f"dot({a}, {v}, s)", ("h", "q", "e"))
        if self.chance(0.5):
            o = self.norm(o, "e")
        self.output(o)

    def attention(self) -> None:
        """Softmax attention in its many forms."""
        causal, grouped = self.chance(0.4), self.chance(0.5)
        self.size(q=QUERIES, s=KEYS, h=HEADS, d=(64, 128))
        if causal:
            self.dims["s"] = self.dims["q"] = max(self.dims["q"], 64)
        if grouped:
            self.size(h=(1, 2, 4, 8), g=(2, 4, 5, 8))
        if batched := self.chance(0.4):
            self.size(b=(1, 2, 4, 8, 16))
        self.dims["e"] = self.dims["d"]
        lead, group = ("b",) * batched, ("g",) * grouped
        q = self.input("Q", *lead, "h", *group, "q", "d")
        k = self.input("K", *lead, "h", "s", "d")
        v = self.input("V", *lead, "h", "s", "e")
        if self.chance(0.3):
            q, k = self.norm(q, "d"), self.norm(k, "d")
        dims = (*lead, "h", *group, "q", "s")
        a = self.scores(q, k, dims, causal)
        p = self.let("P", f"softmax({a}, s)", dims)
        if self.chance(0.15):  # differential attention
            q2, k2 = self.input("Q", *q.dims), self.input("K", *k.dims)
            other = self.let("P", f"softmax({self.scores(q2, k2, dims, causal)}, s)", dims)
            p = self.let("D", f"{p} - {other} * 0.2", dims)
        o = self.let("O", f"dot({p}, {v}, s)", (*dims[:-1], "e"))
        kind = self.rng.choice(("plain", "plain", "gate", "lse", "norm"))
        if kind == "gate":
            o = self.let("O", f"{o} * sigmoid({self.input('Z', *o.dims)})", o.dims)
        if kind == "norm":
            o = self.norm(o, "e")
        self.output(o)
        if kind == "lse":
            self.output(self.let("L", f"logsumexp({a}, s)", dims[:-1]))

    def scores(self, q: Value, k: Value, dims: tuple[str, ...], causal: bool) -> Value:
        """Scaled products of queries and keys, with a cap, a bias and a mask as it happens."""
        a = self.let("A", f"dot({q}, {k}, d) / d ** 0.5", dims)
        if self.chance(0.15):
            a = self.let("C", f"tanh({a} / 20) * 20", dims)
        if self.chance(0.15):
            a = self.let("A", f"{a} + {self.input('B', 'h', 's')}", dims)
        return self.let("M", f"where(index(q) >= index(s), {a}, -inf)", dims) if causal else a


PARTS: tuple[Callable[[Writer], None], ...] = (
    Writer.projections,
    Writer.gated_mlp,
    Writer.gated_mlp,
    Writer.mlp,
    Writer.add_norm,
    Writer.gated_norm,
    Writer.adapter,
    Writer.head,
    Writer.router,
    Writer.pooling,
    Writer.head_norms,
    Writer.output_projection,
    Writer.linear_attention,
    Writer.attention,
    Writer.attention,
    Writer.attention,
    Writer.attention,
)
"""Attention in as many forms as it has: a quarter of all programs."""


def model_spec(seed: int, index: int) -> str:
    """The text of one spec. The same seed and index give the same text."""
    rng = random.Random(f"{seed} {index}")
    while True:
        part = rng.choice(PARTS)
        writer = Writer(rng)
        part(writer)
        text = writer.text(f"{part.__name__}_{index:03d}")
        try:
            program = parse_spec(text).at()
        except MirageError as error:  # an error of the generator
            raise AssertionError(f"{text}{error}") from error
        if fitting(program):
            return text


def model_specs(seed: int, count: int, first: int = 0) -> Iterator[str]:
    for index in range(first, first + count):
        yield model_spec(seed, index)


def fitting(program: Program) -> bool:
    """Whether the program has as many operators as are wanted, and eager PyTorch is quick with it."""
    largest = max(prod(program.sizes[d] for d in v.dims) for v in program.values().values())
    return len(program.eqns) in OPERATORS and largest <= MAX_ELEMENTS and eager_us(program) <= MAX_EAGER_US


def eager_us(program: Program) -> float:
    """An estimate of what eager PyTorch takes: every operator by itself, all of its tensors moved."""
    sizes, known = program.sizes, program.values()
    width = 4 if program.dtype == "float32" else 2
    total = 0.0
    for e in program.eqns:
        tensors = [e.dims, *(known[a].dims for a in e.args if isinstance(a, str))]
        moved = width * sum(prod(sizes[d] for d in dims) for dims in tensors)
        space = {*e.dims, *e.axes} if e.op == "dot" else set[str]()
        flops = 2 * prod(sizes[d] for d in space) if space else 0
        passes = 1 if e.op == "dot" or len(tensors) > 2 else 2
        total += passes * moved / BYTES_PER_US + flops / FLOPS_PER_US[program.dtype]
    return total
