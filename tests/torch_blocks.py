"""Blocks of models as their authors write them, in several styles, at small and odd sizes. Nothing here was written
for what traces it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

torch.manual_seed(0)
R = torch.randn

# -- rotary embeddings, positions and biases


class Rotary(nn.Module):
    """Halves, with tables made of the positions: as in Llama's code."""

    def __init__(self, dim: int = 8, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = torch.arange(x.shape[-2], device=x.device, dtype=self.inv_freq.dtype)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()


def rope_neighbours(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours as rotations of the plane: as in GPT-J's and lucidrains' code."""
    x = x.unflatten(-1, (-1, 2))
    x1, x2 = x.unbind(-1)
    cos, sin = freqs.cos(), freqs.sin()
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


def partial_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Only the first elements of each head are turned: as in GPT-NeoX."""
    n = cos.shape[-1]
    rot, keep = x[..., :n], x[..., n:]
    a, b = rot.split(n // 2, dim=-1)
    return torch.cat((rot * cos + torch.cat((-b, a), -1) * sin, keep), -1)


class T5Bias(nn.Module):
    """Relative positions in buckets, whose numbers are computed."""

    def __init__(self, heads: int = 3, buckets: int = 8, far: int = 20) -> None:
        super().__init__()
        self.buckets, self.far = buckets, far
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, relative: torch.Tensor) -> torch.Tensor:
        n = self.buckets // 2
        found = (relative > 0).long() * n
        distance = relative.abs()
        exact = n // 2
        large = torch.log(distance.float() / exact) / math.log(self.far / exact) * (n - exact)
        large = torch.min(exact + large.to(torch.long), torch.full_like(distance, n - 1))
        return found + torch.where(distance < exact, distance, large)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        q, k = scores.shape[-2:]
        relative = torch.arange(k)[None, :] - torch.arange(q)[:, None]
        return (scores + self.bias(self.bucket(relative)).permute(2, 0, 1).unsqueeze(0)).softmax(-1)


class Alibi(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)]))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        t = q.size(2)
        pos = torch.arange(t)
        bias = (pos.view(1, -1) - pos.view(-1, 1)).clamp(max=0) * self.slopes.view(-1, 1, 1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5 + bias
        return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(mask, float("-inf")).softmax(dim=-1), v)


class Positions(nn.Module):
    """GPT-2's embeddings: of tokens, and of positions that are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 6), nn.Embedding(9, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        pos = torch.arange(0, tokens.size(1), dtype=torch.long, device=tokens.device).unsqueeze(0)
        return self.wte(tokens) + self.wpe(pos)


class OffsetPositions(nn.Module):
    """OPT's and BART's: two more than the position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x + self.table(positions + 2)


# -- attention


class QkNorm(nn.Module):
    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q = self.to_q(x).reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)
        k, v = self.to_kv(x).reshape(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


def sliding_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = 3) -> torch.Tensor:
    i = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
    j = torch.arange(k.shape[-2], device=q.device).unsqueeze(0)
    mask = (j <= i) & (i - j < window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def window_and_first_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = 2) -> torch.Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    behind = i[:, None] - i[None]
    mask = ((behind >= 0) & (behind < window)) | ((i[None] < 1) & (behind >= 0))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class WindowAttention(nn.Module):
    """Swin's: windows of a picture, shifted, with a bias for each pair of places in a window."""

    def __init__(self, dim: int = 8, window: int = 2, heads: int = 2, shift: int = 1) -> None:
        super().__init__()
        self.window, self.heads, self.shift = window, heads, shift
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(R(heads, window * window, window * window))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        m = self.window
        x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x.view(b, h // m, m, w // m, m, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, m * m, c)
        n = x.shape[0]
        qkv = self.qkv(x).reshape(n, m * m, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1) + self.bias.unsqueeze(0)
        x = self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(n, m * m, c))
        x = x.view(b, h // m, w // m, m, m, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c)
        return torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))


