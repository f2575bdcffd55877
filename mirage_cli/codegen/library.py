"""Library kernels: one `dot` of two tensors in memory, as a function whose torch call hands it to cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirage_cli.codegen.torch_source import axis_letters, permuted
from mirage_cli.codegen.writing import product_text
from mirage_cli.ir.access import Dims
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.program import DTYPE_BYTES, Tensor, unmerged


def buffers_of(kernel: Kernel) -> list[str]:
    """The tensors that the function of a library kernel is given."""
    return list(dict.fromkeys([x.buffer for x in kernel.loads] + [s.buffer for s in kernel.stores]))


def library_kernel(graph: MuGraph, kernel: Kernel, sizes: Mapping[str, int], names: Mapping[str, str]) -> str:
    """The function that runs this kernel. names: what each tensor of the μGraph is called in the text."""
    *operands, out = (names[b] for b in buffers_of(kernel))
    call = library_call(graph, kernel, sizes, names)
    if makes_result(graph, kernel):
        return f"def {kernel.name}({', '.join(operands)}, {out}=None):\n    return {call}"
    return f"def {kernel.name}({', '.join(operands)}, {out}):\n    {call}"


def makes_result(graph: MuGraph, kernel: Kernel) -> bool:
    """Whether the function returns its result where it is given no tensor for it: PyTorch makes one in less time."""
    p = _product(graph, kernel)
    has_strides = bool(graph.tensors()[p.store.buffer].strides)
    if p.groups is None or len(set(p.dtypes)) > 1 or _has_other_shape(graph, p.store) or has_strides:
        return False
    batch, rows, columns, _ = p.groups
    return len(batch) <= 1 == len(rows) == len(columns) and p.store.dims == (*batch, *rows, *columns)


def library_call(graph: MuGraph, kernel: Kernel, sizes: Mapping[str, int], names: Mapping[str, str]) -> str:
    """The statement in that function.

    A product whose batch, row, column and summed axes each lie side by side in memory is a `torch.mm` or `torch.bmm`
    of views that writes the result in place. Any other is an einsum, copied.
    """
    p = _product(graph, kernel)
    a, b, store, dtypes = p.a, p.b, p.store, p.dtypes
    if p.groups is None:
        letters = axis_letters((*a.dims, *b.dims))
        spell = ["".join(letters[d] for d in dims) for dims in (a.dims, b.dims, store.dims)]
        left, right, out = (_seen(graph, x, sizes, names) for x in (a, b, store))
        left, right = _converted([left, right], dtypes)
        return f'{out}.copy_(torch.einsum("{spell[0]},{spell[1]}->{spell[2]}", {left}, {right}))'
    batch, rows, columns, summed = p.groups
    function = "torch.bmm" if batch else "torch.mm"
    left = _matrix(graph, a, (batch, rows, summed), sizes, names)
    right = _matrix(graph, b, (batch, summed, columns), sizes, names)
    result = _matrix(graph, store, (batch, rows, columns), sizes, names)
    if len(set(dtypes)) == 1:
        return f"{function}({left}, {right}, out={result})"
    left, right = _converted([left, right], dtypes)
    return f"{result}.copy_({function}({left}, {right}))"


class _Product(NamedTuple):
    """dtypes: of the operands and of the result. groups: batch, row, column and summed axes, if they lie so."""

    a: Load
    b: Load
    store: Store
    dtypes: tuple[str, ...]
    groups: tuple[Dims, Dims, Dims, Dims] | None


def _product(graph: MuGraph, kernel: Kernel) -> _Product:
    (product,), (store,) = kernel.body, kernel.stores
    loads = {x.out: x for x in kernel.loads}
    a, b = (loads[x] for x in product.values)
    tensors = graph.tensors()
    dtypes = tuple(tensors[x.buffer].dtype for x in (a, b, store))
    groups = _groups(a.dims, b.dims, store.dims, product.axes)
    if groups is not None and any(_has_gaps(tensors[x.buffer], x, g) for x in (a, b) for g in groups):
        groups = None
    return _Product(a, b, store, dtypes, groups)


def _converted(texts: Sequence[str], dtypes: Sequence[str]) -> list[str]:
    """Both operands in the type of the product: their own, where that is one and no narrower than the result's."""
    common = dtypes[0] if dtypes[0] == dtypes[1] and DTYPE_BYTES[dtypes[2]] <= DTYPE_BYTES[dtypes[0]] else "float32"
    return [x if d == common else f"{x}.to(torch.{common})" for x, d in zip(texts, dtypes, strict=False)]


