"""The text form of μGraphs: printed for people, parsed back, and hashed for identity.

`print_mugraph` writes the canonical lines and, behind `#`, what follows from them: maps in the paper's terms and where
each equation stands. `parse_mugraph` reads the canonical part alone; `mugraph_id` hashes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import cast

from mirage_cli.errors import MirageError
from mirage_cli.ir.access import access_text
from mirage_cli.ir.access_text import parse_access
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Role, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError, Loop, place
from mirage_cli.ir.program import (
    DTYPES,
    Arg,
    Drawn,
    Eqn,
    Merged,
    Range,
    Tensor,
    dims_text,
    dynamic_lines,
    equation,
    parse_number,
    resized_dims,
)

_LONG = {short: name for name, short in DTYPES.items()}


class MuGraphTextError(MirageError):
    """A text that is no μGraph, with the line that is wrong."""

    def __init__(self, line_number: int, line: str, problem: str) -> None:
        super().__init__(f"line {line_number}: {problem}\n    {line.strip()}")


# -- printing


def canonical_text(graph: MuGraph) -> str:
    """The text without comments; equal for equal μGraphs."""
    lines = [f"mugraph {graph.name} {graph.dtype}", "dims " + dims_text(graph.dims, graph.merged)]
    lines += dynamic_lines(graph.dynamic)
    for word, tensors in (("input", graph.inputs), ("output", graph.outputs), ("buffer", graph.buffers)):
        lines += [f"{word} {t}" for t in tensors]
    for k in graph.kernels:
        lines += kernel_lines(k)
    return "\n".join(lines) + "\n"


def kernel_lines(k: Kernel) -> list[str]:
    roles = " ".join(f"{d}:{r}" for d, r in k.roles)
    lines = [f"kernel {k.name} {k.kind} {roles}".rstrip()]
    lines += [f"  {load_text(x)}" for x in k.loads]
    lines += [f"  {e}" for e in k.body]
    return lines + [f"  {store_text(s)}" for s in k.stores]


def load_text(x: Load) -> str:
    return f"{x.out} = load {x.buffer}[{access_text(x.access)}]"


def store_text(s: Store) -> str:
    return f"store {s.buffer}[{access_text(s.access)}] = {s.value}"


def mugraph_id(graph: MuGraph) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical_text(graph).encode()).hexdigest()[:12]


def print_mugraph(graph: MuGraph) -> str:
    """The text with comments on maps, loops, accumulators and epilogue."""
    out = canonical_text(graph).split("\nkernel ", 1)[0].rstrip("\n").split("\n")
    for k in graph.kernels:
        lines = kernel_lines(k)
        notes = _notes(k) if k.kind == "generated" else {}
        width = max(len(x) for x in lines) + 2
        out.append("")
        for i, x in enumerate(lines):
            note = notes.get(i)
            out.append(f"{x:<{width}}# {note}" if note else x)
    return "\n".join(out) + "\n"


def _maps(dims: tuple[str, ...], k: Kernel) -> str:
    """imap and fmap of a tensor: which of its axes the grid axes and the loop cut, φ where none."""
    grid = [*k.with_role("grid"), *k.with_role("split")]
    imap = ", ".join(f"{xyz}→{d if d in dims else 'φ'}" for xyz, d in zip("xyzuvwst", grid, strict=False))
    fmap = [d for d in k.with_role("loop", "split") if d in dims]
    return f"imap {{{imap}}}" + (f" fmap {{{', '.join(f'i→{d}' for d in fmap)}}}" if fmap else "")


def _notes(k: Kernel) -> dict[int, str]:
    """A comment for each line of `kernel_lines(k)`, by its index."""
    try:
        placement = place(k)
    except InexpressibleError as error:
        return {0: f"inexpressible: {error}"}
    where: dict[str, str] = {}
    for i, segment in enumerate(placement.segments):
        if isinstance(segment, Loop):
            name = f"loop over {', '.join(segment.dims)}" + (f" ({i // 2 + 1})" if len(placement.loops) > 1 else "")
            accumulators = dict(segment.accumulators)
            anew = {x.accumulator: f", anew where {x.extremum} moves" for x in segment.anew}
            for step in segment.steps:
                if step.out in segment.running:
                    where[step.out] = f"{name}: running maximum"
                elif step.out in accumulators:
                    scale = "".join(f", rescaled by exp(Δ{m})^{g}" for m, g in accumulators[step.out])
                    where[step.out] = f"{name}: accumulator{scale}{anew.get(step.out, '')}"
                else:
                    where.setdefault(step.out, name)
        else:
            last = i == len(placement.segments) - 1 and i > 0
            for step in segment.steps:
                where[step.out] = "epilogue" if last else "between loops" if i else "before the loop"
    looped = bool(placement.loops)
    notes = {0: "grid (" + ", ".join([*k.with_role("grid"), *(k.chunk for _ in k.with_role("split"))]) + ")"}
    notes[0] += "".join(f", for-loop over {', '.join(loop.dims)}" for loop in placement.loops)
    for i, x in enumerate((*k.loads, *k.body, *k.stores), 1):
        if isinstance(x, Load):
            notes[i] = _maps(x.dims, k)
        elif isinstance(x, Store):
            grid = [*k.with_role("grid"), *(d if d in x.dims else k.chunk for d in k.with_role("split"))]
            notes[i] = (
                "omap {" + ", ".join(f"{a}→{d}" for a, d in zip("xyzuvwst", grid, strict=False) if d in x.dims) + "}"
            )
        elif looped and x.out in where:
            notes[i] = where[x.out]
    return notes


# -- parsing

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
_EQN = re.compile(r"^(\w+)\[([\w, ]*)\] = (\w+)\((.*)\)$")
_LOAD = re.compile(r"^(\w+) = load (\w+)\[(.*)\]$")
_STORE = re.compile(r"^store (\w+)\[(.*)\] = (\w+)$")
_TENSOR = re.compile(
    r"^(input|output|buffer) (\w+) (\w+)\[([\w:, ]*)\](?: below (\w+))?( padded)?( distinct)?"
    r"(?: drawn (skewed|sorted|bits))?$"
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(x.strip() for x in text.split(",") if x.strip())


def _laid_out(text: str) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Axes, and their strides where one has its own: `m:6144, h, d`. Raises ValueError."""
    pairs = [x.partition(":") for x in _names(text)]
    strides = tuple(int(s) if colon else None for _, colon, s in pairs)
    return tuple(d for d, _, _ in pairs), strides if any(strides) else ()


