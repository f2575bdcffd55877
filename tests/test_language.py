"""docs/language.md: its tables are those of the code, and its examples mean what the PyTorch beside them does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_cli.spec import forms
from mirage_cli.spec.reader import parse_spec
from mirage_cli.spec.vocabulary import FUNCTIONS
from mirage_cli.verify.facts import where_outputs_lie
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.lies import Lies, outputs_of
from mirage_cli.verify.numeric import draw_inputs
from mirage_cli.verify.pieces import as_tuple
from tests.rows import rows
from tools import language

PAGE = Path(__file__).parents[1] / "docs" / "language.md"
TEXT = PAGE.read_text(encoding="utf-8")
IDIOMS = dict(re.findall(r"```yaml\n(name: .*?)```\n\n```python\n(.*?)```", TEXT, re.DOTALL))


def test_the_tables_are_those_of_the_code() -> None:
    """`make language` writes them."""
    assert set(re.findall(r"<!-- (\w+) -->", TEXT)) - {"end"} == set(language.BLOCKS)
    assert language.filled(TEXT) == TEXT


@rows("name", FUNCTIONS)
def test_every_function_has_a_form_that_the_reader_takes(name: str) -> None:
    assert forms.read(forms.call_of(name)) is not None
    assert f"| `{forms.form_of(name)}` |" in TEXT


def test_every_spec_of_the_page_stands_beside_its_function() -> None:
    assert len(IDIOMS) == len(re.findall(r"^```yaml$", TEXT, re.MULTILINE)) >= 6


@pytest.mark.parametrize("spec", IDIOMS, ids=lambda text: text.split()[1])
def test_an_example_means_what_the_function_beside_it_does(spec: str) -> None:
    read = parse_spec(spec)
    assert not read.warnings
    program = read.at()
    names: dict[str, Any] = {"torch": torch}
    exec(IDIOMS[spec], names)
    inputs = draw_inputs(program, "normal", torch.device("cpu"), seed=1)
    wide = [x.double() if x.is_floating_point() else x.long() for x in inputs]
    lies = [Lies(*x) for x in places] if (places := where_outputs_lie(program)) else None
    wanted = outputs_of(lies, [y.double() for y in as_tuple(names[read.name](*wide))], wide)
    for found, want in zip(reference64(program, inputs), wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9, equal_nan=True)
