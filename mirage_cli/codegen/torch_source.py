"""A program as the function that a PyTorch user would write: the eager baseline, and in float64 the reference.

The text computes in the dtype of its floating-point inputs and takes sizes from their shapes wherever an input has the
axis, so one function serves as baseline (float16 inputs), as reference (float64 inputs) and at other sizes. Where some
inputs are float32 and others of a smaller type, what float32 inputs reach is float32, as PyTorch promotes (and as
`exact_values` has it for kernels), and nothing else is.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_cli.codegen.writing import spelled
from mirage_cli.ir.access import (
    Access,
    Atom,
    Dims,
    Index,
    Lookup,
    Quotient,
    Remainder,
    dims_of,
    is_view,
    is_whole,
    may_name_nothing,
    read_by,
    remainder,
    renames,
    strides,
)
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.op import Number, Op, Type, torch_reduced
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import (
    DTYPE_BYTES,
    DTYPES,
    FLOAT8,
    LARGEST_HALF,
    Arg,
    Eqn,
    Part,
    Program,
    Tensor,
    number_type,
    tensor_type,
)
from mirage_cli.ir.rewrites.named import Named, by_names
from mirage_cli.ir.rewrites.shared import shared
from mirage_cli.ir.scans import TORCH_RECURRENCE, Scan, by_scans

BY_MATRIX = """
def by_matrix(x, w, named):
    count = (named == torch.arange(len(w), device=w.device)[:, None]).sum(1)
    blocks, order = (count + 63) // 64, named.argsort()
    own, place = named[order].clamp(min=0), torch.arange(len(x), device=x.device) - (named < 0).sum()
    slot = (blocks.cumsum(0) - blocks)[own] * 64 + place - (count.cumsum(0) - count)[own]
    slot = torch.where(place < 0, (len(x) // 64 + len(w)) * 64, slot)
    row = torch.full(((len(x) // 64 + len(w)) * 64 + 1,), len(x), device=x.device).index_put((slot,), order)
    of = torch.searchsorted(blocks.cumsum(0), torch.arange(len(x) // 64 + len(w), device=x.device), right=True)
    found = torch.cat([x, x.new_zeros(1, x.shape[1])])[row[:-1]].unflatten(0, (-1, 64)) @ w[of.clamp(max=len(w) - 1)]
    return torch.cat([found.flatten(0, 1), found.new_zeros(1, w.shape[2])])[slot[order.argsort()]]
"""
"""The product of each row of x with the one of w that it names, 0 where it names -1: in blocks of 64 sorted rows."""


def torch_source(program: Program, name: str = "reference", blocked: Sequence[str] = ()) -> str:
    """The text of `def NAME(*inputs)`, which needs only `torch` in scope and returns a tensor, or a tuple of them.

    blocked: axes of which it may be asked for some positions: from `start_AXIS` on, `size_AXIS` many.
    Rows that share a matrix are multiplied by it at once (`ir/rewrites/shared.py`).
    Inputs that the program changes are changed; where nothing else is asked for, it returns None. Outputs are
    contiguous in their declared memory order, in the dtype of the computation: the caller rounds them.
    """
    return _Writer(shared(program, frozenset(blocked)), name, blocked).text()


@dataclass(frozen=True, slots=True)
class _Value:
    """What a name of the program is in the text. layout: its axes in the order of the torch tensor's.

    scalar: a Python number, not a tensor. dtype: what the text calls the dtype of a tensor of floats: `dtype`; `wide`,
    which is float32 where inputs are of a smaller type too; or the name of another that the program casts to.
    narrow: of 8 bits, which arithmetic takes as more.
    """

    text: str
    layout: Dims
    type: Type
    scalar: bool = False
    dtype: str = "dtype"
    narrow: bool = False


class _Writer:
    """Writes one statement for each equation."""

    def __init__(self, program: Program, name: str, blocked: Sequence[str]) -> None:
        self.program = program
        self.function, self.blocked = name, dict.fromkeys(blocked)
        reserved = {
            "torch",
            "dtype",
            "wide",
            "device",
            "there",
            "one",
            "at",
            "again",
            "source",
            "kept",
            "x",
            "by_matrix",
            "decay",
            "span",
            "rest",
            name,
            *DTYPES,
        }
        reserved |= {f"{x}_{d}" for x in ("start", "size") for d in blocked}
        results = {t.name for t in program.results}
        self.names = spelled([*program.values(), *(results - {*program.values()})], reserved.__contains__)
        floating = [t for t in program.inputs if tensor_type(t) == "float" and t.dtype not in FLOAT8]
        self.wide = [t for t in floating if t.dtype == "float32"]
        self.narrow = [t for t in floating if t.dtype != "float32"]
        if len({t.dtype for t in self.narrow}) > 1:  # float16 and bfloat16 have float32 alone in common
            self.wide, self.narrow = floating, []
        mixed = self.wide if self.narrow else []
        self.called = {(self.narrow or self.wide)[0].dtype: "dtype"} if floating else {program.dtype: "dtype"}
        if len({t.dtype for t in floating}) > 1:
            self.called = {self.narrow[0].dtype: "dtype", "float32": "wide"} if self.narrow else {"float32": "dtype"}
        self.own = self.called.get(program.dtype, "dtype")  # of what is made of integers, masks and numbers alone
        self.values = {
            t.name: _Value(
                self.names[t.name],
                t.dims,
                tensor_type(t),
                dtype="wide" if t in mixed else "dtype" if tensor_type(t) == "float" else self.own,
                narrow=DTYPE_BYTES[t.dtype] == 1 and t.dtype != "bool",
            )
            for t in program.inputs
        }
        self.whole = dict(self.values)
        self.statements: list[str] = []
        for d in blocked:
            self.statements.append(f"size_{d} = {self.whole_size(d)} if size_{d} is None else size_{d}")
        for t in program.inputs:
            text = self.names[t.name]
            for d in (d for d in t.dims if d in self.blocked):
                text += f".narrow({t.dims.index(d)}, start_{d}, size_{d})"
            self.values[t.name] = replace(self.values[t.name], text=text)

    def text(self) -> str:
        for e in by_names(by_scans(self.program)).eqns:
            self.values[e.out] = self.statement(e)
        results = self.results()
        parameters = [
            *(self.names[t.name] for t in self.program.inputs),
            *(f"start_{d}=0, size_{d}=None" for d in self.blocked),
        ]
        header = f"def {self.function}({', '.join(parameters)}):"
        doc = f'"""{self.program.name} in PyTorch, in the dtype of its floating-point inputs."""'
        body = [doc, *self.preamble(results), *self.statements, f"return {', '.join(results)}".rstrip()]
        return "\n    ".join([header, *body]) + "\n"

    def preamble(self, results: Iterable[str]) -> list[str]:
        """Statements that name the dtypes, and bring to one what has none to itself, as far as the text needs them."""
        cast = {x.dtype for x in self.values.values()} - {"dtype", "wide"}
        small = sorted(cast | (FLOAT8 & {t.dtype for t in self.program.results}))
        stored = [f"{x} = dtype if dtype == torch.float64 else torch.{x}" for x in small]
        lines = [*self.statements, *results, *stored]
        return [*self.computed_in(lines), *stored]

    def computed_in(self, lines: Sequence[str]) -> list[str]:
        """Those that name what is computed in."""
        used = [n for n in ("dtype", "wide") if any(re.search(rf"\b{n}[), ]", line) for line in lines)]
        if not self.narrow and not self.wide:
            return self.own_dtype() if used else []
        names = [self.names[t.name] for t in self.narrow or self.wide]
        if len({t.dtype for t in self.narrow or self.wide}) == 1:
            found = {"dtype": f"dtype = {names[0]}.dtype"}
            if self.narrow and self.wide:
                found["wide"] = f"wide = torch.promote_types({names[0]}.dtype, {self.names[self.wide[0].name]}.dtype)"
            return [found[n] for n in used]
        dtype = f"{names[0]}.dtype"
        for n in names[1:]:
            dtype = f"torch.promote_types({dtype}, {n}.dtype)"
        return [f"dtype = {dtype}", f"{', '.join(names)} = {', '.join(f'{n}.to(dtype)' for n in names)}"]

    def own_dtype(self) -> list[str]:
        """The dtype where no input that is computed with has one: in float64, where inputs of 8 bits are."""
        small = [self.names[t.name] for t in self.program.inputs if t.dtype in FLOAT8]
        if not small:
            return ["dtype = torch.float64  # no floating-point input says otherwise"]
        return [f"dtype = torch.float64 if {small[0]}.dtype == torch.float64 else torch.{self.program.dtype}"]

    def results(self) -> list[str]:
        """What is returned; statements before it write parts into what they are of."""
        self.keep_views()
        parted = {p.tensor.name for p in self.program.parts}
        for t in (t for t in self.program.results if t.name in parted):
            values = [self.values[p.value] for p in self.program.parts if p.tensor == t]
            value = next((x for x in values if x.type == "float"), values[0])
            source, shape = self.tensor(value, tensor_type(t)), _tuple([self.size(d) for d in t.dims])
            more = t.dtype == "float32" and value.dtype != self.called.get("float32")
            kind = f", dtype=torch.promote_types({source}.dtype, torch.float32)" if more else ""
            kind = f", dtype={t.dtype}" if t.dtype in FLOAT8 else kind
            kind = f", dtype={self.float_of(t)}" if self.rounds_integers(t, value) else kind
            self.statements.append(f"{self.names[t.name]} = {source}.new_empty({shape}{kind})")
        for p in self.program.parts:
            self.statements.append(self.written(p))
        return [self.names[t.name] if t.name in parted else self.output(t) for t in self.program.results]

    def keep_views(self) -> None:
        """Copies outputs that are views of inputs, where those are changed."""
        renamed = {e.out: e.args[0] for e in self.program.eqns if e.op == "rename"}
        for t in self.program.outputs:
            source: Arg = t.name
            while isinstance(source, str) and source in renamed:
                source = renamed[source]
            if source in self.program.changed:
                value, name = self.values[t.name], self.names[t.name]
                self.statements.append(f"{name} = {value.text}.clone()")
                self.values[t.name] = replace(value, text=name)

    def written(self, p: Part) -> str:
        """The statement that writes a part: a copy into a view; where there is none, an assignment by positions along
        the first axes, the last ones as slices."""
        value = self.values[p.value]
        text = self.tensor(value, value.type)
        if is_view(p.access):
            return f"{self.part(p)}.copy_({permuted(text, value.layout, dims_of(p.access))})"
        shape, sizes, count = [self.program.sizes[d] for d in p.tensor.dims], self.program.sizes, len(p.access)
        while count and self.is_slice(p.access, count - 1):
            count -= 1
        dims = dims_of(p.access[:count])
        places = [self.position(i, dims) for i in p.access[:count]]
        slices = [_slice(i, n, sizes) for i, n in zip(p.access[count:], shape[count:], strict=True)]
        while slices and slices[-1] == ":":
            slices.pop()
        name, source = self.names[p.tensor.name], permuted(text, value.layout, (*dims, *dims_of(p.access[count:])))
        if nowhere := may_name_nothing(p.access[:count]):
            there = " & ".join(f"({self.position(i, dims)} >= 0)" for i in nowhere)
            places, source = self.named_again(name, there, dims, places, slices, source)
        return f"{name}[{', '.join([*places, *slices])}] = {source}.to({name}.dtype)"

    def named_again(
        self, name: str, there: str, dims: Dims, places: Sequence[str], slices: Sequence[str], source: str
    ) -> tuple[list[str], str]:
        """The same places and values, but where nothing is to be written those of one that is, or what is there: shapes
        do not depend on data, so that a CUDA graph takes it."""
        shape, say = _tuple([self.size(d) for d in dims]), self.statements.append
        say(f"there = ({there}).expand{shape}")
        say("one = there.flatten().int().argmax().reshape(1)")
        say(f"at = [torch.as_tensor(x, device={name}.device).expand{shape} for x in ({', '.join(places)},)]")
        say("again = [x.flatten()[one].clamp(min=0) for x in at]")
        say(f"source = {source}.to({name}.dtype)")
        say(f"kept = torch.where(there.any(), source.reshape(-1, *source.shape[{len(dims)}:])[one], "
            f"{name}[{', '.join([*(f'again[{n}]' for n in range(len(places))), *slices])}])")  # fmt: skip
        more = f"there.reshape(*there.shape, *[1] * (source.dim() - {len(dims)}))"
        chosen = [f"torch.where(there, at[{n}], again[{n}])" for n in range(len(places))]
        return chosen, f"torch.where({more}, source, kept)"

    @staticmethod
    def is_slice(access: Access, place: int) -> bool:
        """Whether an index is a slice along an axis that no other index has."""
        i = access[place]
        alone = len(i.terms) == 1 and i.affine and i.terms[0][1] > 0
        return alone and i.dims[0] not in dims_of((*access[:place], *access[place + 1 :]))

    def part(self, p: Part) -> str:
        """The view of a tensor that a part is: a slice, where each index has an axis of its own."""
        name, shape = self.names[p.tensor.name], [self.program.sizes[d] for d in p.tensor.dims]
        count = sum(len(i.terms) for i in p.access)
        if any(len(i.terms) > 1 for i in p.access) or len(dims_of(p.access)) < count:
            steps, start = strides(p.access, p.tensor.steps(self.program.sizes))
            dims = dims_of(p.access)
            sizes = _tuple([self.size(d) for d in dims])
            begin = f"{name}.storage_offset() + {start}" if start else f"{name}.storage_offset()"
            return f"{name}.as_strided({sizes}, {_tuple([str(steps[d]) for d in dims])}, {begin})"
        slices = [_slice(i, n, self.program.sizes) for i, n in zip(p.access, shape, strict=True)]
        return f"{name}[{', '.join(slices)}]" if any(x != ":" for x in slices) else name

    def output(self, t: Tensor) -> str:
        value = self.values[t.name]
        text = f"{permuted(self.tensor(value, value.type), value.layout, t.dims)}.contiguous()"
        if self.rounds_integers(t, value):
            return f"{text}.to({self.float_of(t)})"
        return f"{text}.to({t.dtype})" if t.dtype in FLOAT8 else text

    @staticmethod
    def rounds_integers(t: Tensor, value: _Value) -> bool:
        """Whether an output of floats holds integers."""
        return value.type == "int" and tensor_type(t) == "float" and t.dtype not in FLOAT8

    def float_of(self, t: Tensor) -> str:
        """The dtype of an output of floats, in float64 where the computation is."""
        more = t.dtype == "float32" != self.program.dtype
        return "torch.promote_types(dtype, torch.float32)" if more else "dtype"

    # -- equations

    def statement(self, e: Eqn) -> _Value:
        if isinstance(e, Scan):
            return self.scan(e)
        if isinstance(e, Named):
            return self.named(e)
        if e.op in DERIVED:
            text, layout = self.derived(e)
            return self.assign(e, text, layout)
        row = OPS[e.op]
        match row.kind:
            case "rename":
                return self.rename(e)
            case "leaf":
                return self.leaf(e, row)
            case "reduction":
                x = self.operand(e.args[0], e.type)
                layout = _without(x.layout, e.axes)
                return self.assign(e, torch_reduced(row, x.text, [x.layout.index(a) for a in e.axes]), layout)
            case "contraction":
                text, layout = self.contraction(e, row)
                return self.assign(e, text, layout)
            case _:
                return self.cast(e, row) if row.cast else self.elementwise(e, row)

    def scan(self, e: Scan) -> _Value:
        """A reduction up to each position."""
        if e.along:
            return self.recurrence(e)
        x, (axis,) = self.operand(e.args[0], e.type), e.axes
        place = x.layout.index(axis)
        text = OPS[e.op].torch_scan.format(f"{x.text}.flip({place})" if e.back else x.text, place)
        layout = tuple(e.to if d == axis else d for d in x.layout)
        return self.assign(e, f"{text}.flip({place})" if e.back else text, layout)

    def recurrence(self, e: Scan) -> _Value:
        """h[t] = decay[t] * h[t - 1] + x[t], or h[t + 1]."""
        (axis,), beside, dtype = e.axes, tuple(d for d in e.dims if d != e.to), self.computes_in(e)
        layout = (*beside, axis)
        assert e.decay is not None, "a recurrence"
        given = [self.operand(a, "float", dtype) for a in (*e.factors, e.decay)]
        given[-1] = replace(given[-1], layout=tuple(axis if d == e.along else d for d in given[-1].layout))
        *factors, decay = (self.aligned(x, layout, "float", dtype) for x in given)
        self.statements.append(f"x, decay = torch.broadcast_tensors({' * '.join(factors)}, {decay})")
        if e.back:
            self.statements.append("x, decay = x.flip(-1), decay.flip(-1)")
        self.statements += TORCH_RECURRENCE.format(out="x", decay="decay").split("\n")
        return self.assign(e, "x.flip(-1)" if e.back else "x", (*beside, e.to))

    def assign(self, e: Eqn, text: str, layout: Dims, scalar: bool = False) -> _Value:
        name = self.names[e.out]
        self.statements.append(f"{name} = {_bare(text)}")
        return _Value(name, layout, e.type, scalar, self.computes_in(e))

    def computes_in(self, e: Eqn) -> str:
        """What the text calls the dtype in which an equation computes with floats, as PyTorch promotes."""
        given = {x.dtype for v in e.values if (x := self.values[v]).type == "float" and not x.scalar}
        return given.pop() if len(given) == 1 else self.called.get("float32", "float32") if given else self.own

    def cast(self, e: Eqn, row: Op) -> _Value:
        """A value in another type. In float64, where the program is evaluated exactly, all of these are float64."""
        x = self.operand(e.args[0], "float")
        text, wider = self.tensor(x, "float", x.dtype), self.program.dtype if row.cast in FLOAT8 else row.cast
        name = self.called.get(wider, wider)
        text = f"{row.torch.format(text).removesuffix(f'.to({text}.dtype)') if row.cast in FLOAT8 else text}.to({name})"
        return replace(self.assign(e, text, x.layout), dtype=name)

    def rename(self, e: Eqn) -> _Value:
        x = self.operand(e.args[0], e.type, whole=True)
        access = read_by(x.layout, e.names)
        inside = self.inside(e.args[0], dims_of(access))
        if not inside and is_whole(access, x.layout, self.program.sizes):
            return replace(x, layout=dims_of(access))
        if not inside and (joined := self.joined(x, access)):
            return replace(self.assign(e, *joined), dtype=x.dtype)
        if is_view(access):
            return replace(self.assign(e, self.view(x, access, e.out, inside), dims_of(access)), dtype=x.dtype)
        return replace(self.assign(e, *self.gathered(x, access, e.out, inside)), dtype=x.dtype)

    def joined(self, x: _Value, access: Access) -> tuple[str, Dims] | None:
        """Two axes as one, where they are read by the quotient and the remainder of its positions; None elsewhere."""
        sizes, both = self.program.sizes, dict(zip(x.layout, access, strict=True))
        for block, i in both.items():
            ((a, c), *more) = i.terms or ((None, 0),)
            if not isinstance(a, Quotient) or a.of.axis is None or c != 1 or more or i.offset:
                continue
            d, n = a.of.axis, a.by
            within = next((w for w, j in both.items() if j == remainder(a.of, n) and sizes[w] == n), None)
            others = {w: j for w, j in both.items() if w not in (block, within)}
            plain = all(renames(w, j, sizes) and j.axis != d for w, j in others.items())
            if within is None or sizes[block] * n != sizes[d] or not plain or len({*others.values()}) < len(others):
                continue
            order = tuple(v for w in x.layout if w != within for v in ((w, within) if w == block else (w,)))
            place = order.index(block)
            text = f"{permuted(x.text, x.layout, order)}.flatten({place}, {place + 1})"
            return text, tuple(d if w == block else both[w].dims[0] for w in order if w != within)
        return None

    def inside(self, read: Arg, dims: Iterable[str]) -> frozenset[str]:
        """Of these axes, those of which a block is read of the whole: of inputs, which are there whole."""
        return frozenset(self.blocked).intersection(dims) if read in self.whole else frozenset()

    def padded(self, x: _Value, access: Access, out: str) -> tuple[str, list[int]]:
        """The tensor, or a copy with zeros around where an access reads beyond; and how many are before each axis."""
        sizes = self.program.sizes
        beyond = [i.leaves(sizes[d], sizes) for d, i in zip(x.layout, access, strict=True)]
        if not any(map(any, beyond)):
            return x.text, [0] * len(beyond)
        text = f"{self.names[out]}_in"
        ends = ", ".join(str(n) for some in reversed(beyond) for n in some)
        self.statements.append(f"{text} = torch.nn.functional.pad({x.text}, ({ends}))")
        return text, [before for before, _ in beyond]

    def gathered(self, x: _Value, access: Access, out: str, inside: frozenset[str]) -> tuple[str, Dims]:
        """The elements at the positions of indices; the last axes as they are, where they are read whole. Where tables
        are looked up, there is no copy with zeros around, of what may be large: what is outside is replaced."""
        if any(i.lookups for i in access):
            return self.looked(x, access, out, inside)
        text, before = self.padded(x, access, out)
        count = len(access)
        while count and self.stays(x.layout, access, count - 1) and not inside & {*access[count - 1].dims}:
            count -= 1
        dims = dims_of(access[:count])
        places = [self.position(i, dims, n, inside) for i, n in zip(access[:count], before, strict=False)]
        return f"{text}[{', '.join(places)}]", (*dims, *dims_of(access[count:]))

    def looked(self, x: _Value, access: Access, out: str, inside: frozenset[str]) -> tuple[str, Dims]:
        """The same through tables."""
        count, sizes = len(access), self.program.sizes
        while count and self.stays(x.layout, access, count - 1) and not inside & {*access[count - 1].dims}:
            count -= 1
        dims, rest = dims_of(access[:count]), dims_of(access[count:])
        places = [self.position(i, dims, inside=inside) for i in access[:count]]
        bounds: list[str] = []
        for n, (d, i) in enumerate(zip(x.layout, access[:count], strict=False)):
            before, behind = i.leaves(sizes[d], sizes)
            if before or behind:
                at, end = f"{self.names[out]}_at{n}", f"{x.text}.shape[{n}]" if d in self.blocked else self.size(d)
                self.statements.append(f"{at} = {places[n]}")
                bounds += [f"({at} >= 0)"] * bool(before) + [f"({at} < {end})"] * bool(behind)
                places[n] = f"{at}.clamp(0, {end} - 1)"
        text = f"{x.text}[{', '.join(places)}]"
        if not bounds:
            return text, (*dims, *rest)
        there = " & ".join(bounds)
        there = f"({there})[{', '.join(['...', *['None'] * len(rest)])}]" if rest else f"({there})"
        return f"torch.where({there}, {text}, {'False' if x.type == 'bool' else 0})", (*dims, *rest)

    def stays(self, layout: Dims, access: Access, place: int) -> bool:
        """Whether an axis of a tensor is read whole, as an axis that no other index has."""
        i = access[place]
        others = dims_of((*access[:place], *access[place + 1 :]))
        return i.axis not in others and renames(layout[place], i, self.program.sizes)

    def position(self, i: Index, dims: Dims, before: int = 0, inside: Iterable[str] = ()) -> str:
        """The positions that an index has, behind so many zeros, for tensors of this layout. inside: axes of which a
        block is read of the whole."""
        terms = [_times(self.atom(a, dims, inside), c) for a, c in i.terms]
        return " + ".join(terms + [str(i.offset + before)] * bool(i.offset + before or not terms))

    def atom(self, a: Atom, dims: Dims, inside: Iterable[str]) -> str:
        match a:
            case str():
                text = f"torch.arange({self.positions(a) if a in inside else self.size(a)}, device={self.device()})"
                return self.aligned(_Value(text, (a,), "int"), dims, "int")
            case Quotient() | Remainder():
                text = self.position(a.of, dims, inside=inside)
                text = f"({text})" if len(a.of.terms) > 1 or a.of.offset else text
                return f"{text} {'//' if isinstance(a, Quotient) else '%'} {a.by}"
            case Lookup():
                return self.looked_up(a, dims)

    def looked_up(self, a: Lookup, dims: Dims) -> str:
        table, inside = self.whole[a.table], self.inside(a.table, dims_of(a.access))
        if table.narrow:  # which is no type of PyTorch's indices
            table = replace(table, text=f"{table.text}.int()", narrow=False)
        if not inside and is_whole(a.access, table.layout, self.program.sizes):
            return self.aligned(replace(table, layout=dims_of(a.access)), dims, "int")
        sizes, places, bounds = (
            self.program.sizes,
            [self.position(i, dims, inside=inside) for i in a.access],
            list[str](),
        )
        for n, (d, i) in enumerate(zip(table.layout, a.access, strict=True)):
            before, behind = i.leaves(sizes[d], sizes)
            if before or behind:
                at, end = places[n], self.size(d)
                bounds += [f"({at} >= 0)"] * bool(before) + [f"({at} < {end})"] * bool(behind)
                places[n] = f"({at}).clamp(0, {end} - 1)"
        text = f"{table.text}[{', '.join(places)}]"
        return f"torch.where({' & '.join(bounds)}, {text}, 0)" if bounds else text

    def view(self, x: _Value, access: Access, out: str, inside: frozenset[str]) -> str:
        """The tensor as a strided view of its own memory, or of a copy with zeros around where it reads beyond."""
        dims = dims_of(access)
        both = enumerate(zip(x.layout, access, strict=True))
        own = {i.axis: f"{x.text}.shape[{n}]" for n, (d, i) in both if renames(d, i, self.program.sizes)}
        sizes = [self.size(d) if d in inside else own.get(d) or self.size(d) for d in dims]
        steps = ["0"] * len(dims)
        text, before = self.padded(x, access, out)
        start = f"{text}.storage_offset()"
        for n, i in enumerate(access):
            for d, c in i.terms:
                assert isinstance(d, str), "an affine index"
                step = _times(f"{text}.stride({n})", c)
                at = dims.index(d)
                steps[at] = step if steps[at] == "0" else f"{steps[at]} + {step}"
                start += f" + {step} * start_{d}" if d in inside else ""
            offset = i.offset + before[n]
            start += f" + {_times(f'{text}.stride({n})', offset)}" if offset else ""
        return f"{text}.as_strided({_tuple(sizes)}, {_tuple(steps)}, {start})"

    def leaf(self, e: Eqn, row: Op) -> _Value:
        if e.dims and (i := parse_index(e.axes[0])).axis is None:
            return self.assign(e, self.position(i, e.dims, inside=self.blocked), e.dims)
        argument = f"{self.positions(e.axes[0])}, device={self.device()}" if e.dims else self.size(e.axes[0])
        return self.assign(e, row.torch.format(argument), e.dims, scalar=not e.dims)

    def elementwise(self, e: Eqn, row: Op) -> _Value:
        """Arguments aligned to one of them that has every axis, where there is one."""
        want: Type = "float" if e.type == "float" else "int"
        dtype = self.computes_in(e)
        args: list[_Value] = []
        for i, a in enumerate(e.args):
            is_condition = row.result == "branches" and i == 0
            keep = row.result == "bool" or is_condition
            args.append(self.operand(a, self.type_of(a) if keep else want, dtype))
        layout = next((a.layout for a in args if set(a.layout) == set(e.dims)), e.dims)
        infix = not row.torch.startswith("torch.")
        if infix and all(a.scalar for a in args):
            return self.assign(e, row.torch.format(*(a.text for a in args)), layout, scalar=True)
        branches = [a for a in args[1:] if not a.scalar] if row.result == "branches" else []
        texts: list[str] = []
        for i, a in enumerate(args):
            always_number = row.domain[min(i, len(row.domain) - 1)]
            inline = infix or (branches and i > 0) or always_number[0] == always_number[1]
            text = a.text if a.scalar and inline else self.aligned(a, layout, want, dtype)
            texts.append(self.branch(text, e.args[i], branches[0]) if branches and i > 0 else text)
        return self.assign(e, row.torch.format(*texts), layout)

    def branch(self, text: str, a: Arg, other: _Value) -> str:
        """One of two branches. torch.where refuses a number beyond the type of the other, which makes it infinite."""
        fits = isinstance(a, str) or abs(a) <= LARGEST_HALF or abs(a) == math.inf
        if fits or other.type != "float" or self.program.dtype != "float16":
            return text
        return f"{other.text}.new_full((), {text}, dtype=torch.float64).to({other.text}.dtype)"

    def derived(self, e: Eqn) -> tuple[str, Dims]:
        row = DERIVED[e.op]
        x = self.operand(e.args[0], "float")
        options = zip(row.options, row.numbers(e.args), strict=True)
        numbers = {name: _number(number, "float") for (name, _), number in options}
        last = (*_without(x.layout, e.axes), *e.axes)
        moved = permuted(x.text, x.layout, last)
        sizes = ", ".join(self.size(d) for d in e.axes)
        if not row.moved and not row.reduces and len(e.axes) > 1:  # a function of one torch axis: make them one
            flat = f"{moved}.flatten({-len(e.axes)})"
            return f"{row.torch.format(flat, dims=-1)}.unflatten(-1, ({sizes}))", last
        text = row.torch.format(
            x.text,
            last=moved,
            dims=_places(x.layout, e.axes),
            sizes=f"({sizes},)" if len(e.axes) == 1 else f"({sizes})",
            **numbers,
        )
        return text, _without(x.layout, e.axes) if row.reduces else last if row.moved else x.layout

    def contraction(self, e: Eqn, row: Op) -> tuple[str, Dims]:
        """A matmul where the axes are those of one, over any batch axes, or of one with several matrices; otherwise an
        einsum."""
        a, b = (self.operand(x, "float", self.computes_in(e)) for x in e.args)
        if a.scalar or b.scalar:
            x = b if a.scalar else a
            return f"({a.text} * {b.text}).sum(dim={_places(x.layout, e.axes)})", _without(x.layout, e.axes)
        batch = tuple(d for d in a.layout if d in b.layout and d not in e.axes)
        rows = tuple(d for d in a.layout if d not in b.layout and d not in e.axes)
        columns = tuple(d for d in b.layout if d not in a.layout and d not in e.axes)
        summed = tuple(d for d in e.axes if d in a.layout and d in b.layout)
        one_matrix = not batch and len(columns) <= 1
        matrices = bool(batch) and len(rows) == len(columns) == 1
        if len(summed) == len(e.axes) == 1 and (one_matrix or matrices):
            left = permuted(a.text, a.layout, (*batch, *rows, *summed))
            right = permuted(b.text, b.layout, (*batch, *summed, *columns))
            return row.torch.format(left, right), (*batch, *rows, *columns)
        if not batch and len(rows) == len(e.axes) == 1 and len(columns) == 2 and b.layout[1:-1] == summed:
            left = permuted(a.text, a.layout, (*rows, *summed))
            return row.torch.format(left, b.text), (*b.layout[:1], *rows, *b.layout[-1:])
        layout = (*batch, *rows, *columns)
        letters = axis_letters((*a.layout, *b.layout))
        spell = ["".join(letters[d] for d in dims) for dims in (a.layout, b.layout, layout)]
        return f'torch.einsum("{spell[0]},{spell[1]}->{spell[2]}", {a.text}, {b.text})', layout

    def named(self, e: Named) -> _Value:
        """A product of rows with a matrix each, by blocks of rows with one matrix: shapes do not depend on data."""
        if not any(line.startswith("def by_matrix") for line in self.statements):
            self.statements += BY_MATRIX.strip().split("\n")
        operands = [self.operand(v, "float", self.computes_in(e)) for v in e.values]
        w, x = sorted(operands, key=lambda v: e.entry not in v.layout)
        rows, columns = e.index.dims, tuple(d for d in w.layout if d not in (e.entry, *e.axes))
        sizes = _tuple([self.size(d) for d in rows])
        numbers = f"torch.broadcast_to({self.position(e.index, rows)}, {sizes}).flatten()"
        row = self.aligned(x, (*rows, *e.axes), "float")
        row = f"torch.broadcast_to({row}, {_tuple([self.size(d) for d in (*rows, *e.axes)])})"
        row = f"{row}.flatten(0, {len(rows) - 1}).flatten(1)"
        matrices = f"{permuted(w.text, w.layout, (e.entry, *e.axes, *columns))}.flatten(1, {len(e.axes)})"
        matrices += ".flatten(2)" if columns else ".unsqueeze(2)"
        text = f"by_matrix({row}, {matrices}, {numbers}).unflatten(0, {sizes})"
        ends = f".unflatten(-1, {_tuple([self.size(d) for d in columns])})" if columns else ".squeeze(-1)"
        return self.assign(e, text + ends, (*rows, *columns))

    # -- arguments

    def type_of(self, arg: str | Number) -> Type:
        if isinstance(arg, str):
            return self.values[arg].type
        return number_type(arg)

    def operand(self, arg: str | Number, want: Type, dtype: str | None = None, whole: bool = False) -> _Value:
        """The argument with the type that the operator computes in: torch would promote integers to float32, multiply
        no matrices of two types, and let a float32 without axes pass for float16. dtype: of floats; None for their own.
        whole: not only the block that is asked for, where it is an input.
        """
        if not isinstance(arg, str):
            return _Value(_number(arg, want), (), want, scalar=True)
        value = self.whole.get(arg, self.values[arg]) if whole else self.values[arg]
        dtype = dtype or value.dtype
        if want == "int" and value.narrow:
            return replace(value, text=f"{value.text}.int()", narrow=False)
        own = value.type == want and value.dtype == dtype and not value.narrow
        if value.scalar or own or want != "float":
            return value
        return _Value(f"{value.text}.to({dtype})", value.layout, want, dtype=dtype)

    def tensor(self, value: _Value, want: Type, dtype: str = "dtype") -> str:
        if not value.scalar:
            return value.text
        dtype = "torch.int64" if want == "int" else dtype
        return f"torch.full((), {value.text}, dtype={dtype}, device={self.device()})"

    def aligned(self, value: _Value, layout: Dims, want: Type, dtype: str = "dtype") -> str:
        """The value so that it broadcasts against tensors of this layout."""
        have = tuple(d for d in layout if d in value.layout)
        text = permuted(self.tensor(value, want, dtype), value.layout, have)
        if have == layout[len(layout) - len(have) :]:
            return text
        tail = layout[layout.index(have[0]) :]
        return f"{text}[{', '.join(':' if d in have else 'None' for d in tail)}]"

    def positions(self, dim: str) -> str:
        """As `torch.arange` takes them, those of the block that is asked for."""
        return f"start_{dim}, start_{dim} + size_{dim}" if dim in self.blocked else self.size(dim)

    def size(self, dim: str) -> str:
        return f"size_{dim}" if dim in self.blocked else self.whole_size(dim)

    def whole_size(self, dim: str) -> str:
        for t in self.program.inputs:
            if dim in t.dims:
                return f"{self.names[t.name]}.shape[{t.dims.index(dim)}]"
        return str(self.program.sizes[dim])

    def device(self) -> str:
        return f"{self.names[self.program.inputs[0].name]}.device" if self.program.inputs else "None"


def axis_letters(dims: Iterable[str]) -> dict[str, str]:
    """A letter of its own for each axis, its initial where that is free."""
    letters: dict[str, str] = {}
    for d in dict.fromkeys(dims):
        free = (c for c in d[0] + string.ascii_letters if c in string.ascii_letters and c not in letters.values())
        letters[d] = next(free)
    return letters


def _slice(i: Index, size: int, sizes: Mapping[str, int]) -> str:
    """The positions that an index of at most one axis takes of an axis of a tensor."""
    if not i.terms:
        return str(i.offset)
    ((d, step),) = i.terms
    assert isinstance(d, str), "an affine index"
    if step == 1 and not i.offset and sizes[d] == size:
        return ":"
    end = i.offset + step * (sizes[d] - 1) + 1
    return f"{i.offset or ''}:{end}" + (f":{step}" if step > 1 else "")


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{factor} * ({text})" if " " in text else f"{factor} * {text}"


def _without(dims: Dims, axes: Sequence[str]) -> Dims:
    return tuple(d for d in dims if d not in axes)


def _places(layout: Dims, axes: Sequence[str]) -> str:
    places = tuple(layout.index(a) for a in axes)
    return str(places[0]) if len(places) == 1 else str(places)


def permuted(text: str, layout: Sequence[object], target: Sequence[object]) -> str:
    """A tensor with its axes, or groups of axes, in another order."""
    if layout == target:
        return text
    if layout[:-2] == target[:-2]:
        return f"{text}.mT"
    return f"{text}.permute({', '.join(str(layout.index(d)) for d in target)})"


def _number(x: Number | float, want: Type) -> str:
    if isinstance(x, Fraction) and want != "float" and x.denominator == 1:
        return str(x.numerator)
    value = float(x)
    return repr(value) if abs(value) < float("inf") else ("torch.inf" if value > 0 else "-torch.inf")


def _bare(text: str) -> str:
    """The text without parentheses around the whole of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]
