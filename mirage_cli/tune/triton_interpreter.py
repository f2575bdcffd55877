"""Triton's interpreter, made to compute as a GPU does, and spared what takes most of its time.

Of a small kernel's time in it, a few hundredths are numpy's. The rest goes to types, shapes and arguments, which it
works out anew for each value though they are those of the tile before.
"""

from __future__ import annotations

import ast
import functools
import importlib
import linecache
import textwrap
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any  # types, values and builders of Triton's interpreter, which are not typed

import numpy as np

from mirage_cli.tune.triton_operators import Straight, joint_shape
from mirage_cli.verify.halves import add_by_halves


def like_a_gpu() -> None:
    """Lets the interpreter add blocks up and multiply them as a GPU does, and spares it what it need not do again, or
    at all: the search for integers that overflow, since sizes are small. Once in a process."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    core: Any = importlib.import_module("triton.language.core")
    _patch_language_once(interpreter)
    _texts_by_indentation(interpreter)
    _constants_first(core)
    _types_once(interpreter, core)
    straight = Straight(interpreter, core)
    shapes = _ShapesByNumpy(interpreter, core, straight.made)
    _numbers_as_on_a_gpu(interpreter, core)
    _reductions_by_numpy(interpreter)
    straight.take(importlib.import_module("triton.language"))
    builder = interpreter.interpreter_builder
    builder.options, builder.shapes = replace(builder.options, sanitize_overflow=False), shapes


# -- numbers


def _reductions_by_numpy(interpreter: Any) -> None:
    """Products and running maxima and minima at once, which the interpreter would combine element by element."""
    known = {"larger": np.maximum, "smaller": np.minimum, "times": np.multiply}
    by_element, by_position = interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan

    def reduced(self: Any, given: Any) -> Any:
        function = known.get(self.combine_fn.fn.__name__)
        if function is None or len(given) != 1 or self.axis is None:
            return by_element(self, given)
        found = (function.reduce(x.handle.data, axis=self.axis, keepdims=self.keep_dims) for x in given)
        return [self.to_tensor(y, x.dtype) for x, y in zip(given, found, strict=True)]

    def recurrence(self: Any, decay: Any, x: Any) -> Any:
        """Each position from the one before."""
        found = [np.moveaxis(y.handle.data.copy(), self.axis, 0) for y in (decay, x)]
        decays, sums = found
        for t in range(1, len(sums)):
            sums[t] += sums[t - 1] * decays[t]
            decays[t] *= decays[t - 1]
        return [self.to_tensor(np.moveaxis(y, 0, self.axis), x.dtype) for y in found]

    def exponentials(self: Any, most: Any, x: Any) -> Any:
        """Sums relative to the largest so far, each position from the one before."""
        tops, sums = (np.moveaxis(y.handle.data.copy(), self.axis, 0) for y in (most, x))

        def moved(total: Any, top: Any, shift: Any) -> Any:
            return np.where(top == -np.inf, np.float32(0), total * np.exp(finite(top) - shift))

        for t in range(1, len(sums)):
            top = np.maximum(tops[t - 1], tops[t])
            shift = finite(top)
            sums[t] = moved(sums[t - 1], tops[t - 1], shift) + moved(sums[t], tops[t], shift)
            tops[t] = top
        return [self.to_tensor(np.moveaxis(y, 0, self.axis), x.dtype) for y in (tops, sums)]

    def scan(self: Any, given: Any) -> Any:
        if pairs := {"after": recurrence, "beside": exponentials}.get(self.combine_fn.fn.__name__):
            return pairs(self, *given)
        function = known.get(self.combine_fn.fn.__name__)
        if function is None or len(given) != 1:
            return by_position(self, given)
        return [self.to_tensor(function.accumulate(x.handle.data, axis=self.axis), x.dtype) for x in given]

    interpreter.ReduceOps.generic_reduce = reduced
    interpreter.ScanOps.generic_scan = scan


def finite(x: Any) -> Any:
    """float32, and 0 in the place of infinities."""
    return np.where(np.isinf(x), np.float32(0), x)


def to_tf32(x: Any) -> Any:
    """float32 rounded to TF32's 11 bits, halves away from zero (PTX ISA, cvt.rna.tf32)."""
    bits = x.view(np.uint32) + np.uint32(1 << 12) & np.uint32(0xFFFFFFFF ^ ((1 << 13) - 1))
    return np.where(np.isfinite(x), bits.view(np.float32), x)


def product_of_tf32x3(a: Any, b: Any) -> Any:
    """Like numpy.matmul of float32, but as Triton has the matrix units do it with `input_precision="tf32x3"`."""
    with np.errstate(invalid="ignore"):
        (a, a_rest), (b, b_rest) = ((high := to_tf32(x), to_tf32(x - high)) for x in (a, b))
        rest = np.matmul(a_rest, b) + np.matmul(a, b_rest)
        return np.where(np.isnan(rest), np.float32(0), rest) + np.matmul(a, b)


