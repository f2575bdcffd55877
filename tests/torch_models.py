"""Parts of popular models and of benchmarks' lists, as their authors write them, at small and odd sizes. Nothing here
was written for what traces it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

torch.manual_seed(1)
R = torch.randn

# -- attention and experts


class T5Attention(nn.Module):
    """A decoder's, whose buckets of distances are made of whole numbers and logarithms."""

    def __init__(self, width: int = 24, heads: int = 3, buckets: int = 8) -> None:
        super().__init__()
        self.heads, self.buckets = heads, buckets
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(buckets, heads)

    def bias(self, t: int) -> torch.Tensor:
        relative = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        distance = -torch.min(relative, torch.zeros_like(relative))
        exact = self.buckets // 2
        far = torch.log(distance.float().clamp(min=1) / exact) / math.log(16 / exact) * (self.buckets - exact)
        far = torch.min(exact + far.to(torch.long), torch.full_like(distance, self.buckets - 1))
        bucket = torch.where(distance < exact, distance, far)
        return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = q @ k.transpose(3, 2) + self.bias(t)
        weights = F.softmax(scores.float(), -1).type_as(scores)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(b, -1, d))


class AbsorbedLatentAttention(nn.Module):
    """DeepSeek's in decoding: scores and values are of the latent itself; queries and results are projected up."""

    def __init__(self, width: int = 20, heads: int = 2, plain: int = 6, rope: int = 4, latent: int = 8) -> None:
        super().__init__()
        self.heads, self.parts, self.latent = heads, [plain, rope], latent
        self.q, self.kv = (nn.Linear(width, n, bias=False) for n in (heads * (plain + rope), latent + rope))
        self.norm, self.o = nn.RMSNorm(latent), nn.Linear(heads * 5, width, bias=False)
        self.up_k, self.up_v = nn.Parameter(R(heads, plain, latent) / 3), nn.Parameter(R(heads, 5, latent) / 3)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        plain, turned = self.q(x).view(b, t, self.heads, -1).split(self.parts, -1)
        latent, shared = self.kv(x).split([self.latent, self.parts[1]], -1)
        latent = self.norm(latent)
        turned, shared = rotated(turned, cos[:, None], sin[:, None]), rotated(shared, cos, sin)
        queries = torch.einsum("bthn,hnl->bthl", plain, self.up_k)
        scores = torch.einsum("bthl,bsl->bhts", queries, latent) + torch.einsum("bthr,bsr->bhts", turned, shared)
        scores = scores * sum(self.parts) ** -0.5 + torch.full((t, t), -math.inf).triu_(1)
        mixed = torch.einsum("bhts,bsl->bthl", scores.softmax(-1), latent)
        return self.o(torch.einsum("bthl,hvl->bthv", mixed, self.up_v).flatten(2))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def window_with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    seen = (j <= i) & ((i - j < 3) | (j < 2))
    scores = torch.where(seen, q @ k.mT / 8**0.5, torch.tensor(-math.inf))
    return torch.softmax(scores, -1) @ v


