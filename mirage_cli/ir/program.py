"""Programs: a list of equations over tensors with named axes, in the order they are computed.

A `Program` is what a spec means. Its sizes are data beside it, so that the same equations can be run at other sizes.
Axes are matched by name everywhere; the axes of a value are kept in the order in which the program declares them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Literal, TypeVar

from mirage_cli.ir.access import (
    Access,
    Distinct,
    Index,
    Lookup,
    access_text,
    dims_of,
    divided,
    lookups_of,
    may_name_nothing,
    nested,
    plain,
)
from mirage_cli.ir.access_text import parse_index, substitution, substitution_text
from mirage_cli.ir.drawn import Spread
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.op import Number, Type, result_type
from mirage_cli.ir.ops import OPS

DTYPES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32", "int64": "i64",
    "bool": "i1", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""Element types, with the short names that texts and Triton use."""
DTYPE_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "int32": 4, "int64": 8, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""Types that nothing computes in but products: values are brought to a larger one first, and rounded where they are
cast or stored."""
HALVES = frozenset({"float16", "bfloat16"})
LARGEST_HALF = 65504.0
"""The largest number of float16."""
INTEGERS = frozenset({"int8", "int32", "int64"})
WORD = (-(1 << 31), (1 << 31) - 1)
"""The least and the largest integer that kernels compute with: those beyond wrap around."""

MOST_JUDGED = 1 << 28
"""Elements of all inputs and outputs at the largest sizes of dynamic axes that kernels are judged at, about."""

LARGEST_GAP = 1000
"""About how many elements a gap has at other sizes than the tensor's own, at most."""
WIDEST_BYTES = 16
"""The most that one instruction of a thread loads, and what a row of a box begins at a multiple of."""
LINE_BYTES = 128
"""Of the caches."""
SECTOR_BYTES = 32
"""Of a line: the least that moves between the L2 and memory."""

T = TypeVar("T")
Arg = str | Number
"""An argument of an equation: the name of a value, or a number."""

