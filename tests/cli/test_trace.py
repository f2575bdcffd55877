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
    return torch.sort(x.softmax(-1), -1).values.relu()

size = 3

def branches(x):
    return x.exp() if x.sum() > 0 else x

class Sized(torch.nn.Module):
    def __init__(self, width):
        super().__init__()

def half(x):
    return x @ torch.ones(5, 5)

def broken_inputs():
    return torch.ones(3)[4]

def broken(x):
    return x
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


def test_a_spec_that_is_there_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "specs"
    written, again = (run(f"{model}:Mlp", "-o", folder) for _ in range(2))
    assert written.stdout == again.stdout
    path = folder / "Mlp_0.yaml"
    edited = path.read_text(encoding="utf-8") + "# mine\n"
    path.write_text(edited, encoding="utf-8")
    done = run(f"{model}:Mlp", "-o", folder)
    assert done.exit_code == 1 and path.read_text(encoding="utf-8") == edited


def test_what_is_in_no_region_is_named(model: Path) -> None:
    done = run(f"{model}:sums", "--input", "3,5")
    assert done.stdout.count("name: region_") == 2
    assert "aten.sort (sort): no operator that is known here" in done.stderr


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
        ("{model}:Sized --input 3", "TypeError: Sized.__init__() missing 1 required positional argument: 'width'"),
        ("{model}:broken", "IndexError: index 4 is out of bounds for dimension 0 with size 3 ({model}:34)"),
        ("{model}:half --input 3,4", "({model}:31)"),
        ("{model}:branches --input 3", "({model}:24)"),
    ],
)
def test_what_cannot_be_traced_is_said(what: str, message: str, model: Path) -> None:
    done = run(*what.format(model=model).split())
    assert isinstance(done.exception, TraceError)
    assert message.format(model=model) in str(done.exception)


def test_what_pytorch_exports_and_does_not_run_is_said(model: Path) -> None:
    """The module's parameters are float32."""
    done = run(f"{model}:Mlp", "--input", "4,24:float16")
    assert isinstance(done.exception, TraceError) and "nothing in it is a program" in str(done.exception)
    assert "PyTorch does not run it: " in done.stderr and "dtype" in done.stderr


def test_a_file_with_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    for text, says in (
        ("def f(:\n", "SyntaxError"),
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ("),
    ):
        (path := tmp_path / "model.py").write_text(text, encoding="utf-8")
        done = run(f"{path}:f", "--input", "3")
        assert isinstance(done.exception, TraceError) and says in str(done.exception)
