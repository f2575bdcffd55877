"""`mirage export-model` writes the kernels of a file's functions and modules as a package."""

from __future__ import annotations

import importlib
import stat
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from mirage_cli.cli.commands import app
from mirage_cli.errors import PackageError
from mirage_cli.pipeline.models.package import write_package

FILE = """
import torch

class Block(torch.nn.Module):
    def forward(self, x, w):
        y = torch.sort(torch.nn.functional.gelu(x @ w), -1).values
        return torch.sigmoid(y) * 2

def Block_inputs():
    return torch.randn(3, 8), torch.randn(8, 6)
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(x) for x in arguments])


def test_a_model_becomes_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, db, folder = tmp_path / "model.py", tmp_path / "mirage.db", tmp_path / "made" / "block_kernels"
    model.write_text(FILE, encoding="utf-8")
    none = run("export-model", f"{model}:Block", folder, "--db", db)
    assert isinstance(none.exception, PackageError) and "a kernel of none of its regions for h100" in str(
        none.exception
    )
    assert not folder.parent.exists()
    specs = tmp_path / "specs"
    assert run("trace", f"{model}:Block", "-o", specs).exit_code == 0
    first, second = sorted(specs.iterdir())
    assert run("search", first, "--budget", 3, "--workers", 1, "--target", "h200", "--db", db).exit_code in (0, 3)
    other_gpu = run("export-model", f"{model}:Block", folder, "--target", "a100", "--db", db)
    assert isinstance(other_gpu.exception, PackageError) and "none of its regions for a100" in str(other_gpu.exception)

    done = run("export-model", f"{model}:Block", folder, "--db", db)
    assert done.exit_code == 0, done.exception
    assert "taking the kernel for h200" in " ".join(done.stderr.split())
    name = first.read_text(encoding="utf-8").split()[1]
    other = second.read_text(encoding="utf-8").split()[1]
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "__init__.py", f"{name}.py"]
    assert f"{other}: the database has none" in " ".join(done.stderr.split())
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for said in (
        f"## {name}",
        "called 1 times",
        "(predicted)",
        "right: ",
        "name: region_",
        f"{other}: ",
        "aten.sort",
    ):
        assert said in readme
    assert stat.S_IMODE(folder.stat().st_mode) & 0o500 == 0o500

    monkeypatch.syspath_prepend(folder.parent)
    package = importlib.import_module("block_kernels")
    assert package.__all__ == [name]
    x, w = torch.randn(3, 8), torch.randn(8, 6)
    torch.testing.assert_close(getattr(package, name)(w, x), torch.nn.functional.gelu(x @ w))

    again = run("export-model", f"{model}:Block", folder, "--db", db)
    assert isinstance(again.exception, PackageError) and "something is there already" in str(again.exception)


def test_a_package_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_package(tmp_path / "kernels", {"one.py": "", "no/two.py": ""})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PackageError, match="no Python package"):
        write_package(tmp_path / "my-kernels", {"one.py": ""})
    (tmp_path / "kernels").mkdir()
    write_package(tmp_path / "kernels", {"one.py": ""})
    assert [p.name for p in (tmp_path / "kernels").iterdir()] == ["one.py"]