Drawn = Literal["evenly", "skewed", "sorted", "bits"]
"""Each integer as likely as any other; those of `ir.drawn.skewed`, in any order; evenly, and in order; each bit of 32
as likely as not."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory: `dims` in memory order, row-major, but for strides of its own.

    scale: the deviation of its test data. below: integers are from 0 on and less than this number, or than the size of
    this axis. padded: -1 is among them, which names nothing. distinct: no two of the others are equal. drawn: how
    integers are drawn for tests. strides: elements between neighbours along each axis; None for what the axis behind
    takes, 1 for the last; () where all are None.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    scale: float = 1.0
    below: str | int | None = None
    distinct: bool = False
    drawn: Drawn = "evenly"
    padded: bool = False
    strides: tuple[int | None, ...] = ()

    @property
    def own_strides(self) -> tuple[int | None, ...]:
        """One for each axis."""
        return self.strides or (None,) * len(self.dims)

    @property
    def without_gaps(self) -> tuple[str, ...]:
        """Axes along which elements lie side by side, in memory order: those behind every stride of its own, or the one
        whose stride is 1."""
        if 1 in self.strides:
            return (self.dims[self.strides.index(1)],)
        last = max((i for i, s in enumerate(self.strides) if s is not None), default=-1)
        return self.dims[last + 1 :]

    def steps(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Elements between neighbours along each axis, at these sizes."""
        found: list[int] = []
        step = 1
        for d, stride in zip(reversed(self.dims), reversed(self.own_strides), strict=True):
            found.append(step if stride is None else stride)
            step = found[-1] * sizes[d]
        return tuple(reversed(found))

    def sized_steps(
        self, sizes: Mapping[str, int], dynamic: Collection[str]
    ) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Elements between neighbours along each axis where the sizes of some axes are not known: a number, and those
        of these axes by whose sizes it is multiplied, which are behind this one up to a stride of its own."""
        numbers = self.steps({d: 1 if d in dynamic else sizes[d] for d in self.dims})
        found: list[tuple[int, tuple[str, ...]]] = []
        for i, number in enumerate(numbers):
            own = next((j for j in range(i, len(self.dims)) if self.own_strides[j] is not None), len(self.dims))
            found.append((number, tuple(d for d in self.dims[i + 1 : own + 1] if d in dynamic)))
        return tuple(found)

    def span(self, sizes: Mapping[str, int]) -> int:
        """Elements from the first to the last, gaps included."""
        return 1 + sum((sizes[d] - 1) * n for d, n in zip(self.dims, self.steps(sizes), strict=True))

    def with_aligned_rows(self, sizes: Mapping[str, int], element: int) -> Tensor:
        """The tensor as an intermediate lies in memory: rows of a line or more begin at multiples of what one
        instruction loads. sizes: of axes, but those that differ by call. element: bytes of one."""
        row, widest = sizes.get(self.dims[-1], 0) if len(self.dims) > 1 else 0, WIDEST_BYTES // element
        if row * element < LINE_BYTES or row % widest == 0:
            return replace(self, strides=())
        return replace(self, strides=(*(None for _ in self.dims[2:]), -(-row // widest) * widest, None))

    def resized(self, old: Mapping[str, int], new: Mapping[str, int], dynamic: Iterable[Range]) -> Tensor:
        """The tensor at other sizes: a stride of its own leaves the same gap behind what shorter strides reach, or a
        smaller one. Dynamic axes change no stride: there is room for their largest size."""
        if not self.strides:
            return self
        most = {r.dim: r.most for r in dynamic}
        old, new = {**old, **most}, {**new, **most}
        steps = dict(zip(self.dims, self.steps(old), strict=True))
        found = dict(zip(self.dims, self.own_strides, strict=True))
        reached = reaches = 0
        inner_first = self.dims[::-1]  # of equal steps too
        for d in sorted(inner_first, key=steps.__getitem__):
            if (stride := found[d]) is not None and reached != reaches:
                gap = stride - reached
                found[d] = reaches + min(gap, LARGEST_GAP + gap % LARGEST_GAP)
            made = replace(self, strides=tuple(found.values())).steps(new)[self.dims.index(d)]
            reached, reaches = reached + (old[d] - 1) * steps[d], reaches + (new[d] - 1) * made
        return replace(self, strides=tuple(found.values()))

    def __str__(self) -> str:
        dims = (d if s is None else f"{d}:{s}" for d, s in zip(self.dims, self.own_strides, strict=True))
        values = f" below {self.below}" * (self.below is not None) + " padded" * self.padded
        values += " distinct" * self.distinct
        values += f" drawn {self.drawn}" * (self.drawn != "evenly")
        return f"{self.name} {DTYPES[self.dtype]}[{', '.join(dims)}]{values}"


@dataclass(frozen=True, slots=True)
class Eqn:
    """`out[dims] = op(args; axes)`.

    axes: the reduced axes (`sum`, `max`, `min`, `dot`, and derived operators), the axis (`size`), the position as an
        index (`index`), or axes and the indices that take their place in turn (`rename`; `ir.access.substitution`).
    args: of a `rename`, what is read, and the tables that its indices look up.
    dims, type: of the result; `equation` computes both.
    values: the arguments that are values, not numbers.
    """

    out: str
    op: str
    args: tuple[Arg, ...]
    axes: tuple[str, ...]
    dims: tuple[str, ...]
    type: Type
    values: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(a for a in self.args if isinstance(a, str)))

    @property
    def names(self) -> Mapping[str, Index]:
        """What takes the place of axes of the argument; of a `rename` alone."""
        return substitution(self.axes) if self.op == "rename" else {}

    @property
    def place(self) -> Index | None:
        """Where the positions are that it counts; of an `index` alone."""
        return parse_index(self.axes[0]) if self.op == "index" else None

    @property
    def looks_up(self) -> tuple[Lookup, ...]:
        """What the equation itself reads of tables; of an `index` alone."""
        return self.place.lookups if self.place else ()

    @property
    def acts_on(self) -> frozenset[str]:
        """The axes that the equation names."""
        if self.place:
            return frozenset(self.place.dims)
        names = self.names
        return frozenset((*names, *dims_of(names.values())) if names else self.axes)

    @property
    def spans(self) -> frozenset[str]:
        """The axes of its result and of all that it reduces. What is read elsewhere is read once for each place."""
        return frozenset(self.dims if self.names else (*self.dims, *self.acts_on))

    def arguments(self, of: Callable[[str], T]) -> tuple[T | Number, ...]:
        """Its arguments, with `of` a value in the place of its name."""
        return tuple(of(a) if isinstance(a, str) else a for a in self.args)

    def renamed(self, names: Mapping[str, str]) -> Eqn:
        """The equation with other names for these values."""
        args = self.arguments(lambda v: names.get(v, v))
        return replace(self, out=names.get(self.out, self.out), args=args)

    def with_indices(self, put: Callable[[Index], Index]) -> Eqn:
        """The equation with other indices, where it reads its argument or counts positions by some."""
        if self.place:
            return replace(self, axes=(str(put(self.place)),))
        names = {a: put(i) for a, i in self.names.items()}
        return replace(self, axes=substitution_text(names)) if names else self

    def __str__(self) -> str:
        inside = ", ".join(number_text(a) if not isinstance(a, str) else a for a in self.args)
        axes = ", ".join(self.axes)
        if self.names:
            axes = ", ".join(f"{a}={i}" for a, i in self.names.items())
        joined = f"{inside}; {axes}" if inside and axes else inside or axes
        return f"{self.out}[{', '.join(self.dims)}] = {self.op}({joined})"


@dataclass(frozen=True, slots=True)
class Part:
    """`tensor[access] = value`: where an output lies that is no tensor of its own.

    tensor: one that is returned, of which all parts are written together; or an input, changed in place.
    """

    value: str
    tensor: Tensor
    access: Access

    def __str__(self) -> str:
        return f"{self.tensor.name}[{access_text(self.access)}] = {self.value}"


Merged = tuple[tuple[str, tuple[str, ...]], ...]
"""Axes that are several others in one (`ir.merge`), each with these parts, outermost first."""


def unmerged(dims: Iterable[str], merged: Merged) -> tuple[str, ...]:
    """These axes, with the parts of merged ones in their place."""
    parts = dict(merged)
    return tuple(p for d in dims for p in parts.get(d, (d,)))


def resized_dims(
    dims: tuple[tuple[str, int], ...], merged: Merged, sizes: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """The axes at other sizes; those of merged axes follow from their parts."""
    found = {name: sizes.get(name, size) for name, size in dims}
    found |= {name: math.prod(found[p] for p in parts) for name, parts in merged}
    return tuple(found.items())


@dataclass(frozen=True, slots=True)
class Range:
    """An axis whose size is known only when a kernel is called: `least` to `most`."""

    dim: str
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.dim}={self.least}..{self.most}"

    def some(self, tuned: int, seed: int = 0) -> list[int]:
        """Sizes to judge a kernel at that is tuned for one: the ends, one in between that is odd, and that one with its
        neighbours, as far as they are in the range."""
        between = random.Random(f"{seed} {self}").randint(self.least, self.most) // 2 * 2 + 1
        near = {between, tuned - 1, tuned, tuned + 1}
        return sorted({self.least, self.most, *(n for n in near if self.least <= n <= self.most)})

    @staticmethod
    def parse(text: str) -> Range:
        """The inverse of `str`. Raises ValueError."""
        dim, _, ends = text.partition("=")
        least, _, most = ends.partition("..")
        return Range(dim, int(least), int(most))


def mixed(some: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Sizes of several axes together, each at least once: small ones of one beside large ones of another."""
    rows = max(map(len, some.values()), default=1)
    return [{d: sizes[(i + j) % len(sizes)] for j, (d, sizes) in enumerate(some.items())} for i in range(rows)]


