"""Users' files: whole or not at all, and nothing that is no file is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_cli.target.files import FileTooLargeError, check_regular, read_bytes, replacing, write_text
from mirage_cli.tune.interpreted import Interpreter


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("before", encoding="utf-8")
    path.chmod(0o640)

    def half() -> None:
        with replacing(path) as file:
            file.write("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device.*kernel\.py"):
        half()
    assert path.read_text(encoding="utf-8") == "before" and os.listdir(tmp_path) == ["kernel.py"]
    write_text(path, "after")
    assert path.read_text(encoding="utf-8") == "after" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["kernel.py"]


def test_what_is_no_regular_file_is_refused_and_what_is_not_there_is_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for name in "file", "absent":
        check_regular(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        check_regular(tmp_path)
    with pytest.raises(OSError, match="this is no regular file"):
        check_regular(tmp_path / "fifo")


@pytest.mark.parametrize("name", ["norm.yaml", "norm.yml"])
def test_a_spec_that_is_there_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("name: norm", encoding="utf-8")
    (tmp_path / "link.py").symlink_to(name)
    for path in tmp_path / name, tmp_path / "link.py":
        with pytest.raises(OSError, match="a spec is there, and is not overwritten: name another file"):
            write_text(path, "text")
    assert (tmp_path / name).read_text(encoding="utf-8") == "name: norm" and len(os.listdir(tmp_path)) == 2


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text(encoding="utf-8") == "text"
    write_text(Path("/dev/null"), "text")
    with pytest.raises(OSError, match="No space left on device"):
        write_text(Path("/dev/full"), "text")


def test_only_regular_files_of_some_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(FileTooLargeError):
        read_bytes(path, 4)
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            read_bytes(other, 5)


def test_nobody_is_waited_for_to_read_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OSError, match="nobody reads this FIFO"):
        write_text(path, "text")
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_text(path, "text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)


def test_a_pipe_of_the_shell_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    assert read_bytes(Path(f"/dev/fd/{reading}"), 10) == b"text"
    os.close(reading)


def test_the_interpreter_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Interpreter() as interpreter:
        interpreter.start()
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []
