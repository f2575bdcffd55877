"""Parts of a problem that are evaluated one after the other: pieces, at whose positions a program computes
independently, and blocks of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any  # what a function returns: a tensor, several, or nothing

import torch

PIECE_BYTES = 1 << 30
"""About what the float64 values of one piece take, and the least on a GPU."""
PIECE_OF_ALL, PIECE_OF_FREE = 32, 8
"""On a GPU, one of so many equal parts of its memory, and of what is free of it, where that is less. What is evaluated
takes the more launches, the smaller the pieces are."""


def piece_bytes(device: torch.device) -> int:
    """What a piece takes on this device."""
    if device.type != "cuda":
        return PIECE_BYTES
    free, total = torch.cuda.mem_get_info(device)
    return max(PIECE_BYTES, min(total // PIECE_OF_ALL, free // PIECE_OF_FREE))


@dataclass(frozen=True)
class Cut:
    """An axis at whose positions a program computes independently of one another, so that it can be judged in pieces.

    inputs, outputs: where each has the axis; None where an input lacks it. length: of the axis. position_bytes: what a
    float64 evaluation holds for one position. piece_bytes: for one piece; None: `PIECE_BYTES`.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    length: int
    position_bytes: int
    piece_bytes: int | None = None

    def on(self, device: torch.device) -> Cut:
        """In pieces as large as this device has room for."""
        return replace(self, piece_bytes=piece_bytes(device))


@dataclass(frozen=True)
class Piece:
    """Some positions of a cut, which ascend; without one, all of the problem."""

    cut: Cut | None = None
    positions: range | tuple[int, ...] | None = None

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of all the inputs, what belongs to this piece."""
        axes = self.cut.inputs if self.cut else (None,) * len(tensors)
        return [self.of(x, axis) for x, axis in zip(tensors, axes, strict=True)]

    def output(self, y: torch.Tensor, i: int) -> torch.Tensor:
        """Of output number i, what belongs to this piece."""
        return self.of(y, self.cut.outputs[i] if self.cut else None)

    def of(self, x: torch.Tensor, axis: int | None) -> torch.Tensor:
        if axis is None or self.positions is None:
            return x
        if isinstance(self.positions, range):
            return x.narrow(axis, self.positions.start, len(self.positions))
        return x.index_select(axis, torch.tensor(self.positions, device=x.device))


@dataclass(frozen=True)
class Block:
    """An axis along which a program is evaluated a few positions at a time, where a piece takes too much memory: its
    functions take the arguments `start_AXIS` and `size_AXIS`.

    outputs: where each has the axis. length: of the axis. step: positions at a time.
    """

    axis: str
    outputs: tuple[int, ...]
    length: int
    step: int


def in_blocks(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], blocks: Sequence[Block]
) -> tuple[torch.Tensor, ...]:
    """What the function makes of the inputs, block by block along each of these axes."""
    if not blocks:
        return as_tuple(function(*inputs))
    (first, *rest), parts = blocks, list[tuple[torch.Tensor, ...]]()
    for at in range(0, first.length, first.step):
        some = {f"start_{first.axis}": at, f"size_{first.axis}": min(first.step, first.length - at)}
        parts.append(in_blocks(functools.partial(function, **some), inputs, rest))
    return tuple(torch.cat(some, axis) for some, axis in zip(zip(*parts, strict=True), first.outputs, strict=True))


def pieces_of(cut: Cut | None) -> list[Piece]:
    """Pieces of about the cut's `piece_bytes`; one, the whole, where all is no more or there is no cut."""
    if cut is None or (step := step_of(cut)) >= cut.length:
        return [Piece()]
    return [Piece(cut, range(at, min(at + step, cut.length))) for at in range(0, cut.length, step)]


def pieces_with(positions: Sequence[int], pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that hold these positions: of the given ones, or of these positions alone where they are fewer than
    half."""
    cut = pieces[0].cut
    if cut is None:
        return [*pieces] if positions else []
    if 2 * len(positions) > cut.length:
        return [*pieces]
    if step_of(cut) == 1:  # of which evaluations may be known
        return [piece for piece in pieces if set(positions).intersection(piece.positions or ())]
    return [Piece(cut, tuple(positions[at : at + step_of(cut)])) for at in range(0, len(positions), step_of(cut))]


def step_of(cut: Cut) -> int:
    """The positions of a piece."""
    return max(1, (cut.piece_bytes or PIECE_BYTES) // cut.position_bytes)


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    """What a function returned: one tensor, several, or nothing."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result or ())
