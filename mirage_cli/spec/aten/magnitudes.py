"""How far whole numbers go from 0 in a graph of PyTorch. Kernels compute in 32 bits, PyTorch in those of the type.

(token * 1000003) % 4096    -->    Unsupported: mul computes with whole numbers that may not fit in 32 bits
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any  # nodes of PyTorch's graphs, and what their arguments are

from mirage_cli.ir.once import once
from mirage_cli.ir.program import LARGEST_HALF
from mirage_cli.spec.arrays import Unsupported
from mirage_cli.spec.aten.row import dtype_name, overloadless

LARGEST = (1 << 31) - 1
"""The largest that a kernel computes with."""
GIVEN = (1 << 30) - 1
"""How far whole numbers of 32 and 64 bits go that a graph is given, or makes of floating-point ones, and sizes that
differ by call: the sum of two is computed."""
UNKNOWN = LARGEST + 1
TYPES: Mapping[str, int] = {"bool": 1, "int8": 1 << 7, "uint8": (1 << 8) - 1, "int16": 1 << 15, "int32": LARGEST}
"""How far the numbers of a type go. Those of int64 go further."""


def numbers(node: Any) -> list[int]:
    """How far the numbers among the arguments of a call go. Those without a fraction are in the call's result."""
    given = (x for x in (*node.args, *node.kwargs.values()) if isinstance(x, int | float) and math.isfinite(x))
    return [math.ceil(abs(x)) for x in given]


def summed(node: Any, operands: list[int]) -> int:
    """A count of numbers: all that one of the results is made of, or for running sums all along the axis."""
    x, made, *dims = node.args[0].meta["val"], node.meta["val"], *node.args[1:2]
    runs = x.dim() and [d for d in dims if isinstance(d, int)]
    count = x.shape[runs[0]] if runs else x.numel() // max(1, made.numel())
    return operands[0] * max(1, count)


def added(node: Any, operands: list[int]) -> int:
    return sum(operands) * max(1, abs(math.ceil(node.kwargs.get("alpha", 1))))


def raised(node: Any, operands: list[int]) -> int:
    power = operands[1] if isinstance(node.args[0], int) else node.args[1]
    return min(operands[0] ** min(power, 64), UNKNOWN) if isinstance(power, int) and power > 0 else UNKNOWN


def counted(node: Any, size: int) -> int:
    """So many numbers from a start on: the first or the last. Where the start is worked out of a size, as far as sizes
    go."""
    start, step = (node.args[0], node.args[2] if len(node.args) > 2 else 1) if len(node.args) > 1 else (0, 1)
    if not isinstance(start, int) or not isinstance(step, int):
        return GIVEN
    return max(abs(start), abs(start + (size - 1) * step))


def shifted(node: Any, operands: list[int]) -> int:
    return max(1, operands[0] >> min(operands[1], 64)) if numbers(node) else operands[0]


def shifted_up(node: Any, operands: list[int]) -> int:
    """Of 32 bits, what lies beyond is lost in kernels too."""
    made = dtype_name(node.meta["val"].dtype)
    return min(operands[0] << min(operands[1], 64), LARGEST if made == "int32" else UNKNOWN)


def of_bits(_node: Any, operands: list[int]) -> int:
    """As far as all bits of the larger one go."""
    return (1 << max(x.bit_length() for x in operands)) - 1


def common_bits(node: Any, operands: list[int]) -> int:
    """No further than a number that is not negative."""
    most = [x for x in node.args if isinstance(x, int) and x >= 0]
    return min(*most, of_bits(node, operands)) if most else of_bits(node, operands)


def copied_in(node: Any, operands: list[int]) -> int:
    """As far as what is there goes, and what is written by rows, whose numbers do not count."""
    return max(operands[0], TYPES.get(dtype_name(node.args[3].meta["val"].dtype), GIVEN))


def second(_node: Any, operands: list[int]) -> int:
    """Of remainders: less than the divisor."""
    return operands[1]