def dynamic_lines(dynamic: Iterable[Range]) -> list[str]:
    """The line of texts that says which sizes are arguments; none where all are fixed."""
    ranges = " ".join(map(str, dynamic))
    return [f"dynamic {ranges}"] if ranges else []


def dims_text(dims: Iterable[tuple[str, int]], merged: Merged = ()) -> str:
    """`m=16 h=8 d=64 hd=h*d`: every axis with its size, or with the parts that are merged in it."""
    parts = dict(merged)
    return " ".join(f"{d}={'*'.join(parts[d]) if d in parts else n}" for d, n in dims)


def title(name: str, dtype: str, dims: Iterable[tuple[str, int]]) -> str:
    """What a program at these sizes is called."""
    return f"{name} {dtype} {dims_text(dims)}"


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Program:
    """A tensor program. `eqns` may hold derived operators; `ir.derived.lower` replaces them by their definitions.

    dims: every axis with its size, in declaration order, which is also the order of axes inside a value.
    outputs: the values that are asked for. Those without a part are tensors that are returned (`results`).
    parts: where the others lie, in the order of outputs.
    internals: results that are not the user's but a derived operator's on its way, which PyTorch does not round.
    merged: the axes among `dims` that stand for several of the user's; none in a program as the user wrote it.
    dynamic: the axes whose size among `dims` is one that kernels are tuned for, and that they take as an argument.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    dtype: str
    inputs: tuple[Tensor, ...]
    eqns: tuple[Eqn, ...]
    outputs: tuple[Tensor, ...]
    tolerance: float = 4.0
    internals: frozenset[str] = frozenset()
    merged: Merged = ()
    parts: tuple[Part, ...] = ()
    dynamic: tuple[Range, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.dims)

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.dims)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The sizes that kernels take as arguments."""
        return tuple(self.sizes[r.dim] for r in self.dynamic)

    def some_sizes(self, ranges: Iterable[Range], seed: int = 0) -> list[dict[str, int]]:
        """Sizes to judge kernels at of dynamic axes, or of parts of their ranges, as far as tensors fit in memory."""

        def fits(sizes: Mapping[str, int]) -> bool:
            return sum(_elements(t, {**self.sizes, **sizes}) for t in (*self.inputs, *self.outputs)) <= MOST_JUDGED

        some: dict[str, list[int]] = {}
        for r in ranges:
            most = r.most
            while most // 2 >= r.least and not fits({r.dim: most}):
                most //= 2
            some[r.dim] = Range(r.dim, r.least, most).some(self.sizes[r.dim], seed)
        first, *others = mixed(some)
        return [first, *filter(fits, others)]

    @property
    def changed(self) -> frozenset[str]:
        """The inputs that are changed in place."""
        return frozenset(t.name for t in self.inputs) & {p.tensor.name for p in self.parts}

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The tensors that are returned, in order."""
        lies = {p.value: p.tensor for p in self.parts}
        changed = self.changed
        tensors = dict.fromkeys(lies.get(t.name, t) for t in self.outputs)
        return tuple(t for t in tensors if t.name not in changed)

    def places(self) -> Iterator[tuple[Tensor, Tensor, Access]]:
        """Every output, the tensor it lies in, and where."""
        parts = {p.value: p for p in self.parts}
        for t in self.outputs:
            p = parts.get(t.name)
            yield (t, t, plain(t.dims)) if p is None else (t, p.tensor, p.access)

    def apart(self) -> Program:
        """The program with every output as a tensor of its own, in which what is written nowhere is 0."""
        nowhere = {p.value: found for p in self.parts if (found := may_name_nothing(p.access))}
        names = {v: f"{v}_any" for v in nowhere}
        builder = Builder(self.inputs, self.order)
        for e in self.eqns:
            builder.append(e.renamed(names))
        for v, found in names.items():
            masks = [builder.emit("ge", builder.emit("index", axes=(str(i),)), Fraction(0)) for i in nowhere[v]]
            there = reduce(lambda a, b: builder.emit("and", a, b), masks)
            builder.emit("where", there, found, Fraction(0), out=v)
        return replace(self, eqns=tuple(builder.eqns), parts=())

    def resized(self, sizes: Mapping[str, int]) -> Program:
        """The same equations at other sizes; numbers that the spec computed from sizes stay as they were."""
        dims = resized_dims(self.dims, self.merged, sizes)
        inputs = tuple(t.resized(self.sizes, dict(dims), self.dynamic) for t in self.inputs)
        given = {t.name: t for t in inputs}
        parts = tuple(replace(p, tensor=given.get(p.tensor.name, p.tensor)) for p in self.parts)
        return replace(self, dims=dims, inputs=inputs, parts=parts)

    def with_indices(self, put: Callable[[Index], Index]) -> Program:
        """The program with other indices wherever it has some."""
        parts = tuple(replace(p, access=tuple(map(put, p.access))) for p in self.parts)
        return replace(self, eqns=tuple(e.with_indices(put) for e in self.eqns), parts=parts)

    def only(self, names: Iterable[str]) -> Program:
        """The same inputs, and of the outputs and equations those that these outputs need, as tensors of their own."""
        wanted = set(names)
        outputs = tuple(t for t in self.outputs if t.name in wanted)
        return replace(self, eqns=tuple(live_eqns(self.eqns, wanted)), outputs=outputs, parts=())

    def around(self, read: Sequence[Tensor], made: Sequence[Tensor]) -> tuple[Program, Program]:
        """The program in front of a call, which reads some values as tensors and makes others, and the one behind it.
        The one behind has what the call makes as further inputs."""
        results = {t.name for t in made}
        front = tuple(live_eqns(self.eqns, (t.name for t in read)))
        rest = (e for e in self.eqns if e.out not in results)
        behind = tuple(live_eqns(rest, (t.name for t in self.outputs)))
        return (
            replace(self, eqns=front, outputs=tuple(read)),
            replace(self, eqns=behind, inputs=(*self.inputs, *made)),
        )

    def values(self) -> dict[str, Tensor | Eqn]:
        """Every value by name: inputs first, then results in order."""
        return {t.name: t for t in self.inputs} | {e.out: e for e in self.eqns}

    def types(self) -> dict[str, Type]:
        found: dict[str, Type] = {t.name: tensor_type(t) for t in self.inputs}
        found.update((e.out, e.type) for e in self.eqns)
        return found

    def accesses(self) -> Iterator[tuple[str, Index]]:
        """Every axis that is read or written by an index, with the index."""
        tables = {t.name: t.dims for t in self.inputs}
        for e in self.eqns:
            yield from nested(e.names.items(), tables)
        for p in self.parts:
            yield from nested(zip(p.tensor.dims, p.access, strict=True), tables)

    def lookups(self) -> Iterator[Lookup]:
        """What it reads of tables, and where it writes by tables."""
        for e in self.eqns:
            yield from lookups_of(e.names.values())
        for p in self.parts:
            yield from lookups_of(p.access)

    @property
    def distinct(self) -> Distinct:
        return distinct_tables(self.inputs)

    def divided(self) -> frozenset[tuple[Lookup, int]]:
        """What is looked up and part of what is divided, with the number."""
        placed = (e.place for e in self.eqns if e.place)
        return frozenset(divided((*(i for _, i in self.accesses()), *placed)))

    def __str__(self) -> str:
        lines = [f"program {self.name}", "dims " + dims_text(self.dims, self.merged), *dynamic_lines(self.dynamic)]
        lines += [f"input {t}" for t in self.inputs] + [f"  {e}" for e in self.eqns]
        lines += [f"output {t}" for t in self.outputs]
        return "\n".join(lines + [f"part {p.tensor} {p}" for p in self.parts]) + "\n"


def _elements(t: Tensor, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[d] for d in t.dims)


def distinct_tables(inputs: Iterable[Tensor]) -> Distinct:
    """The tables that hold no integer twice, with their axes."""
    return {t.name: t.dims for t in inputs if t.distinct}


def distinct_positions(inputs: Iterable[Tensor]) -> list[tuple[tuple[str, ...], str]]:
    """The axes of tables that hold no integer twice, and the axis that the integers are positions of, if it is one."""
    return [(t.dims, t.below) for t in inputs if t.distinct and isinstance(t.below, str)]


def cast_of(e: Eqn) -> str:
    """The type that an equation rounds to, if it is a cast."""
    return OPS[e.op].cast if e.op in OPS else ""


def tensor_type(t: Tensor) -> Type:
    return "int" if t.dtype in INTEGERS else "bool" if t.dtype == "bool" else "float"


Extent = TypeVar("Extent", int, int | str)


def below(t: Tensor, sizes: Mapping[str, Extent]) -> Extent | int | None:
    """What the integers of a tensor are less than, where that is declared."""
    return sizes[t.below] if isinstance(t.below, str) else t.below


def spread(t: Tensor, sizes: Mapping[str, int]) -> Spread:
    """What a tensor's test data are drawn with."""
    if tensor_type(t) == "float":
        return t.scale
    return below(t, sizes) or 0, "distinct" if t.distinct else t.drawn, t.padded


