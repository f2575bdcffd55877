"""The floating-point net: a generated kernel against a float64 evaluation, beside eager PyTorch, on awkward inputs.

A kernel is right when what it returns is within what rounding in the program's own types can give, infinities included:
its error is at most `tolerance` times the larger of eager's error and of the rounding that nobody escapes, where an
infinity stands for every number beyond its type, and a NaN is right only where float64 has no number.
Error is measured twice, and both must pass: the norm of the difference over the norm of the result, and the worst row's
largest difference over that row's largest value, which sees one wrong row among thousands. Comparison with eager on the
same inputs takes care of data that make a program ill-conditioned for everyone. Where eager itself overflows, the
float64 evaluation with every operation rounded to the type's precision stands in for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any  # what a function returns: a tensor, several, or nothing

from mirage_cli.ir.access import Access, Atom, Index, Lookup, Quotient, is_view, may_name_nothing, read_by, strides
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.inplace import reread
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, number_type, spread
from mirage_cli.verify.rows import row_axis

if TYPE_CHECKING:
    import torch

    from mirage_cli.verify.lies import Lies
    from mirage_cli.verify.yardstick import Judgement

Run = Callable[["list[torch.Tensor]"], "Sequence[torch.Tensor]"]
AtOnce = Callable[[Run, "Sequence[list[torch.Tensor]]"], "Sequence[Sequence[torch.Tensor]] | None"]
"""What a function returns for each of several inputs, in one call; None where it has to be called for each."""


@dataclass(frozen=True, slots=True)
class NumericVerdict:
    """The judgement of all distributions. `worst` is the one nearest to, or furthest beyond, what is allowed.

    error, eager_error: norm errors against float64 on the first distribution, the one for ordinary data.
    tolerance: multiples of the yardstick that were allowed. untold: why all that passed proves nothing.
    """

    ok: bool
    worst: Judgement
    error: float
    eager_error: float
    tolerance: float
    detail: tuple[Judgement, ...]
    untold: str | None = None

    def __str__(self) -> str:
        if self.ok:
            return f"error {self.error:.2e}, eager's {self.eager_error:.2e}; all {len(self.detail)} distributions pass"
        problems = [f"{j.distribution}: {j.problem}" for j in self.detail if j.problem]
        return "; ".join(problems or [self.untold or ""])


def judge(
    program: Program,
    run: Run,
    eager: Callable[..., Any],
    device: torch.device | str = "cpu",
    seed: int = 0,
    tolerance: float | None = None,
    distributions: Sequence[str] | None = None,
    overflow_like_eager: bool = False,
    reference: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None = None,
    at_once: AtOnce | None = None,
) -> NumericVerdict:
    """Judges `run` at the program's sizes. Exceptions of `run` pass through; ValueError for outputs of other shapes,
    and for inputs that it changes though the program does not.

    run: returns the program's results. eager: `eager(*inputs)` in PyTorch, a tensor or a tuple: its outputs, each as a
    tensor of its own. distributions: names of those to try, all by default.
    overflow_like_eager: let an inf or NaN pass where eager has one too: for plans that keep intermediates in float16.
    reference: float64 outputs from the inputs, where the program's own evaluation (`reference64`) is not wanted.
    at_once: calls `run` for all distributions together. What that refuses is judged again, one call after the other.
    """
    import torch

    from mirage_cli.verify.lies import Lies, changed_elsewhere, outputs_of
    from mirage_cli.verify.testdata import DISTRIBUTIONS
    from mirage_cli.verify.yardstick import Cut, Reference, untold

    where = torch.device(device)
    allowed = program.tolerance if tolerance is None else tolerance
    terms = longest_sum(program)
    fields = independent_axis(program) if reference is None else None
    cut = Cut(*fields) if fields else None
    lies = [Lies(*x) for x in places] if (places := where_outputs_lie(program)) else None

    primitive = lower(program.apart())

    def definition(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return _evaluated(program, primitive, inputs)

    wide = definition if reference is None else lambda *inputs: reference(list(inputs))
    program_in_torch = Reference(eager, definition, getattr(torch, program.dtype), wide)
    seeds = {k.name: seed + i for i, k in enumerate(DISTRIBUTIONS)}
    names = [name for name in seeds if distributions is None or name in distributions]

    def judged(calls: Iterable[_Call], *, only_right: bool = False) -> NumericVerdict | None:
        """only_right: None where something is wrong, and no more is judged."""
        found: list[Judgement] = []
        for name, inputs, given, results in calls:
            outputs = outputs_of(lies, results, given)
            if changed := [program.inputs[i].name for i in changed_elsewhere(lies, given, inputs)]:
                raise ValueError(f"writes to its inputs: {', '.join(changed)}")
            found.append(program_in_torch.judge(name, inputs, outputs, allowed, overflow_like_eager, terms, cut))
            if only_right and found[-1].problem is not None:
                return None
        worst = max(found, key=lambda j: j.score)
        nothing = untold(found)
        ok = nothing is None and all(j.problem is None for j in found)
        return NumericVerdict(ok, worst, found[0].error.norm, found[0].eager_error.norm, allowed, tuple(found), nothing)

    def draws() -> Iterator[_Draw]:
        return ((name, draw_inputs(program, name, where, seeds[name])) for name in names)

    drawn: Iterable[_Draw] = draws()
    if at_once is not None:
        drawn = [*drawn]
        if (calls := _together(drawn, lies, run, at_once)) is not None:
            with suppress(ValueError):  # which calls one by one raise too, or which is theirs alone
                if (verdict := judged(calls, only_right=True)) is not None and verdict.ok:
                    return verdict
            drawn = draws()  # what writes to its inputs has changed them
    verdict = judged(_one_by_one(drawn, lies, run))
    assert verdict is not None
    return verdict


_Draw = tuple[str, "list[torch.Tensor]"]
"""A distribution, and inputs drawn from it."""
_Call = tuple[str, "list[torch.Tensor]", "list[torch.Tensor]", "Sequence[torch.Tensor]"]
"""The distribution, the inputs, what `run` was given and has changed, and what it returned."""


def _one_by_one(draws: Iterable[_Draw], lies: Sequence[Lies] | None, run: Run) -> Iterator[_Call]:
    from mirage_cli.verify.lies import fresh_memory_is_nan, to_be_changed

    for name, inputs in draws:
        with fresh_memory_is_nan():
            given = to_be_changed(lies, inputs)
            results = run(given)
        yield name, inputs, given, results


def _together(draws: Iterable[_Draw], lies: Sequence[Lies] | None, run: Run, at_once: AtOnce) -> Iterable[_Call] | None:
    from mirage_cli.verify.lies import fresh_memory_is_nan, to_be_changed

    names, inputs = zip(*draws, strict=True)
    with fresh_memory_is_nan():
        given = [to_be_changed(lies, x) for x in inputs]
        results = at_once(run, given)
    return None if results is None else zip(names, inputs, given, results, strict=True)


def draw_inputs(program: Program, distribution: str, device: torch.device, seed: int) -> list[torch.Tensor]:
    """The program's inputs from the distribution of this name."""
    import torch

    from mirage_cli.verify.testdata import DISTRIBUTIONS, draw

    kind = next(k for k in DISTRIBUTIONS if k.name == distribution)
    sizes = program.sizes
    shapes = [tuple(sizes[d] for d in t.dims) for t in program.inputs]
    dtypes: list[torch.dtype] = [getattr(torch, t.dtype) for t in program.inputs]
    spreads = [spread(t, sizes) for t in program.inputs]
    strides = [t.steps(sizes) if t.strides else None for t in program.inputs]
    return draw(kind, shapes, dtypes, spreads, longest_sum(program), device, seed, strides)


