"""The baselines of attention, PyTorch's and FlashInfer's, where a program's equations are one.

Q, K and V may be computed; the program's own text computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.attention import Attention, Dims, find_attention, without
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
    return _source(program, found, found.heads[0], backend) if found else None


def attention_sources(program: Program) -> dict[str, str]:
    """The same for every backend and, without a mask, every choice of heads. Empty where there is no attention."""
    found = find_attention(program)
    if found is None:
        return {}
    sizes = program.sizes
    choices = [h for h in found.heads if found.positions or prod(sizes[d] for d in h) <= MOST_SHARING]
    return {
        f"{backend}, {','.join(heads)} as heads" if heads else backend: _source(program, found, heads, backend)
        for heads in choices
        for backend in BACKENDS
    }


def flashinfer_sources(program: Program) -> dict[str, str]:
    """What FlashInfer offers for attention of inputs, by heads. Empty where it takes no such shapes."""
    found = find_attention(program)
    inputs, sizes = {t.name for t in program.inputs}, program.sizes
    if found is None or not {*found.values} <= inputs or prod(sizes[d] for d in found.axes[2]) % FLASHINFER_PAGE:
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


def _places(have: Dims, want: Dims) -> tuple[int, ...]:
    return tuple(have.index(d) for d in want)
