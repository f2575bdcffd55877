"""The doctor: every check has a name and a detail, what fails has a remedy, and looking changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage_cli.cli.machine import Check, examine
from mirage_cli.store.store import Database


def checks(path: Path) -> dict[str, Check]:
    return {c.name: c for c in examine(path)}


def test_every_check_says_something_and_looking_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mirage.db"
    found = checks(path)
    assert all(c.detail and (c.ok or c.remedy) for c in found.values())
    assert all(c.ok for c in found.values() if c.required)
    assert found["python"].detail.startswith(sys.version.split()[0])
    assert "first search" in found["database"].detail and not path.parent.exists()


def test_a_missing_module_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "triton", "triton.knobs"):
        monkeypatch.setitem(sys.modules, name, None)
    found = checks(tmp_path / "mirage.db")
    assert not any(found[name].ok for name in ("torch", "triton", "GPU", "ptxas"))


def test_the_environment_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("MIRAGE_WORKERZ", "3")
    monkeypatch.setenv("MIRAGE_WORKERS", "loud")
    monkeypatch.setenv("CC", "/no/such/compiler")
    found = checks(tmp_path / "mirage.db")
    assert "MIRAGE_WORKERZ" in found["environment"].detail and "'loud'" in found["environment"].detail
    assert not found["interpreter"].ok and "/no/such/compiler" in found["C compiler"].detail


def test_the_database_is_opened_or_its_damage_named(tmp_path: Path) -> None:
    path = tmp_path / "mirage.db"
    Database(path).close()
    assert checks(path)["database"].detail.endswith("0 results")
    path.write_bytes(b"x" * 5000)
    assert not checks(path)["database"].ok and "is damaged" in checks(path)["database"].detail
    assert not checks(path / "below" / "mirage.db")["database"].ok