GROWTH: Mapping[str, Callable[[Any, list[int]], int]] = {
    **dict.fromkeys(("aten.add", "aten.sub", "aten.rsub"), added),
    **dict.fromkeys(("aten.mul", "aten.outer"), lambda _, operands: math.prod(operands)),
    **dict.fromkeys(("aten.sum", "aten.cumsum"), summed),
    **dict.fromkeys(("aten.prod", "aten.cumprod", "aten.scatter_add", "aten.index_add"), lambda *_: UNKNOWN),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul", "aten.mv", "aten.dot", "aten.einsum"), lambda *_: UNKNOWN),
    **dict.fromkeys(("aten.index", "aten.index_select", "aten.gather"), lambda _, operands: operands[0]),
    **dict.fromkeys(("aten.index_copy", "aten.index_copy_"), copied_in),
    "aten._int_mm": lambda node, operands: math.prod(operands) * node.args[0].meta["val"].shape[1],
    "aten.linalg_cross": lambda _, operands: 2 * math.prod(operands),
    "aten.square": lambda _, operands: operands[0] ** 2,
    "aten.pow": raised,
    "aten.remainder": second,
    **dict.fromkeys(("aten.__rshift__", "aten.bitwise_right_shift"), shifted),
    **dict.fromkeys(("aten.__lshift__", "aten.bitwise_left_shift"), shifted_up),
    **dict.fromkeys(("aten.bitwise_or", "aten.__or__", "aten.bitwise_xor", "aten.__xor__"), of_bits),
    **dict.fromkeys(("aten.bitwise_and", "aten.__and__"), common_bits),
}
"""By operator: how far its results go, from how far its operands do. Results of others go as far as their operands."""


COPIES = frozenset(
    {"aten.cat", "aten.stack", "aten.index", "aten.index_select", "aten.gather", "aten.to", "aten._to_copy",
     "aten.slice_scatter", "aten.select_scatter", "aten.roll", "aten.index_copy", "aten.index_copy_"}
)  # fmt: skip
"""Operators whose results are elements of their operands. Their numbers are positions."""
NOT_NEGATIVE = frozenset({
    "aten.add", "aten.mul", "aten.remainder", "aten.__rshift__", "aten.bitwise_right_shift", "aten.__lshift__",
    "aten.bitwise_left_shift", "aten.__and__", "aten.bitwise_and", "aten.__or__", "aten.bitwise_or", "aten.__xor__",
    "aten.bitwise_xor", "aten.maximum", "aten.minimum", "aten.where",
})  # fmt: skip
"""Operators that make no negative numbers of others."""
PLACES = frozenset({"aten.argmax", "aten.argmin", "aten.bucketize", "aten.searchsorted"})
"""Operators that make positions."""
CHOSEN = frozenset({"aten.maximum", "aten.minimum", "aten.where"})
"""Operators whose results are elements of their operands, place by place."""
CONVERSIONS = ("aten.to", "aten._to_copy")
CONJUNCTIONS = ("aten.logical_and", "aten.bitwise_and", "aten.__and__")
BOUNDS = {"aten.ge": -1, "aten.gt": -1, "aten.lt": 1, "aten.le": 1}
"""Comparisons with a number, by the side on which they bound."""
ROUNDED = ("aten.round", "aten.floor", "aten.ceil", "aten.trunc", "aten.fix")


def not_negative(node: Any, moves: Callable[[object], bool]) -> bool:
    """Whether whole numbers are known to be none below 0: bytes, some of the bits of such, positions, and what is moved
    or chosen of these alone. A sum, a product or a shift to the left may wrap around, and so may what has fewer bits.
    """
    kind = dtype_name(node.meta["val"].dtype)
    if is_mask(node) or kind == "uint8":
        return True
    if node.op != "call_function" or kind not in ("int32", "int64"):
        return False
    name, read = overloadless(node.target), node.all_input_nodes
    numbers = [x for x in node.args if isinstance(x, int)]
    growth = GROWTH.get(name)
    if name in PLACES:
        return True
    if growth is common_bits:
        return any(x >= 0 for x in numbers) or any(is_whole(x) and not_negative(x, moves) for x in read)
    if growth is second:
        return isinstance(node.args[1], int) and node.args[1] > 0  # a remainder has the divisor's sign
    known = bool(read) and all(is_mask(x) or (is_whole(x) and not_negative(x, moves)) for x in read)
    if growth in (shifted, of_bits) or name in CHOSEN:
        return known and all(x >= 0 for x in numbers)
    return known and (name in COPIES or moves(node))  # whose numbers are positions


