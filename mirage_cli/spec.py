"""Specs: YAML files that say what is asked (see the README). `load_spec` reads one; mistakes come all at once.

A `Spec` keeps its text: names of dimensions in the program are numbers, so each size is a reading of its own
(`Spec.at`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mirage_cli.errors import Diagnostic, MirageError, SpecError
from mirage_cli.expression import ProgramReader
from mirage_cli.ir.program import Program, Tensor

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_SIZE = 1 << 40
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
FLOATS = ("float16", "bfloat16", "float32")
KEYS = ("name", "description", "source", "dims", "instances", "dtype", "inputs", "program", "outputs", "tolerance")
REQUIRED = ("name", "dims", "inputs", "program", "outputs")


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec that was read without mistakes. `instances`: the changes to `dims` that are to be searched."""

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
        """The program with these sizes and this dtype instead of the spec's. Raises SpecError."""
        return _Reader(self.path, self.text, dims or {}, dtype).program()

    def programs(self, overrides: Mapping[str, int] | None = None, dtype: str | None = None) -> list[Program]:
        """One program for each instance; just one, with these sizes, where `overrides` are given."""
        if overrides:
            return [self.at(overrides, dtype)]
        return [self.at(i, dtype) for i in self.instances or ({},)]


class SpecFileError(MirageError):
    """A spec that cannot even be parsed into lines: not there, not text, too large."""