class PatchMerging(nn.Module):
    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class VitEmbedding(nn.Module):
    def __init__(self, width: int = 12, patch: int = 3, side: int = 9) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(R(1, 1, width))
        self.pos = nn.Parameter(R(1, (side // patch) ** 2 + 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos


class ViTHead(nn.Module):
    """From the class token alone, behind a block over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = VitEmbedding(), nn.LayerNorm(12), nn.Linear(12, 5)
        self.attn = QkNorm(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + self.attn(self.norm(x))
        return self.head(self.norm(x)[:, 0])


class LatentAttention(nn.Module):
    """DeepSeek's: keys and values of one small latent, and a part of each head with positions that all heads share."""

    def __init__(self, width: int = 24, heads: int = 3, latent: int = 10, plain: int = 6, rope: int = 4) -> None:
        super().__init__()
        self.heads, self.plain, self.rope = heads, plain, rope
        self.q = nn.Linear(width, heads * (plain + rope), bias=False)
        self.down, self.norm = nn.Linear(width, latent + rope, bias=False), nn.RMSNorm(latent)
        self.up = nn.Linear(latent, heads * 2 * plain, bias=False)
        self.latent = latent

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        q_plain, q_rope = q.split([self.plain, self.rope], dim=-1)
        latent, k_rope = self.down(x).split([self.latent, self.rope], dim=-1)
        kv = self.up(self.norm(latent)).view(b, t, self.heads, -1).transpose(1, 2)
        k_plain, v = kv.chunk(2, dim=-1)
        q_rope, k_rope = rotate(q_rope, cos, sin), rotate(k_rope.unsqueeze(1), cos, sin)
        q = torch.cat([q_plain, q_rope], dim=-1)
        k = torch.cat([k_plain, k_rope.expand(-1, self.heads, -1, -1)], dim=-1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class CrossAttention(nn.Module):
    def __init__(self, dim: int = 16, context: int = 10, heads: int = 2) -> None:
        super().__init__()
        self.h = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(context, dim), nn.Linear(context, dim)

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.h, -1)) for t in (self.q(x), self.k(y), self.v(y)))
        w = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
        w = w.masked_fill(~mask[:, None, None, :], torch.finfo(w.dtype).min)
        return torch.einsum("bhqk,bkhd->bqhd", w.softmax(-1), v).flatten(-2)


def retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """RetNet's, with a decay by distance."""
    n = torch.arange(q.size(2), device=q.device)
    d = n[:, None] - n[None, :]
    decay = torch.where(d >= 0, gamma[:, None, None] ** d.clamp(min=0), torch.zeros(()))
    return (q @ k.transpose(-1, -2) * decay) @ v


# -- gates, norms, experts


class Gated(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], width: int = 12, inner: int = 20) -> None:
        super().__init__()
        self.act, self.wi, self.wo = act, nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.wi(x).chunk(2, dim=-1)
        return self.wo(self.act(gate) * value)


class LayerScale(nn.Module):
    def __init__(self, dim: int = 12, init: float = 1e-5, drop: float = 0.2) -> None:
        super().__init__()
        self.gamma, self.drop, self.fc = nn.Parameter(init * torch.ones(dim)), drop, nn.Linear(dim, dim)

    def drop_path(self, x: torch.Tensor) -> torch.Tensor:
        if self.drop == 0.0 or not self.training:
            return x
        keep = 1 - self.drop
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.fc(x) * self.gamma)


