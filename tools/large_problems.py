"""Large and plain problems through search and tuning on this machine's GPU, as a page: right, in time, near the floor?

`python -m tools.large_problems PAGE [--json FILE] [--budget 20] [--only NAME...]`. The exit code is 1 where a goal is
missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.searched import (
    Means,
    Row,
    add_arguments,
    heading,
    job,
    merged,
    number,
    run_rows,
    sizes,
    slower_than_eager,
    table,
    write_json,
)

IN_TIME = 1.1
"""Times the budget, and the seconds for one kernel's compilation, that a program may take."""
COMPILING_S = 5.0


@dataclass(frozen=True)
class Problem:
    """A spec with what is wanted of it: at most so many µs, or at least this share of the floor's speed."""

    text: str
    most_us: float | None = None
    share: float | None = None


PROBLEMS = (
    Problem(
        """\
name: long_softmax
dims: {m: 4096, n: 393216}
dtype: float32
inputs:
  X: [m, n]
program: |
  O = softmax(X, n)
outputs:
  O: [m, n]
""",
        share=0.65,
    ),
    Problem(
        """\
name: channel_rms
dims: {b: 112, c: 64, y: 512, x: 512}
dtype: float32
inputs:
  X: [b, c, y, x]
program: |
  O = X / sqrt(mean(square(X), c) + 0.00001)
outputs:
  O: [b, c, y, x]
""",
        share=0.85,
    ),
    Problem(
        """\
name: layer_norm_of_three_axes
dims: {b: 16, c: 64, y: 256, x: 256}
dtype: float32
inputs:
  X: [b, c, y, x]
  G: [c, y, x]
  B: [c, y, x]
program: |
  O = layer_norm(X, c, y, x) * G + B
outputs:
  O: [b, c, y, x]
""",
        share=0.8,
    ),
    Problem(
        """\
name: global_mean
dims: {m: 32768, n: 32768}
dtype: float32
inputs:
  X: [m, n]
program: |
  O = mean(X, m, n)
outputs:
  O: []
""",
        share=0.8,
    ),
    Problem(
        """\
name: attention_of_wide_heads
dims: {b: 32, h: 32, q: 512, s: 512, d: 1024, e: 1024}
dtype: float16
inputs:
  Q: [b, h, q, d]
  K: [b, h, s, d]
  V: [b, h, s, e]
program: |
  O = dot(softmax(dot(Q, K, d) / 32, s), V, s)
outputs:
  O: [b, h, q, e]
"""
    ),
    Problem(
        """\
name: output_projection
dims: {b: 2, h: 2, g: 4, e: 64, k: 512}
dtype: float16
inputs:
  T: [b, h, g, e]
  W: {dims: [h, g, e, k], scale: 0.04}
program: |
  O = dot(T, W, h, g, e)
outputs:
  O: [b, k]
"""
    ),
    Problem(
        """\
name: norm_gated_mlp
dims: {m: 8, k: 4096, n: 14336}
dtype: float16
inputs:
  X: [m, k]
  G: [k]
  W1: {dims: [k, n], scale: 0.02}
  W2: {dims: [k, n], scale: 0.02}
program: |
  Y = rms_norm(X, k) * G
  O = silu(dot(Y, W1, k)) * dot(Y, W2, k)
outputs:
  O: [m, n]
""",
        most_us=57.0,
    ),
    Problem(
        """\
name: linear_attention
dims: {b: 8, h: 8, q: 2048, s: 2048, d: 64, e: 64}
dtype: float16
inputs:
  Q: {dims: [b, h, q, d], scale: 0.1}
  K: {dims: [b, h, s, d], scale: 0.1}
  V: {dims: [b, h, s, e], scale: 0.1}
program: |
  O = dot(dot(Q, K, d), V, s)
outputs:
  O: [b, h, q, e]
""",
        most_us=22.0,
    ),
)


def missed(row: Row, budget_s: float) -> list[str]:
    """The goals that a row misses."""
    if row["state"] != "right":
        return [row["state"]]
    goal, us = goals()[row["name"]], row["time_us"]
    found: list[str] = []
    if us is not None and goal.most_us is not None and us > goal.most_us:
        found.append(f"over {goal.most_us:g} µs")
    if us is not None and goal.share is not None and row["floor_us"] < goal.share * us:
        found.append(f"under {goal.share:g} of the floor")
    if row["seconds"]["all"] > IN_TIME * budget_s + COMPILING_S:
        found.append("over the budget")
    if slower_than_eager(row):
        found.append("slower than eager")
    return found


def goals() -> dict[str, Problem]:
    return {job(p.text).name: p for p in PROBLEMS}


def page(document: Mapping[str, Any]) -> str:
    found: Sequence[Row] = document["rows"]
    body = [cells(row, document["budget_s"]) for row in found]
    lines = heading("Large and plain problems", document)
    lines += table(
        ("problem", "sizes", "dtype", "", "missed", "mirage, µs", "eager, µs", "floor, µs", "share of the floor",
         "kernels", "search, s", "all, s"),
        body,
        words=5,
    )  # fmt: skip
    for row in found:
        if row.get("problem"):
            lines += ["", f"**{row['name']}**: {row['problem']}"]
        if row.get("refused"):
            r = row["refused"][0]
            lines += ["", f"**{row['name']}**: refused at {number(r['us'])} µs: {r['problem']}"]
    return "\n".join(lines) + "\n"


def cells(row: Row, budget_s: float) -> list[object]:
    us, eager, seconds = row.get("time_us"), row.get("eager_us"), row.get("seconds", {})
    return [
        row["name"] + (" (as written)" if row.get("as_written") else ""),
        sizes(row),
        row["dtype"],
        row["state"],
        ", ".join(missed(row, budget_s)) or "–",
        f"{number(us)} ± {number(row.get('spread_us'))}",
        f"{number(eager)} ± {number(row.get('eager_spread_us'))}",
        number(row["floor_us"]),
        number(row["floor_us"] / us if us else None),
        row.get("kernels") or "–",
        number(seconds.get("search"), 1),
        number(seconds.get("all"), 1),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.large_problems", description=__doc__)
    add_arguments(parser, budget=20.0)
    parser.add_argument("--only", nargs="+", choices=[*goals()], help="these problems")
    given = parser.parse_args(arguments)
    if given.merge:
        document = merged(given.merge)
        if given.json:
            write_json(given.json, document)
    else:
        texts = [p.text for name, p in goals().items() if name in (given.only or goals())]
        document = run_rows([job(t, given.small) for t in texts], Means.of(given), given)
    given.page.write_text(page(document), encoding="utf-8")
    print(page(document))
    return 1 if any(missed(row, document["budget_s"]) for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
