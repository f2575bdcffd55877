"""The definition of a program in floating point: a torch operation in float64 for each primitive operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any  # arguments of torch's functions

from mirage_cli.ir.access import Access, Index, Lookup, is_view, read_by
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.op import torch_reduced
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, number_type
from mirage_cli.ir.rewrites.named import Named, by_names
from mirage_cli.ir.scans import TORCH_RECURRENCE, Scan, by_scans
from mirage_cli.verify.facts import independent_axis, where_outputs_lie

if TYPE_CHECKING:
    import torch


def reference64(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The program's outputs in float64: a torch operation for each primitive operator, axes in the program's order."""
    return evaluated(program, lower(program.apart()), inputs)


def evaluated(program: Program, primitive: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """primitive: the program in primitive operators alone."""
    import torch

    evaluation = _Evaluation(by_names(by_scans(primitive)))
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

    from mirage_cli.verify.pieces import Cut, pieces_of

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
        """One equation's value, float64 where it is no mask, with its axes in the program's order."""
        import torch

        row = OPS[e.op]
        sizes = self.program.sizes
        if isinstance(e, Scan):
            return self.scanned(e)
        if isinstance(e, Named):
            return self.by_matrix(e)
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
                return _call(torch_reduced(row, "a0", axes), x)
            case _ if row.cast and row.known == "exactly":
                return self.argument(e.args[0], "float", e.dims)
            case _:
                keep = [row.result == "bool" or (row.result == "branches" and i == 0) for i in range(len(e.args))]
                args = [self.argument(a, None if k else e.type, e.dims) for a, k in zip(e.args, keep, strict=True)]
                return _call(row.torch.format(*(f"a{i}" for i in range(len(args)))), *args)

    def by_matrix(self, e: Named) -> torch.Tensor:
        """A product of rows with a matrix each, a matrix after the other."""
        import torch

        w, x = sorted(e.values, key=lambda v: e.entry not in self.dims[v])
        rows = e.index.dims
        columns = tuple(d for d in self.dims[w] if d not in (e.entry, *e.axes))
        row = self.last(x, (*rows, *e.axes))
        row = row.expand(
            [n if d in e.axes else self.program.sizes[d] for d, n in zip((*rows, *e.axes), row.shape, strict=True)]
        )
        row = row.flatten(0, len(rows) - 1).flatten(1)
        matrices = self.last(w, (e.entry, *e.axes, *columns)).flatten(1, len(e.axes))
        named = self.position(e.index, rows, self.program.sizes).expand([self.program.sizes[d] for d in rows])
        found = row.new_zeros(row.shape[0], *matrices.shape[2:])
        for i in named.unique().tolist():
            if i >= 0:
                at = (named == i).flatten()
                found[at] = torch.tensordot(row[at], matrices[i], 1)
        found, have = found.unflatten(0, named.shape), (*rows, *columns)
        return found.permute([have.index(d) for d in e.dims])

    def scanned(self, e: Scan) -> torch.Tensor:
        """A reduction up to each position."""
        if e.along:
            return self.recurrence(e)
        x, (axis,) = self.argument(e.args[0], e.type), e.axes
        have = self.dims[str(e.args[0])]
        place = have.index(axis)
        found = _call(OPS[e.op].torch_scan.format("a0", place), x.flip(place) if e.back else x)
        made = [e.to if d == axis else d for d in have]
        return (found.flip(place) if e.back else found).permute([made.index(d) for d in e.dims])

    def recurrence(self, e: Scan) -> torch.Tensor:
        """h[t] = decay[t] * h[t - 1] + x[t], or h[t + 1]."""
        import torch

        (axis,), beside = e.axes, tuple(d for d in e.dims if d != e.to)
        assert e.decay is not None, "a recurrence"
        x = torch.ones((), dtype=torch.float64, device=self.device)
        for a in e.factors:
            x = x * self.last(a, (*beside, axis))
        x, decay = torch.broadcast_tensors(x, self.last(e.decay, (*beside, e.along)))
        names: dict[str, Any] = {"torch": torch, "x": x, "decay": decay}
        if e.back:
            names |= {"x": x.flip(-1), "decay": decay.flip(-1)}
        exec(TORCH_RECURRENCE.format(out="x", decay="decay"), names)  # noqa: S102 - a template of our own
        found = names["x"].flip(-1) if e.back else names["x"]
        return found.permute([(*beside, e.to).index(d) for d in e.dims])

    def last(self, a: Any, dims: tuple[str, ...]) -> torch.Tensor:
        """An argument in float64 with these axes, in this order; of one position where it lacks one."""
        x = self.argument(a, "float")
        have = self.dims[a] if isinstance(a, str) else ()
        x = x.permute([have.index(d) for d in dims if d in have])
        return x[tuple(slice(None) if d in have else None for d in dims)]

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
