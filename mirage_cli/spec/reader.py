"""Specs: YAML files that say what is asked (docs/language.md). `load_spec` reads one; mistakes come all at once.

A `Spec` keeps its text: names of dimensions in the program are numbers, so each size is a reading of its own
(`Spec.at`).
"""

from __future__ import annotations

import keyword
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import get_args

import yaml

from mirage_cli.errors import ChangeError, Diagnostic, MirageError, SpecError
from mirage_cli.ir.precision import float_types
from mirage_cli.ir.program import HALVES, INTEGERS, Drawn, Eqn, Program, Range, Tensor
from mirage_cli.spec.document import Document
from mirage_cli.spec.expression import MAX_AXES
from mirage_cli.spec.idioms import OTHER_DTYPES
from mirage_cli.spec.keys import (
    FLOATS,
    INPUT_KEYS,
    KEYS,
    MAX_BELOW,
    OUTPUT_KEYS,
    RANGE,
    RANGE_FORM,
    REQUIRED,
    TENSOR_TYPES,
)
from mirage_cli.spec.scope import Place, Scope, with_most
from mirage_cli.spec.statements import MAKES, ProgramReader, holds
from mirage_cli.spec.stores import check_stores, parts_of
from mirage_cli.spec.strides import overlap, own_strides
from mirage_cli.spec.vocabulary import CONSTANTS, closest, no_axis
from mirage_cli.target.files import FileTooLargeError, read_bytes

MAX_BYTES = 1 << 20
MAX_SIZE = 1 << 40
MAX_TOLERANCE, MAX_SCALE = 1e6, 1e30
NAME = re.compile(r"[a-z][a-z0-9_]{0,99}\Z")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
MAX_DYNAMIC, MAX_OFFSET = 1 << 30, 1 << 31
KERNEL_INTERFACE = ("launch", "make_scratch")
"""Functions that every kernel's file defines besides the spec's own (`judge`, and the tuner, call them)."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec that was read without mistakes. `instances`: the changes to `dims` that are to be searched; of dynamic
    axes, the sizes to tune for, each of one with each of the others where the spec does not say which together."""

    name: str
    path: str
    text: str
    dims: tuple[tuple[str, int], ...]
    instances: tuple[Mapping[str, int], ...]
    dtype: str
    description: str
    source: str
    warnings: tuple[Diagnostic, ...]

    def at(self, dims: Mapping[str, int] | None = None, dtype: str | None = None) -> Program:
        """The program with these sizes and this dtype instead of the spec's. Raises ChangeError, SpecError."""
        return _Reader(self.path, self.text, dims or {}, dtype).program()

    def programs(self, overrides: Mapping[str, int] | None = None, dtype: str | None = None) -> list[Program]:
        """One program for each instance; just one, with these sizes, where `overrides` are given."""
        if overrides:
            return [self.at(overrides, dtype)]
        return [self.at(i, dtype) for i in self.instances or ({},)]


def is_identifier(name: str) -> bool:
    """Whether a program can speak of an axis or a tensor of this name."""
    return IDENTIFIER.match(name) is not None and not keyword.iskeyword(name) and name not in CONSTANTS


class SpecFileError(MirageError):
    """A spec that cannot even be parsed into lines: not there, not text, too large."""