def parse_mugraph(text: str) -> MuGraph:
    """Read a μGraph from its text. Raises MuGraphTextError with the number of the first line that is wrong."""
    name, dtype = "", ""
    dims: tuple[tuple[str, int], ...] = ()
    merged: Merged = ()
    dynamic: tuple[Range, ...] = ()
    tensors: dict[str, list[Tensor]] = {"input": [], "output": [], "buffer": []}
    kernels: list[_KernelReader] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        try:
            word, _, rest = line.strip().partition(" ")
            if line.startswith("  ") and kernels:
                kernels[-1].read(line.strip())
            elif word == "mugraph":
                name, dtype = rest.split()
            elif word == "dims":
                dims, merged = _dims(rest)
            elif word == "dynamic":
                dynamic = tuple(map(Range.parse, rest.split()))
            elif word == "kernel":
                dtypes = {t.name: t.dtype for group in tensors.values() for t in group}
                kernels.append(_KernelReader(rest, tuple(n for n, _ in dims), dtypes))
            elif match := _TENSOR.match(line):
                below = int(match[5]) if match[5] and match[5].isdigit() else match[5]
                values = below, bool(match[7]), cast("Drawn", match[8] or "evenly"), bool(match[6])
                axes, strides = _laid_out(match[4])
                found = Tensor(match[2], axes, _LONG[match[3]], 1.0, *values, strides)
                tensors[match[1]].append(found)
            else:
                raise ValueError("expected dims, input, output, buffer, kernel or an indented equation")
        except (ValueError, KeyError) as error:
            raise MuGraphTextError(number, raw, str(error)) from error
    graph_kernels = tuple(k.kernel() for k in kernels)
    if not name or not graph_kernels:
        raise MuGraphTextError(1, text[:80], "a μGraph starts with `mugraph NAME DTYPE` and has at least one kernel")
    names = (name, dtype, *(k.name for k in graph_kernels), *(n for n, _ in dims), *(p for _, ps in merged for p in ps))
    if strange := [n for n in names if not _NAME.match(n)]:  # they become names of Python
        raise MuGraphTextError(1, text[:80], f"{strange[0]!r} is no name: letters of ASCII, digits and _")
    return MuGraph(
        name=name,
        dims=dims,
        dtype=dtype,
        inputs=tuple(tensors["input"]),
        outputs=tuple(tensors["output"]),
        buffers=tuple(tensors["buffer"]),
        kernels=graph_kernels,
        merged=merged,
        dynamic=dynamic,
    )


