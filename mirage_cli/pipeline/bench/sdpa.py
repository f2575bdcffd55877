"""The baselines of attention, PyTorch's and FlashInfer's, where a program's equations are one.

Q, K and V may be computed; the program's own text computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.access import Dims, Lookup, Remainder, atom_index, plain, quotient, read_by
from mirage_cli.ir.attention import Attention, find_attention, without
from mirage_cli.ir.program import Program, Tensor, live_eqns

_SDPA = "attend = torch.nn.functional.scaled_dot_product_attention"


def _always(backend: str) -> str:
    chosen = f"torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{backend})"
    return f"{_SDPA}\n\n\ndef backend():\n    return {chosen}"


BACKENDS = {
    "sdpa": f"from contextlib import nullcontext as backend\n\n{_SDPA}",
    "cudnn": _always("CUDNN_ATTENTION"),
    "flash": _always("FLASH_ATTENTION"),
    "efficient": _always("EFFICIENT_ATTENTION"),
    "math": _always("MATH"),
    "flex": """\
from contextlib import nullcontext as backend
from functools import cache

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

compiled = torch.compile(flex_attention, dynamic=False)


@cache
def causal(queries, keys, device):
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device=device)


def attend(q, k, v, is_causal, scale, enable_gqa):
    mask = causal(q.shape[-2], k.shape[-2], q.device) if is_causal else None
    return compiled(q, k, v, block_mask=mask, scale=scale, enable_gqa=enable_gqa)""",
}
"""What computes attention: the implementation that PyTorch chooses, always a certain one, or FlexAttention compiled."""
FLASHINFER_PAGE = 16
"""Keys of a page of the cache."""
_FLASHINFER = """\
import flashinfer

BATCH, POSITIONS, KEYS, PAGE = {batch}, {positions}, {keys}, {page}


def pack(inputs):
    q, k, v = operands(*inputs)
    q = q.permute{q_order}.reshape{q_shape}.contiguous()
    k = k.permute{k_order}.reshape{k_shape}.contiguous()
    v = v.permute{v_order}.reshape{v_shape}.contiguous()
    return [q, k, v]


def counted(step, device):
    return torch.arange(BATCH + 1, dtype=torch.int32, device=device) * step


def make(packed):
    q, k, v = packed
    workspace = torch.zeros(1 << 28, dtype=torch.uint8, device=q.device)
    pages = torch.arange(k.shape[0], dtype=torch.int32, device=q.device)
    full = torch.full((BATCH,), PAGE, dtype=torch.int32, device=q.device)
    sizes = {q_heads}, {k_heads}, {inner}
    {plan}

    def attention(q, k, v):
        out = wrapper.run(q, (k, v)).reshape{result_shape}
        return out.permute{result_order}.contiguous()

    return attention
"""
_PAGED = """\
import flashinfer
import torch

PAGE = {page}


def pack(inputs):
    q, k, v, table = (inputs[i] for i in {places})
    counts = {counts}
    q = q.permute{q_order}.reshape{q_shape}.contiguous()
    return [q, k.reshape{k_shape}, v.reshape{v_shape}, table, counts]


def make(packed):
    q, k, v, table, counts = packed
    workspace = torch.zeros(1 << 28, dtype=torch.uint8, device=q.device)
    pages = -(-counts // PAGE)
    starts = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).int()
    used = torch.arange(table.shape[1], device=q.device) < pages[:, None]
    last = ((counts - 1) % PAGE + 1).int()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores={shared})
    wrapper.plan(
        starts, table[used].int(), last, {q_heads}, {k_heads}, {inner}, PAGE,
        sm_scale={scale!r}, q_data_type=q.dtype, kv_data_type=k.dtype,
    )

    def attention(q, k, v, table, counts):
        out = wrapper.run(q, (k, v)).reshape{result_shape}
        return out.permute{result_order}.contiguous()

    return attention
"""
"""Over a cache that is in pages already, of which a table has a list for each row; planned for the lengths at hand, as
a server plans each step."""
_FLASHINFER_PLANS = {
    "flashinfer prefill": """\
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        counted(POSITIONS, q.device), counted(KEYS // PAGE, q.device), pages, full, *sizes, PAGE,
        causal={causal}, sm_scale={scale!r}, q_data_type=q.dtype, kv_data_type=k.dtype,
    )""",
    "flashinfer decode": """\
wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores={shared})
    wrapper.plan(
        counted(KEYS // PAGE, q.device), pages, full, *sizes, PAGE,
        sm_scale={scale!r}, q_data_type=q.dtype, kv_data_type=k.dtype,
    )""",
}
"""Both over a paged cache, the keys and values of which are written in its layout beforehand, as a server has them. The
second is for one position alone."""
MOST_SHARING = 64
"""Query heads that may share a head of keys. An axis that is longer counts positions."""


def sdpa_source(program: Program, backend: str = "sdpa") -> str | None:
    """Module text with `make(inputs)`, which gives what a PyTorch user would call; None where there is no attention.

    backend: of BACKENDS.
    """
    found = find_attention(program)
    return _source(program, found, found.heads[0], backend) if found and found.lengths is None else None


def attention_sources(program: Program) -> dict[str, str]:
    """The same for every backend and, without a mask, every choice of heads. Empty where there is no attention."""
    found = find_attention(program)
    if found is None or found.lengths is not None:
        return {}
    sizes = program.sizes
    choices = [h for h in found.heads if found.positions or prod(sizes[d] for d in h) <= MOST_SHARING]
    return {
        f"{backend}, {','.join(heads)} as heads" if heads else backend: _source(program, found, heads, backend)
        for heads in choices
        for backend in BACKENDS
    }


def flashinfer_sources(program: Program) -> dict[str, str]:
    """What FlashInfer offers for attention of inputs, by heads, or of pages that a table lists. Empty where it takes no
    such shapes."""
    found = find_attention(program)
    inputs, sizes = {t.name for t in program.inputs}, program.sizes
    if found is not None and (pages := _pages(program, found)) is not None:
        calls = {heads: _Call.of(found, heads) for heads in found.heads}
        alone = {heads: c for heads, c in calls.items() if prod(sizes[d] for d in c.positions) == 1}
        return {
            f"flashinfer pages, {','.join(h)} as heads": _paged_source(program, found, c, pages)
            for h, c in alone.items()
        }
    if (
        found is None
        or found.lengths is not None
        or not {*found.values} <= inputs
        or prod(sizes[d] for d in found.axes[2]) % FLASHINFER_PAGE
    ):
        return {}
    sources: dict[str, str] = {}
    for heads in found.heads:
        call = _Call.of(found, heads)
        if prod(sizes[d] for d in call.sharing) > MOST_SHARING * prod(sizes[d] for d in call.heads):
            continue
        for name, plan in _FLASHINFER_PLANS.items():
            if "decode" not in name or prod(sizes[d] for d in call.positions) == 1:
                which = f"{name}, {','.join(heads)} as heads" if heads else name
                sources[which] = _flashinfer_source(program, found, call, plan)
    return sources


@dataclass(frozen=True, slots=True)
class _Pages:
    """The inputs that hold keys and values in pages, and the table of the pages of each row; positions of a page."""

    caches: tuple[str, str]
    table: str
    page: int


def _pages(program: Program, found: Attention) -> _Pages | None:
    """Pages that `K[P[b, s // page], s % page, heads, d]` reads, of keys and values alike; None where they do not."""
    read = {e.out: e for e in program.eqns if e.op == "rename"}
    dims = {t.name: t.dims for t in program.inputs}
    places: set[tuple[str, int]] = set()
    caches: list[str] = []
    (s, *more), heads = found.axes[2], found.axes[0][1:]
    for value, last in ((found.values[1], found.axes[3]), (found.values[2], found.axes[4])):
        e = read.get(value)
        if e is None or e.values[0] not in dims or more or len(found.axes[0]) < 2 or found.values[0] not in dims:
            return None
        page, place, *rest = read_by(dims[e.values[0]], e.names)
        a, b = (i.terms[0][0] if len(i.terms) == 1 and i == atom_index(i.terms[0][0]) else None for i in (page, place))
        if not (
            isinstance(a, Lookup) and isinstance(b, Remainder) and b.of.axis == s and rest == [*plain((*heads, *last))]
        ):
            return None
        if a.access != (*plain(found.axes[0][:1]), quotient(b.of, b.by)):
            return None
        places.add((a.table, b.by))
        caches.append(e.values[0])
    ((table, size), *others) = places
    return None if others else _Pages((caches[0], caches[1]), table, size)


@dataclass(frozen=True, slots=True)
class _Call:
    """How the axes of attention become those of a call: batch, query heads, key heads and positions."""

    lead: Dims
    sharing: Dims
    heads: Dims
    positions: Dims

    @staticmethod
    def of(found: Attention, shared: Dims) -> _Call:
        """shared: the axes of the queries that are heads which share keys."""
        batch, rows = found.axes[:2]
        lead, heads = (batch[:1], batch[1:]) if len(batch) > 1 else ((), batch)
        return _Call(lead, heads + shared, heads, without(rows, shared))


def _operands(program: Program, found: Attention, groups: Iterable[tuple[Dims, ...]]) -> tuple[str, list[Tensor]]:
    """The text of `operands(*inputs)`, which gives Q, K and V, and these. groups: the axes of computed ones."""
    inputs = {t.name: t.dims for t in program.inputs}
    tensors = [Tensor(v, inputs.get(v, sum(g, ())), program.dtype) for v, g in zip(found.values, groups, strict=True)]
    eqns = tuple(live_eqns(program.eqns, found.values))
    operands = Program(program.name, program.dims, program.dtype, program.inputs, eqns, tuple(tensors))
    return f"import torch\n\n\n{torch_source(operands, 'operands')}", tensors


def _source(program: Program, found: Attention, shared: Dims, backend: str) -> str:
    """A call of PyTorch's attention. shared: the axes of the queries that are heads which share keys."""
    keys, inner, outer = found.axes[2:]
    call = _Call.of(found, shared)
    lead, sharing, heads, positions = call.lead, call.sharing, call.heads, call.positions
    groups = (lead, sharing, positions, inner), (lead, heads, keys, inner), (lead, heads, keys, outer)
    source, tensors = _operands(program, found, groups)
    sizes = program.sizes
    lines = ["q, k, v = operands(*inputs)"]
    for name, t, g in zip("qkv", tensors, groups, strict=True):
        shape = tuple(prod(sizes[d] for d in dims) for dims in g)
        lines.append(f"{name} = {name}.permute{_places(t.dims, sum(g, ()))}.reshape{shape}")
        lines.append(f"{name} = {name} if {name}.stride(-1) == 1 else {name}.contiguous()")
    options = f"is_causal={bool(found.positions)}, scale={found.scale!r}, enable_gqa={sharing != heads}"
    result = (*lead, *sharing, *positions, *outer)
    lines.append("with backend():")
    lines.append(f"    out = attend(q, k, v, {options})")
    lines.append(f"out = out.reshape{tuple(sizes[d] for d in result)}")
    lines.append(f"return out.permute{_places(result, program.outputs[0].dims)}.contiguous()")
    body = "\n        ".join(["def attention(*inputs):", *lines])
    return f"{source}\n\n{BACKENDS[backend]}\n\n\ndef make(inputs):\n    {body}\n\n    return attention\n"


def _flashinfer_source(program: Program, found: Attention, call: _Call, plan: str) -> str:
    keys, inner, outer = found.axes[2:]
    groups = (
        (call.lead, call.positions, call.sharing, inner),
        (call.lead, keys, call.heads, inner),
        (call.lead, keys, call.heads, outer),
    )
    source, tensors = _operands(program, found, groups)
    sizes = program.sizes

    def size(dims: Dims) -> int:
        return prod(sizes[d] for d in dims)

    batch, pages = size(call.lead), size(call.lead) * size(keys) // FLASHINFER_PAGE
    shapes = (
        (batch * size(call.positions), size(call.sharing), size(inner)),
        (pages, FLASHINFER_PAGE, size(call.heads), size(inner)),
        (pages, FLASHINFER_PAGE, size(call.heads), size(outer)),
    )
    result = (*call.lead, *call.positions, *call.sharing, *outer)
    orders = [_places(t.dims, sum(g, ())) for t, g in zip(tensors, groups, strict=True)]
    text = _FLASHINFER.format(
        batch=batch,
        positions=size(call.positions),
        keys=size(keys),
        page=FLASHINFER_PAGE,
        **{f"{name}_order": order for name, order in zip("qkv", orders, strict=True)},
        **{f"{name}_shape": shape for name, shape in zip("qkv", shapes, strict=True)},
        q_heads=size(call.sharing),
        k_heads=size(call.heads),
        inner=size(inner),
        plan=plan.format(causal=bool(found.positions), scale=found.scale, shared=call.sharing != call.heads),
        result_shape=tuple(sizes[d] for d in result),
        result_order=_places(result, program.outputs[0].dims),
    )
    return f"{source}\n\n{text}"


def _paged_source(program: Program, found: Attention, call: _Call, pages: _Pages) -> str:
    sizes, inputs = program.sizes, {t.name: (i, t) for i, t in enumerate(program.inputs)}

    def size(dims: Dims) -> int:
        return prod(sizes[d] for d in dims)

    names = (found.values[0], *pages.caches, pages.table)
    result = (*call.lead, *call.positions, *call.sharing, *found.axes[4])
    count, table_dims = sizes[found.axes[2][0]], inputs[pages.table][1].dims
    counts = f"torch.full(({sizes[table_dims[0]]},), {count}, device=table.device)"
    if found.lengths is not None:
        counts = f"(inputs[{inputs[found.lengths[0]][0]}].long() + {found.lengths[1]}).clamp(max={count})"
    caches = [inputs[c][1].dims for c in pages.caches]
    return _PAGED.format(
        page=pages.page,
        places=tuple(inputs[n][0] for n in names),
        counts=counts,
        q_order=_places(inputs[names[0]][1].dims, (*call.lead, *call.positions, *call.sharing, *found.axes[3])),
        q_shape=(size(call.lead), size(call.sharing), size(found.axes[3])),
        k_shape=(sizes[caches[0][0]], pages.page, size(call.heads), size(found.axes[3])),
        v_shape=(sizes[caches[1][0]], pages.page, size(call.heads), size(found.axes[4])),
        q_heads=size(call.sharing),
        k_heads=size(call.heads),
        inner=size(found.axes[3]),
        scale=found.scale,
        shared=call.sharing != call.heads,
        result_shape=tuple(sizes[d] for d in result),
        result_order=_places(result, program.outputs[0].dims),
    )


def _places(have: Dims, want: Dims) -> tuple[int, ...]:
    return tuple(have.index(d) for d in want)