@lru_cache(maxsize=16)
def longest_sum(program: Program) -> int:
    """The most terms that one sum or contraction of the program adds up; 1 where there is none."""
    sizes = program.sizes
    terms = [math.prod(sizes[d] for d in e.axes) for e in lower(program).eqns if e.op in ("dot", "sum")]
    return max(terms, default=1)


LiesFields = tuple[int, tuple[int, ...], tuple[int, ...], int, tuple[Any, ...], tuple[Any, ...], bool]
"""The fields of a `lies.Lies`, which needs torch."""


def where_outputs_lie(program: Program) -> tuple[LiesFields, ...] | None:
    """Where a call leaves each output; None where every output is a tensor that it returns."""
    if not program.parts:
        return None
    sizes, results = program.sizes, {t.name: i for i, t in enumerate(program.results)}
    numbers = {t.name: -1 - i for i, t in enumerate(program.inputs)} | results
    found: list[LiesFields] = []
    read = reread(program)
    for t, whole, access in program.places():
        steps, start = strides(access, whole.steps(sizes))
        shape = tuple(sizes[d] for d in t.dims)
        tables = {x.name: i for i, x in enumerate(program.inputs)}
        moved = tuple((n, _atom_fields(a, t.dims, tables)) for a, n in steps.items() if not isinstance(a, str))
        named = tuple(_total_fields(i, t.dims, tables) for i in may_name_nothing(access))
        apart = tuple(steps.get(d, 0) for d in t.dims)
        found.append((numbers[whole.name], shape, apart, start, moved, named, t.name in read))
    return tuple(found)


