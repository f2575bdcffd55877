"""Model-like programs at real sizes through search and tuning on this machine's GPU, as a page.

`python -m tools.models PAGE [--json FILE] [--seed 0] [--first 0] [--count 100] [--budget 15] [--part i/n]`: which are
right, faster than eager PyTorch, and how far the chosen plan is from the fastest that was timed. With `--part`, runs
share the programs and the cores (one run for each GPU, chosen by CUDA_VISIBLE_DEVICES), and
`python -m tools.models PAGE --merge FILE...` makes one page of their rows. The exit code is 1 where a kernel is wrong,
missing, or slower than eager PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.model_programs import model_specs
from tools.searched import (
    Means,
    Row,
    add_arguments,
    heading,
    job,
    mean_of,
    merged,
    number,
    run_rows,
    sizes,
    slower_than_eager,
    table,
    write_json,
)

CLOSE = 0.9
"""A chosen plan farther than this from the fastest that was timed is explained."""


def page(document: Mapping[str, Any]) -> str:
    found: Sequence[Row] = document["rows"]
    states = Counter(row["state"] for row in found)
    slower = [row for row in found if slower_than_eager(row)]
    far = [row for row in found if row.get("ratio", 1.0) < CLOSE]
    fastest = [row["eager_us"] / row["time_us"] for row in found if row.get("eager_us") and row.get("time_us")]
    lines = heading("Model-like programs", document)
    lines += table(
        ("", ""),
        [
            ("programs", len(found)),
            *((f"{state}", states[state]) for state in ("right", "wrong", "none", "failed")),
            ("slower than eager beyond the spread", len(slower)),
            ("won as written", sum(bool(row.get("as_written")) for row in found)),
            ("eager ÷ chosen plan, geometric mean", mean_of(fastest)),
            ("fastest timed plan ÷ chosen plan, geometric mean", mean_of(row.get("ratio") for row in found)),
            ("the same by the exploration's timings alone", mean_of(row.get("quick_ratio") for row in found)),
            ("seconds, geometric mean", mean_of(row["seconds"]["all"] for row in found if "seconds" in row)),
            ("seconds, most", number(max((row["seconds"]["all"] for row in found if "seconds" in row), default=None))),
        ],
    )
    lines += ["", "Times in µs with the interquartile range of the samples.", ""]
    lines += table(
        ("program", "sizes", "dtype", "", "mirage", "eager", "eager ÷ mirage", "floor ÷ mirage", "fastest ÷ chosen",
         "kernels", "s", "stopped"),
        [cells(row) for row in found],
        words=4,
    )  # fmt: skip
    for title, some in (
        ("Wrong, missing or failed", [row for row in found if row["state"] != "right"]),
        ("Slower than eager", slower),
        (f"Fastest timed plan under {CLOSE:g} of the chosen plan", far),
    ):
        lines += ["", f"## {title}", ""]
        for row in some:
            lines += described(row)
        if not some:
            lines.append("None.")
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[object]:
    us, eager = row.get("time_us"), row.get("eager_us")
    name = row["name"] + (" (as written)" if row.get("as_written") else "")
    return [
        name,
        sizes(row),
        row["dtype"],
        row["state"],
        f"{number(us)} ± {number(row.get('spread_us'))}",
        f"{number(eager)} ± {number(row.get('eager_spread_us'))}",
        number(eager / us if us and eager else None),
        number(row["floor_us"] / us if us else None),
        number(row.get("ratio"), 3),
        row.get("kernels") or "–",
        number(row.get("seconds", {}).get("all"), 1),
        ", ".join(row.get("stopped", {}).values()),
    ]


def described(row: Row) -> list[str]:
    """A row in words, with its spec."""
    lines = [f"**{row['name']}**: {row.get('problem') or row.get('reason') or row['state']}", ""]
    for r in row.get("refused", ())[:3]:
        lines += [f"* {number(r['us'])} µs (chosen {number(row['time_us'])}), refused: {r['problem']}"]
    return [*lines, "", "```yaml", row["text"].strip(), "```", ""]


def share(part: str) -> tuple[int, int]:
    """`i/n` as (i, n)."""
    i, n = (int(x) for x in part.split("/"))
    if not 1 <= i <= n:
        raise argparse.ArgumentTypeError(f"{part} is no part")
    return i, n


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__)
    add_arguments(parser, budget=15.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--part", type=share, default=(1, 1), help="i/n: every n-th program from the i-th on")
    given = parser.parse_args(arguments)
    if given.merge:
        document = merged(given.merge)
        if given.json:
            write_json(given.json, document)
    else:
        i, n = given.part
        texts = [*model_specs(given.seed, given.count, given.first)][i - 1 :: n]
        document = run_rows([job(t, given.small) for t in texts], Means.of(given, n), given)
    document["rows"].sort(key=lambda row: row["name"].rsplit("_", 1)[1])
    given.page.write_text(page(document), encoding="utf-8")
    print(page(document).split("\nTimes in")[0])
    bad = any(row["state"] != "right" or slower_than_eager(row) for row in document["rows"])
    return 1 if bad or not document["rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