def may_wrap(node: Any) -> bool:
    """Whether a call converts floating-point numbers to whole ones of 64 bits that may not fit in 32, unless only those
    are read that do. What does not fit in a smaller type is undefined in PyTorch too."""
    if overloadless(node.target) not in CONVERSIONS or dtype_name(node.meta["val"].dtype) != "int64":
        return False
    if is_whole(node.args[0]) or is_mask(node.args[0]) or reach(node.args[0]) <= LARGEST:
        return False
    return not node.users or any(not keeps_small(u, node) for u in node.users)


def keeps_small(choice: Any, node: Any) -> bool:
    """Whether a call takes the whole numbers that a node makes of floating-point ones where a mask says that these are
    within bounds, and nowhere else: where((x >= 0) & (x < 64), whole(x), 0)."""
    if overloadless(choice.target) != "aten.where" or len(choice.args) != 3:
        return False
    mask, first, second = choice.args
    if first is not node or second is node or mask is node:
        return False
    signs = [sign for m in conjuncts(mask) for sign in bound_of(m, node.args[0])]
    return {*signs} == {-1, 1}


def conjuncts(mask: Any) -> list[Any]:
    """The masks that all hold where a mask does."""
    found = [mask]
    for m in found:
        if overloadless(getattr(m, "target", "")) in CONJUNCTIONS:
            found += [x for x in m.args if x not in found]
    return found


def bound_of(mask: Any, x: Any) -> tuple[int, ...]:
    """On which side a mask bounds floating-point numbers by one that fits in 32 bits: -1 from below, 1 from above."""
    side = BOUNDS.get(overloadless(getattr(mask, "target", "")))
    number = mask.args[1] if side and mask.args[0] is x else None
    return (side,) if side and isinstance(number, int | float) and abs(number) <= GIVEN else ()


def reach(node: Any) -> float:
    """How far the floating-point numbers of a node go, as far as is known at once."""
    most = LARGEST_HALF if dtype_name(node.meta["val"].dtype) == "float16" else math.inf
    name, given = overloadless(node.target), (*node.args, *node.kwargs.values())
    bounds = [abs(x) for x in given if isinstance(x, int | float)]
    if name in ("aten.clamp", "aten.hardtanh") and len(bounds) == 2:
        return max(bounds)
    return min(most, reach(node.args[0])) if name in ROUNDED and len(given) == 1 else most


def elements_of(node: Any) -> list[Any]:
    """What the elements of a result are taken from, where that is not all that the call reads: rows are written where
    other numbers say."""
    return [node.args[0], node.args[3]] if GROWTH.get(overloadless(node.target)) is copied_in else []


def refuse_result(node: Any, given: Container[Any]) -> None:
    """Raises Unsupported for a result that is of whole numbers, or decided by such, that may not fit in 32 bits: of 64
    bits that the graph is given, or makes of floating-point numbers. And for one that counts, and reads nothing."""
    todo = [node]
    for x in todo:
        if x in given and is_whole(x) and dtype_name(x.meta["val"].dtype) == "int64":
            raise Unsupported(f"the result {node} is made of whole numbers of 64 bits, {x}")
        if x not in given and (is_whole(x) or is_mask(x)):
            if may_wrap(x):
                raise Unsupported(f"{x} makes whole numbers of floating-point ones that may not fit in 32 bits")
            todo += [y for y in (elements_of(x) or x.all_input_nodes) if y not in todo]
    if all(x not in given and (is_whole(x) or is_mask(x)) for x in todo):
        raise Unsupported(f"the result {node} is made of numbers alone")