def _total_fields(i: Index, dims: tuple[str, ...], tables: Mapping[str, int]) -> Any:
    """An index as `lies.Total` has it."""
    return i.offset, tuple((c, _atom_fields(a, dims, tables)) for a, c in i.terms)


def _atom_fields(a: Atom, dims: tuple[str, ...], tables: Mapping[str, int]) -> Any:
    """An atom as `lies.Atom` has it."""
    match a:
        case str():
            return dims.index(a)
        case Lookup():
            return "at", tables[a.table], tuple(_total_fields(i, dims, tables) for i in a.access)
        case _:
            return "//" if isinstance(a, Quotient) else "%", _total_fields(a.of, dims, tables), a.by


CutFields = tuple[tuple[int | None, ...], tuple[int, ...], int, int]
"""The fields of a `yardstick.Cut`, which needs torch."""
FINE_BYTES = 1 << 28
"""A position of an axis that takes more is no small piece."""
SHARED_BYTES = 1 << 30
"""Nor is one that comes with more that lacks the axis: every piece is computed from all of that."""


def independent_axis(program: Program) -> CutFields | None:
    """The axis to cut a judgement along; None where no axis is independent."""
    if (found := _cut_along(program)) is None:
        return None
    axis, position_bytes = found
    inputs = tuple(t.dims.index(axis) if axis in t.dims else None for t in program.inputs)
    return inputs, tuple(t.dims.index(axis) for t in program.outputs), program.sizes[axis], position_bytes


