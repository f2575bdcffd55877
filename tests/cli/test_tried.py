"""What users tried: widths and pipes, plans beside the best, progress, filters, the gate, the lock file, crafted data.

Most tests run a command line as `tests.cli.test_cli` does.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from rich.console import Console

from mirage_cli import __version__
from mirage_cli.cli import bench as bench_command
from mirage_cli.cli import progress as progress_module
from mirage_cli.cli.commands import app
from mirage_cli.cli.help import ENVELOPE, EXIT_CODES
from mirage_cli.cli.layout import Column, Sheet, figures
from mirage_cli.cli.progress import Told, progress
from mirage_cli.codegen.export import load_export
from mirage_cli.ir.program import Program
from mirage_cli.pipeline import keys
from mirage_cli.pipeline.bench import benchmark
from mirage_cli.pipeline.session import Session
from mirage_cli.search.cuts import CUTS, UNVERIFIED
from mirage_cli.spec.forms import INDICES
from mirage_cli.store.results import About, Unfinished
from mirage_cli.target.gpus import Target, find_target
from tests.cli.test_cli import (
    CACHE_COMMANDS,
    COMMANDS,
    MUGRAPH,
    STORED,
    Mirage,
    Run,
    environment,
)

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\b[0-9a-f]{12}\b")


IN_TURN = """
import fcntl, json, struct, sys, termios
width, commands = json.loads(sys.argv[1])
fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
from mirage_cli.cli.main import main
for n, args in enumerate(commands):
    print(end="\x1e" if n else "", flush=True)
    sys.argv[1:] = args
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""
"""Command lines, one after the other, with a separator between what they show."""


def in_terminal(folder: Path, width: int, *commands: Sequence[str]) -> list[str]:
    """What each of these commands shows on a terminal of this width."""
    parent, child = pty.openpty()
    env = environment(folder, TERM="xterm", NO_COLOR="1")
    env.pop("COLUMNS", None)
    command = [sys.executable, "-c", IN_TURN, json.dumps([width, commands])]
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=child, stdout=child, stderr=subprocess.DEVNULL)
    os.close(child)
    shown = b""
    try:
        while data := os.read(parent, 65536):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(parent)
    assert process.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "").split("\x1e")


# -- tables


@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_the_terminal_and_keep_whole_ids(searched: tuple[Path, Run], width: int) -> None:
    best = searched[1].results[0]["best"]["id"]
    commands = ["cache", "list"], ["explain", "tiny.yaml"], ["search", *STORED[1:2], "--top", "2"]
    shown = in_terminal(searched[0], width, *commands)
    assert len(shown) == len(commands)
    for text in shown:
        assert best in text and "…" not in text and not set("│┃─━┌└") & set(text)
        assert max(map(len, text.splitlines())) <= width, text


def test_a_pipe_gets_columns_without_boxes_or_breaks(found: Mirage) -> None:
    text = found("explain", "tiny.yaml").out + found("cache", "list").out + found("doctor").out
    assert not set("│┃─━┌└") & set(text) and "\x1b" not in text
    head, row = found("cache", "list").out.splitlines()
    assert head.split() == ["spec", "id", "dims", "dtype", "GPU", "μGraphs", "timings", "best", "µs", "at"]
    assert row.startswith("tiny") and len(ID.findall(row)) == 2


def test_a_sheet_wraps_prose_and_then_lists_its_rows() -> None:
    sheet = Sheet("title", (Column("name"), *figures("µs"), Column("why", prose=True)))
    sheet.add("abcdefabcdef", "1.00", "one two three four five six seven eight nine ten")
    sheet.add("b", "10.00", "")

    def text(width: int | None) -> list[str]:
        return [line for line, _ in sheet.lines(width)]

    whole = text(None)
    assert whole[1:] == [
        "name             µs  why",
        "abcdefabcdef   1.00  one two three four five six seven eight nine ten",
        "b             10.00",
    ]
    assert text(50)[2:4] == [
        "abcdefabcdef   1.00  one two three four five six",
        "                     seven eight nine ten",
    ]
    assert text(30) == [
        "title",
        "abcdefabcdef",
        "  µs   1.00",
        "  why  one two three four five",
        "       six seven eight nine",
        "       ten",
        "b",
        "  µs  10.00",
    ]