def _numbers_as_on_a_gpu(interpreter: Any, core: Any) -> None:
    """Sums of blocks, products of matrices, and bfloat16 as float32, which is the same bits and 16 more."""
    multiply, cast = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.cast_impl

    def block_product(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *more: Any) -> Any:
        if input_precision.name != "TF32x3" or a.data.dtype != np.float32:
            return multiply(self, a, b, d, input_precision, *more)
        return interpreter.TensorHandle(product_of_tf32x3(a.data, b.data) + d.data, d.dtype.scalar)

    def block_cast(self: Any, x: Any, to: Any) -> Any:
        if x.dtype.scalar != core.bfloat16 or to.scalar != core.float32:
            return cast(self, x, to)
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), to.scalar)

    add_by_halves()
    interpreter.InterpreterBuilder.create_dot = block_product
    interpreter.InterpreterBuilder.cast_impl = block_cast


# -- what is worked out once


def _patch_language_once(interpreter: Any) -> None:
    """Lets the interpreter take the place of Triton's language for good.

    By itself it does so anew in each launch, and in each call of a function of Triton's library (`tl.max`, `tl.sum`) or
    of the module, by a look at every name of the language: most of the time of a small kernel.
    """
    language: Any = importlib.import_module("triton.language")

    def patch(owner: Any, name: str, builtin: Any, *_: Any) -> None:
        function, semantic = getattr(builtin, "__wrapped__", builtin), interpreter.interpreter_semantic

        def call(*args: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*args, **named)

        setattr(owner, name, call)

    interpreter._patch_attr = patch
    patched = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda _: type(patched)()  # nothing to restore


def _texts_by_indentation(interpreter: Any) -> None:
    """Lets the interpreter see by the indentation where a function ends that it is to compile. By itself it looks for
    that at every token, twice, which takes longer than all else that it does to the text. Then it walks through all
    expressions three times, to change statements and the numbers of lines."""
    rewriter = interpreter.FunctionRewriter
    by_tokens = rewriter.rewrite_ast

    def rewrite_ast(self: Any) -> Any:
        code = self.fn.__code__
        first, lines = function_text(linecache.getlines(code.co_filename, self.fn.__globals__), code.co_firstlineno)
        self.filename, self.def_file_lineno = code.co_filename, first
        try:
            tree = ast.parse("\n" * (first - 1) + textwrap.dedent("".join(lines)))
        except SyntaxError:  # brackets or a text went on
            return by_tokens(self)
        make_values(tree.body)
        return self._compile_and_exec(tree) if tree.body else by_tokens(self)

    rewriter.rewrite_ast, rewriter.by_tokens = rewrite_ast, by_tokens