class Mixture(nn.Module):
    """Of gated experts: the best two for each token, by their one-hot numbers."""

    def __init__(self, width: int = 16, experts: int = 5, inner: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.w1, self.w3, self.w2 = (
            nn.Parameter(R(experts, *shape) / 4) for shape in ((inner, width), (inner, width), (width, inner))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(F.softmax(self.gate(tokens), -1, dtype=torch.float), 2, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        gates = torch.einsum("tke,tk->te", F.one_hot(chosen, self.w1.shape[0]).to(x.dtype), weights)
        inner = F.silu(torch.einsum("td,ehd->teh", tokens, self.w1)) * torch.einsum("td,ehd->teh", tokens, self.w3)
        return torch.einsum("teh,edh,te->td", inner, self.w2, gates).view(x.shape)


def segment_means(x: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    member = F.one_hot(segment, 3).to(x.dtype)
    return (member.t() @ x) / member.sum(0)[:, None].clamp(min=1)


def node_sums(x: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3, x.shape[1]).index_add(0, node, x).relu()


class Vlad(nn.Module):
    """NetVLAD's clusters."""

    def __init__(self, width: int = 6, clusters: int = 4) -> None:
        super().__init__()
        self.clusters, self.centres = nn.Parameter(R(width, clusters)), nn.Parameter(R(1, width, clusters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        assigned = (x.reshape(-1, width) @ self.clusters).softmax(1).view(b, t, -1)
        away = assigned.sum(1, keepdim=True) * self.centres
        made = torch.matmul(assigned.transpose(1, 2), x).transpose(1, 2) - away
        return F.normalize(F.normalize(made).reshape(b, -1))


# -- recurrent steps


def rwkv_steps(r: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
    state, made = torch.zeros(2, 3, 4, 4), []
    for t in range(r.shape[1]):
        pair = k[:, t, :, :, None] * v[:, t, :, None, :]
        made.append(torch.einsum("bhk,bhkv->bhv", r[:, t], state + u[None, :, :, None] * pair))
        state = state * torch.exp(-torch.exp(w[:, t]))[..., None] + pair
    return torch.stack(made, 1), state


def mamba_step(x: torch.Tensor, state: torch.Tensor, a: torch.Tensor, bias: torch.Tensor, b: torch.Tensor,
               c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:  # fmt: skip
    dt = F.softplus(x + bias)
    decay = torch.exp(torch.einsum("bd,dn->bdn", dt, -torch.exp(a)))
    state = state * decay + x[:, :, None] * torch.einsum("bd,bn->bdn", dt, b)
    return torch.einsum("bdn,bn->bd", state, c) + d * x, state


def gated_delta_steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor) -> Any:
    k = F.normalize(k, dim=-1)
    state, made = torch.zeros(2, 3, 5, 5), []
    for t in range(q.shape[2]):
        state = state * torch.exp(-g[:, :, t])[..., None, None]
        known = (state * k[:, :, t, :, None]).sum(-2)
        delta = (v[:, :, t] - known) * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * delta[..., None, :]
        made.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(made, 2)


# -- pictures and sound


class ConvNextV2(nn.Module):
    """With a response that is normalised over the picture."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma, self.beta = nn.Parameter(R(1, 1, 1, 2 * width)), nn.Parameter(R(1, 1, 1, 2 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.up(self.norm(self.conv(x).permute(0, 2, 3, 1))))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        y = self.gamma * (y * (size / (size.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + y
        return x + self.down(y).permute(0, 3, 1, 2)


class Shuffled(nn.Module):
    """ShuffleNet's unit: half of the channels go by, and all change places."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, half, 3, 1, 1, groups=half))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        n, c, h, w = x.shape
        return torch.cat((a, self.branch(b)), 1).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Temporal(nn.Module):
    """A causal convolution whose weight is normalised."""

    def __init__(self, channels: int = 5) -> None:
        super().__init__()
        conv = nn.Conv1d(channels, channels, 3, dilation=2, padding=4)
        self.conv = nn.utils.parametrizations.weight_norm(conv)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.relu(self.conv(x)[:, :, :-4]) + x)


class Conformer(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.deep = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.batch, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.glu(self.wide(self.norm(x.transpose(1, 2)).transpose(1, 2)), 1)
        return x + self.out(F.silu(self.batch(self.deep(y))))


def transposed_and_clamped(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1) + bias
    return torch.clamp(torch.clamp(y, 0.0, 1.0) * 2.0, 0.0, 1.0) / 2.0


def larger(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pictures between their places, in all three ways to count them."""
    return (
        F.interpolate(x, scale_factor=2, mode="bilinear") * 1,
        F.interpolate(x, scale_factor=1.5, mode="bilinear") * 1,
        F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True) * 1,
    )


# -- the rest


def diagonals(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.diag(d) @ x + torch.diag(x.diagonal()) * x.diagonal(1).sum()


def standardised(x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def contrastive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """CLIP's loss."""
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() * 14.3
    own = torch.arange(a.shape[0])
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def weighted_bits(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(x, y, weight=w, pos_weight=w * 2)


def orthogonalised(x: torch.Tensor) -> torch.Tensor:
    """Two steps of Newton and Schulz, as in Muon."""
    x = x / (x.norm() + 1e-7)
    for _ in range(2):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def quantised_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rows of activations in int8, each with a scale of its own."""
    unit = x.abs().amax(-1, keepdim=True) / 127
    rows = torch.round(x / unit).clamp(-127, 127).to(torch.int8)
    return (rows.float() @ weight.float().t()) * unit * scale


# -- recurrences over states, step by step


def slot_steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Slots that groups of heads share: what is read of the first state is where the second is read."""
    k, v, gate = (x.repeat_interleave(2, 2) for x in (k, v, gate))
    slots = 1 - gate
    keys, values = q.new_zeros(2, 4, 5, 3), q.new_zeros(2, 4, 3, 5)
    read, mixed = torch.zeros(2, 3, 4, 3), torch.zeros_like(v)
    for i in range(3):
        keys = keys * gate[:, i].unsqueeze(-2) + torch.einsum("bhk,bhm->bhkm", k[:, i], slots[:, i])
        read[:, i] = torch.einsum("bhk,bhkm->bhm", q[:, i], keys)
    where = read.softmax(-1)
    for i in range(3):
        values = values * gate[:, i].unsqueeze(-1) + torch.einsum("bhm,bhv->bhmv", slots[:, i], v[:, i])
        mixed[:, i] = torch.einsum("bhm,bhmv->bhv", where[:, i], values)
    return F.silu(mixed.flatten(2))


def reflections(k: torch.Tensor, w: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Each vector of the one sequence behind the reflections of those in front of it, written where it belongs."""
    made = torch.zeros_like(k)
    for head in range(2):
        turned = torch.zeros(4, 4)
        for i in range(3):
            made[0, i, head] = k[0, i, head] - turned @ k[0, i, head]
            turned = turned + beta[0, i, head] * torch.outer(w[0, i, head], w[0, i, head])
    return made


def delta_values(x: torch.Tensor, weight: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Each value less what attention to earlier ones makes of them. Angles are of powers of their number."""
    q, k, v = (x @ weight).view(2, 5, 3, 2, 6).unbind(2)
    angles = torch.arange(5.0)[:, None] / 10000 ** (2 * torch.arange(3.0) / 6)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def turned(y: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(y, dim=-1).chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    scores = torch.einsum("bqhd,bkhd->bhqk", turned(q), turned(k))
    earlier = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    scores = scores.masked_fill(~earlier, -1e4).softmax(-1) * earlier
    made = [v[:, 0]]
    for i in range(1, 5):
        seen = torch.einsum("bhk,bkhd->bhd", scores[:, :, i, :i], torch.stack(made, 1))
        made.append(v[:, i] - beta[:, i, :, None] * seen)
    return torch.stack(made, 1)


def levels_of_distance(scores: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scores of which each has a factor of the power of 2 in which its two positions part."""
    places = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    total = scores * torch.diag_embed(scale[0])
    for level in (1, 2, 3):
        half = 1 << (level - 1)
        start = places[:, 0] - places[:, 0] % half
        parted = (places[:, 0] % (2 * half) >= half) & (places[:, 1] + half >= start) & (places[:, 1] < start)
        total = total + scores * torch.where(parted.view(6, 6), scale[level, :, None], 0.0)
    return total


def triangles(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    left, right = (x @ a).sigmoid() * mask[..., None], x @ b
    return torch.einsum("... i k d, ... j k d -> ... i j d", left, right)


def chosen_blocks(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention to the two best of blocks of 3, each as good as the mean of its scores."""
    best = scores.unflatten(-1, (4, 3)).mean(-1).topk(2, -1).indices
    chosen = torch.zeros(2, 5, 4, dtype=torch.bool).scatter(-1, best, True).repeat_interleave(3, -1)
    return scores.masked_fill(~chosen, -torch.inf).softmax(-1) @ v


# -- numbers that say where


def every_other_written(x: torch.Tensor, new: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[:, torch.arange(2) * 2] = new
    made[:, hidden] = -torch.inf
    return made.softmax(-1)


def rows_put(x: torch.Tensor, at: torch.Tensor, others: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Added twice at one place; written at one that counts from the end."""
    return x.index_put((at,), new, accumulate=True) + x.index_put((others,), new)


def grid_features(rows: torch.Tensor, columns: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    a, b = torch.meshgrid(columns, rows, indexing="xy")
    return x * torch.stack((a, b, (a * a + b * b).sqrt()), -1)


def momenta(p: torch.Tensor, q: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Adam's for lists of tensors, some of which change in place."""
    first = list(torch._foreach_lerp([p, q], [g, h], 0.1))
    torch._foreach_mul_(first, 0.9)
    second = torch._foreach_addcmul(first, [g, h], [g, h], 0.1)
    return (*torch._foreach_div(first, torch._foreach_sqrt(torch._foreach_abs(second))), *torch._foreach_norm(second))


def advantages(rewards: torch.Tensor) -> torch.Tensor:
    """GRPO's, of groups of three."""
    groups = rewards.view(-1, 3)
    return (rewards - groups.mean(1).repeat_interleave(3)) / (groups.std(1).repeat_interleave(3) + 1e-4)


MODELS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "t5_attention": (T5Attention(), (R(1, 7, 24),)),
    "absorbed_latent_attention": (AbsorbedLatentAttention(), (R(2, 5, 20), R(5, 2), R(5, 2))),
    "window_with_sinks": (window_with_sinks, (R(2, 3, 7, 8), R(2, 3, 7, 8), R(2, 3, 7, 8))),
    "mixture": (Mixture(), (R(2, 6, 16),)),
    "segment_means": (segment_means, (R(5, 6), torch.tensor([0, 2, 1, 0, 1]))),
    "node_sums": (node_sums, (R(5, 6), torch.tensor([0, 2, 1, 0, 1]))),
    "vlad": (Vlad(), (R(2, 10, 6),)),
    "rwkv_steps": (rwkv_steps, (R(2, 3, 3, 4), R(2, 3, 3, 4), R(2, 3, 3, 4), -torch.rand(2, 3, 3, 4), R(3, 4))),
    "mamba_step": (mamba_step, (R(2, 9), R(2, 9, 4), R(9, 4), R(9), R(2, 4), R(2, 4), R(9))),
    "gated_delta_steps": (
        gated_delta_steps,
        (R(2, 3, 2, 5), R(2, 3, 2, 5), R(2, 3, 2, 5), torch.rand(2, 3, 2), torch.rand(2, 3, 2)),
    ),
    "convnext_v2": (ConvNextV2(), (R(2, 6, 5, 7),)),
    "shuffled": (Shuffled(), (R(2, 8, 5, 7),)),
    "temporal": (Temporal(), (R(3, 5, 9),)),
    "conformer": (Conformer(), (R(2, 8, 9),)),
    "transposed_and_clamped": (transposed_and_clamped, (R(2, 5, 4, 6), R(5, 4, 3, 3), R(4, 1, 1))),
    "larger": (larger, (R(1, 3, 5, 7),)),
    "diagonals": (diagonals, (R(5, 5), R(5))),
    "standardised": (standardised, (R(4, 5, 6),)),
    "contrastive": (contrastive, (R(6, 8), R(6, 8))),
    "weighted_bits": (weighted_bits, (R(4, 7), torch.rand(4, 7), torch.rand(7))),
    "triplet_margin": (F.triplet_margin_loss, (R(5, 8), R(5, 8), R(5, 8))),
    "orthogonalised": (orthogonalised, (R(6, 7),)),
    "quantised_linear": (
        quantised_linear,
        (R(5, 16), torch.randint(-127, 127, (9, 16), dtype=torch.int8), torch.rand(9) / 50),
    ),
    "slot_steps": (slot_steps, (R(2, 3, 4, 5), R(2, 3, 2, 5), R(2, 3, 2, 5), torch.rand(2, 3, 2, 3))),
    "reflections": (reflections, (R(1, 3, 2, 4), R(1, 3, 2, 4), torch.rand(1, 3, 2))),
    "delta_values": (delta_values, (R(2, 5, 8), R(8, 36), torch.rand(2, 5, 2))),
    "levels_of_distance": (levels_of_distance, (R(2, 6, 6), torch.rand(4, 6))),
    "triangles": (triangles, (R(2, 5, 5, 6), R(6, 4), R(6, 4), torch.randint(0, 2, (2, 5, 5)).float())),
    "chosen_blocks": (chosen_blocks, (R(2, 5, 12), R(2, 12, 4))),
    "grid_features": (grid_features, (R(4), R(5), R(4, 5, 3))),
    "log_space_sum": (torch.logaddexp, (torch.tensor([-math.inf, -math.inf, 1.0]), torch.tensor([-math.inf, 2, 3]))),
    "implicit_einsum": (lambda a, b: torch.einsum("...ab,cb", a, b), (R(3, 4, 5), R(2, 5))),
    "every_other_written": (every_other_written, (R(3, 5), R(3, 2), torch.arange(5) % 2 == 1)),
    "rows_put": (rows_put, (R(6, 4), torch.tensor([0, -3, 0]), torch.tensor([4, -1, 0]), R(3, 4))),
    "pairs_added": (
        lambda x, at, new: x.index_put((at, at.flip(0)), new, accumulate=True),
        (R(6, 5, 3), torch.tensor([[0, 3], [2, 1]]), R(2, 2, 1)),
    ),
    "rows_copied": (
        lambda x, at, new: x.index_copy(1, at, new).index_fill(0, at, 2.0),
        (R(4, 6), torch.tensor([3, 0]), R(4, 2)),
    ),
    "chosen_of_each": (
        lambda x, at: x.new_zeros(3, 5).index_put((torch.arange(3), at), x[:, 0]),
        (R(3, 5), torch.tensor([1, 4, 0])),
    ),
    "distances_of_rows": (
        lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, p=1) - torch.dist(x, y[:4]),
        (R(4, 3), R(5, 3)),
    ),
    "momenta": (momenta, (R(3, 4), R(5), R(3, 4), R(5))),
    "advantages": (advantages, (R(12),)),
    "numbers_instead": (
        lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0) * 2,
        (torch.tensor([[1.0, math.nan, -math.inf], [math.inf, -2.0, 0.0]]),),
    ),
    "safe_softmax": (
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        (torch.tensor([[1.0, 2.0, -math.inf], [-math.inf, -math.inf, -math.inf]]),),
    ),
    "ramp": (lambda x: x * torch.linspace(-1, 2.5, 7) + torch.linspace(3, 4, 1), (R(3, 7),)),
    "unit_matrix_of_many_rows": (lambda x: x + torch.eye(257) - torch.eye(2, 257)[1], (R(257, 257),)),
    "unit_matrix_as_a_mask": (lambda x: x.masked_fill(torch.eye(5, dtype=torch.bool), 2.0), (R(5, 5),)),
    "columns": (lambda x, y: torch.column_stack((x, y)) + torch.atleast_3d(x).sum((0, 1)), (R(3, 2), R(3, 1))),
    "einsum_of_several_batches": (lambda a, b: torch.einsum("...ik,...kj", a, b), (R(2, 1, 3, 4), R(5, 4, 6))),
}
"""By name: what is traced, and its inputs."""