def _groups(a: Dims, b: Dims, out: Dims, axes: Dims) -> tuple[Dims, Dims, Dims, Dims] | None:
    """Batch, row, column and summed axes, if each group is one axis in every tensor that has it."""
    if any(d not in a or d not in b for d in axes):
        return None
    batch = tuple(d for d in out if d in a and d in b)
    rows = tuple(d for d in out if d in a and d not in b)
    columns = tuple(d for d in out if d in b and d not in a)
    summed = tuple(d for d in a if d in axes)
    for dims, groups in ((a, (batch, rows, summed)), (b, (batch, columns, summed)), (out, (batch, rows, columns))):
        if any(not _side_by_side(g, dims) for g in groups):
            return None
    return batch, rows, columns, summed


def _side_by_side(group: Dims, dims: Dims) -> bool:
    return not group or dims[(start := dims.index(group[0])) : start + len(group)] == group


def _has_gaps(t: Tensor, x: Load, group: Dims) -> bool:
    """Whether some of these axes of an operand, but the last, have a stride of their own."""
    own = dict(zip(x.dims, t.own_strides, strict=True))
    return any(own.get(d) is not None for d in group[:-1])


def _has_other_shape(graph: MuGraph, x: Load | Store) -> bool:
    """Whether the tensor is one of the program's, which has the parts of its merged axes. Buffers are our own."""
    dims = graph.tensors()[x.buffer].dims
    return unmerged(dims, graph.merged) != dims and x.buffer not in {t.name for t in graph.buffers}


def _seen(graph: MuGraph, x: Load | Store, sizes: Mapping[str, int], names: Mapping[str, str]) -> str:
    """The tensor with the axes that the μGraph gives it."""
    return _viewed(graph, x, [(d,) for d in x.dims], sizes, names) if _has_other_shape(graph, x) else names[x.buffer]


def _viewed(
    graph: MuGraph, x: Load | Store, groups: Sequence[Dims], sizes: Mapping[str, int], names: Mapping[str, str]
) -> str:
    """The tensor with each of these groups of axes, in memory order, as one. Sizes that differ by call are its own."""
    name, dynamic = names[x.buffer], {r.dim for r in graph.dynamic}
    dims = graph.tensors()[x.buffer].dims
    dims = dims if x.buffer in {t.name for t in graph.buffers} else unmerged(dims, graph.merged)

    def length(group: Dims) -> str:
        given = [f"{name}.shape[{dims.index(d)}]" for d in group if d in dynamic]
        return product_text([*given, *(sizes[d] for d in group if d not in dynamic)])

    return f"{name}.view({', '.join(map(length, groups))})"


def _matrix(
    graph: MuGraph,
    x: Load | Store,
    groups: tuple[Dims, Dims, Dims],
    sizes: Mapping[str, int],
    names: Mapping[str, str],
) -> str:
    """A view of the tensor as (batch, rows, columns), or (rows, columns) where there is no batch."""
    wanted, dims = groups if groups[0] else groups[1:], x.dims
    in_memory = sorted(wanted, key=lambda g: dims.index(g[0]) if g else len(dims))
    text = names[x.buffer]
    if tuple(len(g) for g in in_memory) != (1,) * len(dims) or _has_other_shape(graph, x):
        text = _viewed(graph, x, in_memory, sizes, names)
    return permuted(text, in_memory, [*wanted])