# -- search


def test_top_shows_each_plan_with_its_factor_and_why_it_lost(found: Mirage) -> None:
    (r,) = found("search", "tiny.yaml", "--no-tune", "--dim", "m=64", "--dim", "k=4096", "--top", 5, "--json").results
    text = found("search", "tiny.yaml", "--no-tune", "--dim", "m=64", "--dim", "k=4096", "--top", 5).out
    rows = [line for line in text.splitlines() if re.match(r"\d ", line)]
    assert len(rows) == len(r["top"]) > 1 and rows[0].endswith("  best")
    for row, k in zip(rows, r["top"], strict=True):
        assert k["id"] in row and f"{r['as_written_us'] / k['predicted_us']:.2f}" in row
    assert all("times the best's" in row for row in rows[1:]) and "waits for" in rows[1]
    assert f"as written {r['as_written_us']:.2f} µs" in text


def test_two_sizes_of_one_axis_are_both_searched(mirage: Mirage) -> None:
    for dims in (("--dim", "m=8", "--dim", "m=16"), ("--dim", "m=8,16")):
        results = mirage("search", "tiny.yaml", "--no-tune", "--json", *dims, "--dim", "n=32").results
        assert [(r["dims"]["m"], r["dims"]["n"]) for r in results] == [(8, 32), (16, 32)]


def test_shards_are_apart_and_together_all(mirage: Mirage) -> None:
    whole = mirage("search", "tiny.yaml", "--no-tune", "--json", "--dim", "m=1,2,3,4,5").results
    parts = [
        mirage("search", "tiny.yaml", "--no-tune", "--json", "--dim", "m=1,2,3,4,5", "--shard", f"{i}/2").results
        for i in (1, 2)
    ]
    assert [r["dims"]["m"] for r in parts[0]] == [1, 3, 5] and [r["dims"]["m"] for r in parts[1]] == [2, 4]
    assert {r["best"]["id"] for r in whole} == {r["best"]["id"] for part in parts for r in part}


def test_progress_says_which_program_what_the_clock_and_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(monotonic=iter([0.0, 10.0, 13.0]).__next__)
    monkeypatch.setattr(progress_module, "time", now)
    told = Told(60.0)
    told.count = 3
    told.program(2, "gqa")
    told.doing("verifying 3 of 12 plans", 7.334)
    assert told.line() == "2 of 3 · gqa 3 of 60 s · verifying 3 of 12 plans · best 7.33 µs · 13 s in all"


def test_a_log_gets_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress_module, "LOG_EVERY_S", 0.05)
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        with progress(1.0, Console(file=file)) as told:
            told.program(1, "tiny")
            told.doing("searching")
            while file.tell() == 0:
                pass
        size = file.tell()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert lines and all(re.fullmatch(r"tiny \d of 1 s · searching", line) for line in lines) and size > 0


def test_a_search_tells_what_it_looks_at(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, float | None]] = []
    monkeypatch.setattr(Told, "doing", lambda self, what, us=None: said.append((what, us)))
    assert mirage("search", "tiny.yaml", "--no-tune").code == 0
    assert [what for what, _ in said[:2]] == ["opening the database", "searching"]
    assert any(re.match(r"searching, \d+ kernels looked at", x) for x, _ in said)
    assert any(re.match(r"verifying 1 of \d+ plans", x) and us is not None for x, us in said)


# -- databases that are not there, and stdout


READING = (
    *(["cache", "list"], ["cache", "show", "aaaa"], ["cache", "export", "-"], ["cache", "remove", "aaaa"]),
    *(["cache", "prune", "--stale"], ["show", "tiny.yaml"], ["explain", "tiny.yaml"], ["export", "tiny.yaml"]),
    *(["verify", "tiny.yaml", "aaaa"], ["verify", "--all"], ["lock", "tiny.yaml"]),
)


