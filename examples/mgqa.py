"""Multi-group attention as a module of its own, in a small transformer, by exported kernels.

Queries stand in groups, with a key and value head for each, rotary positions, and a causal mask. Two kernels do the
work: a projection with the rotation behind it, and the attention.

    python examples/mgqa.py    # searches, exports, compares; without a GPU, in Triton's interpreter
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mirage_cli import Graph, dot, index, softmax, where
from mirage_cli.codegen.export import load_export


@dataclass(frozen=True)
class Shape:
    """batch: sequences. tokens: of each. groups: of `queries` heads each, which have `size` elements."""

    batch: int = 2
    tokens: int = 24
    groups: int = 2
    queries: int = 3
    size: int = 16
    layers: int = 2
    words: int = 50
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.groups * self.queries * self.size


class MultiGroupAttention(nn.Module):
    """By PyTorch. The weights have their heads as axes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s, n = shape, shape.width
        self.q = nn.Parameter(torch.randn(s.groups, s.queries, s.size, n) * n**-0.5)
        self.k, self.v = (nn.Parameter(torch.randn(s.groups, 1, s.size, n) * n**-0.5) for _ in range(2))
        self.o = nn.Parameter(torch.randn(n, s.groups, s.queries, s.size) * n**-0.5)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k = self.rotated(x, self.q, cos, sin), self.rotated(x, self.k, cos, sin)
        v = torch.einsum("bsn,grdn->bsgrd", x, self.v)
        return torch.einsum("bmgrd,ngrd->bmn", self.mixed(q, k, v), self.o)

    def rotated(self, x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("bmn,grdn->bmgrd", x, w)
        first, second = y.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return y * cos[:, None, None] + turned * sin[:, None, None]

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bmgrd,bsgd->bgrms", q, k[:, :, :, 0]) * q.shape[-1] ** -0.5
        later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return torch.einsum("bgrms,bsgd->bmgrd", weights, v[:, :, :, 0])


def rotation(shape: Shape, heads: int, name: str) -> Graph:
    """X·W, turned by the angles of its positions. heads: of each group."""
    s = shape
    dims = {"b": s.batch, "m": s.tokens, "n": s.width, "g": s.groups, "r": heads, "d": s.size}
    g = Graph(name, dims, s.dtype)
    x, w = g.input("X", "b", "m", "n"), g.input("W", "g", "r", "d", "n", scale=s.width**-0.5)
    cos, sin = g.input("C", "m", "d"), g.input("S", "m", "d")
    b, m, group, r, d = (g.axis(a) for a in "bmgrd")
    y = g.let("Y", dot(x, w, "n"))
    half = s.size // 2
    turned = y[b, m, group, r, d - half] - y[b, m, group, r, d + half]  # one of them lies outside, and is 0
    g.output("O", y * cos + turned * sin, "b", "m", "g", "r", "d")
    return g


def attention(shape: Shape) -> Graph:
    s = shape
    dims = {"b": s.batch, "m": s.tokens, "s": s.tokens, "g": s.groups, "r": s.queries, "d": s.size}
    g = Graph("mgqa_attention", dims, s.dtype)
    q, k, v = (
        g.input("Q", "b", "m", "g", "r", "d"),
        g.input("K", "b", "s", "g", "d"),
        g.input("V", "b", "s", "g", "d"),
    )
    inside = index(g.axis("m")) >= index(g.axis("s"))
    scores = where(inside, dot(q, k, "d") * s.size**-0.5, -float("inf"))
    g.output("O", dot(softmax(scores, "s"), v, "s"), "b", "m", "g", "r", "d")
    return g


class FastAttention(MultiGroupAttention):
    """The same weights, by exported files: they need torch and Triton alone."""

    def __init__(self, shape: Shape, files: dict[str, Path]) -> None:
        super().__init__(shape)
        self.kernels = {name: vars(load_export(path))[name] for name, path in files.items()}

    def rotated(self, x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        name = "mgqa_queries" if w is self.q else "mgqa_keys"
        return self.kernels[name](x.contiguous(), w.detach(), cos, sin)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.kernels["mgqa_attention"](q, k[:, :, :, 0].contiguous(), v[:, :, :, 0].contiguous())


class Transformer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        n = shape.width
        self.shape, self.embed, self.head = shape, nn.Embedding(shape.words, n), nn.Linear(n, shape.words, bias=False)
        self.attention = nn.ModuleList(MultiGroupAttention(shape) for _ in range(shape.layers))
        self.norms = nn.ModuleList(nn.RMSNorm(n) for _ in range(2 * shape.layers + 1))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(n, 2 * n), nn.SiLU(), nn.Linear(2 * n, n)) for _ in range(shape.layers)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        frequencies = 10000.0 ** -(torch.arange(0, self.shape.size, 2, device=x.device) / self.shape.size)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device), frequencies)
        cos, sin = (f(torch.cat([angles, angles], -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        for i, (attend, mlp) in enumerate(zip(self.attention, self.mlps, strict=True)):
            x = x + attend(self.norms[2 * i](x), cos, sin)
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def exported(shape: Shape, folder: Path, budget: float, db: Path | None) -> dict[str, Path]:
    """Searches the three programs, and writes their best kernels."""
    graphs = [rotation(shape, shape.queries, "mgqa_queries"), rotation(shape, 1, "mgqa_keys"), attention(shape)]
    folder.mkdir(parents=True, exist_ok=True)
    files = {g.name: folder / f"{g.name}.py" for g in graphs}
    for g in graphs:
        g.search(budget=budget, db=db).export(files[g.name])
    return files


def main(arguments: list[str] | None = None) -> float:
    """The largest difference of the logits over their largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("mgqa_kernels"), help="where the kernels are written")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of search and tuning for each")
    parser.add_argument("--db", type=Path, help="the database")
    parser.add_argument("--tokens", type=int, default=24)
    given = parser.parse_args(arguments)
    shape = Shape(tokens=given.tokens)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, by the first kernel
    model = Transformer(shape).to(device).eval()
    tokens = torch.randint(0, shape.words, (shape.batch, shape.tokens), device=device)
    files = exported(shape, given.folder, given.budget, given.db)
    with torch.inference_mode():
        expected = model(tokens)
        for i, old in enumerate(model.attention):
            model.attention[i] = FastAttention(shape, files).to(device)
            model.attention[i].load_state_dict(old.state_dict())
        found = model(tokens)
    return float((found - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    error = main()
    print(f"logits are within {error:.1e} of PyTorch's")
