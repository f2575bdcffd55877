"""Functions and modules at the sizes of models by `torch.compile(backend="mirage")`, beside Inductor, as a page.

`python -m tools.backend PAGE [--json FILE] [--budget 6] [--only NAME...] [--part i/n]`: for each of
`tests/torch_sizes.py` whether it is right (an error of at most twice eager PyTorch's, beside float64), its times over
those of Inductor in its default mode, and how many kernels are in it. Both are replayed in CUDA graphs, in turn, on
arguments that no cache holds: in a chain, where calls follow each other, and alone, behind an elementwise kernel whose
own time is subtracted. Then both are called from Python as they are. `--merge FILE...` makes one page of several runs'
rows. The exit code is 1 where one is wrong, fails, or is slower than Inductor by more than 2 %.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any  # functions, modules, their arguments and results

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from mirage_cli.pipeline import backend
from mirage_cli.pipeline.callers import Settings
from mirage_cli.pipeline.keys import versions
from mirage_cli.pipeline.models.beside import ROUNDS, copies, in_contexts
from mirage_cli.target.gpus import driver_version, local_target
from tests.torch_sizes import SIZES, case
from tools.models import share
from tools.searched import Row, heading, last_line, mean_of, merged, number, table, write_json

SLOWER = 1.02
"""Times over Inductor's from which on the backend is said to be slower."""
CONTEXTS = ("chain", "alone", "python")


def put_kernels(counts: list[int]) -> Callable[..., Mapping[Any, Any]]:
    """What the backend has for `with_kernels`, which also appends how many kernels it put into a graph that it
    searched: what is compiled once more has as many."""
    own = backend.with_kernels

    def counted(model: torch.fx.GraphModule, settings: Settings, **options: Any) -> Mapping[Any, Any]:
        kernels = own(model, settings, **options)
        if settings.budget:
            counts.append(sum(n.target in kernels for n in model.graph.nodes))
        return kernels

    return counted


class Heard(logging.Handler):
    """What the backend says of regions meanwhile: a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def __enter__(self) -> list[str]:
        backend.LOG.setLevel(logging.INFO)
        backend.LOG.addHandler(self)
        return self.said

    def __exit__(self, *_: object) -> None:
        backend.LOG.removeHandler(self)


def sets_of(function: Any, args: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Copies of a module and its arguments, of which no cache holds all."""
    state = [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []
    tensors = [x for x in (*tree_leaves(args), *state) if isinstance(x, torch.Tensor)]
    return [(copy.deepcopy(function), tree_map_only(torch.Tensor, torch.clone, args)) for _ in range(copies(tensors))]


def called(function: Any, args: tuple[Any, ...]) -> Any:
    return function(*args)


def python_us(call: Callable[[], object], times: int = 30) -> float:
    """Microseconds of a call from Python, of several that follow each other."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times * 1e6


def figures(ways: Mapping[str, Callable[..., Any]], sets: Sequence[tuple[Any, ...]]) -> Row:
    """Medians in µs by context and way, and how much the middle half of each way's own samples differs."""
    samples: dict[tuple[str, str], Sequence[float]] = {}
    for name, own in zip(ways, in_contexts([*ways.values()], sets), strict=True):
        samples["chain", name], samples["alone", name] = zip(*own, strict=True)
    rounds = [[python_us(partial(f, *sets[0])) for f in ways.values()] for _ in range(ROUNDS)]
    samples |= {("python", name): own for name, own in zip(ways, zip(*rounds, strict=True), strict=True)}
    found: Row = {"spread": {}}
    for (context, name), several in samples.items():
        low, middle, high = statistics.quantiles(several, n=4)
        found.setdefault(f"{context}_us", {})[name] = middle
        found["spread"][f"{context} {name}"] = (high - low) / middle
    return found


def error(made: Any, exact: Any) -> float:
    """Of all results the largest, in parts of the exact one's norm. What is infinite in both is equal."""
    worst = 0.0
    for x, y in zip(tree_leaves(made), tree_leaves(exact), strict=True):
        x, y = x.double(), y.double()
        same = (x == y) | (x.isnan() & y.isnan())
        off = torch.where(same, 0.0, x - y).norm() / y.masked_fill(~y.isfinite(), 0.0).norm().clamp(min=1e-30)
        worst = max(worst, float(off.nan_to_num(nan=math.inf)))
    return worst


def exactly(function: Any, args: tuple[Any, ...]) -> Any:
    """In float64."""
    wide = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    return wide(*tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, args))


