"""The commonest operators of Triton's interpreter, straight in numpy.

Triton asks of both operands of each operator what type the result has, whether one is a constant of the kernel, which
of them has to be converted and extended. For two float32 or two int32 the answer is known, and numpy extends by itself.
All else is left to Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any  # types and values of Triton's interpreter, which are not typed

import numpy as np

from mirage_cli.verify.halves import halved_sum

Numpy = Callable[[Any, Any], Any]
new = object.__new__
joint_shape = functools.cache(np.broadcast_shapes)
BOOL = np.dtype(bool)

ARITHMETIC: dict[str, Numpy] = {"__add__": np.add, "__sub__": np.subtract, "__mul__": np.multiply}
"""Methods of float32 and of int32."""
COMPARISONS: dict[str, Numpy] = {
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}
"""Of float32 and of int32; what they give is int1."""
BITS: dict[str, Numpy] = {"__and__": np.bitwise_and, "__or__": np.bitwise_or}
"""Of int1 and of int32."""
DIVISIONS: dict[str, Numpy] = {"__floordiv__": lambda a, b: (a - np.fmod(a, b)) // b, "__mod__": np.fmod}
"""Of int32. They round to 0, as a GPU's do."""


def in_front(data: Any) -> Any:
    """Matrices with their lanes in front, in rows, as numpy's library multiplies them."""
    return np.ascontiguousarray(data.transpose(data.ndim - 1, *range(data.ndim - 1)))


def behind(data: Any) -> Any:
    """The lanes where they were."""
    return np.ascontiguousarray(data.transpose(*range(1, data.ndim), 0))