def number_type(x: Number) -> Type:
    """Of a number in an equation: an integer is one that kernels' integers hold."""
    whole = isinstance(x, Fraction) and x.denominator == 1
    return "int" if whole and WORD[0] <= x <= WORD[1] else "float"


def number_text(x: Number) -> str:
    """A number as text that `parse_number` reads back exactly: decimal where that is exact, else a fraction."""
    if not isinstance(x, Fraction):
        return "inf" if x > 0 else "-inf"
    if x.denominator == 1:
        return str(x.numerator)
    if Fraction(float(x)) == x:
        return repr(float(x))
    return f"{x.numerator}/{x.denominator}"


def parse_number(text: str) -> Number:
    """The inverse of `number_text`. Decimals are read as the float64 they name. Raises ValueError."""
    if text in ("inf", "-inf"):
        return math.inf if text == "inf" else -math.inf
    if "/" in text or text.lstrip("-").isdigit():
        return Fraction(text)
    return Fraction(float(text))


def sort_dims(dims: Iterable[str], order: Iterable[str]) -> tuple[str, ...]:
    """These axes, once each, in the program's order. Axes that the order lacks (split chunks) come first, by name."""
    dims = set(dims)
    if len(dims) < 2:
        return tuple(dims)
    position = _positions(tuple(order))
    return tuple(sorted(dims, key=lambda d: (position.get(d, -1), d)))


