"""Accesses read from the text that `str` and `access_text` print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from mirage_cli.ir.access import Access, Index, Lookup, atom_index, combined, index, plain, quotient, remainder

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(//|[-+*%()\[\]{},]))")


def parse_access(text: str) -> Access:
    """The inverse of `access_text`. Raises ValueError."""
    return tuple(parse_index(x) for x in comma_separated(text))


def comma_separated(text: str) -> list[str]:
    """The parts between commas, but for those in brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [x.strip() for x in parts if x.strip()]


@lru_cache(maxsize=1 << 14)
def parse_index(text: str) -> Index:
    """The inverse of `str`. Raises ValueError."""
    if text.isidentifier():
        return plain((text,))[0]
    parser = _Parser(text)
    found = parser.total()
    parser.expect(None)
    return found


class _Parser:
    """Reads an index: sums of products of what `factor` reads, one of each product a number."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self.problem()
            self.tokens.append(token[0].strip())
            at = token.end()
        self.tokens.reverse()

    def problem(self) -> ValueError:
        known = "axes, tables and their // and %, each times a number, and a number"
        return ValueError(f"an index is a sum of {known}, not {self.text!r}")

    def next(self) -> str | None:
        return self.tokens[-1] if self.tokens else None

    def take(self) -> str:
        if not self.tokens:
            raise self.problem()
        return self.tokens.pop()

    def expect(self, token: str | None) -> None:
        if self.next() != token:
            raise self.problem()
        if token is not None:
            self.take()

    def total(self) -> Index:
        parts = [self.product(-1 if self.next() == "-" and self.take() else 1)]
        while self.next() in ("+", "-"):
            parts.append(self.product(1 if self.take() == "+" else -1))
        return combined(0, parts)

    def product(self, sign: int) -> tuple[Index, int]:
        found = self.factor()
        while self.next() in ("*", "//", "%"):
            operator, other = self.take(), self.factor()
            if other.terms and operator == "*":
                found, other = other, found
            if other.terms or (operator != "*" and other.offset < 1):
                raise self.problem()
            n = other.offset
            made = {"*": lambda i, n: combined(0, ((i, n),)), "//": quotient, "%": remainder}
            found = made[operator](found, n)
        return found, sign

    def factor(self) -> Index:
        token = self.take()
        if token.isdigit():
            return index({}, int(token))
        if token == "(":
            found = self.total()
            self.expect(")")
            return found
        if not token.isidentifier():
            raise self.problem()
        if self.next() != "{":
            return plain((token,))[0]
        self.take()
        padded = self.next() == "-"
        for part in ("-", "1", ",") if padded else ():
            self.expect(part)
        below = self.take()
        self.expect("}")
        self.expect("[")
        access = [] if self.next() == "]" else [self.total()]
        while self.next() == ",":
            self.take()
            access.append(self.total())
        self.expect("]")
        return atom_index(Lookup(token, tuple(access), int(below) if below.isdigit() else below, padded))


@lru_cache(maxsize=1 << 14)
def substitution(axes: tuple[str, ...]) -> Mapping[str, Index]:
    """What an equation `rename` puts in the place of axes: its `axes`, which hold old names and new indices in turn."""
    return {old: parse_index(new) for old, new in zip(axes[::2], axes[1::2], strict=True)}


def substitution_text(names: Mapping[str, Index]) -> tuple[str, ...]:
    """The inverse of `substitution`."""
    return tuple(text for old, new in names.items() for text in (old, str(new)))