def make_values(statements: Sequence[ast.stmt]) -> None:
    """Has each assignment make a value of the interpreter, as Triton has it: for x = y,
    x = interpreter_semantic.to_tensor(y, False)."""
    for s in statements:
        if isinstance(s, ast.Assign):
            if len(s.targets) > 1:
                raise ValueError("Multiple assignments are not supported")  # nor by the compiler
            at = {name: getattr(s.value, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            semantic = ast.Name("interpreter_semantic", ast.Load(), **at)
            called = ast.Attribute(semantic, "to_tensor", ast.Load(), **at)
            s.value = ast.Call(called, [s.value, ast.Constant(False, **at)], [], **at)
        for inner in INNER:
            make_values(getattr(s, inner, ()))


INNER = "body", "orelse", "finalbody", "handlers", "cases"
"""Where statements have others."""


def function_text(lines: Sequence[str], first: int) -> tuple[int, list[str]]:
    """The number of the line with `def` of the function that begins at line number `first`, with its decorators, and
    the lines from there on up to a statement that is not indented further."""
    start = next((i for i in range(first - 1, len(lines)) if lines[i].lstrip().startswith("def ")), len(lines))
    own = len(lines[start]) - len(lines[start].lstrip()) if start < len(lines) else 0
    found = [*lines[start : start + 1]]
    for line in lines[start + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= own and line.lstrip()[0] not in "#)]}":
            break
        found.append(line)
    return start + 1, found


def _constants_first(core: Any) -> None:
    """Every argument of every operator is asked whether it is a constant of the kernel. Most are blocks."""
    unwrapped, block = core._unwrap_if_constexpr, core.tensor
    core._unwrap_if_constexpr = lambda x: x if type(x) is block else unwrapped(x)


def _types_once(interpreter: Any, core: Any) -> None:
    """Lets blocks of one type share what follows from it, and types of one name what they consist of. Whether numpy's
    elements are as wide as those of the type is asked once for both."""
    make_type, make_block, number = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype
    check_width = getattr(interpreter.TensorHandle, "__post_init__", lambda _: None)
    as_wide: set[tuple[int, str]] = set()
    types: dict[Any, dict[str, Any]] = {}
    numbers: dict[str, Any] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, getattr(element_ty, "address_space", 0), *(getattr(n, "value", n) for n in shape))
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = {**vars(self), "of_blocks": of_blocks(self)}
        self.__dict__.update(types[key])

    def of_blocks(type: Any) -> dict[str, Any]:
        block = core.tensor.__new__(core.tensor)
        make_block(block, None, type)
        return {name: x for name, x in vars(block).items() if name not in ("handle", "type")}

    def block(self: Any, handle: Any, type: Any) -> None:
        if (fields := type.__dict__.get("of_blocks")) is None:  # of a type that is no block's
            fields = type.of_blocks = of_blocks(type)
        self.__dict__.update(fields)
        self.handle, self.type = handle, type

    def number_type(type: Any) -> Any:
        if type.name not in numbers:
            numbers[type.name] = number(type)
        return numbers[type.name]

    def handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if (key := (data.itemsize, dtype.name)) not in as_wide:
            check_width(self)
            as_wide.add(key)

    core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype = block_type, block, number_type
    interpreter.TensorHandle.__init__ = handle


class _ShapesByNumpy:
    """Leaves it to numpy to extend one block to another. There is one type of an element and a shape, and one constant
    of a number. lanes: axes of arrays behind those of their blocks (`tune.lanes`)."""

    def __init__(self, interpreter: Any, core: Any, made: Callable[[Any, Any, bool], Any]) -> None:
        self.core, self.made, self.lanes = core, made, 0
        self.types: dict[Any, Any] = {}
        semantic, by_numpy = interpreter.interpreter_semantic, copy(interpreter.interpreter_semantic)
        by_numpy.broadcast_impl_value = self.extended
        self.checked, self.select = by_numpy.binary_op_type_checking_impl, semantic.where
        self.constant = functools.lru_cache(maxsize=1 << 12, typed=True)(semantic.scalar_constant)
        self.chosen, self.cast_impl = semantic.builder.create_select, semantic.builder.cast_impl
        self.converted = semantic.cast
        semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value = self.operands, self.broadcast
        semantic.scalar_constant, semantic.where, semantic.cast = self.constant, self.where, self.cast
        plain = core.float16, core.float32, core.int32
        self.casts = {(a.name, b.name) for a in plain for b in plain if (a, b) != (core.float16, core.int32)}
        core.block_type.with_element_ty = lambda type, element: self.type_of(element, tuple(type.shape))

    def type_of(self, element: Any, shape: tuple[int, ...]) -> Any:
        key = element.name, getattr(element, "address_space", 0), shape
        if key not in self.types:
            self.types[key] = self.core.block_type(element, list(shape))
        return self.types[key]

    def extended(self, a: Any, b: Any) -> tuple[Any, Any]:
        """For an operation of numpy: the types say what it will extend the arrays to."""
        if (shape := _joint_shape(a, b)) is None:
            return a, b
        made, own = self.core.tensor, shape[: len(shape) - self.lanes]
        return made(a.handle, self.type_of(a.dtype, own)), made(b.handle, self.type_of(b.dtype, own))

    def broadcast(self, a: Any, b: Any) -> tuple[Any, Any]:
        if (shape := _joint_shape(a, b)) is None:
            return a, b
        return self.spread(a, shape), self.spread(b, shape)

    def spread(self, x: Any, shape: tuple[int, ...]) -> Any:
        data = x.handle.data
        return (
            x if data.shape == shape and x.type.is_block() else self.made(np.broadcast_to(data, shape), x.dtype, True)
        )

    def operands(self, a: Any, b: Any, *how: Any, **named: Any) -> tuple[Any, Any]:
        tensor = self.core.tensor
        element = a.dtype if type(a) is tensor else b.dtype if type(b) is tensor else None
        if (x := self.fitting(a, element)) is None or (y := self.fitting(b, element)) is None:
            return self.checked(a, b, *how, **named)
        return self.extended(x, y)

    def fitting(self, x: Any, element: Any) -> Any:
        """A block or number of this type, if it is float32 or int32; None where there is more to know of types."""
        if element is not self.core.float32 and element is not self.core.int32:
            return None
        if type(x) is self.core.tensor:
            return x if x.dtype is element else None
        fits = (type(x) is int and -(1 << 31) <= x < 1 << 31) or (type(x) is float and element is self.core.float32)
        return self.constant(x, element) if fits else None

    def cast(self, x: Any, to: Any, rounding: Any = None) -> Any:
        """Between types that numpy converts as Triton does. The others are Triton's to convert."""
        element = to.scalar
        if x.dtype is element:
            return x
        if rounding is not None or (x.dtype.name, element.name) not in self.casts:
            return self.converted(x, to, rounding)
        return self.made(self.cast_impl(x.handle, element).data, element, x.type.is_block())

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        if condition.dtype is not self.core.int1:
            return self.select(condition, x, y)
        x, y = self.operands(x, y, True, True)
        chosen = self.chosen(condition.handle, x.handle, y.handle)
        blocks = condition.type.is_block() or x.type.is_block()
        return self.made(chosen.data, x.dtype, blocks)


def _joint_shape(a: Any, b: Any) -> tuple[int, ...] | None:
    """None where both have the same already, or are numbers."""
    blocks = a.type.is_block(), b.type.is_block()
    if not any(blocks) or (all(blocks) and a.handle.data.shape == b.handle.data.shape):
        return None
    return joint_shape(a.handle.data.shape, b.handle.data.shape)
