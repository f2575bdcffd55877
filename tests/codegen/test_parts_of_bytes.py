"""Parts of bytes by logic alone: the PTX that kernels start with, for every byte and every part of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeAlias  # functions of a module that was made of text

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.helpers import BYTES, PAIRS
from mirage_cli.codegen.nodes import RAISED
from mirage_cli.ir.whole import EXACT
from mirage_cli.spec.reader import parse_spec
from tests.searched import searched

Words: TypeAlias = NDArray[np.int64]
"""A register of 32 bits in each thread."""


@dataclass(frozen=True)
class Block:
    """Elements as their bits."""

    bits: Words
    dtype: str

    def __rsub__(self, number: float) -> Block:
        return Block(bits_of(number - self.numbers, self.dtype), self.dtype)

    @property
    def numbers(self) -> NDArray[np.float64]:
        kind: torch.dtype = getattr(torch, self.dtype)
        return torch.tensor(self.bits).to(torch.int16).view(kind).double().numpy()


def bits_of(numbers: NDArray[np.float64], dtype: str) -> Words:
    """Rounded to nearest."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.tensor(numbers).to(kind).view(torch.int16).long().numpy() & 0xFFFF


def prmt(a: Words, b: Words, which: Words) -> Words:
    both = a | b << 32
    return sum(((both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i for i in range(4)), np.int64(0))


def lop3(a: Words, b: Words, c: Words, table: Words) -> Words:
    return {0x6A: a & b ^ c, 0xEA: a & b | c}[int(table)]


def by_halves(compute: Callable[..., NDArray[np.float64]], dtype: str) -> Callable[..., Words]:
    def word(*words: Words) -> Words:
        halves = ([Block(np.atleast_1d(w >> place & 0xFFFF), dtype).numbers for w in words] for place in (0, 16))
        low, high = (bits_of(compute(*x), dtype) for x in halves)
        return low | high << 16

    return word


OPERATIONS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, n: a >> n,
    "prmt.b32": prmt,
    "lop3.b32": lop3,
    "sub.rn.f16x2": by_halves(lambda x, y: x - y, "float16"),
    "fma.rn.f16x2": by_halves(lambda x, y, z: x * y + z, "float16"),
    "fma.rn.bf16x2": by_halves(lambda x, y, z: x * y + z, "bfloat16"),
}
BITS = {"uint8": 8, "int16": 16, "float16": 16, "bfloat16": 16}


