"""Functions and modules as model authors write them, at the sizes of models.

Those of `tests/torch_programs.py`, `tests/torch_blocks.py` and PyTorch; each is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any  # functions, modules, and their arguments

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests import torch_blocks as blocks
from tests import torch_programs as programs

Case = tuple[Callable[..., Any], tuple[Any, ...]]
R = torch.randn


def of(f: Callable[..., Any], *shapes: tuple[int, ...], **kwargs: Any) -> Callable[[], Case]:
    """The function, of normal tensors of these shapes."""
    return lambda: ((lambda *xs: f(*xs, **kwargs)) if kwargs else f, tuple(R(*s) for s in shapes))


def module(make: Callable[..., nn.Module], *shapes: tuple[int, ...], training: bool = False) -> Callable[[], Case]:
    return lambda: (make().train(training), tuple(R(*s) for s in shapes))


def classes(rows: int, count: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (R(rows, count), torch.randint(0, count, (rows,)))


class WideLora(nn.Module):
    def __init__(self, width: int = 4096, rank: int = 16) -> None:
        super().__init__()
        self.w, self.a = nn.Linear(width, width), nn.Linear(width, rank, bias=False)
        self.b = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x) + 2.0 * self.b(self.a(x))


class ConvBlock(nn.Module):
    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = programs.Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def alibi(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Tensor:
    t = torch.arange(q.shape[-2], device=q.device)
    distance = t[None, :] - t[:, None]
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + slope[:, None, None] * distance, -1) @ v


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, **how)


HEADS = ((4, 16, 1024, 64),) * 3
IMAGE = (16, 64, 56, 56)
TOKENS = (8, 512, 1024)

SIZES: Mapping[str, tuple[torch.dtype, Callable[[], Case]]] = {
    name: (dtype, make)
    for dtype, cases in (
        (
            torch.bfloat16,
            {
                # activations
                "silu": of(F.silu, (4096, 11008)),
                "gelu_tanh": of(F.gelu, (4096, 11008), approximate="tanh"),
                "mish": of(F.mish, (4096, 4096)),
                "hardswish": of(F.hardswish, IMAGE),
                "softplus": of(F.softplus, (4096, 4096)),
                "glu": of(F.glu, (4096, 8192)),
                # norms and softmax
                "softmax": of(torch.softmax, (4096, 4096), dim=-1),
                "log_softmax": of(F.log_softmax, (2048, 32000), dim=-1),
                "layer_norm": module(lambda: nn.LayerNorm(1024), TOKENS),
                "rms_norm": module(lambda: nn.RMSNorm(4096), (2048, 4096)),
                "llama_norm": module(lambda: blocks.LlamaNorm(4096), (2048, 4096)),
                "normalize": of(F.normalize, (4096, 1024), dim=-1),
                "cosine_similarity": of(F.cosine_similarity, (8192, 768), (8192, 768)),
                # layers
                "linear": module(lambda: nn.Linear(4096, 4096), (16, 4096)),
                "gated_mlp": module(lambda: programs.GatedMlp(2048, 5632), (64, 2048)),
                "geglu": module(lambda: blocks.Gated(F.gelu, 1024, 4096), (512, 1024)),
                "lora": module(WideLora, (16, 4096)),
                "adaptive_norm": lambda: (blocks.AdaLayerNorm(1152), (R(8, 256, 1152), R(8, 1152))),
                "layer_scale": module(lambda: blocks.LayerScale(768), (8, 197, 768)),
                "moe_gate": module(lambda: blocks.MoeGate(4096, 64, 6), (512, 4096)),
                # attention
                "attention": module(lambda: programs.Attention(1024, 16), (4, 512, 1024)),
                "attention_of_all": module(lambda: programs.Attention(768, 12, causal=False), (8, 197, 768)),
                "attention_causal": of(attention, *HEADS, is_causal=True),
                "attention_in_groups": of(
                    attention, (4, 32, 1, 128), (4, 8, 4096, 128), (4, 8, 4096, 128), enable_gqa=True
                ),
                "attention_with_mask": lambda: (attention, (*(R(4, 16, 512, 64) for _ in range(3)), R(512, 512))),
                "attention_with_alibi": lambda: (alibi, (*(R(2, 16, 1024, 64) for _ in range(3)), R(16))),
                "sliding_window": of(blocks.sliding_window, *HEADS, window=256),
                "cross_attention": lambda: (
                    blocks.CrossAttention(640, 768, 10),
                    (R(4, 1024, 640), R(4, 77, 768), torch.arange(77).expand(4, 77) < 50),
                ),
                "latent_attention": lambda: (
                    blocks.LatentAttention(2048, 16, 512, 128, 64),
                    (R(2, 512, 2048), R(512, 64), R(512, 64)),
                ),
                "qk_norm": module(lambda: blocks.QkNorm(1024, 16), (4, 256, 1024)),
                "retention": lambda: (blocks.retention, (*(R(2, 8, 512, 64) for _ in range(3)), torch.rand(8))),
                "linear_attention": lambda: (
                    lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v),
                    tuple(R(4, 16, 2048, 64) for _ in range(3)),
                ),
                "swin_window": module(lambda: blocks.WindowAttention(96, 7, 3, 3), (8, 56, 56, 96)),
                "block": module(Block, (4, 512, 768)),
                # positions
                "rope_of_halves": of(programs.rope_halves, (4, 32, 1024, 128), (1024, 128), (1024, 128)),
                "rope_of_pairs": of(programs.rope_pairs, (4, 32, 1024, 128), (1024, 64), (1024, 64)),
                "partial_rope": of(blocks.partial_rope, (4, 32, 1024, 80), (1024, 32), (1024, 32)),
                "embedding_and_norm": lambda: (
                    nn.Sequential(nn.Embedding(32000, 1024), nn.LayerNorm(1024)),
                    (torch.randint(0, 32000, (8, 512)),),
                ),
                # sequences
                "mamba2_chunk": lambda: (
                    blocks.mamba2_chunk,
                    (R(2, 16, 64, 16, 64), -torch.rand(2, 16, 16, 64), R(2, 16, 64, 64), R(2, 16, 64, 64)),
                ),
                "causal_conv": module(lambda: blocks.CausalConv(2048, 4), (4, 1024, 2048)),
                "gru": lambda: (nn.GRUCell(1024, 1024), (R(64, 1024), R(64, 1024))),
                "rnn": lambda: (nn.RNNCell(1024, 1024), (R(64, 1024), R(64, 1024))),
                "lstm_cell": lambda: (nn.LSTMCell(1024, 1024), (R(64, 1024), (R(64, 1024), R(64, 1024)))),
                "token_shift": lambda: (blocks.token_shift, (R(4, 512, 1024), torch.rand(1024), R(1024, 3584))),
                # losses
                "cross_entropy": lambda: (F.cross_entropy, classes(4096, 32000)()),
                "log_probs": lambda: (blocks.log_probs, (R(4, 512, 32000), torch.randint(0, 32000, (4, 512)))),
                "distillation": of(blocks.distillation, (2048, 32000), (2048, 32000)),
                "last_token": lambda: (blocks.last_token, (R(64, 512, 768), torch.randint(1, 512, (64,)))),
            },
        ),
        (
            torch.float16,
            {
                "conv_block": module(ConvBlock, IMAGE),
                "batch_norm": module(lambda: nn.BatchNorm2d(64), IMAGE),
                "group_norm": module(lambda: nn.GroupNorm(32, 320), (4, 320, 64, 64)),
                "squeeze_excite": module(lambda: blocks.SqueezeExcite(256, 16), (16, 256, 28, 28)),
                "depthwise": module(lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), (16, 96, 56, 56)),
                "convnext_block": module(lambda: blocks.ConvNextBlock(96), (8, 96, 56, 56)),
                "unet_block": lambda: (blocks.UnetBlock(320, 320, 1280), (R(2, 320, 32, 32), R(2, 1280))),
                "separable_conv": module(blocks.SeparableConv, (16, 5, 112, 112)),
                "max_pool": of(F.max_pool2d, (16, 64, 112, 112), kernel_size=3, stride=2, padding=1),
                "patch_merging": module(lambda: blocks.PatchMerging(96), (8, 56, 56, 96)),
                "pixel_shuffle": of(blocks.pixel_shuffle, (4, 256, 128, 128)),
                "vit_embedding": module(lambda: blocks.VitEmbedding(768, 16, 224), (8, 3, 224, 224)),
            },
        ),
        (
            torch.float32,
            {
                "batch_norm_in_training": of(
                    lambda x: F.batch_norm(x, None, None, training=True),  # statistics of the batch
                    (16, 64, 56, 56),
                ),
                "moe_dense": module(lambda: blocks.MoeDense(1024, 512, 8), (64, 1024)),
                "variance": of(lambda x: (x.var(-1), x.mean(-1)), (4096, 4096)),
                "mse_loss": of(F.mse_loss, (4096, 4096), (4096, 4096)),
                "huber_loss": of(F.huber_loss, (4096, 4096), (4096, 4096)),
                "info_nce": of(blocks.info_nce, (1024, 512), (1024, 512)),
                "focal": lambda: (blocks.focal, (R(4096, 1024), (R(4096, 1024) > 0).float())),
                "triplet": of(blocks.triplet, (8192, 512), (8192, 512), (8192, 512)),
                "dice": lambda: (blocks.dice, (R(16, 1, 256, 256), (R(16, 1, 256, 256) > 0).float())),
                "adam": lambda: (programs.adam, (*(R(4096, 4096) for _ in range(3)), torch.rand(4096, 4096))),
                "lion": of(blocks.lion, (4096, 4096), (4096, 4096), (4096, 4096)),
                "clip_by_norm": of(blocks.clip_by_norm, (4096, 4096)),
                "fake_quantized": of(blocks.fake_quantized, (4096, 4096)),
                "distances": of(blocks.distances, (512, 64), (512, 64)),
                "rbf": of(blocks.rbf, (2048, 64), (2048, 64)),
            },
        ),
    )
    for name, make in cases.items()
}
"""By name: the data type of what floats, and what makes the function and its arguments."""


def case(name: str, device: str) -> Case:
    """The function or module and its arguments, in their data type. Raises KeyError."""
    dtype, make = SIZES[name]
    torch.manual_seed(0)
    with torch.device(device):
        function, args = make()
    if isinstance(function, nn.Module):
        function = function.to(dtype).requires_grad_(False)
    converted = torch.utils._pytree.tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, args)
    return function, converted
