"""Functions and modules as model authors write them, at small and odd sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # which defines operators
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.torch_blocks import BLOCKS
from tests.torch_models import MODELS

R = torch.randn
quantisation = torch.ops.quantized_decomposed


def BYTES(*shape: int) -> torch.Tensor:  # noqa: N802
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def SIGNS(*shape: int) -> torch.Tensor:  # noqa: N802
    """Sums of which bfloat16 has."""
    return torch.randint(-1, 2, shape).to(F8)


F8 = torch.float8_e4m3fn
SHARED = torch.randint(120, 135, (6, 4), dtype=torch.uint8)
"""Exponents of powers of two, each of which numbers share."""


class Attention(nn.Module):
    """Self-attention on one packed projection."""

    def __init__(self, width: int = 32, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


def rope_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def rope_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def rope_written(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return y


def wavelet(x: torch.Tensor) -> torch.Tensor:
    """The inverse of Haar's."""
    a, h, v, d = x.chunk(4, 1)
    b, c, m, n = a.shape
    y = x.new_zeros(b, c, 2 * m, 2 * n)
    y[:, :, 0::2, 0::2] = a - h - v + d
    y[:, :, 1::2, 0::2] = a - h + v - d
    y[:, :, 0::2, 1::2] = a + h - v - d
    y[:, :, 1::2, 1::2] = a + h + v + d
    return y


def one_turn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[:, 1::3] = y[:, 1::3] * 2
    made[:, 2::3] += 1
    made[:, :, :2] = 0
    return made.cumsum(1)


def fp4(packed: torch.Tensor, shared: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x · Wᵀ, of weights that are two in a byte, of 32 with one power of two."""
    w = torch.empty(*packed.shape[:2], 32)
    w[..., 0::2] = values[(packed & 15).int()]
    w[..., 1::2] = values[(packed >> 4).int()]
    return x @ torch.ldexp(w, (shared.int() - 127)[..., None]).flatten(1).T


class GatedMlp(nn.Module):
    def __init__(self, width: int = 32, inner: int = 48) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of 8 bits, with a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def dequantised(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """A linear layer as PyTorch's quantisation of exported models leaves it."""
    bounds = -128, 127, torch.int8
    x = quantisation.dequantize_per_tensor(quantisation.quantize_per_tensor(x, 0.02, 3, *bounds), 0.02, 3, *bounds)
    return F.linear(x, quantisation.dequantize_per_channel(w, scales, zeros, 0, *bounds))


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = nn.Linear(32, 24), nn.Linear(32, 4, bias=False), nn.Linear(4, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x) + 2.0 * self.b(self.a(x))


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.b(F.relu(self.a(x.mean((2, 3))))))[:, :, None, None]


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(32), Attention(), nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GroupedAttention(nn.Module):
    """Queries in groups, a key and value head for each, RoPE, a mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(32, 32, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(32, 16, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = rope_halves(self.q(x).view(b, t, 4, 8).transpose(1, 2), cos, sin)
        k = rope_halves(self.k(x).view(b, t, 2, 8).transpose(1, 2), cos, sin)
        v = self.v(x).view(b, t, 2, 8).transpose(1, 2)
        k, v = (y[:, :, None].expand(b, 2, 2, t, 8).reshape(b, 4, t, 8) for y in (k, v))
        scores = q @ k.transpose(2, 3) / 8**0.5 + torch.full((t, t), -math.inf).triu(1)
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, 32))


def adam(p: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m, v = 0.9 * m + 0.1 * grad, 0.99 * v + 0.01 * grad * grad
    return p - 0.1 * m / (torch.sqrt(v) + 1e-8), m, v


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    distance = torch.arange(6)[None, :] - torch.arange(6)[:, None]
    return torch.softmax(q @ k.mT / 8**0.5 + slope[:, None, None] * distance, -1) @ v


def expanded_beside_two(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The axis along which x is constant is taken beside two axes that one tensor has both of."""
    wide = x.expand(4, 4)
    return wide + y, y @ v + wide


def relative_places(table: torch.Tensor) -> torch.Tensor:
    """Rows of a table by how far two places of a picture are apart, the first place apart from all, as in BEiT."""
    at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")).flatten(1)
    apart = (at[:, :, None] - at[:, None]).permute(1, 2, 0).contiguous()
    apart[:, :, 0] += 1
    apart[:, :, 1] += 2
    apart[:, :, 0] *= 5
    rows = torch.zeros((7, 7), dtype=apart.dtype)
    rows[1:, 1:] = apart.sum(-1)
    rows[0, 0:] = 15
    rows[0:, 0] = 16
    return table[rows.view(-1)].view(7, 7, -1).permute(2, 0, 1)


def masked_softmax(x: torch.Tensor) -> torch.Tensor:
    upper = torch.ones(5, 5, dtype=torch.bool).tril().logical_not()
    return x.masked_fill(upper, -math.inf).softmax(-1)


def heads(*shape: int) -> tuple[torch.Tensor, ...]:
    return tuple(R(*shape) for _ in range(3))


CASES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "silu": (F.silu, (R(4, 7),)),
    "cross": (lambda a, b: torch.linalg.cross(a, b, dim=1), (R(4, 3, 2), R(4, 3, 1))),
    "gelu": (F.gelu, (R(4, 7),)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (R(4, 7),)),
    "softplus": (F.softplus, (R(4, 7) * 10,)),
    "mish": (F.mish, (R(4, 7),)),
    "elu": (F.elu, (R(4, 7),)),
    "celu": (F.celu, (R(4, 7),)),
    "selu": (F.selu, (R(4, 7),)),
    "hardswish": (F.hardswish, (R(4, 7) * 3,)),
    "hardtanh": (F.hardtanh, (R(4, 7),)),
    "relu6": (F.relu6, (R(4, 7) * 5,)),
    "leaky_relu": (F.leaky_relu, (R(4, 7),)),
    "prelu": (F.prelu, (R(4, 7), R(1))),
    "logsigmoid": (F.logsigmoid, (R(4, 7) * 10,)),
    "tanhshrink": (F.tanhshrink, (R(4, 7),)),
    "softsign": (F.softsign, (R(4, 7),)),
    "glu": (lambda x: F.glu(x, -1), (R(4, 8),)),
    "clamp_and_power": (lambda x: x.clamp(-1, 1) ** 3, (R(4, 7),)),
    "one_minus": (lambda x: 1 - x, (R(4, 7),)),
    "softmax": (lambda x: torch.softmax(x, -1), (R(4, 7),)),
    "log_softmax": (lambda x: F.log_softmax(x, 1), (R(4, 7),)),
    "masked_softmax": (masked_softmax, (R(2, 5, 5),)),
    "layer_norm": (nn.LayerNorm(12), (R(3, 5, 12),)),
    "rms_norm": (nn.RMSNorm(12), (R(3, 5, 12),)),
    "group_norm": (nn.GroupNorm(2, 6), (R(2, 6, 4, 3),)),
    "instance_norm": (nn.InstanceNorm2d(6), (R(2, 6, 4, 3),)),
    "batch_norm": (nn.BatchNorm2d(6), (R(2, 6, 4, 3),)),
    "batch_norm_of_rows": (nn.BatchNorm1d(6), (R(5, 6),)),
    "batch_norm_in_training": (lambda x: F.batch_norm(x, None, None, training=True), (R(5, 6, 3),)),
    "variance": (lambda x: (x.var(-1), x.std(0, unbiased=False)), (R(4, 7),)),
    "norm": (lambda x: x / x.norm(dim=-1, keepdim=True), (R(4, 7),)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (R(4, 7),)),
    "cosine_similarity": (F.cosine_similarity, (R(4, 7), R(4, 7))),
    "between_extremes": (lambda x: (x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True)), (R(4, 7),)),
    "linear": (nn.Linear(7, 5), (R(3, 7),)),
    "addmm": (torch.addmm, (R(5), R(4, 7), R(7, 5))),
    "gated_mlp": (GatedMlp(), (R(3, 5, 32),)),
    "lora": (Lora(), (R(3, 32),)),
    "bilinear": (lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y), (R(3, 4), R(5, 4, 6), R(3, 6))),
    "einsum": (lambda a, b: torch.einsum("bhqd,bkhd->bhqk", a, b), (R(2, 3, 4, 5), R(2, 6, 3, 5))),
    "lower_triangle": (lambda x: torch.tril(x) @ x, (R(5, 5),)),
    "with_its_transpose": (lambda x: x @ x.T + x + x.T, (R(5, 5),)),
    "differences_of_all_pairs": (lambda x: torch.tril(torch.exp(x[:, :, None] - x[:, None, :])), (R(2, 5),)),
    "backwards": (lambda x: x.flip(1) * x, (R(4, 7),)),
    "batch_norm_that_all_see": (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Softmax(-1)).eval(),
        (R(4, 5),),
    ),
    "gram": (lambda x: x.T @ x, (R(7, 5),)),
    "expanded_beside_two": (expanded_beside_two, (R(4, 1), R(4, 4), R(4, 4))),
    "attention": (Attention(), (R(2, 6, 32),)),
    "attention_of_all": (Attention(causal=False), (R(2, 6, 32),)),
    "attention_with_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8), R(5, 7)),
    ),
    "attention_in_groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3),
        (R(2, 6, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8)),
    ),
    "attention_with_rope": (GroupedAttention(), (R(2, 6, 32), R(6, 8), R(6, 8))),
    "attention_with_alibi": (alibi, (*heads(2, 4, 6, 8), R(4))),
    "attention_with_softcap": (
        lambda q, k, v: torch.softmax(30 * torch.tanh(q @ k.mT / 30), -1) @ v,
        heads(2, 3, 6, 8),
    ),
    "linear_attention": (lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v), heads(2, 3, 6, 8)),
    "multihead_attention": (nn.MultiheadAttention(16, 4, batch_first=True), heads(2, 5, 16)),
    "rope_of_halves": (rope_halves, (R(2, 4, 5, 8), R(5, 8), R(5, 8))),
    "rope_of_pairs": (rope_pairs, (R(2, 4, 5, 8), R(5, 4), R(5, 4))),
    "block": (Block(), (R(2, 5, 32),)),
    "conv_block": (ConvBlock(), (R(2, 4, 6, 5),)),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1), (R(2, 6, 5, 5),)),
    "conv_with_stride": (nn.Conv2d(4, 6, 3, stride=2), (R(2, 4, 9, 9),)),
    "conv_of_one_place": (nn.Conv2d(4, 6, 1), (R(2, 4, 5, 5),)),
    "conv_of_a_line": (nn.Conv1d(4, 6, 3, padding=1, dilation=2), (R(2, 4, 9),)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (R(2, 3, 8, 8),)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), (R(2, 3, 8, 8),)),
    "pool_of_all": (lambda x: F.adaptive_avg_pool2d(x, 1), (R(2, 3, 8, 8),)),
    "squeeze_excite": (SqueezeExcite(), (R(2, 8, 3, 3),)),
    "unfold": (lambda x: x.unfold(1, 3, 1).mean(-1), (R(2, 9),)),
    "roll": (lambda x: torch.roll(x, 2, -1) + x, (R(4, 7),)),
    "pad": (lambda x: F.pad(x, (1, 2)) * 2, (R(4, 7),)),
    "shift": (lambda x: torch.cat([x[:, 1:], torch.zeros(2, 1, 4)], 1) + x, (R(2, 5, 4),)),
    "relative_places": (relative_places, (R(17, 2),)),
    "functions_of_numbers": (
        lambda x: x / torch.sqrt(torch.tensor(x.size(-1) * 3.0)) + torch.log(torch.full((7,), 3.0)),
        (R(4, 7),),
    ),
    "mse_loss": (F.mse_loss, (R(4, 7), R(4, 7))),
    "l1_loss": (F.l1_loss, (R(4, 7), R(4, 7))),
    "huber_loss": (F.huber_loss, (R(4, 7), R(4, 7) * 3)),
    "smooth_l1_loss": (F.smooth_l1_loss, (R(4, 7), R(4, 7) * 3)),
    "cross_entropy_of_bits": (F.binary_cross_entropy_with_logits, (R(4, 7), torch.rand(4, 7))),
    "cross_entropy": (F.cross_entropy, (R(4, 7), torch.tensor([3, 0, -100, 6]))),
    "cross_entropy_of_pictures": (
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        (R(2, 5, 3, 2), torch.randint(0, 5, (2, 3, 2))),
    ),
    "embedding": (nn.Embedding(10, 6), (torch.randint(0, 10, (3, 4)),)),
    "embedding_and_norm": (nn.Sequential(nn.Embedding(10, 6), nn.LayerNorm(6)), (torch.randint(0, 10, (3, 4)),)),
    "attention_with_a_mask_of_bits": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8), torch.rand(5, 7) > 0.3),
    ),
    "adam": (adam, (R(4, 7), R(4, 7), R(4, 7), torch.rand(4, 7))),
    "gru": (nn.GRUCell(6, 5), (R(3, 6), R(3, 5))),
    "rnn": (nn.RNNCell(6, 5), (R(3, 6), R(3, 5))),
    "mask": (lambda x: x > 0.5, (R(4, 7),)),
    "mask_of_a_transposed_view": (lambda x: (x.T > 0) & ~torch.isnan(x.T), (R(4, 7),)),
    "mask_of_a_mask": (lambda x, m: m & (x.sum(-1) > 0), (R(4, 7), torch.rand(4) > 0.5)),
    "any_and_all": (lambda x: ((x > 1).any(-1), (x > -1).all(0)), (R(4, 7),)),
    "argmax": (lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), (R(4, 7),)),
    "maximum_and_place": (lambda x: x.max(1), (R(4, 7),)),
    "topk": (lambda x: x.topk(3), (R(4, 9),)),
    "rows_of_each": (
        lambda x, w: x[torch.arange(4)[:, None], (x @ w).topk(2)[1]].view(2, 2, 2, 8) + 1,
        (R(4, 6, 8), R(8)),
    ),
    "rows_of_each_written": (
        lambda x, w, v: (x + 1).index_put((torch.arange(4)[:, None], (x @ w).topk(2)[1]), v),
        (R(4, 6, 8), R(8), R(4, 2, 8)),
    ),
    "rows_of_each_added_to": (
        lambda x, i, v: (x + 1).index_put((i, torch.arange(6)[:, None, None]), v, accumulate=True),
        (R(4, 6, 8), torch.randint(0, 4, (6, 2, 3)), R(6, 2, 3, 1)),
    ),
    "softmax_of_equal_numbers": (
        lambda x: (x[:, :1].expand(4, 7).softmax(-1) * x + x.new_zeros(7).softmax(0), x.new_zeros(4, 1).softmax(0) + x),
        (R(4, 7),),
    ),
    "logits": (lambda x, w: (x @ w).argmax(-1), (R(4, 7), R(7, 9))),
    "count": (lambda x: (x > 0).sum(-1), (R(4, 7),)),
    "count_of_all": (lambda x: (x > 0).sum(), (R(4, 7),)),
    "bucket": (lambda x: (x[:, None] > torch.linspace(-1, 1, 5)).sum(-1), (R(9),)),
    "keys_that_a_length_and_the_order_keep": (
        lambda q, k, n: (
            (q @ k.mT) * ((torch.arange(5)[:, None] >= torch.arange(5)) & (torch.arange(5) < n[:, None, None]))
        ),
        (R(2, 5, 8), R(2, 5, 8), torch.tensor([2, 5])),
    ),
    "quantised": (quantised, (R(4, 32),)),
    "bytes_multiplied": (  # SmoothQuant's layer
        lambda x, w, s, t: torch._int_mm(x, w.t()).view(4, 5, 24) * s * t,
        (BYTES(20, 2048), BYTES(24, 2048), torch.rand(4, 5, 1), torch.rand(24) / 2048),
    ),
    "bytes_multiplied_and_whole": (lambda x, w: (torch._int_mm(x, w) - 1) / 3, (BYTES(20, 32), BYTES(32, 24))),
    "float8_multiplied": (
        lambda x, w, s, t, b: torch._scaled_mm(x, w.T, s, t, b, out_dtype=torch.bfloat16),
        (
            SIGNS(16, 32),
            SIGNS(48, 32),
            0.5 ** torch.arange(16.0)[:, None],
            torch.ones(1, 48),
            torch.zeros(48).bfloat16(),
        ),
    ),
    "float8_multiplied_with_a_scale_for_all": (
        lambda x, w, s, t: torch._scaled_mm(x, w.T, s, t, out_dtype=torch.float32) * 2,
        (R(16, 32).to(F8), R(48, 32).to(F8), torch.rand(()), torch.rand(())),
    ),
    "numbers_in_microscaling_formats": (fp4, (BYTES(6, 4, 16).view(torch.uint8), SHARED, R(16), R(3, 128))),
    "powers_of_two": (lambda x, n: torch.ldexp(x, n), (R(4, 7), torch.tensor([-3, 0, 7, 1, 2, -9, 4]))),
    "times_a_logarithm": (
        lambda x: torch.special.xlog1py(x, x.abs()) + torch.special.xlog1py(x * 0, x - 1),
        (R(4, 7),),
    ),
    "written_in_turns": (rope_written, (R(2, 5, 3, 8), R(5, 1, 4), R(5, 1, 4))),
    "written_in_turns_of_both": (wavelet, (R(2, 12, 3, 5),)),
    "one_turn_of_three_written": (one_turn, (R(2, 6, 5), R(2, 6, 5))),
    "packed_bytes": (
        lambda x, w, s: torch._weight_int8pack_mm(x, w, s),
        (R(4, 64), BYTES(32, 64), torch.rand(32)),
    ),
    "decomposed_quantisation": (dequantised, (R(4, 32), BYTES(24, 32), torch.rand(24), torch.zeros(24).long())),
    "truncated": (lambda x: (x * 10).to(torch.int32), (R(4, 7),)),
    "truncated_and_on": (lambda x: (x * 10).to(torch.int32) + torch.arange(7), (R(4, 7),)),
    "clamped_to_whole_numbers": (lambda x: (x * 10).clamp(-9, 9).long() * 3, (R(4, 7),)),
    "a_mask_beside_numbers": (lambda x: (x * 2, x > 0, x.argmax(-1)), (R(4, 7),)),
    **BLOCKS,
    **MODELS,
    "memory_by_strides": (
        lambda x: (
            torch.as_strided(x * 2, (2, 2, 3, 4), (8, 4, 4, 1), 4),  # windows that overlap
            torch.as_strided(x.T + 1, (3, 2), (1, 10), 2),
            torch.as_strided(x - 1, (5, 2, 3), (5, 0, 1), 1),  # rows that begin anywhere
        ),
        (R(4, 8),),
    ),
    "copied_to_memory_of_its_own": (
        lambda x: torch.ops.aten.copy(torch.ops.aten.new_empty_strided(x, (4, 7), (1, 4)), x.exp()) * 2,
        (R(4, 7),),
    ),
    "attention_of_one": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads(2, 3, 1, 8)),
}
"""By name: what is traced, and its inputs."""