def load_spec(path: Path | str) -> Spec:
    """Read a spec file. Raises SpecError with every mistake, or SpecFileError."""
    path = Path(path)
    try:
        data = read_bytes(path, MAX_BYTES)
    except FileTooLargeError as error:
        raise SpecFileError(f"{path}: a spec is at most 1 MiB, and this file has {error.size_bytes} bytes") from None
    except FileNotFoundError as error:
        raise SpecFileError(f"{path}: {error.strerror}\n    `mirage init NAME` writes a spec to start from") from None
    except IsADirectoryError as error:
        raise SpecFileError(f"{path}: {error.strerror}\n    a spec is a file: name `{path}/*.yaml`") from None
    except (OSError, ValueError) as error:
        raise SpecFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse_spec(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SpecFileError(f"{path}:{line}: a spec is UTF-8 text, and byte {error.start} is not") from None


def _number(text: str) -> int:
    """A factor of a size; 0 for what is none."""
    return int(text) if text.isdecimal() and len(text) <= len(str(MAX_SIZE)) else 0


def parse_spec(text: str, path: str = "<spec>") -> Spec:
    """Read a spec from its text. Raises SpecError with every mistake."""
    reader = _Reader(path, text, {}, None)
    program = reader.program()
    errors: list[Diagnostic] = []
    for instance in reader.instances:
        try:
            _Reader(path, text, instance, None).program()
        except SpecError as error:
            errors += error.diagnostics
    if errors:
        raise SpecError(errors)
    return Spec(
        name=program.name,
        path=path,
        text=text,
        dims=program.dims,
        instances=tuple(reader.instances),
        dtype=program.dtype,
        description=reader.words.get("description", ""),
        source=reader.words.get("source", ""),
        warnings=tuple(reader.warnings),
    )


@lru_cache(maxsize=64)
def _root(path: str, text: str) -> yaml.MappingNode:
    """The root mapping, the same at all sizes: YAML is read once. Raises SpecError."""
    return Document(path, text).root(REQUIRED)


def _other_axes(value: str, dims: Sequence[str], scope: Scope) -> str:
    """What to do about the axes that an output, declared with `dims`, lacks or has too many."""
    known, todo, gone, met = scope.builder.known, [value], set[str](), set[str]()
    has = known[value].dims
    for v in todo:
        met |= {*known[v].dims}
        if isinstance(e := known[v], Eqn):
            gone |= {*e.axes} - {*e.dims} if e.op != "rename" else set()
            todo += [a for a in e.values if a not in todo]
    for d in (d for d in dims if d in gone and d not in has):
        another = f"one of the two has another name, rename(x, {d}=...)"
        return f"; {d} was reduced on the way: where it is also to stay, {another}"
    if strange := [d for d in dims if d not in met]:
        return f"; nothing that it is made of has {strange[0]}"
    if extra := [d for d in has if d not in dims]:
        return f"; reduce {extra[0]}, by sum(x, {extra[0]}) say, or declare it"
    return ""


class _Reader(Document):
    """One reading of a spec's text at given sizes. Nodes keep their place in the file for messages."""

    def __init__(self, path: str, text: str, dims: Mapping[str, int], dtype: str | None) -> None:
        super().__init__(path, text)
        self.changes, self.dtype_change = dims, dtype
        self.instances: list[Mapping[str, int]] = []
        self.products: dict[str, tuple[str, ...]] = {}
        self.dynamic: dict[str, Range] = {}
        self.words: dict[str, str] = {}
        self.inputs: Mapping[str, Tensor] = {}
        self.changed: set[str] = set()
        self.broken: set[str] = set()

    def report_program(
        self, line: int, column: int, message: str, suggestion: str | None = None, severity: str = "error"
    ) -> None:
        """A mistake in the program; at sizes other than the spec's own, those are what it is due to."""
        sizes = ", ".join(f"{d} = {n}" for d, n in self.changes.items())
        self.report(line, column, f"at {sizes}: {message}" if sizes else message, suggestion, severity)

    def size(self, node: yaml.Node, name: str) -> int | None:
        """The size of an axis, 1 to MAX_SIZE; None after a message."""
        text = self.word(node, "a positive integer")
        if text is None:
            return None
        quoted = isinstance(node, yaml.ScalarNode) and bool(node.style)
        try:
            value = 0 if quoted else int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= MAX_SIZE:
            given = f"the text {text!r}" if quoted else text or "nothing"
            wrong = f"is at most {MAX_SIZE}" if value > 0 else f"is a positive integer, not {given}"
            self.at(node, f"the size of {name} {wrong}")
            return None
        return value

    # -- the parts

    def program(self) -> Program:
        """The program at the sizes asked for. Raises ChangeError, SpecError."""
        parts = self.parts(_root(self.path, self.text))
        name = self.name(parts.get("name"))
        for key in ("description", "source"):
            if key in parts:
                self.words[key] = self.word(parts[key], "text") or ""
        dtype = self.dtype(parts.get("dtype"))
        tolerance = self.tolerance(parts.get("tolerance"))
        dims = self.dims(parts.get("dims"))
        if dims is None:
            raise SpecError(self.errors)
        self.read_instances(parts.get("instances"), dims)
        sizes = self.resized(dims)
        inputs = self.inputs = self.tensors(parts.get("inputs"), sizes, dtype, "input")
        self.broken |= self.declared(parts, "inputs") - set(inputs)
        outputs = self.tensors(parts.get("outputs"), sizes, dtype, "output")
        if not self.is_map(parts, "inputs") or not parts["inputs"].value or "program" not in parts:
            raise SpecError(self.errors)
        self.check_dynamic(parts["dims"], sizes, inputs, outputs)
        scope = Scope(tuple(inputs.values()), sizes, self.report_program, self.dynamic)
        scope.names |= dict.fromkeys(self.broken)
        reader = ProgramReader(scope, outputs.values(), self.broken | self.declared(parts, "outputs") - set(outputs))
        self.read_program(parts["program"], reader)
        self.check_outputs(parts, outputs, reader)
        self.stop()
        check_stores(reader.stores, inputs.values(), scope.builder.eqns, scope.largest, self.report_program)
        self.stop()
        values, places = parts_of(reader.stores, outputs)
        self.warn_unused(parts["inputs"], "input", inputs.keys() - scope.used)
        words = Counter(re.findall(r"\w+", self.text))
        self.warn_unused(parts["dims"], "axis", {d for d in dims if words[d] == 1})
        program = Program(
            name,
            tuple(sizes.items()),
            dtype,
            tuple(inputs.values()),
            tuple(scope.builder.eqns),
            tuple(values),
            tolerance,
            parts=places,
            dynamic=tuple(self.dynamic.values()),
        )
        self.warn_mixed(program, scope.products)
        return program

    def check_dynamic(
        self, node: yaml.Node, sizes: Mapping[str, int], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        """Whether a call says dynamic sizes, and kernels can count the elements of tensors at the largest."""
        for d in self.dynamic:
            if not any(d in t.dims for t in inputs.values()):
                self.at(node, f"no input has the dynamic axis {d}, so a call would not say its size")
        largest = with_most(sizes, self.dynamic)
        for t in (*inputs.values(), *outputs.values()):
            if {*t.dims} & {*self.dynamic} and (n := t.span(largest)) >= MAX_OFFSET:
                far = f"{t.name} has {n} elements at the largest dynamic size"
                self.at(node, f"{far}: kernels count less than 2 ** 31 of them, so take a smaller max")

    def parts(self, root: yaml.MappingNode) -> dict[str, yaml.Node]:
        """The values of the keys. A required key that is missing is one mistake with a misspelt one."""
        parts: dict[str, yaml.Node] = {}
        meant: set[str | None] = set()
        for key, value in self.entries(root):
            if key.value in KEYS:
                parts[key.value] = value
            else:
                self.at(key, f"no key is called {key.value}; the keys are {', '.join(KEYS)}", key.value, KEYS)
                meant.add(closest(key.value, KEYS))
        for key in REQUIRED:
            if key not in parts and key not in meant:
                self.at(root, f"the key {key} is missing")
        return parts

    def resized(self, dims: Mapping[str, int]) -> Mapping[str, int]:
        """The sizes with the changes that are asked for. Raises ChangeError."""
        found = self.multiplied({**dims, **self.changes})
        for d, n in self.changes.items():
            if d not in dims:
                problem = no_axis(d, dims)
            elif not 1 <= n <= MAX_SIZE:
                problem = f"a size is a positive integer up to {MAX_SIZE}"
            elif d in self.products and n != found[d]:
                problem = f"the size of {d} is {'*'.join(self.products[d])}: change one of these"
            elif (r := self.dynamic.get(d)) is not None and not r.least <= n <= r.most:
                problem = f"the size of {d} is {r.least} to {r.most}"
            else:
                continue
            raise ChangeError(self.path, f"{d}={n}", problem, None if d in dims else closest(d, dims))
        return found

    @staticmethod
    def is_map(parts: Mapping[str, yaml.Node], key: str) -> bool:
        return isinstance(parts.get(key), yaml.MappingNode)

    def declared(self, parts: Mapping[str, yaml.Node], key: str) -> set[str]:
        """The names of tensors, of those that were refused too."""
        return {str(k.value) for k, _ in self.entries(parts[key])} if self.is_map(parts, key) else set()

    def name(self, node: yaml.Node | None) -> str:
        value = self.word(node, "a name") if node is not None else None
        if node is None or value is None:
            return ""
        if not NAME.match(value):
            self.at(node, "a name is made of a-z, 0-9 and _, starts with a letter, and has at most 100 characters")
        elif keyword.iskeyword(value):
            self.at(node, f"{value} cannot be the name of a function: it is a word of Python")
        elif value in KERNEL_INTERFACE:
            self.at(node, f"{value} cannot be the name of a spec: every exported file has a function {value} besides")
        return value

    def dtype(self, node: yaml.Node | None) -> str:
        if self.dtype_change is not None:
            if self.dtype_change not in FLOATS:
                near = closest(OTHER_DTYPES.get(self.dtype_change, self.dtype_change), FLOATS)
                problem = f"the dtype is one of {', '.join(FLOATS)}"
                raise ChangeError(self.path, f"dtype {self.dtype_change}", problem, near)
            return self.dtype_change
        return self.element_type(node, FLOATS) if node is not None else "float16"

    def element_type(self, node: yaml.Node, allowed: tuple[str, ...]) -> str:
        value = self.word(node, "a dtype")
        if value is not None and value not in allowed:
            near = "" if value in TENSOR_TYPES else OTHER_DTYPES.get(value, value)
            self.at(node, f"a dtype is one of {', '.join(allowed)}, not {value or 'nothing'}", near, allowed)
        return value if value in allowed else "float16"

    def tolerance(self, node: yaml.Node | None) -> float:
        """Multiples of eager PyTorch's own error."""
        return (self.positive(node, "the tolerance", MAX_TOLERANCE) if node is not None else None) or 4.0

    def dims(self, node: yaml.Node | None) -> dict[str, int] | None:
        """The sizes, 0 for one that is wrong; None where there are none to speak of."""
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.at(node, "dims is a mapping of names to sizes, such as {m: 16, k: 4096}")
            return None
        found: dict[str, int] = {}
        for key, value in self.entries(node):
            name = str(key.value)
            found[name] = self.any_size(key, value) or 0
            if not is_identifier(name):
                self.at(key, f"{name!r} cannot name an axis")
            elif name.endswith("_split"):
                self.at(key, f"{name} cannot name an axis: names ending in _split are kept for chunks of a split")
        self.check_products(node, found)
        return self.multiplied(found)

    def any_size(self, key: yaml.ScalarNode, node: yaml.Node) -> int | None:
        """The size of an axis: a number, one to tune for, or 0 for a product, which follows from the others. An axis
        alone is a product of one."""
        name = str(key.value)
        if isinstance(node, yaml.MappingNode):
            return self.range(key, node)
        factors = str(node.value).split("*") if isinstance(node, yaml.ScalarNode) and not node.style else []
        if len(factors) < 2 and not is_identifier("".join(factors)):
            return self.size(node, name)
        self.products[name] = tuple(x.strip() for x in factors)
        return 0

    def multiplied(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes, with those of products worked out, of which each may have those in front of it; more than MAX_SIZE
        stands for all that is."""
        found = dict(sizes)
        for name, factors in self.products.items():
            found[name] = min(MAX_SIZE + 1, math.prod(found.get(x, 0) or _number(x) for x in factors))
        return found

    def check_products(self, node: yaml.MappingNode, sizes: Mapping[str, int]) -> None:
        behind = {*self.products}
        for key, value in self.entries(node):
            for x in self.products.get(str(key.value), ()):
                if x not in sizes and not _number(x):
                    named = x and not x.isdecimal()
                    form = "a product is of axes and positive numbers, such as 3*h*d"
                    if x == str(value.value):
                        form, named = f"the size of {key.value} is a positive integer, not {x!r}", False
                    self.at(value, no_axis(x, sizes) if named else form, x, sizes)
                elif x in behind:
                    known = "axes that have a number, and of products in front of it"
                    self.at(value, f"{x} is a product that is not in front: a size is a product of {known}")
                elif x in self.dynamic:
                    self.at(value, f"{x} is dynamic: a size is a product of axes that have a number")
            behind.discard(str(key.value))
            if self.multiplied(sizes)[str(key.value)] > MAX_SIZE:
                self.at(value, f"the size of {key.value} is at most {MAX_SIZE}")

    def range(self, key: yaml.ScalarNode, node: yaml.MappingNode) -> int | None:
        """The largest size to tune for of a dynamic axis, or None after a message."""
        name, before = str(key.value), len(self.errors)
        parts = {str(k.value): v for k, v in self.entries(node)}
        for k, _ in self.entries(node):
            if k.value not in RANGE:
                self.at(k, f"no key is called {k.value}; the keys are {', '.join(RANGE)}", k.value, RANGE)
        if missing := [x for x in RANGE if x not in parts]:
            self.at(node, f"the key {missing[0]} is missing; a dynamic size is {RANGE_FORM}")
            return None
        least, most, sizes = (parts[x] for x in RANGE)
        found = Range(name, self.size(least, name) or 0, self.size(most, name) or 0)
        if found.least > found.most > 0:
            self.at(least, f"min is {found.least}, which is more than max, {found.most}")
        if found.most > MAX_DYNAMIC:
            self.at(most, f"a dynamic size is at most {MAX_DYNAMIC}: kernels count it in 32 bits")
        tune = self.tuned(sizes, found)
        if len(self.errors) > before:
            return None
        self.dynamic[name] = found
        self.instances = [{**others, name: n} for others in self.instances or [{}] for n in sorted(tune)]
        return max(tune)

    def tuned(self, node: yaml.Node, range: Range) -> list[int]:
        """The sizes to tune for."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.at(node, "tune is a list of sizes, such as [1, 16, 256]")
            return []
        found: list[int] = []
        for x in node.value:
            n = self.size(x, range.dim)
            if n is None:
                continue
            if n in found:
                self.at(x, f"{n} is named twice")
            elif 0 < range.least <= range.most and not range.least <= n <= range.most:
                self.at(x, f"{n} is not from {range.least} to {range.most}")
            found.append(n)
        return found

    def read_instances(self, node: yaml.Node | None, dims: Mapping[str, int]) -> None:
        """Fills `instances`; those of a spec replace the product of all dynamic sizes that are tuned for."""
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            self.at(node, "instances is a list of changes to dims, such as [{m: 2}, {m: 16}]")
            return
        self.instances = []
        for item in node.value:
            if not isinstance(item, yaml.MappingNode):
                self.at(item, "an instance is a mapping of names to sizes, such as {m: 2}")
                continue
            changes: dict[str, int] = {}
            for key, value in self.entries(item):
                if key.value not in dims:
                    self.at(key, no_axis(key.value, dims), key.value, dims)
                elif key.value in self.products:
                    self.at(
                        key, f"the size of {key.value} is {'*'.join(self.products[key.value])}: change one of these"
                    )
                elif self.dynamic and key.value not in self.dynamic:
                    self.at(key, f"{key.value} is not dynamic: beside axes that are, it has one size")
                elif (size := self.size(value, key.value)) is not None:
                    r = self.dynamic.get(key.value)
                    if r is not None and not r.least <= size <= r.most:
                        self.at(value, f"{size} is not from {r.least} to {r.most}")
                    changes[key.value] = size
            self.instances.append(changes)

    def tensors(self, node: yaml.Node | None, sizes: Mapping[str, int], dtype: str, what: str) -> dict[str, Tensor]:
        """Inputs or outputs by name, those left out that have a mistake. what: "input" or "output"."""
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode) or not node.value:
            empty = " that has at least one" if isinstance(node, yaml.MappingNode) else ""
            self.at(node, f"{what}s is a mapping of names to lists of axes{empty}, such as {{X: [m, k]}}")
            return {}
        found: dict[str, Tensor] = {}
        for key, value in self.entries(node):
            name = str(key.value)
            if not is_identifier(name):
                word = keyword.iskeyword(name) or name in CONSTANTS
                why = "it is a word of the language" if word else "a name is made of letters, digits and _"
                self.at(key, f"{name!r} cannot name a tensor: {why}")
                continue
            if name in sizes:
                self.at(key, f"{name} is the name of an axis")
                continue
            if tensor := self.tensor(name, value, sizes, dtype, what):
                found[name] = tensor
        return found

    def tensor(self, name: str, node: yaml.Node, sizes: Mapping[str, int], dtype: str, what: str) -> Tensor | None:
        """A tensor that is a list of axes, or a mapping; None after a message."""
        if isinstance(node, yaml.SequenceNode):
            axes = self.axes(node, sizes)
            return None if axes is None else Tensor(name, axes, dtype)
        if not isinstance(node, yaml.MappingNode):
            self.at(node, f"an {what} is a list of axes, such as [m, k], or {{dims: [m, k], dtype: float32}}")
            return None
        allowed = INPUT_KEYS if what == "input" else OUTPUT_KEYS
        parts: dict[str, yaml.Node] = {}
        for key, value in self.entries(node):
            if key.value in allowed:
                parts[key.value] = value
            else:
                self.at(key, f"no key is called {key.value}; the keys are {', '.join(allowed)}", key.value, allowed)
        if "inout" in parts:
            return self.inout(name, node, parts["inout"])
        if "dims" not in parts or not isinstance(parts["dims"], yaml.SequenceNode):
            self.at(parts.get("dims", node), f"the {what} {name} needs `dims`, a list of axes")
            return None
        axes = self.axes(parts["dims"], sizes)
        kind = self.element_type(parts["dtype"], TENSOR_TYPES) if "dtype" in parts else dtype
        if self.dtype_change is not None and kind in FLOATS and kind == self.spec_dtype():
            kind = dtype
        scale = self.positive(parts["scale"], "the scale", MAX_SCALE) if "scale" in parts else None
        below = self.below(parts["below"], kind, sizes) if "below" in parts else None
        distinct, padded = (x in parts and self.flag(x, parts[x], kind) for x in ("distinct", "padded"))
        for key in (x for x, given in (("distinct", distinct), ("padded", padded)) if given and "below" not in parts):
            self.at(parts[key], f"{name} needs `below` too, the number of its values")
        drawn = self.drawn(parts["drawn"], kind, distinct, "below" in parts) if "drawn" in parts else "evenly"
        largest = with_most(sizes, self.dynamic)
        most = largest[below] if isinstance(below, str) else below or math.inf
        if distinct and axes is not None and (count := math.prod(largest[a] for a in axes)) > most:
            self.at(parts["distinct"], f"{name} has {count} elements, and no {count} numbers below {most} are distinct")
        if axes is None:
            return None
        tensor = Tensor(
            name=name,
            dims=axes,
            dtype=kind,
            scale=scale or 1.0,
            below=below,
            distinct=distinct,
            drawn=drawn,
            padded=padded,
        )
        return replace(tensor, strides=self.strides(parts["strides"], tensor, sizes)) if "strides" in parts else tensor

    def strides(self, node: yaml.Node, t: Tensor, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
        """Those of a tensor that are not what the axis behind takes; () after a message too."""
        if not isinstance(node, yaml.SequenceNode) or len(node.value) != len(t.dims):
            self.at(node, f"strides is a list of numbers, one for each axis of {t.name}: {', '.join(t.dims)}")
            return ()
        before = len(self.errors)
        strides = [self.stride(item, sizes) for item in node.value]
        if len(self.errors) > before:
            return ()
        most = with_most(sizes, self.dynamic)
        if problem := overlap(strides, t.dims, most):
            self.at(node, f"two elements of {t.name} are in one place: {problem}")
            return ()
        return own_strides(strides, t.dims, sizes, self.dynamic)

    def stride(self, node: yaml.Node, sizes: Mapping[str, int]) -> int:
        """A product of numbers and axes; 0 after a message."""
        text, before = self.word(node, "a positive integer, or a product such as 3*n,"), len(self.errors)
        if text is None:
            return 0
        factors = [x.strip() for x in text.split("*")]
        for x in factors:
            if x in self.dynamic:
                self.at(node, f"{x} is dynamic: a stride is one number, which leaves room for the largest size")
            elif x not in sizes and is_identifier(x):
                self.at(node, no_axis(x, sizes), x, sizes)
            elif x not in sizes and not x.isdecimal():
                self.at(node, f"a stride is a number, or a product such as 3*n, not {text!r}")
        if len(self.errors) > before:
            return 0
        found = math.prod(sizes[x] if x in sizes else int(x) for x in factors)
        if not 1 <= found <= MAX_SIZE:
            self.at(node, f"a stride is a positive integer up to {MAX_SIZE}, not {found}")
        return found

    def below(self, node: yaml.Node, kind: str, sizes: Mapping[str, int]) -> str | int | None:
        """What integers are less than: a number or the name of an axis."""
        value = self.word(node, "a number or an axis")
        if value is None:
            return None
        if kind not in INTEGERS:
            self.at(node, f"below is of integers, and this is {kind}")
        elif value in sizes:
            if sizes[value] <= MAX_BELOW[kind]:
                return value
            self.at(node, f"{value} has size {sizes[value]}, and {kind} ends at {MAX_BELOW[kind] - 1}")
        elif "*" in value:
            self.at(
                node,
                f"below is a number or an axis: name the product among `dims`, {{slots: {value}}}, and write slots",
            )
        elif not value.isdecimal():
            self.at(node, no_axis(value, sizes), value, sizes)
        elif not 1 <= int(value) <= MAX_BELOW[kind]:
            self.at(node, f"below is from 1 to {MAX_BELOW[kind]} for {kind}, not {value}")
        else:
            return int(value)
        return None

    def flag(self, key: str, node: yaml.Node, kind: str) -> bool:
        """`distinct` or `padded`."""
        value = self.word(node, "true or false")
        if value not in ("true", "false"):
            self.at(node, f"{key} is true or false")
        elif kind not in INTEGERS:
            self.at(node, f"{key} is of integers, and this is {kind}")
        return value == "true"

    def drawn(self, node: yaml.Node, kind: str, distinct: bool, bounded: bool) -> Drawn:
        value = self.word(node, "a word")
        if kind not in INTEGERS:
            self.at(node, f"drawn is of integers, and this is {kind}")
        for word in get_args(Drawn):
            if word == value:
                if distinct and word != "evenly":
                    self.at(node, f"integers that are distinct are drawn evenly, not {word}")
                if word == "bits" and (bounded or kind != "int32"):
                    self.at(node, "only int32 without `below` is drawn as bits")
                return word
        if value is not None:
            self.at(node, f"integers are drawn {', '.join(get_args(Drawn))}", value, get_args(Drawn))
        return "evenly"

    def inout(self, name: str, entry: yaml.Node, node: yaml.Node) -> Tensor | None:
        """The input that an output is, which is changed in place."""
        given = self.word(node, "the name of an input")
        if given is None:
            return None
        if len(entry.value) > 1:
            self.at(entry, "`inout` stands alone: the dims and the dtype are the input's")
        elif given not in self.inputs:
            if given not in self.broken:
                self.at(node, f"no input is called {given}", given, self.inputs)
        elif given != name:
            self.at(node, f"an `inout` has the name of its input: write {given}: {{inout: {given}}}")
        else:
            self.changed.add(name)
            return self.inputs[given]
        return None

    def spec_dtype(self) -> str:
        """The dtype that the file itself names."""
        for key, value in yaml.compose(self.text, Loader=yaml.SafeLoader).value:
            if key.value == "dtype":
                return str(value.value)
        return "float16"

    def axes(self, node: yaml.SequenceNode, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
        """The names in a list of axes; None after a message."""
        found: list[str] = []
        ok = True
        for item in node.value:
            if not isinstance(item, yaml.ScalarNode):
                self.at(item, "the name of an axis is needed here")
                ok = False
            elif item.value.isdecimal():
                self.at(item, f"an axis is a name; add one of size {item.value} to `dims`, and write it here")
                ok = False
            elif item.value not in sizes:
                self.at(item, no_axis(item.value, sizes), item.value, sizes)
                ok = False
            elif item.value in found:
                self.at(item, f"the axis {item.value} is repeated")
                ok = False
            else:
                found.append(item.value)
        if len(found) > MAX_AXES:
            self.at(node, f"a tensor has at most {MAX_AXES} axes, and this one has {len(found)}")
            ok = False
        return tuple(found) if ok else None

    def read_program(self, node: yaml.Node, reader: ProgramReader) -> None:
        if not isinstance(node, yaml.ScalarNode):
            self.at(node, "program is text: assignments, one on a line")
            return
        value = node.value if node.style == "|" else re.sub(r"\r\n?", "\n", node.value.strip())
        joined = node.style != "|" and node.start_mark.line < node.end_mark.line
        hint = "; YAML has joined lines to one, which `program: |` keeps apart" * joined
        reader.read(value, self.place_in(node, value), hint)

    def place_in(self, node: yaml.ScalarNode, value: str) -> Place:
        """Where characters of a scalar stand in the file: however YAML folds it, what is not blank keeps its order."""
        start, end = node.start_mark.index, node.end_mark.index
        if node.style:  # behind the quote, or the line with | or >
            start = start + 1 if node.style in "'\"" else self.text.find("\n", start) + 1
        blank = r"(?:\\.|\s)+" if node.style == '"' else r"\s+"
        there = [m.start() for m in re.compile(rf"{blank}|(\S)", re.DOTALL).finditer(self.text, start, end) if m[1]]
        here = [m.start() for m in re.finditer(r"\S", value)]
        rows = [0, *accumulate(len(x) + 1 for x in value.split("\n"))]
        starts = [0, *accumulate(len(x) for x in self.text.splitlines(keepends=True))]

        def place(row: int, column: int) -> tuple[int, int]:
            at = rows[min(row, len(rows)) - 1] + column
            i = bisect_left(here, at)
            solid = i < min(len(here), len(there)) and here[i] == at
            index = there[i] if solid else there[min(i, len(there)) - 1] + 1 if i and there else start
            line = bisect_right(starts, index)
            return line, index - starts[line - 1] + 1

        return place

    def check_outputs(
        self, parts: Mapping[str, yaml.Node], outputs: Mapping[str, Tensor], reader: ProgramReader
    ) -> None:
        """Reports outputs that are not assigned, or to what has other axes or another type."""
        node = parts.get("outputs")
        places = {k.value: k for k, _ in self.entries(node)} if isinstance(node, yaml.MappingNode) else {}
        for t in outputs.values():
            place = places[t.name]
            if t.name in reader.scope.inputs and t.name not in self.changed:
                self.at(place, f"the output {t.name} is an input; give the copy a name of its own")
                continue
            if t.name not in reader.assigned:
                if reader.complete and t.name not in reader.scope.written:
                    self.at(place, f"the output {t.name} is never assigned", t.name, reader.assigned)
                continue
            value = reader.assigned[t.name]
            if value is None:
                continue
            if not isinstance(value, str):
                self.at(place, f"the output {t.name} is just a number")
                continue
            if not holds(t, kind := reader.scope.type_of(value)):
                self.at(place, f"the output {t.name} is {MAKES[kind]}")
                continue
            dims = reader.scope.builder.known[value].dims
            if set(dims) != set(t.dims):
                has, says = ", ".join(dims) or "none", ", ".join(t.dims) or "none"
                hint = _other_axes(value, t.dims, reader.scope)
                self.at(place, f"the output {t.name} has the axes {has}, and the spec says {says}{hint}")

    def warn_mixed(self, program: Program, products: Mapping[str, tuple[int, int]]) -> None:
        """Warn of products of matrices of which one is float32 and one of 16 bits: PyTorch refuses them, and float32
        takes several times as long."""
        types = float_types(program)
        for e in (e for e in program.eqns if e.out in products):
            x, y = (program.values()[v] for v in e.values)
            mixed = {types[v] for v in e.values if v in types}
            half = next(iter(mixed - {"float32"}), "")
            if len(mixed) == 2 and half in HALVES and {*x.dims} - {*y.dims} and {*y.dims} - {*x.dims}:
                how = f"{half}(...) around the float32 operand has the product in {half}, which is several times faster"
                message = f"of these operands one is float32 and one {half}, so the product is taken in float32; {how}"
                self.report(*products[e.out], message, None, "warning")

    def warn_unused(self, node: yaml.Node, what: str, names: Collection[str]) -> None:
        """Warn of entries of a mapping that nothing refers to."""
        for key, _ in self.entries(node):
            if key.value in names:
                mark = key.start_mark
                self.report(mark.line + 1, mark.column + 1, f"the {what} {key.value} is never used", None, "warning")
