"""DERIVED: operators of the spec language that are short for a few others. One row each: definition and torch form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_cli.ir.access import Index, combined
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.positions import of_number, of_positions
from mirage_cli.ir.program import Arg, Builder, Eqn, Program, equation, live_eqns, sort_dims


@dataclass(frozen=True, slots=True)
class Derived:
    """`define(builder, x, axes, *numbers)` emits the definition and returns its name.

    options: the names of the numbers behind the argument, with their defaults; None where one has to be given.
    any_sign: the numbers may be negative, or infinite.
    over_axes: it works over axes, which are named behind the argument; else element by element.
    reduces: the axes disappear from the result.
    assignable: as in `Op`.
    torch: what a PyTorch user writes; `{0}` the argument, `{dims}` the positions of the axes as a tuple, `{last}` the
        argument with those axes moved last, `{sizes}` their sizes, `{NAME}` the option of that name. `moved` says that
        the template uses `{last}`, so its result has the axes last too.
    """

    name: str
    doc: str
    define: Callable[..., str]
    torch: str
    options: tuple[tuple[str, float | None], ...] = ()
    any_sign: bool = False
    over_axes: bool = True
    reduces: bool = False
    assignable: bool = False
    moved: bool = False

    @property
    def form(self) -> str:
        """How a spec writes it."""
        options = (name if default is None else f"{name}={default}" for name, default in self.options)
        return f"{self.name}({', '.join(['x', *['axis', '...'][: 2 * self.over_axes], *options])})"

    def numbers(self, args: tuple[Arg, ...]) -> tuple[Number, ...]:
        """The numbers behind the argument, with the defaults of those that are left out."""
        given = args[1:]
        defaults = (Fraction(default or 0) for _, default in self.options[len(given) :])
        return (*(a for a in given if not isinstance(a, str)), *defaults)


def _mean(b: Builder, x: str, axes: tuple[str, ...]) -> str:
    total = b.emit("sum", x, axes=axes)
    for a in axes:
        total = b.emit("div", total, b.emit("size", axes=(a,)))
    return total


def _softmax(b: Builder, x: str, axes: tuple[str, ...]) -> str:
    e = b.emit("exp", b.emit("sub", x, b.emit("max", x, axes=axes)))
    return b.emit("div", e, b.emit("sum", e, axes=axes))


def _logsumexp(b: Builder, x: str, axes: tuple[str, ...]) -> str:
    top = b.emit("max", x, axes=axes)
    total = b.emit("sum", b.emit("exp_sub", x, top), axes=axes)  # of -inf alone it is -inf
    return b.emit("add", b.emit("log", total), top)


def _rms_norm(b: Builder, x: str, axes: tuple[str, ...], eps: Number) -> str:
    mean = _mean(b, b.emit("square", x), axes)
    return b.emit("mul", x, b.emit("rsqrt", b.emit("add", mean, eps)))


def _layer_norm(b: Builder, x: str, axes: tuple[str, ...], eps: Number) -> str:
    centred = b.emit("sub", x, _mean(b, x, axes))
    variance = _mean(b, b.emit("square", centred), axes)
    return b.emit("mul", centred, b.emit("rsqrt", b.emit("add", variance, eps)))


def _softplus(b: Builder, x: str, _: tuple[str, ...]) -> str:
    return b.emit("add", b.emit("relu", x), b.emit("log1p", b.emit("exp", b.emit("neg", b.emit("abs", x)))))


def _elu(b: Builder, x: str, _: tuple[str, ...], alpha: Number) -> str:
    below = b.emit("mul", b.emit("expm1", x), alpha)
    return b.emit("where", b.emit("gt", x, Fraction(0)), x, below)


def _leaky_relu(b: Builder, x: str, _: tuple[str, ...], slope: Number) -> str:
    return b.emit("where", b.emit("gt", x, Fraction(0)), x, b.emit("mul", x, slope))


def _clamp(b: Builder, x: str, _: tuple[str, ...], least: Number, most: Number) -> str:
    return b.emit("minimum", b.emit("maximum", x, least), most)


DERIVED: Mapping[str, Derived] = {
    d.name: d
    for d in (
        Derived("mean", "mean over axes", _mean, "torch.mean({0}, dim={dims})", reduces=True),
        Derived("softmax", "exp(x) / sum(exp(x)) over axes", _softmax, "torch.softmax({0}, dim={dims})"),
        Derived("logsumexp", "log(sum(exp(x))) over axes", _logsumexp, "torch.logsumexp({0}, dim={dims})",
                reduces=True),
        Derived("rms_norm", "x / sqrt(mean(x²) + eps)", _rms_norm,
                "torch.nn.functional.rms_norm({last}, {sizes}, eps={eps})", (("eps", 1e-6),), moved=True),
        Derived("layer_norm", "(x - mean) / sqrt(variance + eps), no affine part", _layer_norm,
                "torch.nn.functional.layer_norm({last}, {sizes}, eps={eps})", (("eps", 1e-5),), moved=True),
        Derived("softplus", "log(1 + exp(x))", _softplus, "torch.nn.functional.softplus({0})", over_axes=False,
                assignable=True),
        Derived("elu", "x, or alpha · (exp(x) - 1) where x is negative", _elu,
                "torch.nn.functional.elu({0}, {alpha})", (("alpha", 1.0),), over_axes=False, assignable=True),
        Derived("leaky_relu", "x, or negative_slope · x where x is negative", _leaky_relu,
                "torch.nn.functional.leaky_relu({0}, {negative_slope})", (("negative_slope", 0.01),), any_sign=True,
                over_axes=False, assignable=True),
        Derived("clamp", "x, at least min and at most max", _clamp, "torch.clamp({0}, {min}, {max})",
                (("min", None), ("max", None)), any_sign=True, over_axes=False, assignable=True),
    )
}  # fmt: skip


def derived_equation(out: str, op: str, args: tuple[Arg, ...], axes: tuple[str, ...], b: Builder) -> Eqn:
    """The equation `out = op(args; axes)` for a derived operator; `args` is x and the numbers. Raises ValueError."""
    x = b.known[str(args[0])]
    if missing := [a for a in axes if a not in x.dims]:
        raise ValueError(f"{op} over {missing[0]}, which its argument lacks")
    dims = [d for d in x.dims if not (DERIVED[op].reduces and d in axes)]
    return Eqn(out, op, args, axes, sort_dims(dims, b.order), "float")


def lower(program: Program) -> Program:
    """The same program in primitive operators alone, without equations that nothing needs.

    A reduction of what itself holds a reduction over a part of its axes is one over that part first, which ends in the
    kernel that has read all of it: sum(softmax(x, n), a, n) = sum(sum(softmax(x, n), n), a).
    """
    b = Builder(program.inputs, program.order)
    for t in program.eqns:
        b.known.setdefault(t.out, t)  # reserve the user's names, so that fresh ones do not take them
    renamed: dict[str, str] = {}
    places = _Places(program, b)
    for e in program.eqns:
        args = e.renamed(renamed).args
        if e.op not in DERIVED:
            b.append(places.of(equation(e.out, e.op, args, e.axes, b.known, b.order)))
            continue
        row = DERIVED[e.op]
        result = row.define(b, str(args[0]), e.axes, *row.numbers(args))
        last = b.eqns.pop()
        assert last.out == result, "a definition ends with its result"
        del b.known[result]
        b.append(replace(last, out=e.out))
    eqns = tuple(live_eqns(_in_parts(b), (t.name for t in program.outputs)))
    internals = {e.out for e in eqns} - {e.out for e in program.eqns}
    return replace(program, eqns=eqns, internals=program.internals | internals)


MOST_STEPS = 32
"""Operators of a position that is counted: an index has no name for what it reads twice."""


class _Places:
    """What equations make of positions along several axes, as positions that are counted: so it is known at which
    places they are which number.

    read: by which axis of what is read each index is a position.
    """

    def __init__(self, program: Program, b: Builder) -> None:
        self.b, self.sizes = b, program.sizes
        self.dynamic = {r.dim for r in program.dynamic}
        self.read = {i: d for e in program.eqns for d, i in e.names.items()}
        self.places: dict[str, Index] = {}
        self.steps: dict[str, int] = {}  # of what is computed, an operator for each time that it is read

    def of(self, e: Eqn) -> Eqn:
        """The equation, or the position that it counts, where that is where something is read, or a quotient or a
        remainder of several. A comparison of two is one of their difference, if something is read there; one with as
        many as the axis has that is read, is one with its size.
        """
        b = self.b
        place = e.place or (self.made(e) if e.type == "int" else None)
        if place is not None:
            self.places[e.out] = place
        if len(e.dims) < 2 or any(d in self.dynamic for d in e.dims):
            return e
        if place is not None and (place in self.read or not place.affine):
            return equation(e.out, "index", (), (str(place),), b.known, b.order)
        if OPS[e.op].order is None:
            return e
        x, y = (self.place(a) for a in e.args)
        if x is not None and y is not None and {less := combined(0, ((x, 1), (y, -1))), _negative(less)} & {*self.read}:
            return equation(e.out, e.op, (b.emit("index", axes=(str(less),)), Fraction(0)), (), b.known, b.order)
        read = [None if i is None else self.read.get(i) for i in (y, x)]
        sides = [*zip(e.args, read, strict=True)]  # each with the axis that the other is a position of
        if any(d is not None and a == self.sizes[d] > 1 for a, d in sides):
            args = tuple(b.emit("size", axes=(d,)) if d is not None and a == self.sizes[d] else a for a, d in sides)
            return equation(e.out, e.op, args, (), b.known, b.order)
        return e

    def place(self, a: Arg) -> Index | None:
        return self.places.get(a) if isinstance(a, str) else of_number(a)

    def made(self, e: Eqn) -> Index | None:
        known = [x for x in map(self.place, e.args) if x is not None]
        steps = self.steps[e.out] = 1 + sum(self.steps.get(a, 0) for a in e.values)
        return of_positions(e.op, *known) if len(known) == len(e.args) and steps <= MOST_STEPS else None


def _negative(i: Index) -> Index:
    return combined(0, ((i, -1),))


def _in_parts(b: Builder) -> Iterator[Eqn]:
    """The equations with reductions in parts, as `lower` has it."""
    reduced: dict[str, set[frozenset[str]]] = {}  # the axes of each reduction that a value holds
    todo = [*reversed(b.eqns)]
    while todo:
        e = todo.pop()
        held = set[frozenset[str]]().union(*(reduced.get(v, ()) for v in e.values))
        if OPS[e.op].kind in ("reduction", "contraction"):
            if parts := _parts(b, e, held):
                todo += reversed(parts)
                continue
            held.add(frozenset(e.axes))
        reduced[e.out] = held if e.op != "rename" else set()
        yield e


def _parts(b: Builder, e: Eqn, held: Iterable[frozenset[str]]) -> tuple[Eqn, ...]:
    """A reduction as one over a part of its axes and one over the others, if what it reduces holds one over such a
    part. A contraction's second is a sum."""
    inner = [sort_dims(part, b.order) for part in held if part < {*e.axes}]
    if not inner:
        return ()
    part = max(inner, key=lambda part: (len(part), part))
    first = b.emit(e.op, *e.args, axes=part)
    rest = tuple(a for a in e.axes if a not in part)
    outer = "sum" if OPS[e.op].kind == "contraction" else e.op
    return b.eqns[-1], equation(e.out, outer, (first,), rest, b.known, b.order)