@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_a_reading_command_refuses_a_database_that_is_not_there(
    args: list[str], mirage: Mirage, tmp_path: Path
) -> None:
    run = mirage(*args, "--db", "typo.sqlite")
    assert run.code == 1 and "error: the database typo.sqlite is not there" in run.err and run.out == ""
    mirage(*args)  # nor is the user's own made
    assert not {"typo.sqlite", "mirage.db", "-"} & set(os.listdir(tmp_path))


def test_a_dash_is_stdout_and_stdin(found: Mirage, tmp_path: Path) -> None:
    run = found("cache", "export", "-")
    assert run.code == 0 and run.err == "-: 1 key\n" and not (tmp_path / "-").exists()
    lines = [json.loads(line) for line in run.out.splitlines()]
    assert lines[0]["mirage_cache"] == 2 and len(lines) == 2
    command = [sys.executable, "-m", "mirage_cli", "cache", "import", "-", "--db", "piped.db"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), input=run.out, text=True, timeout=60)
    assert done.returncode == 0
    assert found("cache", "list", "--json", "--db", "piped.db").results[0]["spec"] == "tiny"


def test_the_cache_is_filtered_and_pruned(found: Mirage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(keys, "versions", lambda: {"mirage": __version__, "torch": "0.1", "triton": "0.1"})
        assert found("search", "increment.yaml", "--no-tune", "--target", "a100", "--dim", "m=16").code in (0, 3)

    def listed(*filters: str) -> list[str]:
        return [r["spec"] for r in found("cache", "list", "--json", *filters).results]

    assert listed() == ["tiny", "increment"]
    assert listed("--spec", "tiny") == listed("--gpu", "h100") == ["tiny"] and listed("--gpu", "a100") == ["increment"]
    assert listed("--version", "9.9") == listed("--version", "torch=0.2") == listed("--older-than", "1h") == []
    assert len(listed("--version", "driver=")) == 2 and listed("--version", "torch=0.1") == ["increment"]
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE results SET at = '2020-01-01T00:00:00.000+00:00'")
    connection.close()
    assert listed("--older-than", "30d") == ["tiny", "increment"] and listed("--stale") == ["increment"]
    dry = found("cache", "prune", "--stale", "--dry-run")
    assert dry.code == 0 and "increment" in dry.out and dry.out.endswith("would remove 1\n") and len(listed()) == 2
    size = (tmp_path / "mirage.db").stat().st_size
    assert found("cache", "prune", "--stale").out == "removed 1\n" and listed() == ["tiny"]
    assert (tmp_path / "mirage.db").stat().st_size <= size and found("export", "tiny.yaml").code == 0


# -- explain, verify, help


def test_explain_rounds_and_names_the_page_of_reasons(found: Mirage) -> None:
    checked = found("explain", "tiny.yaml").out
    assert re.search(r"error against float64 +\d\.\d\de-\d\d \(eager's \d\.\d\de-\d\d\)\n", checked)
    assert found("search", "tiny.yaml", "--no-tune", "--dim", "m=8").code == 0
    unchecked = found("explain", "tiny.yaml", "--dim", "m=8").out
    assert "None" not in unchecked and "eager PyTorch          not measured" in unchecked
    assert "`mirage help cuts`" in unchecked and not re.search(r"\d\.\d{6}", unchecked)


def test_every_reason_of_a_cut_is_explained() -> None:
    """In the code, in `mirage help cuts` and on the page."""
    raised: set[str] = set()
    for path in [*(ROOT / "mirage_cli/search").glob("*.py"), *(ROOT / "mirage_cli").glob("ir/placement.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="InexpressibleError"), args=[ast.Constant(value=str(reason))]):
                    raised.add(reason)
                case ast.Subscript(value=ast.Attribute(attr="cuts"), slice=ast.Constant(value=str(reason))):
                    raised.add(reason)
                case _:
                    pass
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "mirage_cli/algebra").glob("*.py"))
    raised |= set(re.findall(r'd\.cuts\["(.*?)"\]', text))
    assert raised | {UNVERIFIED} == set(CUTS)
    page = (ROOT / "docs/cuts.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (.*) \| (.*) \|$", page, re.MULTILINE)[1:] == [*CUTS.items()]


def test_a_broken_kernel_is_refused_with_a_line_for_each_distribution(found: Mirage, tmp_path: Path) -> None:
    source = found("export", "tiny.yaml").out
    (tmp_path / "wrong.py").write_text(source.replace("tl.sigmoid(", "0.5 * tl.sigmoid("), encoding="utf-8")
    run = found("verify", "tiny.yaml", "wrong.py")
    first, *rest = run.out.splitlines()
    assert run.code == 1 and re.search(r"refused by .*: \d of \d distributions fail$", first)
    (answer,) = found("verify", "tiny.yaml", "wrong.py", "--json").results
    assert len(rest) == len(answer["distributions"]) >= 5 and max(map(len, rest)) < 160
    assert [line.split()[0] for line in rest] == [name.split()[0] for name in answer["distributions"]]


def test_a_kernel_in_front_of_its_spec_is_told_so(mirage: Mirage) -> None:
    run = mirage("verify", "tiny.py", "tiny.yaml")
    assert run.code == 2 and "the spec comes first: mirage verify SPEC FILE" in run.err


def test_the_list_of_commands_cuts_no_line_short(mirage: Mirage) -> None:
    listed = mirage("--help").out.partition("Commands:")[2]
    assert "search" in listed and "..." not in listed


def test_every_command_has_examples_that_parse_and_dash_h(mirage: Mirage) -> None:
    for args in [*([c] for c in COMMANDS if c != "cache"), *(["cache", c] for c in CACHE_COMMANDS)]:
        text = mirage(*args, "-h").out
        examples = re.findall(r"^    (mirage .*)$", text.partition("Examples:\n")[2], re.MULTILINE)
        assert examples, args
        for example in examples:
            check_options(re.split(r"  +|[|>]", example)[0], mirage)


def check_options(line: str, mirage: Mirage) -> None:
    """Every option of a command line is one of its command's."""
    words = shlex.split(line)[1:]
    command = words[:2] if words[0] == "cache" else words[:1]
    known = mirage(*command, "--help").out
    for word in words:
        if word.startswith("--"):
            assert f"{word} " in known, line


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    env = environment(tmp_path, _MIRAGE_COMPLETE="complete_bash", COMP_WORDS="mirage se", COMP_CWORD="1")
    command = [sys.executable, "-m", "mirage_cli"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == ["search"]


def test_the_language_is_at_hand(mirage: Mirage) -> None:
    assert "exp(x) / sum(exp(x)) over axes" in mirage("help", "lang", "softmax").out
    run = mirage("help", "lang", "softmx")
    assert run.code == 1 and "no function is called softmx" in run.err and "did you mean `softmax`?" in run.err
    run = mirage("help", "langg")
    assert run.code == 2 and "no topic or command is called langg\n    did you mean `lang`?\n" in run.err
    assert (
        "matmul is no function of specs: a product that sums over the axis k is dot(a, b, k)"
        in mirage("help", "lang", "matmul").out
    )
    text = mirage("help", "lang").out
    assert "softmax(x, axis, ...)" in text and all(form in text for form in INDICES)
    assert mirage("help", "search").out.startswith("Usage: mirage search")
    assert "mirage init norm" in mirage("--help").out
    assert mirage("help", "nothing").code == 2 and mirage("help").out.startswith("Usage: mirage")
    for topic, rows in (("cuts", CUTS), ("exit-codes", EXIT_CODES), ("json", ENVELOPE)):
        text = mirage("help", topic).out
        assert all(row in text for row in rows)


def test_the_exit_codes_and_the_envelope_are_those_of_the_pages() -> None:
    commands = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (\d+) \|", commands, re.MULTILINE)) == set(EXIT_CODES)
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8").partition("\nA figure")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)) == ENVELOPE


def test_every_document_is_in_the_envelope(found: Mirage, tmp_path: Path) -> None:
    (tmp_path / "right.txt").write_text(MUGRAPH, encoding="utf-8")
    for command, args in {
        "search": STORED[1:],
        "show": ("tiny.yaml", "--json"),
        "verify": ("tiny.yaml", "right.txt", "--json"),
        "doctor": ("--json",),
        "cache list": ("--json",),
    }.items():
        document = found(*command.split(), *args).document
        assert list(document) == list(ENVELOPE) and document["schema"] == 1 and document["command"] == command
        assert set(document["versions"]) == {"mirage", "torch", "triton"} and document["gpu"] is None
        assert isinstance(document["results"], list) and document["results"]


def test_a_command_is_its_module_and_a_line_of_the_list() -> None:
    text = (ROOT / "mirage_cli/cli/commands.py").read_text(encoding="utf-8")
    listed = re.findall(r"^from mirage_cli.cli import (\w+)$", text, re.MULTILINE)
    modules = {getattr(c.callback, "__module__", "").rpartition(".")[2] for c in app.registered_commands}
    assert modules <= set(listed)


# -- the gate


def row(us: float | None, m: int, spread: float = 0.1, wrong: str | None = None) -> dict[str, Any]:
    figures = {"median_us": us, "spread_us": spread, "context": "both", "wrong": wrong, "method": ""}
    mirage = {**figures, "failure": None if us else "no kernel was found"}
    dims = {"m": m, "k": 32, "n": 16}
    return {
        "spec": "tiny",
        "dims": dims,
        "dtype": "float16",
        "gpu": "h100",
        "floor_us": 1.0,
        "contestants": {"mirage": mirage},
    }


Measured = Callable[..., None]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Lets `mirage bench` time kernels as these rows say, by their m."""

    def set_rows(*rows: dict[str, Any]) -> None:
        by_size = {r["dims"]["m"]: r for r in rows}
        monkeypatch.setattr(bench_command, "local_gpu", lambda *_: find_target("h100"))
        monkeypatch.setattr("mirage_cli.pipeline.kept.has_kernel", lambda *_: True)
        monkeypatch.setattr(benchmark, "run", lambda session, program, names: by_size[program.sizes["m"]])

    return set_rows


def test_the_gate_ends_with_4_where_a_kernel_is_worse(mirage: Mirage, measured: Measured, tmp_path: Path) -> None:
    args = ("bench", "tiny.yaml", "--dim", "m=4,8,16", "--against", "")
    measured(row(1.0, 4), row(2.0, 8), row(3.0, 16))
    first = mirage(*args, "--json", "before.json")
    document = json.loads((tmp_path / "before.json").read_text(encoding="utf-8"))
    assert first.code == 0 and list(document) == list(ENVELOPE) and len(document["results"]) == 3
    assert mirage(*args, "--check", "before.json").code == 0
    measured(row(1.9, 4), row(2.0, 8, wrong="huge: output 0 is inf"), row(None, 16))
    run = mirage(*args, "--check", "before.json")
    assert run.code == 4 and "tiny float16 m=4 k=32 n=16: slower: 1.90 µs, was 1.00 µs" in run.err
    assert "m=8 k=32 n=16: wrong: huge" in run.err and "m=16 k=32 n=16: failed: no kernel was found" in run.err
    missing = mirage("bench", "tiny.yaml", "--dim", "m=4,8", "--against", "", "--check", "before.json")
    assert missing.code == 4 and "m=8" in missing.err
    measured(row(1.9, 4), row(2.0, 8), row(3.0, 16))
    assert mirage(*args, "--check", "before.json", "--threshold", "90").code == 0
    assert mirage(*args, "--check", "before.json", "--shard", "2/3").code == 0  # m=8 alone
    assert mirage(*args, "--check", "before.json", "--shard", "1/3").code == 4


def test_an_interrupted_benchmark_shows_what_it_has_timed(
    mirage: Mirage, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(row(1.25, 4))
    real = benchmark.run

    def interrupted(session: Any, program: Any, names: Any) -> Any:
        if program.sizes["m"] == 8:
            raise KeyboardInterrupt
        return real(session, program, names)

    monkeypatch.setattr(benchmark, "run", interrupted)
    run = mirage("bench", "tiny.yaml", "--dim", "m=4,8,16", "--against", "", "--json", "rows.json")
    assert run.code == 130 and "m=4 k=32 n=16" in run.out and "1.25" in run.out
    assert len(json.loads(Path("rows.json").read_text(encoding="utf-8"))["results"]) == 1


class MadeUpCluster:
    """Whose workers have timed one program, and lost the other."""

    def gpu(self, name: str) -> Target:
        return find_target("h100")

    def bench(
        self, session: Session, programs: Sequence[tuple[Program, str]], against: Sequence[str]
    ) -> Iterator[dict[str, Any] | Unfinished]:
        assert against == ["eager"]
        for p, _ in programs:
            lost = Unfinished(About(p.name, p.sizes, p.dtype, 0), "the GPU was lost")
            yield row(1.25, 4) if p.sizes["m"] == 4 else lost


def test_a_cluster_benches(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_command, "cluster_of", lambda *_: nullcontext(MadeUpCluster()))
    args = ("bench", "tiny.yaml", "--dim", "m=4,8", "--against", "eager", "--executor", "dask")
    run = mirage(*args, "--json", "rows.json")
    assert run.code == 1 and "1.25" in run.out and "tiny m=8 k=32 n=16: the GPU was lost" in run.err
    assert len(json.loads(Path("rows.json").read_text(encoding="utf-8"))["results"]) == 1
    assert mirage(*args, "--gpus", "2").code == 2


def test_the_gate_tells_junit_and_github(
    mirage: Mirage, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("bench", "tiny.yaml", "--dim", "m=4,8", "--against", "")
    measured(row(1.0, 4), row(2.0, 8))
    assert mirage(*args, "--json", "before.json", "--junit", "right.xml").code == 0
    measured(row(1.0, 4), row(2.0, 8, wrong="a | b < 100 %\nsecond"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    run = mirage(*args, "--check", "before.json", "--junit", "wrong.xml", "--summary", "github")
    assert run.code == 4
    suites = [ElementTree.parse(tmp_path / f"{n}.xml").getroot()[0] for n in ("right", "wrong")]
    assert [(s.get("tests"), s.get("failures")) for s in suites] == [("2", "0"), ("2", "1")]
    assert [t.find("failure") is not None for t in suites[1]] == [False, True]
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert text.startswith("### mirage bench: 1 of 2 failed\n") and "wrong: a \\| b \\< 100 % second |" in text
    assert all(line.count(" | ") == 4 for line in text.splitlines() if line.startswith(("| ✅", "| ❌")))
    annotations = [line for line in run.out.splitlines() if line.startswith("::error ")]
    assert annotations == [
        "::error title=mirage bench%3A tiny float16 m=8 k=32 n=16::wrong: a | b < 100 %25%0Asecond",
    ]


def test_every_stored_kernel_is_judged_anew(found: Mirage, tmp_path: Path) -> None:
    assert found("search", "increment.yaml", "--no-tune", "--dim", "m=16").code in (0, 3)
    run = found("verify", "--all", "--junit", "verify.xml")
    assert run.code == 0 and len(ID.findall(run.out)) == 2 and "refused" not in run.out
    assert ElementTree.parse(tmp_path / "verify.xml").getroot()[0].get("failures") == "0"
    assert [a["name"].split()[0] for a in found("verify", "--all", "tiny.yaml", "--json").results] == ["tiny"]
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE mugraphs SET text = replace(text, 'silu', 'sigmoid')")
    connection.close()
    wrong = found("verify", "--all")
    assert wrong.code == 1 and "refused: the stored kernel" in wrong.out


def test_exported_kernels_are_judged(found: Mirage, tmp_path: Path) -> None:
    source = found("export", "tiny.yaml").out
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/tiny.py").write_text(source, encoding="utf-8")
    (tmp_path / "kernels/other.py").write_text("print('not a kernel')\n", encoding="utf-8")
    run = found("verify", "--all", "tiny.yaml", "--exported", "kernels")
    assert run.code == 0 and "tiny.py" in run.out and "other.py" not in run.out
    (tmp_path / "kernels/tiny.py").write_text(source.replace("tl.sigmoid(", "0.5 * tl.sigmoid("), encoding="utf-8")
    assert found("verify", "--all", "tiny.yaml", "--exported", "kernels").code == 1
    (tmp_path / "none").mkdir()
    assert "kernel of such a size and type is in none" in found("verify", "--all", "--exported", "none").err
    assert "dir 'nowhere' does not exist" in found("verify", "--all", "--exported", "nowhere").err


def test_all_commands_take_the_kernels_of_the_gpu_that_has_some(mirage: Mirage, tmp_path: Path) -> None:
    assert mirage("search", "tiny.yaml", "--no-tune", "--budget", "2", "--target", "l40s").code in (0, 3)
    for command in ("export", "show", "explain", "lock"):
        run = mirage(command, "tiny.yaml")
        assert run.code == 0 and "taking the kernel for l40s" in run.err, command
    (pin,) = json.loads((tmp_path / "mirage.lock").read_text(encoding="utf-8"))["kernels"]
    assert pin["gpu"] == "l40s (predicted)"
    refused = mirage("export", "tiny.yaml", "--target", "h200")
    assert refused.code == 1 and "on h200\n" in refused.err and "is stored for l40s (--target)" in refused.err


def test_a_lock_file_pins_and_notices(found: Mirage, tmp_path: Path) -> None:
    search = ("search", "tiny.yaml", "--top", "2", "--locked")
    assert found("lock", "tiny.yaml").out == "mirage.lock: 1 kernel\n"
    other = found("lock", "tiny.yaml", "--target", "a100")
    assert other.code == 1 and "no kernel for a100 is stored" in other.err
    assert found(*search).code == 0
    path = tmp_path / "mirage.lock"
    text = path.read_text(encoding="utf-8")
    (pin,) = json.loads(text)["kernels"]
    for change, message in (
        (text.replace(pin["versions"]["torch"], "0.1"), "torch is "),
        (text.replace("h100 (predicted)", "a100 (predicted)"), "the GPU is h100 (predicted), locked a100 (predicted)"),
        (text.replace(pin["program"], "0" * 16), "the program has changed"),
        (text.replace('"tiny"', '"other"'), "tiny float16 m=4 k=32 n=16: not in the lock file"),
        (text.replace(pin["mugraph"], "0" * 12), f"the kernel is {pin['mugraph']}, locked 000000000000"),
        (text.replace('"warps": ', '"warps": 1'), "the schedule is "),
        ("{", "not JSON"),
        ("{}", "the file.mirage_lock is missing"),
        ('{"mirage_lock": 99}', "a newer mirage wrote it"),
    ):
        path.write_text(change, encoding="utf-8")
        run = found(*search)
        assert run.code == 1 and message in run.err, (message, run.err)
    path.unlink()
    assert "No such file" in found(*search).err
    several = found("lock", "tiny.yaml", "--dim", "m=4,8,16")
    assert several.code == 1 and "stored for\n    tiny m=8 k=32 n=16\n    tiny m=16 k=32 n=16\n" in several.err
    assert not path.exists()


def test_the_example_workflow_uses_commands_that_are_there(mirage: Mirage) -> None:
    workflow = yaml.safe_load((ROOT / "examples/ci/github.yml").read_text(encoding="utf-8"))
    lines = [s["run"] for job in workflow["jobs"].values() for s in job["steps"] if "run" in s]
    commands = [x for x in lines if x.startswith("mirage ")]
    assert len(commands) >= 5
    for line in commands:
        check_options(line, mirage)


@pytest.mark.parametrize("page", ["ci.md"])
def test_the_commands_of_a_page_are_there(page: str, mirage: Mirage) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for line in re.findall(r"^    (mirage .*)$", text, re.MULTILINE):
        check_options(line, mirage)


# -- what other people's databases hold

HOSTILE = 'x"""\nimport os; os.mkdir("pwned")\n"""\'{}@graph@/../../pwned\\ \u202e\x00\u2028µ'
"""Quotes, a newline, braces, a place of a template, path separators, and characters that no name has."""
CRAFTED = {
    "a kernel": "UPDATE kernels SET source = 'import os; os.mkdir(\"pwned\")' || char(10) || source",
    "a name": "UPDATE specs SET name = ?",
    "a GPU": "UPDATE keys SET gpu = ?",
    "versions": "UPDATE keys SET torch = ?1, triton = ?1, mirage = ?1, driver = ?1",
    "a command": "UPDATE results SET document = json_set(document, '$.asked.command', ?)",
    "a spec": "UPDATE specs SET text = ? || text",
    "a result": "UPDATE results SET document = json_set(document, '$.spec', ?1, '$.dtype', ?1, '$.best.method', ?1)",
    "a claim": "UPDATE mugraphs SET verification = json_set(verification, '$.claim', ?1, '$.detail', ?1)",
    "a function": "UPDATE mugraphs SET text = replace(text, 'kernel k0 ', "
    '\'kernel k0(x=__import__("os").mkdir("pwned")):0# \')',
    "an axis": "UPDATE mugraphs SET text = replace(text, 'dims m=', 'dims __import__(\"os\").mkdir(\"pwned\")=1 m=')",
    "another μGraph": "UPDATE mugraphs SET text = replace(text, 'silu', 'sigmoid')",
}


@pytest.mark.parametrize("what", CRAFTED)
def test_nothing_of_a_crafted_database_runs_or_leaves_its_place(what: str, found: Mirage, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        sql = CRAFTED[what]
        assert connection.execute(sql, [HOSTILE] * ("?" in sql)).rowcount > 0
    connection.close()
    (tmp_path / "made").mkdir()
    before = set(os.listdir(tmp_path.parent))
    for args in (
        *(["cache", "list"], ["cache", "export", "all.jsonl"], ["cache", "import", "all.jsonl", "--db", "other.db"]),
        *(["cache", "merge", "mirage.db", "--db", "merged.db"], ["show", "tiny.yaml"], ["explain", "tiny.yaml"]),
        *(["export", "tiny.yaml", "-o", "made/a.py"], ["export", "tiny.yaml", "--all", "-o", "made/b.py"]),
        *(["verify", "--all", "tiny.yaml"], ["show", "tiny.yaml", "--html"], ["lock", "tiny.yaml"]),
    ):
        run = found(*args)
        assert run.code in (0, 1) and "Traceback" not in run.err, (args, run)
    exported = list((tmp_path / "made").glob("*.py"))
    for path in exported:
        text = path.read_text(encoding="utf-8")
        assert "pwned" not in ast.unparse(ast.Module(ast.parse(text).body[1:], []))  # behind the header
        load_export(path)
    assert len(exported) == (0 if what in ("a function", "an axis", "another μGraph") else 2) or what in (
        "a GPU",
        "versions",
    )
    assert not list(tmp_path.rglob("pwned*")) and set(os.listdir(tmp_path.parent)) == before


def test_text_that_this_version_would_not_write_is_left_aside_and_said(found: Mirage, tmp_path: Path) -> None:
    right = found("export", "tiny.yaml")
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE kernels SET source = replace(source, 'tl.sigmoid(', '2 * tl.sigmoid(')")
    connection.close()
    run = found("export", "tiny.yaml")
    assert run.code == 0 and "the stored text is not what this version writes" in run.err and right.err == ""
    assert "2 * tl.sigmoid(" not in run.out and "predicted" in right.out
