"""`mirage trace` writes specs of a file's functions and modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mirage_cli.cli.commands import app
from mirage_cli.errors import TraceError
from mirage_cli.spec.reader import parse_spec

FILE = """
import torch

class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(24, 40), torch.nn.Linear(40, 24)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

def Mlp_inputs():
    return torch.randn(4, 24)

def scores(q, k):
    return torch.softmax(q @ k.mT, -1)

def sums(x):
    return torch.cummax(x.softmax(-1), -1).values.relu()

size = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(FILE, encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def test_a_module_with_inputs_of_its_own(model: Path) -> None:
    done = run(f"{model}:Mlp")
    assert done.exit_code == 0
    program = parse_spec(done.stdout).at()
    assert sorted(program.sizes.values()) == [4, 24, 40]
    assert "gelu(" in done.stdout


def test_a_function_with_shapes_and_a_folder(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "specs"
    done = run(f"{model}:scores", "--input", "2,8,16:float16", "--input", "2,6,16:float16", "-o", folder)
    assert done.stdout == f"{folder / 'scores_0.yaml'}\n"
    spec = parse_spec((folder / "scores_0.yaml").read_text(encoding="utf-8"))
    assert [t.dtype for t in spec.at().inputs] == ["float16", "float16"]


def test_what_is_in_no_region_is_named(model: Path) -> None:
    done = run(f"{model}:sums", "--input", "3,5")
    assert done.stdout.count("name: region_") == 2
    assert "aten.cummax (cummax): no operator that is known here" in done.stderr


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("model.py", "the form is FILE.py:NAME"),
        ("absent.py:f", "there is no file"),
        ("{model}:absent", "defines no absent"),
        ("{model}:scores", "give --input, or define scores_inputs"),
        ("{model}:size --input 3", "is no function and no module"),
        ("{model}:scores --input 3;4", "is no shape and type"),
        ("{model}:scores --input 3:float17", "is no shape and type"),
    ],
)
def test_what_cannot_be_traced_is_said(what: str, message: str, model: Path) -> None:
    done = run(*what.format(model=model).split())
    assert isinstance(done.exception, TraceError)
    assert message in str(done.exception)