class AdaLayerNorm(nn.Module):
    """DiT's modulation by a condition."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.ada, self.fc = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width)), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.ada(c).chunk(3, dim=1)
        y = self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
        return x + gate.unsqueeze(1) * self.fc(y)


class LlamaNorm(nn.Module):
    """With the conversions of its authors."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(R(width)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class MoeGate(nn.Module):
    """Weights of all experts, of which all but the best k are 0."""

    def __init__(self, width: int = 12, experts: int = 6, k: int = 2) -> None:
        super().__init__()
        self.k, self.gate = k, nn.Linear(width, experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.gate(x)
        weights, chosen = torch.topk(logits, self.k, dim=-1)
        return torch.zeros_like(logits).scatter(-1, chosen, weights.softmax(-1))


class MoeDense(nn.Module):
    """All experts for all tokens, weighted: as in small models and tests."""

    def __init__(self, width: int = 12, inner: int = 10, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up, self.down = nn.Parameter(R(experts, width, inner)), nn.Parameter(R(experts, inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.router(x).softmax(-1)
        top = p.max(-1, keepdim=True).values
        p = torch.where(p >= top, p, 0.0)
        y = torch.einsum("nef,efd->ned", F.gelu(torch.einsum("nd,edf->nef", x, self.up)), self.down)
        return (y * p[..., None]).sum(1)


# -- sequences


def segsum(x: torch.Tensor) -> torch.Tensor:
    """Mamba-2's, by sums along the axis."""
    t = x.size(-1)
    x = x.unsqueeze(-1).expand(*x.shape, t)
    ones = torch.ones(t, t, dtype=torch.bool, device=x.device)
    x = torch.cumsum(x.masked_fill(~torch.tril(ones, diagonal=-1), 0), dim=-2)
    return x.masked_fill(~torch.tril(ones, diagonal=0), -torch.inf)


def mamba2_chunk(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The output within chunks, and the states that each hands on."""
    decay = torch.exp(segsum(a))
    y = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, decay, x)
    total = a.cumsum(-1)
    states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(total[..., -1:] - total), x)
    return y, states


class CausalConv(nn.Module):
    """Mamba's short convolution along the sequence."""

    def __init__(self, channels: int = 6, taps: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = x.shape[1]
        return F.silu(self.conv(x.transpose(1, 2))[..., :t].transpose(1, 2))


class MinGru(nn.Module):
    def __init__(self, n: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(n, 3 * hidden), nn.Linear(hidden, 3 * hidden)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        ri, zi, ni = self.ih(x).chunk(3, 1)
        rh, zh, nh = self.hh(h).chunk(3, 1)
        r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
        return (1 - z) * torch.tanh(ni + r * nh) + z * h


def token_shift(x: torch.Tensor, mu: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RWKV's mix with the token before."""
    before = F.pad(x, (0, 0, 1, -1))
    return torch.square(torch.relu(torch.lerp(before, x, mu) @ w))


# -- pictures


class UnetBlock(nn.Module):
    """Two convolutions with group norm, the time between them, and the way around."""

    def __init__(self, cin: int = 4, cout: int = 6, time: int = 5) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.time, self.skip = nn.Linear(time, cout), nn.Conv2d(cin, cout, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UnetUp(nn.Module):
    """Twice as large, beside what was kept on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(torch.cat([self.up(x), kept], dim=1)))


class NearestUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class SeparableConv(nn.Module):
    """MobileNet's: depthwise, then pointwise, with norms that know their statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.dw, self.bn1 = nn.Conv2d(5, 5, 3, stride=2, padding=1, groups=5, bias=False), nn.BatchNorm2d(5)
        self.pw, self.bn2 = nn.Conv2d(5, 7, 1, bias=False), nn.BatchNorm2d(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(self.bn2(self.pw(F.relu6(self.bn1(self.dw(x))))))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int = 6, reduction: int = 2) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Conv2d(channels, channels // reduction, 1), nn.ReLU(), nn.Conv2d(channels // reduction, channels, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.fc(self.pool(x)).sigmoid()


class ConvNextBlock(nn.Module):
    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(R(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.fc2(F.gelu(self.fc1(y)))).permute(0, 3, 1, 2)


def pixel_shuffle(x: torch.Tensor) -> torch.Tensor:
    return F.pixel_shuffle(F.gelu(x), 2)


# -- losses and optimisers


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    lr, b1, b2, eps, decay, step = 1e-3, 0.9, 0.999, 1e-8, 0.01, 3
    p = p * (1 - lr * decay)
    m, v = torch.lerp(m, g, 1 - b1), v * b2 + (1 - b2) * g.square()
    denom = v.sqrt() / math.sqrt(1 - b2**step) + eps
    return torch.addcdiv(p, m, denom, value=-lr / (1 - b1**step)), m, v


def lion(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
    update = m.mul(0.9).add(g, alpha=0.1).sign()
    return p.mul(1 - 1e-3).add(update, alpha=-1e-3), m.mul(0.99).add(g, alpha=0.01)


def sgd(p: torch.Tensor, g: torch.Tensor, buf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = g.add(p, alpha=1e-2)
    buf = buf.mul(0.9).add(g)
    return p.add(g.add(buf, alpha=0.9), alpha=-0.1), buf


def clip_by_norm(g: torch.Tensor) -> torch.Tensor:
    return g * torch.clamp(1.0 / (g.norm() + 1e-6), max=1.0)


def info_nce(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """CLIP's."""
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() / 0.07
    labels = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    ce = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = torch.exp(-ce)
    return ((1 - p_t) ** 2 * ce).mean()


def distillation(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(student / 2, dim=1), F.softmax(teacher / 2, dim=1), reduction="batchmean") * 4


def log_probs(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Of the tokens that were drawn: as in policy gradients."""
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def triplet(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return F.relu((a - p).pow(2).sum(1) - (a - n).pow(2).sum(1) + 0.2).mean()


def dice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = x.sigmoid().flatten(1)
    y = y.flatten(1)
    return 1 - ((2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()


# -- the rest of what authors call


def mean_pooling(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sentence-BERT's."""
    m = mask.unsqueeze(-1).expand(x.size()).float()
    return torch.sum(x * m, 1) / torch.clamp(m.sum(1), min=1e-9)


def lengths_mask(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(x.size(1))[None, :] < lengths[:, None]
    return (x * inside[..., None]).sum(1) / lengths[:, None]


def last_token(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.size(0), device=x.device), lengths - 1]


def fake_quantized(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.clamp(torch.round(x / scale), -128, 127) * scale


def fourier_features(t: torch.Tensor) -> torch.Tensor:
    """The time of a diffusion step."""
    freqs = torch.exp(-math.log(10000) * torch.arange(0, 4, dtype=torch.float32) / 4)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(((x[:, None] - y[None]) ** 2).sum(-1) + 1e-12)


def rbf(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * (x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * x @ y.T))


def written_into(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], x.shape[1] + y.shape[1])
    out[:, : x.shape[1]] = x.exp()
    out[:, x.shape[1] :] = y
    return out * 2


HEADS = tuple(R(2, 4, 5, 8) for _ in range(3))
BLOCKS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rotary": (Rotary(), (R(2, 3, 5, 8),)),
    "rope_neighbours": (rope_neighbours, (R(2, 3, 5, 8), R(5, 4))),
    "partial_rope": (partial_rope, (R(2, 3, 5, 10), R(5, 6), R(5, 6))),
    "t5_bias": (T5Bias(), (R(2, 3, 7, 5),)),
    "alibi_module": (Alibi(), HEADS),
    "gpt2_embeddings": (Positions(), (torch.randint(0, 11, (2, 5)),)),
    "positions_with_an_offset": (OffsetPositions(), (R(3, 5, 6), torch.randint(0, 9, (3, 5)))),
    "qk_norm": (QkNorm(), (R(2, 5, 24),)),
    "sliding_window": (sliding_window, HEADS),
    "window_and_first_keys": (window_and_first_keys, HEADS),
    "swin_window": (WindowAttention(), (R(2, 6, 4, 8),)),
    "swin_without_a_shift": (WindowAttention(8, 3, 4, 0), (R(1, 6, 9, 8),)),
    "patch_merging": (PatchMerging(), (R(2, 6, 4, 4),)),
    "vit_embedding": (VitEmbedding(), (R(2, 3, 9, 9),)),
    "vit_head": (ViTHead(), (R(2, 3, 9, 9),)),
    "latent_attention": (LatentAttention(), (R(2, 5, 24), R(5, 4), R(5, 4))),
    "cross_attention": (CrossAttention(), (R(2, 3, 16), R(2, 7, 10), torch.arange(14).view(2, 7) % 7 < 5)),
    "retention": (retention, (*HEADS, torch.rand(4))),
    "geglu": (Gated(F.gelu), (R(3, 12),)),
    "swiglu": (Gated(F.silu), (R(2, 3, 12),)),
    "reglu": (Gated(F.relu), (R(3, 12),)),
    "layer_scale": (LayerScale(), (R(3, 5, 12),)),
    "adaptive_norm": (AdaLayerNorm(), (R(2, 5, 12), R(2, 12))),
    "llama_norm": (LlamaNorm(), (R(3, 12),)),
    "llama_norm_in_half": (LlamaNorm().half(), (R(3, 12).half(),)),
    "moe_gate": (MoeGate(), (R(7, 12),)),
    "moe_dense": (MoeDense(), (R(5, 12),)),
    "mamba2_chunk": (mamba2_chunk, (R(2, 3, 5, 2, 4), -torch.rand(2, 2, 3, 5), R(2, 3, 5, 6), R(2, 3, 5, 6))),
    "causal_conv": (CausalConv(), (R(2, 7, 6),)),
    "min_gru": (MinGru(), (R(3, 6), R(3, 5))),
    "lstm_cell": (nn.LSTMCell(6, 5), (R(3, 6), (R(3, 5), R(3, 5)))),
    "token_shift": (token_shift, (R(2, 5, 6), torch.rand(6), R(6, 7))),
    "unet_block": (UnetBlock(), (R(2, 4, 5, 6), R(2, 5))),
    "unet_up": (UnetUp(), (R(2, 4, 3, 5), R(2, 2, 6, 10))),
    "nearest_up": (NearestUp(), (R(2, 3, 4, 3),)),
    "separable_conv": (SeparableConv(), (R(2, 5, 7, 6),)),
    "squeeze_excite_by_convolutions": (SqueezeExcite(), (R(2, 6, 3, 5),)),
    "convnext_block": (ConvNextBlock(), (R(1, 6, 7, 5),)),
    "pixel_shuffle": (pixel_shuffle, (R(2, 8, 3, 5),)),
    "transposed_conv": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (R(2, 4, 3, 5),)),
    "transposed_conv_in_groups": (nn.ConvTranspose1d(4, 6, 4, stride=3, groups=2, dilation=2), (R(2, 4, 5),)),
    "transposed_conv_of_volumes": (nn.ConvTranspose3d(4, 6, 3, stride=2, padding=1, groups=2), (R(2, 4, 3, 2, 3),)),
    "grouped_conv": (nn.Conv2d(6, 4, 3, groups=2, padding=2, dilation=2), (R(2, 6, 5, 7),)),
    "conv_of_volumes": (nn.Conv3d(2, 3, 2), (R(1, 2, 3, 4, 5),)),
    "conv_without_a_batch": (nn.Conv2d(2, 3, 3, padding=1), (R(2, 5, 4),)),
    "conv_with_reflection": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (R(1, 2, 5, 4),)),
    "conv_in_a_circle": (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (R(2, 2, 6),)),
    "adamw": (adamw, (R(5, 7), R(5, 7), R(5, 7), torch.rand(5, 7))),
    "lion": (lion, (R(5, 7), R(5, 7), R(5, 7))),
    "sgd": (sgd, (R(5, 7), R(5, 7), R(5, 7))),
    "clip_by_norm": (clip_by_norm, (R(5, 7),)),
    "smoothed_cross_entropy": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        (R(5, 7), torch.tensor([3, 0, -100, 6, 2])),
    ),
    "weighted_cross_entropy": (
        lambda x, y, w: F.cross_entropy(x, y, w, label_smoothing=0.2),
        (R(5, 7), torch.tensor([3, 0, 1, 6, 2]), torch.rand(7)),
    ),
    "cross_entropy_of_probabilities": (F.cross_entropy, (R(5, 7), R(5, 7).softmax(-1))),
    "nll_of_log_probabilities": (lambda x, y: F.nll_loss(x.log_softmax(1), y), (R(5, 7), torch.randint(0, 7, (5,)))),
    "info_nce": (info_nce, (R(5, 8), R(5, 8))),
    "focal": (focal, (R(5, 7), (R(5, 7) > 0).float())),
    "distillation": (distillation, (R(5, 7), R(5, 7))),
    "log_probs": (log_probs, (R(3, 5, 7), torch.randint(0, 7, (3, 5)))),
    "triplet": (triplet, tuple(R(5, 7) for _ in range(3))),
    "dice": (dice, (R(3, 1, 4, 5), (R(3, 1, 4, 5) > 0).float())),
    "mean_pooling": (mean_pooling, (R(3, 5, 7), torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]))),
    "lengths_mask": (lengths_mask, (R(3, 5, 7), torch.tensor([2, 5, 1]))),
    "last_token": (last_token, (R(3, 5, 7), torch.tensor([2, 5, 1]))),
    "fake_quantized": (fake_quantized, (R(3, 7),)),
    "fourier_features": (fourier_features, (torch.randint(0, 50, (3,)),)),
    "distances": (distances, (R(4, 6), R(5, 6))),
    "rbf": (rbf, (R(4, 6), R(5, 6))),
    "written_into": (written_into, (R(3, 5), R(3, 4))),
}