def one(name: str, budget: float, db: Path) -> Row:
    """Both compiled, compared and timed."""
    torch._dynamo.reset()
    row: Row = {"name": name, "dtype": str(SIZES[name][0]).removeprefix("torch.")}
    function, args = case(name, "cuda")
    counts: list[int] = []
    own, backend.with_kernels = backend.with_kernels, put_kernels(counts)
    try:
        start = time.perf_counter()
        inductor = torch.compile(called)
        by_inductor = inductor(function, args)
        row["inductor_s"] = time.perf_counter() - start
        start = time.perf_counter()
        mirage = torch.compile(called, backend=backend.mirage, options={"tune": budget, "db": str(db)})
        with Heard() as row["regions"]:
            by_mirage = mirage(function, args)
        row["seconds"] = time.perf_counter() - start
        exact = exactly(function, args)
        eager = error(function(*args), exact)
        row |= {"kernels": sum(counts), "error": error(by_mirage, exact), "eager_error": eager}
        row["inductor_error"] = error(by_inductor, exact)
        row["state"] = "right" if row["error"] <= 2 * max(eager, 1e-7) else "wrong"
        del exact, by_mirage, by_inductor
        return row | figures({"mirage": mirage, "inductor": inductor}, sets_of(function, args))
    except Exception as problem:  # the border of the run: a function that fails is a row
        return row | {"state": "failed", "problem": last_line(problem), "traceback": traceback.format_exc()}
    finally:
        backend.with_kernels = own


def ratio(row: Row, context: str) -> float | None:
    """mirage's time over Inductor's."""
    us = row.get(f"{context}_us")
    return us["mirage"] / us["inductor"] if us else None


def slower(row: Row) -> bool:
    """In a CUDA graph, in the geometric mean of both contexts."""
    both = [r for c in ("chain", "alone") if (r := ratio(row, c))]
    return bool(both) and statistics.geometric_mean(both) > SLOWER


def page(document: Mapping[str, Any]) -> str:
    rows: Sequence[Row] = document["rows"]
    lines = heading("The backend beside Inductor", document)
    lines += table(
        ("", ""),
        [
            ("functions and modules", len(rows)),
            *((state, sum(r["state"] == state for r in rows)) for state in ("right", "wrong", "failed")),
            ("in which a kernel is used", sum(bool(r.get("kernels")) for r in rows)),
            (f"slower than Inductor by more than {SLOWER - 1:.0%}", sum(map(slower, rows))),
            *((f"mirage ÷ Inductor, {c}, geometric mean", mean_of(ratio(r, c) for r in rows)) for c in CONTEXTS),
        ],
    )
    lines += ["", "µs: in a chain, alone, and called from Python; spread: the largest of the row.", ""]
    head = ("", "dtype", "", "kernels", *(f"{c}: mirage" for c in CONTEXTS), *(f"÷ Inductor, {c}" for c in CONTEXTS))
    lines += table((*head, "spread", "error ÷ eager's", "s"), [cells(row) for row in rows], words=3)
    lines += ["", "What became of the regions:", ""]
    for row in rows:
        lines += [f"* {row['name']}: {said}" for said in row.get("regions", ())]
        if row["state"] != "right":
            lines.append(f"* **{row['name']}**: {row.get('problem') or row['state']}")
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[object]:
    times = [number((row.get(f"{c}_us") or {}).get("mirage")) for c in CONTEXTS]
    spread = max(row.get("spread", {}).values(), default=None)
    over = row["error"] / max(row["eager_error"], 1e-7) if "error" in row else None
    ratios = [number(ratio(row, c), 3) for c in CONTEXTS]
    about = [row["name"], row["dtype"], row["state"], row.get("kernels", "–")]
    return [*about, *times, *ratios, number(spread, 3), number(over), number(row.get("seconds"), 1)]


def line(row: Row) -> str:
    ratios = " ".join(f"{c} {number(ratio(row, c), 3)}" for c in CONTEXTS)
    return f"{row['name']}: {row['state']}, {row.get('kernels')} kernels, {ratios} {row.get('problem', '')}"


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The run's document, which is also written after every row."""
    target, driver = local_target(), driver_version()
    if target is None or driver is None:
        raise SystemExit("this machine has no GPU")
    i, n = given.part
    names = [name for name in SIZES if not given.only or name in given.only][i - 1 :: n]
    document: dict[str, Any] = {
        "command": " ".join(["python", "-m", *sys.orig_argv[2:]]),
        "gpu": target.name,
        "driver": driver,
        "versions": versions(),
        "budget_s": given.budget,
        "rows": [],
    }
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name in names:
            if time.monotonic() - begun > given.seconds:
                break
            document["rows"].append(one(name, given.budget, Path(folder) / "mirage.db"))
            write_json(given.json or given.page.with_suffix(".json"), document)
            print(line(document["rows"][-1]), flush=True)
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.backend", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--json", type=Path, help="the rows, written as they come (default: beside the page)")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of search and tuning for each")
    parser.add_argument("--only", nargs="+", choices=SIZES, metavar="NAME", help="these alone")
    parser.add_argument("--part", type=share, default=(1, 1), help="i/n: every n-th from the i-th on")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after this long")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="make the page of these runs' JSON files, and run nothing"
    )
    given = parser.parse_args(arguments)
    document = merged(given.merge) if given.merge else run(given)
    if given.merge and given.json:
        write_json(given.json, document)
    given.page.write_text(page(document), encoding="utf-8")
    print(page(document).split("\nµs:")[0])
    bad = any(row["state"] != "right" or slower(row) for row in document["rows"])
    return 1 if bad or not document["rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
