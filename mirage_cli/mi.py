"""The names of Mirage's own tutorials: its programs run with `import mirage_cli.mi as mi`.

    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 4096), dtype=mi.float16)
    W = graph.new_input(dims=(4096, 4096), dtype=mi.float16)
    graph.mark_output(graph.matmul(X, W))
    optimized = graph.superoptimize()
    (O,) = optimized(inputs=[x, w])

Where no output is marked, the values that nobody uses are the outputs. Options of Mirage's search are ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any  # torch's tensors, which this module does not import before they are needed

from mirage_cli.errors import GraphError, NoKernelError
from mirage_cli.spec import graph as g
from mirage_cli.spec import positional
from mirage_cli.spec.arrays import Array, Trace, Unsupported

if TYPE_CHECKING:
    from mirage_cli.pipeline.callers import Kernel

TYPES = float16, bfloat16, float32 = "float16", "bfloat16", "float32"


def new_kernel_graph() -> KernelGraph:
    return KernelGraph()


def refuse_other_sizes(dims: object) -> None:
    """Raises GraphError for what are no sizes of a tensor."""
    if not isinstance(dims, Sequence) or not all(isinstance(n, int) and n > 0 for n in dims):
        raise GraphError(f"dims are the sizes of a tensor, such as (8, 4096), and not {dims!r}")


class KernelGraph:
    """Collects a program. Raises GraphError for what no spec can say."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.made: list[Array] = []
        self.used: set[Array] = set()
        self.marked: list[Array] = []
        self.dtype = ""

    def new_input(self, dims: Sequence[int], dtype: str = float16, strides: Sequence[int] | None = None) -> Array:
        """A tensor in device memory. strides: those of a contiguous tensor, if they are given."""
        refuse_other_sizes(dims)
        if dtype not in TYPES:
            raise GraphError(f"a dtype is one of {', '.join(f'mi.{name}' for name in TYPES)}, and not {dtype!r}")
        contiguous = [1]
        for n in reversed(dims[1:]):
            contiguous.insert(0, contiguous[0] * n)
        if strides is not None and tuple(strides) != tuple(contiguous[: len(dims)]):
            raise GraphError(f"an input of the shape {tuple(dims)} is contiguous, with the strides {tuple(contiguous)}")
        self.dtype = self.dtype or dtype
        return self.trace.input(f"X{len(self.trace.inputs)}", dims, dtype)

    def mark_output(self, value: Array, strides: Sequence[int] | None = None) -> None:  # noqa: ARG002
        self.marked.append(self.own(value))

    # -- operators

    def own(self, value: object) -> Array:
        """The value, which is one of this graph."""
        if not isinstance(value, Array) or value.trace is not self.trace:
            whose = "is of another graph" if isinstance(value, Array) else f"is {value!r}"
            raise GraphError(f"a value of this graph is needed here, and what is given {whose}")
        return value

    def made_of(self, make: Callable[..., Array], *operands: Any) -> Array:
        self.used |= {self.own(x) for x in operands if not isinstance(x, Real)}
        try:
            value = make(*operands)
        except Unsupported as error:
            raise GraphError(str(error)) from None
        self.made.append(value)
        return value

    def elementwise(self, function: Callable[..., Any], *operands: Any) -> Array:
        return self.made_of(lambda *xs: positional.elementwise(function, *xs), *operands)

    def matmul(self, A: Array, B: Array) -> Array:
        """Of matrices, or of batches of them."""
        for x in A, B:
            self.own(x)
        if len(A.dims) != len(B.dims) or len(A.dims) < 2 or A.shape[-1] != B.shape[-2]:
            raise GraphError(f"matmul of the shapes {A.shape} and {B.shape}")
        batch = "abcdefgh"[: len(A.dims) - 2]
        return self.made_of(lambda x, y: positional.einsum(f"{batch}mk,{batch}kn->{batch}mn", x, y), A, B)

    def reduction(self, A: Array, dim: int, size: int = 1) -> Array:
        """The sum along an axis, which keeps `size` positions: each is the sum of its neighbours."""
        if not -len(self.own(A).dims) <= dim < len(A.dims):
            raise GraphError(f"a reduction along dim {dim} of the shape {A.shape}")
        at, n = dim % len(A.dims), A.shape[dim]
        if size < 1 or n % size:
            raise GraphError(f"a reduction of {n} positions to {size}")

        def make(x: Array) -> Array:
            cut = positional.reshaped(x, [*x.shape[:at], size, n // size, *x.shape[at + 1 :]])
            return positional.reduction("sum", cut, [at + 1])

        return self.made_of(make, A)

    def rms_norm(self, A: Array, normalized_shape: Sequence[int], eps: float = 0.0) -> Array:
        """x / sqrt(mean(x²) + eps) over the last axes."""
        if self.own(A).shape[len(A.shape) - len(normalized_shape) :] != tuple(normalized_shape):
            raise GraphError(f"rms_norm over {tuple(normalized_shape)} of the shape {A.shape}")
        last = [*range(len(A.dims) - len(normalized_shape), len(A.dims))]
        return self.made_of(lambda x: positional.along("rms_norm", x, last, eps=eps), A)

    def add(self, A: Any, B: Any) -> Array:
        return self.elementwise(operator.add, A, B)

    def sub(self, A: Any, B: Any) -> Array:
        return self.elementwise(operator.sub, A, B)

    def mul(self, A: Any, B: Any) -> Array:
        return self.elementwise(operator.mul, A, B)

    def div(self, A: Any, B: Any) -> Array:
        return self.elementwise(operator.truediv, A, B)

    def pow(self, A: Array, B: float) -> Array:
        return self.elementwise(operator.pow, A, B)

    def exp(self, A: Array) -> Array:
        return self.elementwise(g.exp, A)

    def silu(self, A: Array) -> Array:
        return self.elementwise(g.silu, A)

    def gelu(self, A: Array) -> Array:
        return self.elementwise(g.gelu, A)

    def relu(self, A: Array) -> Array:
        return self.elementwise(g.relu, A)

    def clamp(self, A: Array, min_val: float, max_val: float) -> Array:
        return self.elementwise(lambda x: g.minimum(g.maximum(x, min_val), max_val), A)

    def square(self, A: Array) -> Array:
        return self.elementwise(g.square, A)

    def sqrt(self, A: Array) -> Array:
        return self.elementwise(g.sqrt, A)

    # -- the search

    def superoptimize(
        self,
        config: object = None,  # noqa: ARG002
        *,
        budget: float = 60.0,
        target: str = "auto",
        seed: int = 0,
        db: str | Path | None = None,
        **_ignored: object,
    ) -> Superoptimized:
        """The best kernels for the program. budget: seconds. Raises GraphError, MirageError."""
        from mirage_cli.pipeline.callers import Kernels, Settings

        outputs = self.marked or [x for x in self.made if x not in self.used]
        if not outputs:
            raise GraphError("the program computes nothing")
        try:
            named = {f"O{i}": (x, self.dtype) for i, x in enumerate(outputs)}
            graph = self.trace.graph("kernel_graph", named)
        except Unsupported as error:
            raise GraphError(str(error)) from None
        inputs = [(a.name, a.shape, dtype) for a, dtype, _ in self.trace.inputs]
        with Kernels(Settings(target, budget, seed, db=db)) as kernels:
            (kernel,) = kernels.of([graph])
        if isinstance(kernel, NoKernelError):
            raise kernel
        return Superoptimized(inputs, [x.shape for x in outputs], kernel)


class Superoptimized:
    """A program with its kernels. It is called with tensors, a list of them, or `inputs=`; it returns a list."""

    def __init__(
        self, inputs: Sequence[tuple[str, tuple[int, ...], str]], shapes: Sequence[tuple[int, ...]], kernel: Kernel
    ) -> None:
        self.inputs, self.shapes, self.kernel = inputs, shapes, kernel

    def __call__(self, *given: Any, inputs: Any = None, **_ignored: object) -> list[Any]:
        """Raises ValueError where shapes or types are others than declared."""
        given = given if inputs is None else (inputs,)
        tensors = [*given[0]] if len(given) == 1 and isinstance(given[0], list | tuple) else [*given]
        if len(tensors) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} tensors are declared, and {len(tensors)} are given")
        for (name, shape, dtype), x in zip(self.inputs, tensors, strict=True):
            given_shape = tuple(x.shape) if hasattr(x, "shape") else f"a {type(x).__name__}"
            if given_shape != shape:
                raise ValueError(f"{name} is declared with the shape {shape}, and given with {given_shape}")
            if str(x.dtype) != f"torch.{dtype}":
                raise ValueError(f"{name} is declared as {dtype}, and given as {x.dtype}")
        by_name = {name: x for (name, _, _), x in zip(self.inputs, tensors, strict=True)}
        sizes = self.kernel.program.sizes
        wanted = [(t.name, [sizes[d] for d in t.dims]) for t in self.kernel.program.inputs]
        made = self.kernel.run(*(by_name[name].contiguous().reshape(shape) for name, shape in wanted))
        results = made if isinstance(made, tuple) else (made,)
        return [y.reshape(shape) for y, shape in zip(results, self.shapes, strict=True)]