def load_spec(path: Path | str) -> Spec:
    """Read a spec file. Raises SpecError with every mistake, or SpecFileError."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecFileError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise SpecFileError(f"{path}: a spec is at most 1 MiB, and this file has {len(data)} bytes")
    try:
        return parse_spec(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SpecFileError(f"{path}:{line}: a spec is UTF-8 text, and byte {error.start} is not") from None


def parse_spec(text: str, path: str = "<spec>") -> Spec:
    """Read a spec from its text. Raises SpecError with every mistake."""
    reader = _Reader(path, text, {}, None)
    program = reader.program()
    for instance in reader.instances:
        _Reader(path, text, instance, None).program()
    return Spec(
        program.name,
        path,
        text,
        program.dims,
        tuple(reader.instances),
        program.dtype,
        reader.words.get("description", ""),
        reader.words.get("source", ""),
        tuple(reader.warnings),
    )


Entry = tuple[yaml.ScalarNode, yaml.Node]


class _Reader:
    """One reading of a spec's text at given sizes. Nodes keep their place in the file for messages."""

    def __init__(self, path: str, text: str, dims: Mapping[str, int], dtype: str | None) -> None:
        self.path, self.text, self.changes, self.dtype_change = path, text, dims, dtype
        self.lines = text.splitlines()
        self.errors: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self.instances: list[Mapping[str, int]] = []
        self.words: dict[str, str] = {}

    # -- messages

    def report(
        self, line: int, column: int, message: str, suggestion: str | None = None, severity: str = "error"
    ) -> None:
        source = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        found = Diagnostic(self.path, line, column, source, message, suggestion, severity)
        into = self.errors if severity == "error" else self.warnings
        if found not in into:
            into.append(found)

    def at(self, node: yaml.Node, message: str, near: str = "", among: Iterable[str] = ()) -> None:
        close = difflib.get_close_matches(near, list(among), 1) if near else []
        mark = node.start_mark
        self.report(mark.line + 1, mark.column + 1, message, close[0] if close else None)

    def stop(self) -> None:
        if self.errors:
            raise SpecError(self.errors)

    # -- YAML

    def document(self) -> yaml.MappingNode:
        """The root mapping. Raises SpecError."""
        try:
            depth = 0
            for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                if isinstance(event, yaml.CollectionStartEvent):
                    depth += 1
                elif isinstance(event, yaml.CollectionEndEvent):
                    depth -= 1
                mark = event.start_mark
                place = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
                if depth > MAX_DEPTH:
                    self.report(*place, "this is nested too deeply")
                    self.stop()
                if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                    self.report(*place, "anchors and aliases are not part of specs")
                tag = getattr(event, "tag", None)
                if tag:
                    self.report(*place, f"the tag {tag} is not part of specs")
            self.stop()
            node = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self.report(*place, f"not YAML: {error.problem or error.context}")
            raise SpecError(self.errors) from None
        except (yaml.YAMLError, RecursionError) as error:
            self.report(1, 1, f"not YAML: {str(error).splitlines()[0] if str(error) else 'nested too deeply'}")
            raise SpecError(self.errors) from None
        if not isinstance(node, yaml.MappingNode):
            self.report(1, 1, "a spec is a mapping with the keys " + ", ".join(REQUIRED))
            raise SpecError(self.errors)
        return node

    def entries(self, node: yaml.Node) -> list[Entry]:
        """The entries of a mapping with plain keys, each key once."""
        found: list[Entry] = []
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.at(key, "a key is a plain word")
            elif key.value in seen:
                self.at(key, f"the key {key.value} is given twice")
            else:
                seen.add(key.value)
                found.append((key, value))
        return found

    def scalar(self, node: yaml.Node, what: str) -> Any:
        """The Python value of a plain scalar, or None after a message."""
        if not isinstance(node, yaml.ScalarNode):
            self.at(node, f"{what} is needed here")
            return None
        return yaml.SafeLoader("").construct_object(node)

    def size(self, node: yaml.Node, name: str) -> int | None:
        value = self.scalar(node, "a positive integer")
        if value is None and not isinstance(node, yaml.ScalarNode):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.at(node, f"the size of {name} is a positive integer, not {getattr(node, 'value', '')!r}")
            return None
        if value > MAX_SIZE:
            self.at(node, f"the size of {name} is too large")
            return None
        return value

    # -- the parts

    def program(self) -> Program:
        """The program at the sizes asked for. Raises SpecError."""
        root = self.document()
        parts: dict[str, yaml.Node] = {}
        for key, value in self.entries(root):
            if key.value in KEYS:
                parts[key.value] = value
            else:
                self.at(key, f"no key is called {key.value}; the keys are {', '.join(KEYS)}", key.value, KEYS)
        for key in REQUIRED:
            if key not in parts:
                self.at(root, f"the key {key} is missing")
        name = self.name(parts.get("name"))
        for key in ("description", "source"):
            if key in parts:
                self.words[key] = str(self.scalar(parts[key], "text") or "")
        dims = self.dims(parts.get("dims"))
        self.read_instances(parts.get("instances"), dims)
        for d in self.changes:
            if dims and d not in dims:
                close = difflib.get_close_matches(d, list(dims), 1)
                place = parts["dims"].start_mark
                self.report(
                    place.line + 1, place.column + 1, f"no dimension is called {d}", close[0] if close else None
                )
        sizes = {d: self.changes.get(d, n) for d, n in dims.items()}
        dtype = self.dtype(parts.get("dtype"))
        tolerance = self.tolerance(parts.get("tolerance"))
        inputs = self.tensors(parts.get("inputs"), sizes, dtype, "input")
        outputs = self.tensors(parts.get("outputs"), sizes, dtype, "output")
        if "program" not in parts or "dims" not in parts:
            self.stop()
        reader = ProgramReader(inputs.values(), sizes, self.report)
        broken = (
            {k.value for k, _ in self.entries(parts["inputs"])} - set(inputs) if self.is_map(parts, "inputs") else set()
        )
        reader.names |= dict.fromkeys(broken)
        self.read_program(parts.get("program"), reader)
        self.check_outputs(parts, outputs, reader)
        self.stop()
        for t in inputs.values():
            if t.name not in reader.used:
                self.warn_unused(parts["inputs"], t.name)
        return Program(
            name,
            tuple(sizes.items()),
            dtype,
            tuple(inputs.values()),
            tuple(reader.builder.eqns),
            tuple(outputs.values()),
            tolerance,
        )

    @staticmethod
    def is_map(parts: Mapping[str, yaml.Node], key: str) -> bool:
        return isinstance(parts.get(key), yaml.MappingNode)

    def name(self, node: yaml.Node | None) -> str:
        if node is None:
            return ""
        value = self.scalar(node, "a name")
        if not isinstance(value, str) or not NAME.match(value):
            self.at(node, "a name is made of a-z, 0-9 and _, and starts with a letter")
            return ""
        return value

    def dtype(self, node: yaml.Node | None) -> str:
        if self.dtype_change is not None:
            if self.dtype_change not in FLOATS:
                self.report(1, 1, f"the dtype is one of {', '.join(FLOATS)}, not {self.dtype_change}")
            return self.dtype_change
        return self.element_type(node, FLOATS) if node is not None else "float16"

    def element_type(self, node: yaml.Node, allowed: tuple[str, ...]) -> str:
        value = self.scalar(node, "a dtype")
        if value not in allowed:
            self.at(node, f"a dtype is one of {', '.join(allowed)}, not {value}", str(value), allowed)
            return "float16"
        return str(value)

    def tolerance(self, node: yaml.Node | None) -> float:
        if node is None:
            return 4.0
        value = self.scalar(node, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            self.at(node, "the tolerance is a positive number: multiples of eager PyTorch's own error")
            return 4.0
        return float(value)

    def dims(self, node: yaml.Node | None) -> dict[str, int]:
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self.at(node, "dims is a mapping of names to sizes, such as {m: 16, k: 4096}")
            return {}
        found: dict[str, int] = {}
        for key, value in self.entries(node):
            name = str(key.value)
            if not IDENTIFIER.match(name) or name in (
                "inf",
                "and",
                "or",
                "not",
                "in",
                "is",
                "if",
                "else",
                "for",
                "lambda",
            ):
                self.at(key, f"{name!r} cannot name a dimension")
                continue
            if name.endswith("_split"):
                self.at(key, f"{name} cannot name a dimension: names ending in _split are kept for chunks of a split")
                continue
            found[name] = self.size(value, name) or 1
        return found

    def read_instances(self, node: yaml.Node | None, dims: Mapping[str, int]) -> None:
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            self.at(node, "instances is a list of changes to dims, such as [{m: 2}, {m: 16}]")
            return
        for item in node.value:
            if not isinstance(item, yaml.MappingNode):
                self.at(item, "an instance is a mapping of names to sizes, such as {m: 2}")
                continue
            changes: dict[str, int] = {}
            for key, value in self.entries(item):
                if key.value not in dims:
                    self.at(key, f"no dimension is called {key.value}", key.value, dims)
                elif (size := self.size(value, key.value)) is not None:
                    changes[key.value] = size
            self.instances.append(changes)

    def tensors(self, node: yaml.Node | None, sizes: Mapping[str, int], dtype: str, what: str) -> dict[str, Tensor]:
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode) or not node.value:
            self.at(node, f"{what}s is a mapping of names to lists of axes, such as {{X: [m, k]}}")
            return {}
        found: dict[str, Tensor] = {}
        for key, value in self.entries(node):
            name = str(key.value)
            if not IDENTIFIER.match(name) or name == "inf":
                self.at(key, f"{name!r} cannot name a tensor")
                continue
            if name in sizes:
                self.at(key, f"{name} is the name of a dimension")
                continue
            if tensor := self.tensor(name, value, sizes, dtype, what):
                found[name] = tensor
        return found

    def tensor(self, name: str, node: yaml.Node, sizes: Mapping[str, int], dtype: str, what: str) -> Tensor | None:
        if isinstance(node, yaml.SequenceNode):
            axes = self.axes(node, sizes)
            return None if axes is None else Tensor(name, axes, dtype)
        if not isinstance(node, yaml.MappingNode):
            self.at(node, f"an {what} is a list of axes, such as [m, k], or {{dims: [m, k], dtype: float32}}")
            return None
        allowed = ("dims", "dtype", "scale") if what == "input" else ("dims", "dtype")
        parts: dict[str, yaml.Node] = {}
        for key, value in self.entries(node):
            if key.value in allowed:
                parts[key.value] = value
            else:
                self.at(key, f"no key is called {key.value}; the keys are {', '.join(allowed)}", key.value, allowed)
        if "dims" not in parts or not isinstance(parts["dims"], yaml.SequenceNode):
            self.at(parts.get("dims", node), f"the {what} {name} needs `dims`, a list of axes")
            return None
        axes = self.axes(parts["dims"], sizes)
        types = (*FLOATS, "int32") if what == "input" else FLOATS
        kind = self.element_type(parts["dtype"], types) if "dtype" in parts else dtype
        if self.dtype_change is not None and kind in FLOATS and kind == self.spec_dtype():
            kind = dtype
        scale = 1.0
        if "scale" in parts:
            value = self.scalar(parts["scale"], "a number")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
                self.at(parts["scale"], "the scale is a positive number")
            else:
                scale = float(value)
        return None if axes is None else Tensor(name, axes, kind, scale)

    def spec_dtype(self) -> str:
        """The dtype that the file itself names."""
        for key, value in yaml.compose(self.text, Loader=yaml.SafeLoader).value:
            if key.value == "dtype":
                return str(value.value)
        return "float16"

    def axes(self, node: yaml.SequenceNode, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
        found: list[str] = []
        ok = True
        for item in node.value:
            if not isinstance(item, yaml.ScalarNode):
                self.at(item, "the name of an axis is needed here")
                ok = False
            elif item.value not in sizes:
                self.at(item, f"no dimension is called {item.value}", item.value, sizes)
                ok = False
            elif item.value in found:
                self.at(item, f"the axis {item.value} is repeated")
                ok = False
            else:
                found.append(item.value)
        return tuple(found) if ok else None

    def read_program(self, node: yaml.Node | None, reader: ProgramReader) -> None:
        if node is None:
            return
        if not isinstance(node, yaml.ScalarNode) or not isinstance(node.value, str):
            self.at(node, "program is text: assignments, one on a line")
            return
        mark = node.start_mark
        if node.style in ("|", ">"):
            first = mark.line + 2
            indent = next((len(x) - len(x.lstrip()) for x in self.lines[first - 1 :] if x.strip()), 0)
            reader.read(node.value, first, lambda _: indent + 1)
        else:
            quoted = 1 if node.style else 0
            reader.read(node.value.strip(), mark.line + 1, lambda n: mark.column + 1 + quoted if n == 1 else 1)

    def check_outputs(
        self, parts: Mapping[str, yaml.Node], outputs: Mapping[str, Tensor], reader: ProgramReader
    ) -> None:
        node = parts.get("outputs")
        places = {k.value: k for k, _ in self.entries(node)} if isinstance(node, yaml.MappingNode) else {}
        for t in outputs.values():
            place = places[t.name]
            if t.name in reader.inputs:
                self.at(place, f"the output {t.name} is an input; give the copy a name of its own")
                continue
            if t.name not in reader.assigned:
                self.at(place, f"the output {t.name} is never assigned", t.name, reader.assigned)
                continue
            value = reader.assigned[t.name]
            if value is None:
                continue
            if not isinstance(value, str):
                self.at(place, f"the output {t.name} is just a number")
                continue
            if reader.type_of(value) != "float":
                self.at(place, f"the output {t.name} is a mask or an integer; outputs are floats")
                continue
            dims = reader.builder.known[value].dims
            if set(dims) != set(t.dims):
                has, says = ", ".join(dims) or "none", ", ".join(t.dims) or "none"
                self.at(place, f"the output {t.name} has the axes {has}, and the spec says {says}")

    def warn_unused(self, node: yaml.Node, name: str) -> None:
        for key, _ in node.value:
            if key.value == name:
                mark = key.start_mark
                self.report(mark.line + 1, mark.column + 1, f"the input {name} is never used", None, "warning")
