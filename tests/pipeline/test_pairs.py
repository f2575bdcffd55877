"""Complex numbers as pairs of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported

R = torch.randn


def complexes(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def rope(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * turn[None, :, None]).flatten(3).type_as(x)


def angles(positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angle = positions[:, None] * frequencies
    return torch.polar(torch.ones_like(angle), angle)


class Turned(torch.nn.Module):
    """Llama's first text: the model holds what positions are turned by."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", angles(torch.arange(9.0), R(4)))
        self.q = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rope(self.q(x).view(2, 5, 2, 8), self.turn[1:6]).sum(-1)


WHOLE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "what a model holds": (Turned(), (R(2, 5, 16),)),
    "angles": (lambda x, p, f: rope(x, angles(p, f)), (R(2, 5, 2, 8).half(), R(5), R(4))),
    "parts of several shapes": (
        lambda a, b, x: torch.view_as_real(torch.complex(a, b) * x + (2 + 1j)),
        (R(3, 1), R(1, 4), R(3, 4)),
    ),
    "without a real part": (
        lambda x: (torch.view_as_real(torch.exp(1j * x)), torch.view_as_real(x * 2j), (x * 1j).imag),
        (R(3, 4),),
    ),
    "sizes and conjugates": (
        lambda z, w: (z.abs() ** 2, (z * w.conj()).real, (z - w / 3).sum(-1).imag, (z + 1).abs()),
        (complexes(3, 4), complexes(3, 4)),
    ),
    "products": (
        lambda z, w, x: ((z @ w).abs(), (x.to(z.dtype) @ z).real),
        (complexes(3, 4), complexes(4, 5), R(2, 3)),
    ),
    "moved": (
        lambda z, w: torch.view_as_real(torch.cat([z.T * 2, w.flip(0) + 1j], 1)[1:].unsqueeze(0)),
        (complexes(3, 4), complexes(4, 5)),
    ),
    "halves": (lambda z: [(-y).abs() for y in (z * 2).chunk(2, -1)], (complexes(3, 4),)),
}


def cut_of(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Cut:
    with torch.no_grad():
        found = cut(exported(as_module(function), inputs))
        torch.testing.assert_close(found.model(*inputs), as_module(function)(*inputs))
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_regions_compute_with_both_parts(name: str) -> None:
    found = cut_of(*WHOLE[name])
    assert found.left == {} and found.regions


def test_results_lie_as_pytorchs() -> None:
    found = cut_of(lambda z: ((z * 2).mT, z * z), (complexes(3, 4),))
    assert [y.stride() for y in found.model(complexes(3, 4))] == [(1, 4), (4, 1)]


def test_other_operators_read_and_make_complex_numbers() -> None:
    """Between two of them, what only moves elements stays as it is."""
    found = cut_of(lambda x, w: torch.fft.irfft(torch.fft.rfft(x * 2) * w), (R(3, 8), complexes(5)))
    assert {name.split(" ")[0] for name in found.left} == {"aten._fft_r2c", "aten._fft_c2r"}
    assert len(found.regions) == 2
    found = cut_of(lambda x: torch.fft.irfft(torch.fft.rfft(x * 2)[:, :3]), (R(3, 8),))
    assert len(found.regions) == 1


def test_types_that_kernels_lack_stay_pytorchs() -> None:
    found = cut_of(lambda z, x: ((z * 2).abs(), x * 2), (complexes(3).to(torch.complex128), R(3)))
    assert len(found.regions) == 1


def test_no_square_of_a_part_overflows() -> None:
    found = cut_of(torch.abs, (torch.complex(torch.tensor([3e30, 0.0, 1e-30]), torch.tensor([4e30, 0.0, 1e-30])),))
    assert found.left == {}