@lru_cache(maxsize=256)
def _positions(order: tuple[str, ...]) -> Mapping[str, int]:
    return {name: i for i, name in enumerate(order)}


def equation(
    out: str,
    op: str,
    args: tuple[Arg, ...],
    axes: tuple[str, ...],
    known: Mapping[str, Tensor | Eqn],
    order: Iterable[str],
) -> Eqn:
    """The equation with the axes and type of its result worked out from those of its arguments.

    Raises ValueError where the operator does not fit: a reduced or renamed axis that is not there, a wrong number of
    arguments. Callers that read users' files check first and say where.
    """
    row = OPS[op]
    names = substitution(axes) if op == "rename" else {}
    tables = tables_of(names.values()) if names else ()
    if len(args) != row.arity + len(tables) or args[row.arity :] != tables:
        raise ValueError(f"{op} takes {row.arity + len(tables)} arguments, not {len(args)}")
    dims: set[str] = set()
    types: list[Type] = []
    for a in args[: row.arity]:
        if isinstance(a, str):
            v = known[a]
            dims.update(v.dims)
            types.append(v.type if isinstance(v, Eqn) else tensor_type(v))
        else:
            types.append(number_type(a))
    if row.kind in ("reduction", "contraction"):
        if missing := [a for a in axes if a not in dims]:
            raise ValueError(f"{op} over {missing[0]}, which its argument lacks")
        dims -= set(axes)
    elif op == "rename":
        if missing := [a for a in names if a not in dims]:
            raise ValueError(f"rename of {missing[0]}, which its argument lacks")
        dims = {*(dims - set(names)), *dims_of(names.values())}
    elif op == "index":
        dims = {*parse_index(axes[0]).dims}
    return Eqn(out, op, args, axes, sort_dims(dims, order), result_type(row, tuple(types)))