def _dims(text: str) -> tuple[tuple[tuple[str, int], ...], Merged]:
    """The axes of a `dims` line with their sizes, and those that others are merged in. Raises ValueError, KeyError."""
    written = [(n, s) for n, s in (x.split("=") for x in text.split())]
    merged = tuple((n, tuple(s.split("*"))) for n, s in written if "*" in s)
    dims = tuple((n, 0 if "*" in s else int(s)) for n, s in written)
    return resized_dims(dims, merged, {}), merged


class _KernelReader:
    """Reads the lines of one kernel."""

    def __init__(self, header: str, order: tuple[str, ...], dtypes: Mapping[str, str]) -> None:
        self.dtypes = dtypes
        self.name, self.kind, *roles = header.split()
        if self.kind not in ("generated", "library"):
            raise ValueError(f"a kernel is generated or library, not {self.kind}")
        self.roles: list[tuple[str, Role]] = []
        for r in roles:
            dim, _, role = r.partition(":")
            if role == "grid" or role == "split" or role == "loop" or role == "tile":
                self.roles.append((dim, role))
            else:
                raise ValueError(f"a role is grid, split, loop or tile, not {role!r}")
        self.order = tuple(d for d, _ in self.roles) or order
        self.known: dict[str, Tensor | Eqn] = {}
        self.loads: list[Load] = []
        self.body: list[Eqn] = []
        self.stores: list[Store] = []

    def read(self, line: str) -> None:
        if match := _LOAD.match(line):
            load = Load(match[1], match[2], parse_access(match[3]))
            self.loads.append(load)
            self.known[load.out] = Tensor(load.out, load.dims, self.dtypes[load.buffer])
        elif match := _STORE.match(line):
            self.stores.append(Store(match[1], match[3], parse_access(match[2])))
        elif match := _EQN.match(line):
            args, axes = _arguments(match[3], match[4])
            eqn = equation(match[1], match[3], args, axes, self.known, self.order)
            if eqn.dims != _names(match[2]):
                raise ValueError(f"the result has the axes [{', '.join(eqn.dims)}]")
            self.body.append(eqn)
            self.known[eqn.out] = eqn
        else:
            raise ValueError("expected `x = load B[...]`, `y[...] = op(...)` or `store B[...] = y`")

    def kernel(self) -> Kernel:
        kind = "library" if self.kind == "library" else "generated"
        return Kernel(self.name, kind, tuple(self.roles), tuple(self.loads), tuple(self.body), tuple(self.stores))


def _arguments(op: str, inside: str) -> tuple[tuple[Arg, ...], tuple[str, ...]]:
    if op not in OPS:
        raise ValueError(f"no operator is called {op}")
    head, _, tail = inside.partition(";")
    if OPS[op].kind == "leaf":
        return (), tuple(map(str, parse_access(head)))
    args = tuple(x if x.isidentifier() and x != "inf" else parse_number(x) for x in _names(head))
    return args, _names(tail)
