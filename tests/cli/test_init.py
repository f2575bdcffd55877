"""`mirage init` writes a spec that is good as it is, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirage_cli.cli.commands import app
from mirage_cli.errors import MirageError
from mirage_cli.spec.reader import load_spec


@pytest.mark.parametrize(("args", "name"), [([], "example"), (["my_op2"], "my_op2"), (["my_op2.yaml"], "my_op2")])
def test_the_example_is_a_spec(args: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["init", *args])
    assert run.exit_code == 0 and run.stdout == f"{name}.yaml\n"
    spec = load_spec(tmp_path / f"{name}.yaml")
    assert len(spec.instances) == 3 and not spec.warnings
    assert spec.at().name == name


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.yaml").write_text("mine", encoding="utf-8")
    run = CliRunner().invoke(app, ["init"])
    assert isinstance(run.exception, MirageError) and "example.yaml is there already" in str(run.exception)
    assert (tmp_path / "example.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["Bad-name", "../x", "class"])
def test_a_bad_name_writes_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["init", name])
    assert run.exit_code == 2 and "name" in run.stderr and ".yaml:" not in run.stderr
    assert not [*tmp_path.parent.glob("*.yaml"), *tmp_path.iterdir()]
