"""Llama: prefill and decode with a cache of keys and values, and the tokens per second of three ways to run it.

    python examples/llama.py --layers 32 --batch 1

Parameters have the names and shapes of the public weights; here they are random. On a GPU each way decodes by one CUDA
graph, and `mirage` tunes what its database does not know for as long as --budget says. Without a GPU the model is
small, kernels are planned for an H100, and PyTorch computes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import mirage_cli


@dataclass(frozen=True)
class Config:
    """Of Llama-3-8B."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    groups: int = 8
    head: int = 128
    inner: int = 14336
    words: int = 128256
    theta: float = 500000.0
    eps: float = 1e-5


SMALL = Config(layers=2, width=64, heads=4, groups=2, head=16, inner=96, words=128)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding. x: [b, h, t, d]; cos, sin: [t, d]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Attention(nn.Module):
    """keys, values: of the tokens so far, [b, g, s, d]."""

    def __init__(self, c: Config, batch: int, length: int) -> None:
        super().__init__()
        self.head = c.head
        self.q_proj, self.o_proj = (nn.Linear(a, b, bias=False) for a, b in both_ways(c.width, c.heads * c.head))
        self.k_proj, self.v_proj = (nn.Linear(c.width, c.groups * c.head, bias=False) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, c.groups, length, c.head), persistent=False)

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.head).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        self.keys[:, :, at] = k
        self.values[:, :, at] = v
        seen = torch.arange(self.keys.shape[2], device=x.device) <= at[:, None]
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values, seen, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, t, -1))


def both_ways(a: int, b: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (a, b), (b, a)


class Mlp(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c.width, c.inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.inner, c.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, batch: int, length: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(c, batch, length), Mlp(c)
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(c.width, c.eps) for _ in range(2))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), at, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c: Config, batch: int, length: int) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(c.words, c.width), nn.RMSNorm(c.width, c.eps)
        self.layers = nn.ModuleList(Layer(c, batch, length) for _ in range(c.layers))
        angles = torch.outer(torch.arange(length), c.theta ** -(torch.arange(0, c.head, 2) / c.head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, words: Tensor, at: Tensor) -> Tensor:
        x, cos, sin = self.embed_tokens(words), F.embedding(at, self.cos), F.embedding(at, self.sin)
        for layer in self.layers:
            x = layer(x, at, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """Logits of the last of the words [b, t] that stand at the positions `at` [t], in front of which all are known."""

    def __init__(self, c: Config, batch: int, length: int) -> None:
        super().__init__()
        self.model, self.lm_head = Model(c, batch, length), nn.Linear(c.width, c.words, bias=False)

    def forward(self, words: Tensor, at: Tensor) -> Tensor:
        return self.lm_head(self.model(words, at)[:, -1])


def llama(c: Config, batch: int, length: int, device: str, dtype: torch.dtype) -> Llama:
    """With random parameters, made where they stay."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Llama(c, batch, length).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    for name, p in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(p, std=0.02)
    return model


def captured(decode: Callable[..., Tensor], words: Tensor, at: Tensor) -> Callable[[], object]:
    """A call as one CUDA graph, where there is a GPU."""
    for _ in range(3):
        decode(words, at)
    if not words.is_cuda:
        return lambda: decode(words, at)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(words, at)
    return graph.replay


def seconds(call: Callable[[], object], device: str, times: int = 20) -> float:
    found: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, help="32, or 2 of the small model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048, help="tokens that the cache holds; the last is decoded")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of search and tuning")
    parser.add_argument("--small", action="store_true", help="a model of small sizes, as on a CPU")
    parser.add_argument("--db", help="mirage's database")
    o = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = SMALL if o.small or device == "cpu" else Config()
    config = replace(config, layers=o.layers or config.layers)
    model = llama(config, o.batch, o.length, device, torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.no_grad():
        context = torch.randint(config.words, (o.batch, o.length - 1), device=device)
        model(context, torch.arange(o.length - 1, device=device))  # prefill
        inputs = torch.randint(config.words, (o.batch, 1), device=device), torch.tensor([o.length - 1], device=device)
        exact = model(*inputs)
        ways = {
            "eager": model,
            "torch.compile": torch.compile(model, mode="max-autotune-no-cudagraphs"),
            "mirage": mirage_cli.optimize(model, inputs, budget=o.budget, db=o.db),
        }
        if device == "cpu":
            print("there is no GPU: in the row of mirage, PyTorch computes")
        for name, way in ways.items():
            off = float((way(*inputs) - exact).norm() / exact.norm())
            took = seconds(captured(way, *inputs), device)
            print(f"{name:14} {took * 1e3:8.3f} ms  {o.batch / took:9.1f} tokens/s  {off:.1e} from eager")


if __name__ == "__main__":
    main()
