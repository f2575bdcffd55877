"""Calls of one function on several inputs, in one interpretation: Triton's interpreter takes most of its time per
operator, whatever the size of blocks.

Each value of the interpreter has one more axis behind its own, a lane for each call; what all calls share has one lane.
Each tensor that a kernel is given is the first of as many as there are calls, one behind the other in memory: a pointer
has a place in each. Where calls part (loops of different lengths, a tensor that is not the first of several), they are
made one after another.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any  # types, values and builders of Triton's interpreter, which are not typed

import numpy as np
import torch

from mirage_cli.tune.triton_operators import behind, in_front
from mirage_cli.verify.numeric import Run
from mirage_cli.verify.testdata import memory_of

MOST_BYTES = 1 << 26
"""Of all inputs. Beyond, numpy's time is more than the interpreter's."""
ALIGNED = 512
"""Elements. No pointer is less aligned in one lane than in another."""


class PartedError(Exception):
    """The calls do not do the same, or nobody has said what an operator does to lanes."""


def at_once(run: Run, given: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]] | None:
    """What `run` returns for each of these inputs, which it may change; None, and nothing is changed, where the calls
    have to be made one after another. `triton_interpreter.like_a_gpu` has been called, or they have to."""
    shapes = getattr(importlib.import_module("triton.runtime.interpreter").interpreter_builder, "shapes", None)
    if shapes is None or len(given) < 2 or sum(x.nbytes for xs in given for x in xs) > MOST_BYTES:
        return None
    memory = Memory(len(given))
    try:
        firsts = [memory.first_of(xs) for xs in zip(*given, strict=True)]
        with interpreted_in_lanes(shapes, memory):
            results = run(list(firsts))
        found = [[memory.lane(x, i) for x in results] for i in range(len(given))]
    except Exception:
        return None
    for i, xs in enumerate(given):
        for x, first in zip(xs, firsts, strict=True):
            memory_of(x).copy_(memory_of(memory.lane(first, i)))
    return found


class Memory:
    """Tensors of which there are several, one behind the other."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.empty = torch.empty
        self.blocks: list[tuple[torch.Tensor, int]] = []
        """The tensors of all lanes, and how far apart they are."""

    def strided(self, shape: Sequence[int], strides: Sequence[int], **how: Any) -> torch.Tensor:
        """Room for a tensor in each lane; the first."""
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        apart = -(-max(span, 1) // ALIGNED) * ALIGNED
        block = self.empty(self.lanes * apart, **how)
        self.blocks.append((block, apart))
        return block.as_strided(tuple(shape), tuple(strides))

    def whole(self, *shape: Any, **how: Any) -> torch.Tensor:
        """The same, for what `torch.empty` is given."""
        sizes = tuple(shape[0]) if shape and not isinstance(shape[0], int) else shape
        return self.strided(sizes, torch.empty_strided(sizes, strides_of(sizes), device="meta").stride(), **how)

    def first_of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A copy of each tensor in a lane of its own, the gaps between its elements too."""
        first = self.strided(tensors[0].shape, tensors[0].stride(), dtype=tensors[0].dtype)
        for i, x in enumerate(tensors):
            if (x.shape, x.stride()) != (first.shape, first.stride()):
                raise PartedError("tensors of several shapes")
            memory_of(self.lane(first, i)).copy_(memory_of(x))
        return first

    def apart(self, x: torch.Tensor) -> int:
        """How many elements are between the tensors of which x, or what x is a part of, is the first."""
        for block, apart in self.blocks:
            start = block.data_ptr()
            if start <= x.data_ptr() < start + apart * block.element_size() and x.dtype == block.dtype:
                return apart
        raise PartedError("a tensor that is not the first of several")

    def lane(self, x: torch.Tensor, i: int) -> torch.Tensor:
        """The tensor of lane i of which x is the first."""
        return x.as_strided(x.shape, x.stride(), x.storage_offset() + i * self.apart(x))

    def pointers(self, x: torch.Tensor) -> Any:
        """Where the tensors begin of which x is the first."""
        return np.uint64(x.data_ptr()) + np.arange(self.lanes, dtype=np.uint64) * np.uint64(
            self.apart(x) * x.element_size()
        )


def strides_of(shape: Sequence[int]) -> list[int]:
    """Of a tensor without gaps."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(n, 1))
    return strides[: len(shape)]


@contextmanager
def interpreted_in_lanes(shapes: Any, memory: Memory) -> Generator[None]:
    """While it lasts, kernels are interpreted in lanes, and tensors are allocated for each. shapes: what extends blocks
    to one another (`triton_interpreter`)."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    core: Any = importlib.import_module("triton.language.core")
    straight = shapes.made.__self__
    with ExitStack() as stack:

        def put(owner: Any, **members: Any) -> None:
            stack.enter_context(replaced(owner, members))

        put(shapes, lanes=1)
        put(straight, lanes=1, known={})
        put(torch, empty=memory.whole, empty_strided=memory.strided)
        put(interpreter, _implicit_cvt=argument_of(interpreter, core, memory))
        put(interpreter.InterpreterBuilder, **builders(interpreter))
        put(interpreter.TensorDescHandle, **boxes_of(interpreter))
        put(interpreter.ReduceScanOpInterface, to_tensor=result_of(interpreter, core), check_axis=check_axis)
        put(core.tensor, __index__=lambda x: int(one(x.handle.data)), __bool__=is_true)
        yield


@contextmanager
def replaced(owner: Any, members: Mapping[str, Any]) -> Generator[None]:
    """While it lasts, an object has other members."""
    before = {name: getattr(owner, name) for name in members}
    for name, member in members.items():
        setattr(owner, name, member)
    try:
        yield
    finally:
        for name, member in before.items():
            setattr(owner, name, member)


def one(data: Any) -> Any:
    """A number that all lanes have."""
    if (data != data.flat[0]).any():
        raise PartedError("a number that lanes differ in")
    return data.flat[0]


def is_true(x: Any) -> bool:
    """As for the interpreter, for which a block of several is always true."""
    several = x.type.is_block() and x.handle.data[..., 0].size > 1
    return several or bool(one(x.handle.data))


def argument_of(interpreter: Any, core: Any, memory: Memory) -> Callable[[Any], Any]:
    """What a kernel is given for an argument of its launch."""
    converted = interpreter._implicit_cvt

    def argument(x: Any) -> Any:
        found = converted(x)
        if isinstance(x, torch.Tensor):
            return core.tensor(interpreter.TensorHandle(memory.pointers(x), found.type), found.type)
        return found

    return argument


def result_of(interpreter: Any, core: Any) -> Callable[..., Any]:
    """A value of what numpy reduced a block to."""

    def result(_: Any, ret: Any, dtype: Any) -> Any:
        data = np.atleast_1d(np.asarray(ret, dtype=interpreter._get_np_dtype(dtype)))
        type = core.block_type(dtype, [*data.shape[:-1]]) if data.ndim > 1 else dtype
        return core.tensor(interpreter.TensorHandle(data, dtype.scalar), type)

    return result


def check_axis(_: Any, shape: Sequence[int], axis: int | None) -> None:
    if axis is None or not 0 <= axis < len(shape):
        raise PartedError("an axis that is not counted from the front")


def parted(*_: Any, **__: Any) -> Any:
    raise PartedError("an operator of which nobody has said what it does to lanes")


def builders(interpreter: Any) -> dict[str, Any]:
    """The operators whose results have another shape than their operands, or that numpy does not extend."""
    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
    multiplied, stored = builder.create_dot, builder.create_masked_store

    def like(x: Any, data: Any) -> Any:
        return handle(data, x.dtype.scalar)

    def joined(stack: Callable[..., Any], axis: int) -> Callable[..., Any]:
        return lambda _, a, b: like(a, stack(np.broadcast_arrays(a.data, b.data), axis=axis))

    def alike(name: str) -> Callable[..., Any]:
        function = getattr(builder, name)
        return lambda self, *args, **how: function(self, *of_one_shape(handle, args), **how)

    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        found = multiplied(self, *(handle(in_front(x.data), x.dtype) for x in (a, b, d)), *how)
        return like(d, behind(found.data))

    def store(self: Any, pointer: Any, value: Any, mask: Any, *how: Any) -> Any:
        pointers, *others = of_one_shape(handle, (pointer, value, mask))
        if pointers.data.shape[-1] != pointer.data.shape[-1]:
            raise PartedError("one place for what differs")
        return stored(self, pointers, *others, *how)

    unknown = ("histogram", "gather", "unsplat", "make_block_ptr", "descriptor_gather", "descriptor_scatter")
    atomic = ("atomic_rmw", "atomic_cas")
    return {
        "create_reshape": lambda _, x, shape, __: like(x, x.data.reshape(*shape, x.data.shape[-1])),
        "create_trans": lambda _, x, order: like(x, np.transpose(x.data, (*order, len(order)))),
        "create_broadcast": lambda _, x, shape: like(x, np.broadcast_to(x.data, (*shape, x.data.shape[-1]))),
        "create_splat": lambda _, type, x: like(x, np.broadcast_to(x.data, (*type.shape, x.data.shape[-1]))),
        "create_make_range": lambda _, type, a, b: handle(np.arange(a, b, dtype=np.int32)[:, None], type.scalar),
        "create_cat": joined(np.concatenate, 0),
        "create_join": joined(np.stack, -2),
        "create_split": lambda _, x: tuple(like(x, x.data[..., i, :]) for i in range(2)),
        "create_dot": dot,
        "create_masked_load": alike("create_masked_load"),
        "create_masked_store": store,
        **{f"create_{name}": parted for name in (*unknown, *atomic)},
    }


def of_one_shape(handle: Any, args: Sequence[Any]) -> list[Any]:
    """Operands, in which blocks and the masks of boxes, which are arrays, are extended to one another."""
    arrays = [x.data if isinstance(x, handle) else x for x in args]
    blocks = [i for i, x in enumerate(arrays) if isinstance(x, np.ndarray)]
    for i, x in zip(blocks, np.broadcast_arrays(*(arrays[i] for i in blocks)), strict=True):
        arrays[i] = handle(x, args[i].dtype) if isinstance(args[i], handle) else x
    return arrays


def boxes_of(interpreter: Any) -> dict[str, Any]:
    """What reads a tensor in boxes."""
    box, handle = interpreter.TensorDescHandle, interpreter.TensorHandle
    check, materialize = box.validate, box.materialize_pointers

    def in_lane(x: Any, i: int) -> Any:
        return box(handle(x.base.data[i : i + 1], x.base.dtype), x.shape, x.strides, x.block_shape, x.padding)

    def validate(self: Any) -> None:
        for i in range(self.base.data.size):
            check(in_lane(self, i))

    def materialize_pointers(self: Any, offsets: Any) -> Any:
        at, there = materialize(in_lane(self, 0), offsets)
        return handle(at.data[..., None] + (self.base.data - self.base.data[0]), at.dtype), there[..., None]

    return {"validate": validate, "materialize_pointers": materialize_pointers}