class Magnitudes:
    """What is known of the nodes of one graph. named: the largest of each size that differs by call."""

    def __init__(self, moves: Callable[[object], bool], named: Mapping[int, int]) -> None:
        self.moves, self.named = moves, named
        self.worked_out: dict[Any, Any] = {}  # as `once` has it

    def refuse_large(self, node: Any) -> None:
        """Raises Unsupported where a call takes or makes whole numbers that a kernel does not compute as PyTorch does,
        which wraps around in 8 and 16 bits."""
        whole = [x for x in node.all_input_nodes if is_whole(x)]
        if not whole:
            return
        if most := [x for x in whole if self.of(x) > LARGEST]:
            raise Unsupported(f"{most[0]} holds whole numbers that may not fit in 32 bits")
        if self.of(node) > LARGEST or max(self.numbers(node), default=0) > LARGEST:
            raise Unsupported(f"{node} computes with whole numbers that may not fit in 32 bits")
        made = dtype_name(getattr(node.meta["val"], "dtype", ""))
        if not self.moves(node) and made in TYPES and not self.fits(node, made):
            raise Unsupported(f"{node} computes in {made} with whole numbers that may not fit in it")
        self.refuse_narrowing(node, whole[0])

    def fits(self, node: Any, made: str) -> bool:
        """Whether what a call makes is within its type, in which PyTorch wraps around where kernels do not."""
        name = overloadless(node.target)
        if name in COPIES and name not in CONVERSIONS:
            return self.of(node) <= TYPES.get(made, LARGEST)
        if made == "uint8" and name not in COPIES:
            negative = any(isinstance(x, int) and x < 0 for x in (*node.args, *node.kwargs.values()))
            if negative or name not in NOT_NEGATIVE:
                return False
        return made in ("bool", "int32") or self.of(node) < TYPES[made] + (made == "uint8")

    def refuse_narrowing(self, node: Any, operand: Any) -> None:
        """Raises Unsupported where a conversion may wrap around."""
        if overloadless(node.target) not in CONVERSIONS:
            return
        made, given = dtype_name(node.meta["val"].dtype), dtype_name(operand.meta["val"].dtype)
        if made in (given, "bool"):
            return
        negative = made == "uint8" and given != "bool"
        if is_whole(node) and (negative or self.of(operand) > TYPES.get(made, LARGEST)):
            raise Unsupported(f"{node} converts whole numbers to {made} that may not fit in it")

    @once
    def of(self, node: Any) -> int:
        """How far a node's whole numbers go; 0 of floating-point ones."""
        value = node.meta.get("val")
        if isinstance(value, int):
            return abs(value)
        if self.is_several(node):
            return max(map(self.of, node.all_input_nodes), default=0)
        if not is_whole(node):
            return int(is_mask(node))
        name = overloadless(node.target)
        if name == "aten.arange":
            return counted(node, self.named.get(value.numel(), value.numel()))
        read = [x for x in node.all_input_nodes if is_whole(x) or is_mask(x) or self.is_several(x)]
        if node.op != "call_function" or (node.all_input_nodes and not read):
            far = reach(node.args[0]) if overloadless(node.target) in CONVERSIONS else GIVEN
            return math.ceil(min(TYPES.get(dtype_name(value.dtype), GIVEN), GIVEN, far))
        if not read and any(n in self.named for n in value.shape):
            return GIVEN
        if name in GROWTH:
            return GROWTH[name](node, [self.operand(x) for x in node.args[:2]])
        return max([*map(self.of, read), *self.numbers(node)], default=0)

    def is_several(self, node: Any) -> bool:
        """Whether a node is a list of tensors whose elements are its operands': parts of one, say."""
        return isinstance(node.meta.get("val"), list | tuple) and node.op == "call_function" and self.moves(node)

    def numbers(self, node: Any) -> list[int]:
        """As `numbers`, but for positions."""
        return [] if self.moves(node) or overloadless(node.target) in COPIES else numbers(node)

    def operand(self, x: Any) -> int:
        """How far an argument goes: a node, or a number of Python's."""
        return self.of(x) if hasattr(x, "op") else abs(x) if isinstance(x, int) else 0


def is_whole(node: Any) -> bool:
    """Whether a node is a tensor of whole numbers."""
    dtype = getattr(node.meta.get("val"), "dtype", None)
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex and dtype_name(dtype) != "bool"


def is_floating(node: Any) -> bool:
    """Whether a node is a tensor of floating-point numbers."""
    return getattr(getattr(getattr(node, "meta", {}).get("val"), "dtype", None), "is_floating_point", False)


def is_mask(node: Any) -> bool:
    return dtype_name(getattr(node.meta.get("val"), "dtype", "")) == "bool"
