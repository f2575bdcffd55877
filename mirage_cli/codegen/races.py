"""Races of a compiled kernel, found by a walk through the loops of its text in Triton's GPU dialect (TTGIR).

Triton copies blocks of later iterations to rings of buffers, and may leave products of warpgroups under way for an
iteration. With a buffer too few, a copy goes over what a product still reads. An iteration, with three:

    product of buffer i mod 3 starts | wait until it alone is under way | copy to buffer (i + 3) mod 3 starts

The walk works out the number of each buffer as the kernel does, and knows nothing of how Triton arranges loops. It
takes no account of barriers between warps, nor of those that the hardware's copies of boxes arrive at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

T = TypeVar("T")
ITERATIONS = 16
"""Of each loop: several rounds of a ring."""
NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
OPERATION = re.compile(r'(?:(%[\w$.-]+)(?::(\d+))? = )?"?([a-z_]+\.\w+)"?(.*)')
LOCATION = re.compile(r" loc\(.*\)$")
COMPARISON = re.compile(r" (\w+),")
LEFT_IN_REGISTERS = re.compile(r" : tensor<[^*]*> \* ")
ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.remsi": lambda a, b: a % b,
    "arith.remui": lambda a, b: a % b,
    "arith.andi": lambda a, b: a & b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.select": lambda chosen, a, b: a if chosen else b,
    "arith.cmpi eq": lambda a, b: a == b,
    "arith.cmpi ne": lambda a, b: a != b,
    "arith.cmpi slt": lambda a, b: a < b,
    "arith.cmpi sle": lambda a, b: a <= b,
    "arith.cmpi sgt": lambda a, b: a > b,
    "arith.cmpi sge": lambda a, b: a >= b,
}
COPY = "ttg.async_copy_global_to_local"
VIEWS = ("ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_subslice", "ttg.memdesc_reinterpret")
WRITES = (
    COPY,
    "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_gather",
    "ttg.local_store",
    "ttg.local_dealloc",  # another allocation may take its place
)


class Buffer(NamedTuple):
    """number: in its ring; None for the whole of an allocation."""

    allocation: str
    number: int | None

    def overlaps(self, other: Buffer) -> bool:
        return self.allocation == other.allocation and (None in (self.number, other.number) or self == other)


Value = int | Buffer | None
"""None where it is not known."""


@dataclass(slots=True)
class Operation:
    """One line, with the blocks of its regions. outs: names of its results. rest: what stands behind its own name."""

    outs: list[str]
    name: str
    rest: str
    operands: list[str]
    blocks: list[list[Operation]] = field(default_factory=list["list[Operation]"])

    def number(self, attribute: str) -> int:
        found = re.search(rf"\b{attribute} = (\d+)", self.rest)
        return int(found[1]) if found else 0


class Product(NamedTuple):
    """One that may not have ended. reads: its operands in shared memory. registers: the name of the left one where that
    is in registers."""

    reads: list[Buffer]
    registers: str | None


def races(ttgir: str) -> str | None:
    """What goes wrong in a kernel, in words; None where nothing is found. Forms that are not known are passed over."""
    walk = Walk()
    walk.block(parsed(ttgir))
    return walk.found


def parsed(ttgir: str) -> list[Operation]:
    blocks: list[list[Operation]] = [[]]
    for line in ttgir.splitlines():
        text = LOCATION.sub("", line.strip())
        if text.startswith("}") and len(blocks) > 1:
            blocks.pop()
        elif m := OPERATION.match(text):
            outs = [m[1]] if m[2] is None else [f"{m[1]}#{i}" for i in range(int(m[2]))]
            blocks[-1].append(Operation(outs if m[1] else [], m[3], m[4], NAME.findall(m[4].split(" : ")[0])))
        else:
            continue
        if text.endswith("{") and blocks[-1]:
            blocks[-1][-1].blocks.append([])
            blocks.append(blocks[-1][-1].blocks[-1])
    return blocks[0]


@dataclass(slots=True)
class Walk:
    """values: by name. under_way: products, in order. arriving: of each group of copies that may not have arrived, its
    buffers; those of the last are still to be joined by others."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    under_way: list[Product] = field(default_factory=list[Product])
    arriving: list[list[Buffer]] = field(default_factory=lambda: [[]])
    found: str | None = None

    def block(self, operations: Iterable[Operation]) -> list[Value]:
        """What it yields."""
        yielded: list[Value] = []
        for x in operations:
            if self.found:
                break
            given = [self.values.get(name) for name in x.operands]
            if x.name == "scf.yield":
                yielded = given
            elif x.name == "scf.for":
                self.loop(x)
            elif x.blocks:
                self.branches(x)
            else:
                self.step(x, given)
        return yielded

    def loop(self, x: Operation) -> None:
        carried = re.search(r"iter_args\((.*?)\)", x.rest)
        names = NAME.findall(carried[1]) if carried else []
        given = [self.values.get(name) for name in names[1::2]]
        for _ in range(ITERATIONS):
            self.values |= dict(zip(names[::2], given, strict=False))
            given = self.block(x.blocks[0])

    def branches(self, x: Operation) -> None:
        """Blocks of which the kernel may take one, or none: what is under way behind them is the most that may be."""
        under_way, arriving = self.under_way, self.arriving
        most = under_way, arriving
        for block in x.blocks:
            self.under_way, self.arriving = [*under_way], [[*group] for group in arriving]
            self.block(block)
            most = max(most[0], self.under_way, key=len), max(most[1], self.arriving, key=len)
        self.under_way, self.arriving = most

    def step(self, x: Operation, given: list[Value]) -> None:
        buffers = [v for v in given if isinstance(v, Buffer)]
        for name in (p.registers for p in self.under_way if p.registers in x.outs):
            self.found = f"{x.name} overwrites the registers of {name}, which a product may still read"
        self.events(x, buffers)
        self.values |= dict.fromkeys(x.outs) | dict(zip(x.outs, computed(x, given), strict=False))

    def events(self, x: Operation, buffers: list[Buffer]) -> None:
        """What the operation reads, writes, starts or waits for."""
        match x.name:
            case "ttng.warp_group_dot":
                self.read(x, buffers)
                left = x.operands[0] if LEFT_IN_REGISTERS.search(x.rest) else None
                self.under_way = [*self.under_way, Product(buffers, left)] if "isAsync = true" in x.rest else []
            case "ttng.warp_group_dot_wait":
                self.under_way = last(self.under_way, x.number("pendings"))
            case "ttg.local_load":
                self.read(x, buffers)
            case "ttg.async_commit_group":
                self.arriving = [*self.arriving, []]
            case "ttg.async_wait":
                self.arriving = [*last(self.arriving[:-1], x.number("num")), self.arriving[-1]]
            case "ttg.local_alloc":
                self.write(x, [Buffer(x.outs[0], None)] if x.operands else [])
            case _ if x.name in WRITES:
                self.write(x, buffers)
                self.arriving[-1] += buffers if x.name == COPY else []
            case _:
                pass

    def write(self, x: Operation, buffers: list[Buffer]) -> None:
        read = [r for p in self.under_way for r in p.reads]
        for b in (b for b in buffers if any(map(b.overlaps, read))):
            self.found = f"{x.name} overwrites buffer {b.number} of {b.allocation}, which a product may still read"

    def read(self, x: Operation, buffers: list[Buffer]) -> None:
        written = [w for group in self.arriving for w in group]
        for b in (b for b in buffers if any(map(b.overlaps, written))):
            self.found = f"{x.name} reads buffer {b.number} of {b.allocation}, to which a copy may be on its way"


def computed(x: Operation, given: list[Value]) -> list[Value]:
    """The results of an operation, as far as they are known."""
    match x.name, given:
        case "arith.constant", _:
            number = re.match(r" (true|-?\d+) ?(:|$)", x.rest)
            return [1 if number[1] == "true" else int(number[1])] if number else []
        case "ttg.local_alloc", _:
            return [Buffer(x.outs[0], None)]
        case (("ttg.memdesc_index" | "ttg.memdesc_subview"), [Buffer(allocation, None), int(number), *_]):
            return [Buffer(allocation, number)]
        case "ttng.warp_group_dot_wait", _:
            return given
        case _ if x.name in VIEWS:
            return given[:1]
        case _:
            compared = COMPARISON.match(x.rest) if x.name == "arith.cmpi" else None
            f = ARITHMETIC.get(f"{x.name} {compared[1]}" if compared else x.name)
            numbers = [v for v in given if isinstance(v, int)]
            return [int(f(*numbers))] if f and len(numbers) == len(given) else []


def last(some: list[T], n: int) -> list[T]:
    return some[-n:] if n else []
