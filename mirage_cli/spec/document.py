"""A YAML document that is read with a message for every mistake in it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver
from yaml.scanner import ScannerError

from mirage_cli.errors import Diagnostic, SpecError
from mirage_cli.spec.vocabulary import closest

MAX_DEPTH = 20
MAX_LINE = 400
"""Longer lines are not shown in messages."""
Entry = tuple[yaml.ScalarNode, yaml.Node]


class Composed(Composer, Resolver):
    """Nodes of events that were parsed before: most of the time of reading a spec is the parser's."""

    def __init__(self, events: Iterable[yaml.Event]) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.events = deque(events)

    def check_event(self, *kinds: type[yaml.Event]) -> bool:
        return bool(self.events) and isinstance(self.events[0], kinds)

    def peek_event(self) -> yaml.Event:
        return self.events[0]

    def get_event(self) -> yaml.Event:
        return self.events.popleft()


HINTS = {
    "mapping values are not allowed here": ": text with a colon and a space in it stands in quotes",
    "could not find expected ':'": ": this line has no key; the lines behind `program: |` are indented",
}
"""What to do about some of YAML's problems."""


class Document:
    """The text of a file, and what is wrong with it. Nodes keep their place in the file for messages."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lines = text.splitlines()
        self.errors: dict[Diagnostic, None] = {}
        self.warnings: dict[Diagnostic, None] = {}

    def report(
        self, line: int, column: int, message: str, suggestion: str | None = None, severity: str = "error"
    ) -> None:
        source = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        source = "".join(c if c.isprintable() else " " for c in source) if len(source) <= MAX_LINE else ""
        into = self.errors if severity == "error" else self.warnings
        into[Diagnostic(self.path, line, column, source, message, suggestion, severity)] = None

    def at(self, node: yaml.Node, message: str, near: str = "", among: Iterable[str] = ()) -> None:
        mark = node.start_mark
        self.report(mark.line + 1, mark.column + 1, message, closest(near, among) if near else None)

    def stop(self) -> None:
        if self.errors:
            raise SpecError(self.errors)

    def root(self, keys: Iterable[str]) -> yaml.MappingNode:
        """The mapping that the document is. keys: those that it needs, for messages. Raises SpecError."""
        try:
            depth, events = 0, list[yaml.Event]()
            for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                events.append(event)
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
                    short = tag.replace("tag:yaml.org,2002:", "!!")
                    self.report(*place, f"the tag {short} is not part of specs")
            self.stop()
            node = Composed(events).get_single_node()
        except yaml.MarkedYAMLError as error:
            marks = error.context_mark, error.problem_mark
            mark = next(filter(None, marks if isinstance(error, ScannerError) else marks[::-1]), None)
            place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            problem = str(error.problem or error.context)
            if problem.startswith("but "):
                problem = f"{error.context}, {problem}"
            self.report(*place, f"not YAML: {problem}{HINTS.get(problem, '')}")
            raise SpecError(self.errors) from None
        except yaml.reader.ReaderError as error:
            before = (self.text[: error.position] + "x").splitlines()
            self.report(
                len(before), len(before[-1]), f"not YAML: the character {error.character:#x} cannot be part of it"
            )
            raise SpecError(self.errors) from None
        if not isinstance(node, yaml.MappingNode):
            self.report(1, 1, "a spec is a mapping with the keys " + ", ".join(keys))
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

    def word(self, node: yaml.Node, what: str) -> str | None:
        """The text of a plain scalar, or None after a message."""
        if not isinstance(node, yaml.ScalarNode):
            self.at(node, f"{what} is needed here")
            return None
        return str(node.value)

    def positive(self, node: yaml.Node, what: str, most: float) -> float | None:
        """A positive number, or None after a message."""
        try:
            value = float(node.value) if isinstance(node, yaml.ScalarNode) and not node.style else math.nan
        except ValueError:
            value = math.nan
        if not 0 < value < most:
            self.at(node, f"{what} is a positive number")
            return None
        return value