def tables_of(access: Iterable[Index]) -> tuple[str, ...]:
    """The tables that are looked up, once each."""
    return tuple(dict.fromkeys(x.table for x in lookups_of(access)))


class Builder:
    """Collects equations with fresh names; used by the spec reader, by `graph.py` and by lowering."""

    def __init__(self, inputs: Iterable[Tensor], order: Iterable[str]) -> None:
        self.order = tuple(order)
        self.known: dict[str, Tensor | Eqn] = {t.name: t for t in inputs}
        self.eqns: list[Eqn] = []

    def emit(self, op: str, *args: Arg, axes: Iterable[str] = (), out: str | None = None) -> str:
        """Append one equation and return the name of its result."""
        eqn = equation(out or self.fresh(), op, args, tuple(axes), self.known, self.order)
        return self.append(eqn)

    def append(self, eqn: Eqn) -> str:
        self.known[eqn.out] = eqn
        self.eqns.append(eqn)
        return eqn.out

    def fresh(self) -> str:
        n = len(self.eqns)
        while f"t{n}" in self.known:
            n += 1
        return f"t{n}"


def live_eqns(eqns: Iterable[Eqn], wanted: Iterable[str]) -> Iterator[Eqn]:
    """The equations that the wanted values need, in order."""
    eqns = list(eqns)
    need = set(wanted)
    for e in reversed(eqns):
        if e.out in need:
            need |= set(e.values)
    return (e for e in eqns if e.out in need)
