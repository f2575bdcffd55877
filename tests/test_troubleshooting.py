"""Every error that a user can meet is raised somewhere, and explained by its message in docs/troubleshooting.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from mirage_cli import errors as e
from mirage_cli.cli import commands
from mirage_cli.ir.text import MuGraphTextError
from mirage_cli.spec.reader import SpecFileError
from mirage_cli.store.store import explanation
from mirage_cli.tune.measure import MeasureError
from tests.rows import rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
EXAMPLES: Mapping[type[e.MirageError], e.MirageError] = {
    type(x): x
    for x in (
        e.KnobError("MIRAGE_WORKERS", "many", "a number"),
        e.TargetError("h999", ["h100", "h200"]),
        e.StoreError("mirage.db", *explanation("database is locked")),
        e.ExchangeError("found.json", 3, "not JSON: Expecting value"),
        e.EarlierBenchError("before.json", "this is no file of `mirage bench --json`"),
        e.LockFileError("mirage.lock", "not JSON: Expecting value"),
        e.LockError("mirage.lock", ["norm float16 m=2: not in the lock file"]),
        e.ExecutorError("no scheduler answers at tcp://head:8786: refused"),
        e.OptionError("a budget is a number of seconds, 0 or more", -1),
        e.BaselineError(["cublas"], ["eager", "compile"]),
        e.OtherGpuError("tune", None, "h100"),
        e.FewGpusError(4, 2),
        e.UnknownIdError("abc"),
        e.NothingForGpuError("abc", "h100", ["h200"]),
        e.AmbiguousIdError("a", ["ab", "ac"]),
        e.NotAKernelError("no kernel to judge: this Python file defines no `launch`"),
        e.OtherInterfaceError("float16[4, 8] -> float16[4]", ["float16[8, 8] -> float16[8]"]),
        e.EmptyStoreError(),
        e.DamagedResultError("document.best is 3"),
        e.StoredKernelError("norm", "abc", "cannot be written by this version: no such operator"),
        e.NothingStoredError("norm", {"m": 2}),
        e.NothingToLockError("h200", ["norm m=2"]),
        e.NumberError("O"),
        e.GraphError("3j is neither a value, nor a number, nor the name of an axis"),
        e.TraceError("mlp.py:block", "nothing in it is a program"),
        e.PackageError("my-kernels", "no Python package has such a name"),
        e.UnknownTopicError("function", "softmacks", "softmax", ["softmax"]),
        e.NoKernelError("norm", "the database has none"),
        e.SpecError([e.Diagnostic("norm.yaml", 1, 1, "", "expected a mapping")]),
        e.ChangeError("norm.yaml", "m=0", "a size is a positive integer", None),
        SpecFileError("norm.yaml: a spec is at most 1 MiB, and this file has 2097152 bytes"),
        MeasureError("The measuring process does not start: the process exited with code 1"),
        MuGraphTextError(4, "kernel", "a kernel has a name"),
    )
}


def explained() -> list[str]:
    """The messages of the page, as patterns: `...` stands for any text."""
    messages = re.findall(r"^\| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [".*".join(map(re.escape, m.replace("NAME", "...").split("..."))) for m in messages]


def all_errors() -> set[type[e.MirageError]]:
    """The package's own, all of whose modules that raise one are imported by now."""
    assert commands.app
    found, left = set[type[e.MirageError]](), [e.MirageError]
    while left:
        left += (more := left.pop().__subclasses__())
        found |= {x for x in more if x.__module__.startswith("mirage_cli.")}
    return found


def test_every_error_has_an_example() -> None:
    assert all_errors() == set(EXAMPLES)


@rows("kind", EXAMPLES)
def test_every_error_is_explained_by_its_message(kind: type[e.MirageError]) -> None:
    message = str(EXAMPLES[kind])
    assert [p for p in explained() if re.search(p, message, re.DOTALL)], message


def test_every_error_is_raised_somewhere() -> None:
    raised = set[str]()
    for path in (ROOT / "mirage_cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name(name)) | ast.Raise(ast.Name(name)):
                    raised.add(name)
                case _:
                    pass
    assert {kind.__name__ for kind in EXAMPLES} <= raised


def test_the_comparison_sees_what_is_not_explained() -> None:
    assert not [p for p in explained() if re.search(p, "the moon is too far away", re.DOTALL)]
