"""The timing of exported files that check themselves."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.codegen.exported.selfcheck import time_beside_eager


@pytest.mark.gpu
def test_gpu_what_no_graph_can_hold_is_timed_without_one() -> None:
    def inputs(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(seed)
        return [torch.randn(1 << 22, device="cuda", generator=generator)]

    torch.cuda.init()
    generator = torch.cuda.default_generators[0]
    own = generator.clone_state()
    ours, eager = time_beside_eager(lambda x: x + 1, lambda x: x[x > 0], inputs)
    generator.graphsafe_set_state(own)  # a capture that failed leaves the other one as if it went on
    assert "µs a call" in ours and "no CUDA graph" not in ours
    assert "µs a call" in eager and eager.endswith("no CUDA graph")