class Straight:
    """Takes the place of Triton's operators of blocks and numbers, and leaves to them what it does not know.

    lanes: axes of arrays behind those of their blocks (`tune.lanes`).
    """

    def __init__(self, interpreter: Any, core: Any) -> None:
        self.core, self.handle, self.semantic = core, interpreter.TensorHandle, interpreter.interpreter_semantic
        self.load_from, self.numpy_type = interpreter._interpreter.load, interpreter._get_np_dtype
        self.known: dict[Any, dict[str, Any]] = {}
        self.lanes = 0
        self.filled = functools.lru_cache(maxsize=1 << 8)(lambda x, type, shape: np.full(shape, x, type))

    def take(self, language: Any) -> None:
        """Puts all operators in their places. `language`: triton.language, where kernels find `load`."""
        core = self.core
        float32, int32, int1 = core.float32, core.int32, core.int1
        for name, function in ARITHMETIC.items():
            self._method(name, function, {float32: float32, int32: int32})
        for name, function in COMPARISONS.items():
            self._method(name, function, {float32: int1, int32: int1})
        for name, function in BITS.items():
            self._method(name, function, {int1: int1, int32: int32})
        for name, function in DIVISIONS.items():
            self._method(name, function, {int32: int32})
        self._method("__truediv__", np.divide, {float32: float32})
        core.tensor.__add__ = self.moved(core.tensor.__add__)
        core.tensor.__getitem__ = self.indexed(core.tensor.__getitem__)
        core.tensor.to = self.converted(core.tensor.to)
        core.load = language.load = self.loaded(core.load)
        core.arange = language.arange = self.counted(core.arange)
        core.dot = language.dot = self.multiplied(core.dot)
        language.sum = core.tensor.sum = self.reduced(language.sum, halved_sum)
        language.max = core.tensor.max = self.reduced(language.max, lambda x, axis, _: np.fmax.reduce(x, axis))

    def made(self, data: Any, element: Any, block: bool) -> Any:
        """A value of the interpreter. Those of one type share all but their numbers."""
        key = element.name, data.shape if block else ()
        if (fields := self.known.get(key)) is None:
            type = self.core.block_type(element, [*data.shape[: data.ndim - self.lanes]]) if block else element
            fields = self.known[key] = vars(self.core.tensor(self.handle(data, element), type))
        handle, x = new(self.handle), new(self.core.tensor)
        handle.data, handle.dtype, handle.attr = data, element, {}
        x.__dict__ = {**fields, "handle": handle}
        return x

    def number(self, x: Any, element: Any) -> Any:
        """A Python number as the element of a block that it meets; None where Triton has to see whether it is one."""
        if type(x) is float:
            fits = element is self.core.float32 and self.semantic.to_tensor(x).dtype is element
        else:
            fits = type(x) is int and -(1 << 31) <= x < 1 << 31
        return self.semantic.scalar_constant(x, element).handle.data if fits else None

    def _method(self, name: str, function: Numpy, gives: dict[Any, Any]) -> None:
        """gives: the element of the result for that of both operands."""
        tensor, of_the_right = self.core.tensor, f"__r{name[2:]}"
        setattr(tensor, name, self.operator(getattr(tensor, name), function, gives))
        if (mirrored := getattr(tensor, of_the_right, None)) is not None:
            setattr(tensor, of_the_right, self.operator(mirrored, lambda a, b: function(b, a), gives))

    def operator(self, tritons: Numpy, function: Numpy, gives: dict[Any, Any]) -> Numpy:
        tensor, made = self.core.tensor, self.made
        number = functools.lru_cache(maxsize=1 << 12, typed=True)(self.number)
        results = {id(a): b for a, b in gives.items()}  # of Triton's own types, which live as long as the process
        bits = id(self.core.int1)

        def straight(a: Any, b: Any) -> Any:
            element = a.dtype
            if (result := results.get(id(element))) is None:
                return tritons(a, b)
            if type(b) is tensor:
                if b.dtype is not element:
                    return tritons(a, b)
                return made(
                    function(a.handle.data, b.handle.data), result, a.type is not element or b.type is not element
                )
            if id(element) == bits or (other := number(b, element)) is None:
                return tritons(a, b)
            return made(function(a.handle.data, other), result, a.type is not element)

        return straight

    def moved(self, added: Numpy) -> Numpy:
        """Pointers that are moved by int32s. added: the sum of all others."""
        tensor, made, int32 = self.core.tensor, self.made, self.core.int32

        def plus(a: Any, b: Any) -> Any:
            if type(b) is not tensor or b.dtype is not int32 or not a.dtype.is_ptr():
                return added(a, b)
            element = a.dtype
            width = np.uint64(max(1, element.element_ty.primitive_bitwidth // 8))
            data = a.handle.data + width * b.handle.data.astype(np.uint64)
            return made(data, element, a.type is not element or b.type is not int32)

        return plus

    def indexed(self, tritons: Numpy) -> Numpy:
        """Blocks with further axes of one position."""
        made, whole = self.made, slice(None)

        def item(x: Any, at: Any) -> Any:
            places = at if type(at) is tuple else (at,)
            if x.type is not x.dtype and all(i is None or i == whole for i in places):
                return made(x.handle.data[places], x.dtype, True)
            return tritons(x, at)

        return item

    def converted(self, tritons: Callable[..., Any]) -> Callable[..., Any]:
        """Conversions without more to say than the type."""
        cast = self.semantic.cast

        def to(x: Any, element: Any, *how: Any, **named: Any) -> Any:
            if how or named or type(element) is not self.core.dtype:
                return tritons(x, element, *how, **named)
            return cast(x, element)

        return to

    def counted(self, tritons: Callable[..., Any]) -> Callable[..., Any]:
        once, in_lanes = (functools.lru_cache(maxsize=1 << 8)(tritons) for _ in range(2))

        def arange(start: Any, end: Any) -> Any:
            if type(start) is not int or type(end) is not int:
                return tritons(start, end)
            return in_lanes(start, end) if self.lanes else once(start, end)

        return arange

    def multiplied(self, tritons: Callable[..., Any]) -> Callable[..., Any]:
        """Products of float16 matrices, the first of each shape by Triton, which checks it."""
        made, float16, float32 = self.made, self.core.float16, self.core.float32
        checked: set[Any] = set()

        def dot(a: Any, b: Any, acc: Any = None, **how: Any) -> Any:
            plain = not how and a.dtype is b.dtype is float16 and (acc is None or acc.dtype is float32)
            shapes = plain and tuple(None if x is None else x.handle.data.shape for x in (a, b, acc))
            if not plain or shapes not in checked:
                product = tritons(a, b, acc, **how)
                if plain:
                    checked.add(shapes)
                return product
            added = np.float32(0) if acc is None else acc.handle.data
            x, y = a.handle.data, b.handle.data
            product = np.matmul(*(map(in_front, (x, y)) if self.lanes else (x, y)), dtype=np.float32)
            return made((behind(product) if self.lanes else product) + added, float32, True)

        return dot

    def reduced(self, tritons: Callable[..., Any], function: Callable[[Any, int, bool], Any]) -> Callable[..., Any]:
        """Reductions along one axis."""
        made, straight = self.made, (self.core.float32, self.core.int32)

        def reduce(x: Any, axis: Any = None, *how: Any, **named: Any) -> Any:
            if how or named or type(axis) is not int or axis < 0 or all(x.dtype is not e for e in straight):
                return tritons(x, axis, *how, **named)
            total = function(x.handle.data, axis, False)
            block = total.ndim > self.lanes
            return made(total if block else total.reshape(-1), x.dtype, block)

        return reduce

    def loaded(self, tritons: Callable[..., Any]) -> Callable[..., Any]:
        """What pointers name, where a mask says so, and 0 elsewhere. The first load with some hints is Triton's, which
        checks them."""
        tensor, made, int1 = self.core.tensor, self.made, self.core.int1
        checked: set[Any] = set()

        def load(pointer: Any, mask: Any = None, other: Any = None, **hints: Any) -> Any:
            if type(pointer) is not tensor or not pointer.dtype.is_ptr() or type(pointer.handle) is not self.handle:
                return tritons(pointer, mask, other, **hints)
            element, at = pointer.dtype.element_ty, pointer.handle.data
            zero = other is None or (type(other) is int and other == 0 and mask is not None)
            if element is int1 or element.is_block() or not zero:
                return tritons(pointer, mask, other, **hints)
            if (said := (*hints.items(),)) not in checked:
                found = tritons(pointer, mask, other, **hints)
                checked.add(said)
                return found
            shape, block = at.shape, pointer.type is not pointer.dtype
            if mask is None:
                where = self.filled(True, BOOL, shape)
            elif type(mask) is tensor and mask.dtype is int1 and (block or mask.type is int1):
                where = mask.handle.data
                if where.shape != shape:
                    shape = joint_shape(shape, where.shape)
                    where, at = where & self.filled(True, BOOL, shape), np.broadcast_to(at, shape)
            else:
                return tritons(pointer, mask, other, **hints)
            type_of_numpy = self.numpy_type(element)
            return made(self.load_from(at, where, self.filled(0, type_of_numpy, shape), type_of_numpy), element, block)

        return load