def inline_asm(text: str, registers: str, given: Sequence[Block], dtype: str, _: bool, pack: int) -> Block:
    """A thread has so many elements."""
    known: dict[str, Words] = {}
    size, outputs = max(len(x.bits) for x in given), registers.count("=")
    for x in given:
        own = BITS[x.dtype]
        elements = np.broadcast_to(x.bits, size).reshape(-1, pack) & (1 << own) - 1
        for part in np.split(elements, max(1, pack * own // 32), axis=1):
            known[f"${outputs + len(known)}"] = sum((part[:, i] << own * i for i in range(part.shape[1])), np.int64(0))
    for line in filter(None, (x.strip() for x in text.split(";"))):
        if (step := re.fullmatch(r"\{?\s*(\S+) (.*)", line)) and step[1] in OPERATIONS:
            to, *arguments = step[2].split(", ")
            values = (known[a] if a in known else np.int64(int(a, 0)) for a in arguments)
            known[to] = OPERATIONS[step[1]](*values) & 0xFFFFFFFF
        else:
            assert line.startswith(("{", "}", ".reg")), line
    halves = [known[f"${i}"] >> place & 0xFFFF for i in range(outputs) for place in (0, 16)]
    return Block(np.stack(halves, axis=1).reshape(-1), dtype)


def helpers() -> dict[str, Any]:
    def full(_: tuple[()], number: float, dtype: str) -> Block:
        whole = "float" not in dtype
        return Block(np.array([int(number)]) if whole else bits_of(np.array([float(number)]), dtype), dtype)

    kinds = {name: name for name in BITS}
    language = SimpleNamespace(**kinds, constexpr=int, full=full, inline_asm_elementwise=inline_asm)
    made: dict[str, Any] = {"INTERPRETED": False, "tl": language, "triton": SimpleNamespace(jit=lambda f: f)}
    exec(f"{BYTES}\n{PAIRS}", made)
    return made


def parts_of_bytes(dtype: str) -> Iterator[tuple[int, int, int]]:
    """shift, mask, sign of each that the last bits of a number of this type have room for."""
    for width in range(1, 9):
        if 1 << width <= RAISED[dtype]:
            yield from ((s, (1 << width) - 1, sign) for s in range(9 - width) for sign in (0, 1 << width - 1))


EVERY = np.arange(256)
PAIRS_OF_BYTES = np.concatenate([x for y in (0, 90, 165, 255) for x in (EVERY << 8 | y, EVERY | y << 8)])


@pytest.mark.parametrize("dtype", RAISED)
def test_every_part_of_every_byte_is_exact(dtype: str) -> None:
    """Less the largest and the least number that the sum may have beside it."""
    made = helpers()
    for shift, mask, sign in parts_of_bytes(dtype):
        room = EXACT[dtype] - RAISED[dtype] - sign
        for number in (0, -room, -7 % room, room):
            less = Block(bits_of(np.array([RAISED[dtype] + sign + number], float), dtype), dtype)
            assert less.numbers == [RAISED[dtype] + sign + number]
            found = made["byte_bits"](Block(EVERY, "uint8"), shift, mask, sign, less)
            assert (found.numbers == ((EVERY >> shift) & mask ^ sign) - sign - number).all()
            for at in (shift, shift + 8):
                found = made["pair_bits"](Block(PAIRS_OF_BYTES, "int16"), at, mask, sign, less)
                assert (found.numbers == ((PAIRS_OF_BYTES >> at) & mask ^ sign) - sign - number).all()


@pytest.mark.parametrize("second", [False, True])
def test_every_byte_is_exact_in_bfloat16(second: bool) -> None:
    found = helpers()["pair_bytes"](Block(PAIRS_OF_BYTES, "int16"), second)
    assert (found.numbers == (PAIRS_OF_BYTES >> 8 * second & 255 ^ 128) - 128).all()


def test_a_part_that_has_no_room_is_seen_here() -> None:
    """A whole byte beside bfloat16's seven bits: its first would be part of the exponent."""
    less = Block(bits_of(np.array([128.0]), "bfloat16"), "bfloat16")
    found = helpers()["byte_bits"](Block(EVERY, "uint8"), 0, 255, 0, less).numbers
    assert (found[:128] == EVERY[:128]).all() and (found[128:] != EVERY[128:]).any()


CHANGED = """
name: replaced
dims: {m: 16, k: 4096, n: 4096}
inputs: {X: [m, k], W: {dims: [k, n], dtype: int8}, S: [n], N: {dims: [k, n], dtype: int8}}
program: |
  O = dot(X, W * S, k)
  W[k, n] = N
outputs: {O: [m, n], W: {inout: W}}
"""


def test_what_a_kernel_changes_is_read_where_it_lies() -> None:
    """Bytes that are read in pairs are copied where they lie at an odd address, and what is stored into a copy is
    lost."""
    plans = [p for p in searched(parse_spec(CHANGED).at()).plans if len(p.graph.kernels) == 1]
    (found,) = [p for p in plans if {s.buffer for s in p.graph.kernels[0].stores} == {"O", "W"}]
    graph = found.graph.resized({"k": 512, "n": 64})
    module: Any = load_export(kernels_source(graph, found.schedule))
    memory = torch.randint(-9, 9, (512 * 64 + 1,), dtype=torch.int8)
    w, new = memory[1:].view(512, 64), torch.randint(-9, 9, (512, 64), dtype=torch.int8)
    x, s, out = torch.randn(16, 512).half(), torch.rand(64).half(), torch.empty(16, 64, dtype=torch.float16)
    want = x.double() @ (w.double() * s.double())
    module.launch([x, w, s, new], [out], module.make_scratch(torch.device("cpu")))
    assert torch.equal(w, new)
    torch.testing.assert_close(out.double(), want, atol=0.5, rtol=0.01)


def test_a_plan_that_stores_into_what_it_reads_in_pairs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [p for p in searched(parse_spec(CHANGED).at()).plans if len(p.graph.kernels) == 1]
    monkeypatch.setattr(ScheduledKernel, "whole_kernel", property(lambda k: replace(k.kernel, stores=())))
    with pytest.raises(PlanError, match="what is stored into may be a copy"):
        kernels_source(plans[0].graph, plans[0].schedule)
