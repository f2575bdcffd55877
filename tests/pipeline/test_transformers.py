"""Models of `transformers`, small and with random parameters: cut as the backend cuts them, and the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.flop_counter import FlopCounterMode

from mirage_cli.pipeline.models.agreement import examples
from mirage_cli.pipeline.models.regions import Cut, cut

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers itself, which are many

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
"""One layer: of llama and t5 there are two, which are equal, and of which the second is given what the first makes."""
WORDS = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
Made = tuple[torch.nn.Module, dict[str, Any]]


def ids() -> torch.Tensor:
    return torch.arange(3, 10)[None]


def llama(transformers: Any) -> Made:
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 2}, **WORDS, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids(), "use_cache": False}


def gpt2(transformers: Any) -> Made:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=64, **WORDS)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids(), "use_cache": False}


def bert(transformers: Any) -> Made:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **WORDS)), {"input_ids": ids()}


def t5(transformers: Any) -> Made:
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **WORDS)
    inputs = {"input_ids": ids(), "decoder_input_ids": ids(), "use_cache": False}
    return transformers.T5ForConditionalGeneration(config), inputs


def vit(transformers: Any) -> Made:
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=4)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(1, 3, 16, 16)}


def whisper(transformers: Any) -> Made:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=12, decoder_start_token_id=1, **WORDS
    )  # fmt: skip
    return transformers.models.whisper.modeling_whisper.WhisperEncoder(config), {
        "input_features": torch.randn(1, 8, 24)
    }


MODELS: dict[str, tuple[Callable[[Any], Made], float]] = {
    "llama": (llama, 0.99), "gpt2": (gpt2, 0.99), "bert": (bert, 0.99), "t5": (t5, 0.9), "vit": (vit, 0.99),
    "whisper": (whisper, 0.99),
}  # fmt: skip
"""And the least part of its FLOPs that regions take."""


def flops(function: Callable[..., Any], *args: Any, **named: Any) -> int:
    with unset_fake_temporarily(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*args, **named)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_taken_and_the_same(name: str) -> None:
    """Each region's program agrees with PyTorch in float64, or it is not among them."""
    torch.manual_seed(0)
    make, least = MODELS[name]
    model, inputs = make(pytest.importorskip("transformers"))  # which takes a second to import
    model.eval()
    cuts: list[Cut] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> Any:
        cuts.append(cut(graph))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()  # of what was compiled before in this process
    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model(**inputs)[0]
        found = torch.compile(model, backend=backend)(**inputs)[0]
    torch.testing.assert_close(found, expected)
    assert not breaks
    assert not [why for c in cuts for why in c.left.values() if "mistake" in why]
    modules = [(c.model.get_submodule(r.module), r.times) for c in cuts for r in c.regions]
    taken = sum(times * flops(module, *examples(module)) for module, times in modules)
    assert taken >= least * flops(model, **inputs)