def _cut_along(program: Program) -> tuple[str, int] | None:
    """An axis of every output, and what one position takes: no equation mixes its positions, names them or counts them.
    Of several, one whose positions are small, that cuts no row, and without which the least is computed."""
    lowered, sizes = lower(program), program.sizes
    mixed = {d for e in lowered.eqns for d in e.acts_on}
    elements = [(v.dims, 8 * math.prod(sizes[d] for d in v.dims)) for v in lowered.values().values()]
    ranked: list[tuple[tuple[bool, bool, int, int], str]] = []
    for axis in program.order:
        if axis in mixed or not _in_all_outputs(program, axis):
            continue
        at = [n // max(1, sizes[axis]) for dims, n in elements if axis in dims]
        position_bytes = sum(at) + 8 * max(at)  # what rounds the largest value holds several of its size
        shared = sum(n for dims, n in elements if axis not in dims)
        cuts_rows = any(t.dims.index(axis) >= row_axis([sizes[d] for d in t.dims]) for t in program.outputs)
        coarse = position_bytes > FINE_BYTES or shared > SHARED_BYTES
        ranked.append(((coarse, cuts_rows, shared, position_bytes), axis))
    if not ranked:
        return None
    (*_, position_bytes), axis = min(ranked)
    return axis, position_bytes


def _in_all_outputs(program: Program, axis: str) -> bool:
    return bool(program.outputs) and all(axis in t.dims for t in program.outputs)


BlockFields = tuple[str, tuple[int, ...], int, int]
"""The fields of a `yardstick.Block`, which needs torch."""
BLOCK_BYTES = 1 << 30
"""About what the float64 values of one block take."""


def blocks_of(program: Program) -> tuple[BlockFields, ...]:
    """The axes to evaluate a piece along in blocks, where one position of the axis that pieces are cut along takes more
    than a block does. No equation mixes their positions, but masks may name them, and reads of inputs, which are held
    whole. First those without which the least is computed."""
    lowered, cut = lower(program), _cut_along(program)
    given = {t.name for t in program.inputs}
    mixing = (e for e in lowered.eqns if e.op != "index" and not (e.op == "rename" and e.args[0] in given))
    mixed = {d for e in mixing for d in e.acts_on} | ({cut[0]} if cut else set())
    held = program.sizes | ({cut[0]: 1} if cut else {})
    values = [e.dims for e in lowered.eqns]

    def bytes_with(axis: str) -> int:
        return sum(8 * math.prod(held[d] for d in dims) for dims in values if axis in dims)

    found: list[BlockFields] = []
    some = [d for d in program.order if d not in mixed and _in_all_outputs(program, d)]
    for axis in sorted(some, key=bytes_with, reverse=True):
        step = max(1, BLOCK_BYTES * held[axis] // max(1, bytes_with(axis)))
        if step < held[axis]:
            held[axis] = step
            found.append((axis, tuple(t.dims.index(axis) for t in program.outputs), program.sizes[axis], step))
    return tuple(found)


def reference64(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The program's outputs in float64: a torch operation for each primitive operator, axes in the program's order."""
    return _evaluated(program, lower(program.apart()), inputs)


def _evaluated(program: Program, primitive: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """primitive: the program in primitive operators alone."""
    import torch

    evaluation = _Evaluation(primitive)
    for t, x in zip(program.inputs, inputs, strict=True):
        order = sorted(t.dims, key=evaluation.place)
        value = x.double() if x.dtype.is_floating_point else x if t.dtype == "bool" else x.long()
        evaluation.values[t.name] = value.permute([t.dims.index(d) for d in order])
        evaluation.dims[t.name] = tuple(order)
    evaluation.device = inputs[0].device if inputs else torch.device("cpu")
    for e in evaluation.program.eqns:
        evaluation.values[e.out] = evaluation.run(e)
        evaluation.dims[e.out] = e.dims
    return tuple(evaluation.output(t.name, t.dims) for t in program.outputs)


def reference64_in_pieces(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`reference64`, a piece after the other along an axis that no equation mixes: of what is no output, the values of
    one piece are held at a time."""
    import torch

    from mirage_cli.verify.yardstick import Cut, pieces_of

    fields = independent_axis(program)
    cut = Cut(*fields) if fields else None
    found = [reference64(program, piece.inputs(inputs)) for piece in pieces_of(cut)]
    if cut is None or len(found) == 1:
        return found[0]
    return tuple(torch.cat(parts, axis) for axis, parts in zip(cut.outputs, zip(*found, strict=True), strict=True))


def called64(
    program: Program, inputs: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """What a call returns in float64, and its inputs behind it: those that it changes in place are of float64 too."""
    import torch

    from mirage_cli.verify.lies import Lies

    outputs, places, sizes = reference64_in_pieces(program, inputs), where_outputs_lie(program), program.sizes
    if places is None:
        return outputs, tuple(inputs)
    device = outputs[0].device
    shapes = [[sizes[d] for d in t.dims] for t in program.results]
    results = [torch.empty(shape, dtype=torch.float64, device=device) for shape in shapes]
    behind = [
        torch.empty_strided(x.shape, x.stride(), dtype=torch.float64, device=device).copy_(x)
        if t.name in program.changed
        else x
        for t, x in zip(program.inputs, inputs, strict=True)
    ]
    for y, fields in zip(outputs, places, strict=True):
        Lies(*fields).fill(y, results, behind)
    return tuple(results), tuple(behind)


class _Evaluation:
    """The values known so far, each with its axes in the program's order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.place = program.order.index
        self.values: dict[str, torch.Tensor] = {}
        self.dims: dict[str, tuple[str, ...]] = {}
        self.device: Any = None

    def run(self, e: Eqn) -> torch.Tensor:
        import torch

        row = OPS[e.op]
        sizes = self.program.sizes
        match row.kind:
            case "leaf":
                if not e.dims:
                    return torch.tensor(sizes[e.axes[0]], dtype=torch.float64, device=self.device)
                return self.position(parse_index(e.axes[0]), e.dims, sizes)
            case "rename":
                return self.renamed(e, str(e.args[0]))
            case "contraction":
                place = {d: i for i, d in enumerate(self.program.order)}
                operands: list[Any] = []
                for a in e.args:
                    dims = self.dims[a] if isinstance(a, str) else ()
                    operands += [self.argument(a, "float"), [place[d] for d in dims]]
                return torch.einsum(*operands, [place[d] for d in e.dims])
            case "reduction":
                x = self.argument(e.args[0], e.type)
                axes = tuple(self.dims[str(e.args[0])].index(a) for a in e.axes)
                return _call(row.torch.format("a0", axes), x)
            case _ if row.cast and row.known == "exactly":
                return self.argument(e.args[0], "float", e.dims)
            case _:
                keep = [row.result == "bool" or (row.result == "branches" and i == 0) for i in range(len(e.args))]
                args = [self.argument(a, None if k else e.type, e.dims) for a, k in zip(e.args, keep, strict=True)]
                return _call(row.torch.format(*(f"a{i}" for i in range(len(args)))), *args)

    def renamed(self, e: Eqn, name: str) -> torch.Tensor:
        """A view of a value's memory, with an index in the place of each axis that the equation names."""
        import torch

        x = self.values[name]
        sizes = self.program.sizes | dict(zip(self.dims[name], x.shape, strict=True))
        access = read_by(self.dims[name], e.names)
        if not is_view(access):
            own = {d: n for d, i, n in zip(self.dims[name], access, x.shape, strict=True) if i.axis == d}
            return self.gathered(x, access, e.dims, self.program.sizes | own)
        beyond = [i.leaves(n, sizes) for i, n in zip(access, x.shape, strict=True)]
        if any(map(any, beyond)):
            x = torch.nn.functional.pad(x, [n for ends in reversed(beyond) for n in ends])
        step = dict.fromkeys(e.dims, 0)
        start = x.storage_offset()
        for stride, i, (before, _) in zip(x.stride(), access, beyond, strict=True):
            start += stride * (i.offset + before)
            for axis, c in i.terms:
                assert isinstance(axis, str), "an affine index"
                step[axis] += stride * c
        return x.as_strided([sizes[d] for d in e.dims], list(step.values()), start)

    def gathered(
        self, x: torch.Tensor, access: Access, dims: tuple[str, ...], sizes: Mapping[str, int]
    ) -> torch.Tensor:
        """The elements at the positions of indices."""
        found = _taken(x, [self.position(i, dims, sizes) for i in access])
        return found.expand([sizes[d] for d in dims])

    def position(self, i: Index, dims: tuple[str, ...], sizes: Mapping[str, int]) -> torch.Tensor:
        """The positions that an index has, which broadcast against others along these axes."""
        import torch

        def along(d: str) -> torch.Tensor:
            return torch.arange(sizes[d], device=self.device).reshape([-1 if d == e else 1 for e in dims])

        def looked_up(x: Lookup, at: list[torch.Tensor]) -> torch.Tensor:
            declared = {t.name: t.dims for t in self.program.inputs}[x.table]
            place = dict(zip(declared, at, strict=True))
            return _taken(self.values[x.table], [zero + place[d] for d in self.dims[x.table]])

        zero = torch.zeros([1] * len(dims), dtype=torch.int64, device=self.device)
        return zero + i.value(along, looked_up)

    def argument(self, a: Any, type: str | None, dims: tuple[str, ...] = ()) -> torch.Tensor:
        """An argument, in float64 where the operator computes in floating point, aligned to `dims` where given."""
        import torch

        if not isinstance(a, str):
            whole = type != "float" and number_type(a) == "int"
            return torch.tensor(
                int(a) if whole else float(a), dtype=None if whole else torch.float64, device=self.device
            )
        x = self.values[a]
        if type == "float":
            x = x.double()
        have = self.dims[a]
        return x[tuple(slice(None) if d in have else None for d in dims)] if dims else x

    def output(self, name: str, dims: tuple[str, ...]) -> torch.Tensor:
        have = self.dims[name]
        return self.values[name].double().permute([have.index(d) for d in dims]).contiguous()


def _taken(x: torch.Tensor, at: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements at these positions, 0 where there is none."""
    import torch

    found = x[tuple(p.clamp(0, n - 1) for p, n in zip(at, x.shape, strict=True))]
    for p, n in zip(at, x.shape, strict=True):
        found = torch.where((p < 0) | (p >= n), torch.zeros((), dtype=x.dtype, device=x.device), found)
    return found


def _call(expression: str, *args: torch.Tensor) -> torch.Tensor:
    """The value of a template of OPS, whose text is the table's own."""
    import torch

    return eval(expression, {"torch": torch} | {f"a{i}": x for i, x in enumerate(args)})  # noqa: S307
