"""The tables of docs/language.md, from the tables of the code.

`python -m tools.language PAGE` writes what stands between `<!-- NAME -->` and `<!-- end -->` anew, for each NAME of
BLOCKS; `make language` does so with docs/language.md. What a function or an operator takes is not written down here: it
is what the reader of programs accepts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mirage_cli.spec import forms
from mirage_cli.spec.keys import INPUT_KEYS, KEYS, OUTPUT_KEYS, Field


def code(text: str) -> str:
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in lines)


def functions() -> str:
    """Every function, by what it does to axes."""
    head = ["", "meaning", "type", "PyTorch"]
    parts: list[str] = []
    for title, names in forms.functions().items():
        rows = [(code(f.text), f.meaning, f.type, code(f.torch)) for f in map(forms.form, names)]
        parts.append(f"### {title}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def operators() -> str:
    """Those that the reader takes, each meaning once."""
    return table(["", "meaning", "type"], ((code(f.text), f.meaning, f.type) for f in forms.operators()))


def fields(keys: Mapping[str, Field]) -> str:
    rows = [[code(f.name) + (" *" if f.required else ""), code(f.form), f.doc] for f in keys.values()]
    return table(["key", "for example", ""], rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "keys": lambda: fields(KEYS),
    "tensors": lambda: fields({**INPUT_KEYS, **OUTPUT_KEYS}),
    "operators": operators,
    "functions": functions,
}


def filled(page: str) -> str:
    """The page with its tables written anew. Raises KeyError where a block is of no known name."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{BLOCKS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page: Path = parser.parse_args().page
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
