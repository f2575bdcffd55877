"""The Triton text of kernels that have every feature of the emitter between them, for reviewers to see it change.

A file of `tests/golden/triton` starts with its μGraph and schedule as comments; the kernels follow. To add one, write
these comments. `UPDATE_GOLDEN=1 pytest tests/codegen/test_golden_triton.py` writes all below them anew; read the
difference before keeping it.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import WORDS, KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from tests.rows import rows

FOLDER = Path(__file__).parents[1] / "golden" / "triton"
FILES = sorted(FOLDER.glob("*.py"))
FEATURES = {
    "a loop over one dimension": "for s_",
    "a loop over several dimensions together": "for step in",
    "a loop between computed bounds": "bound(",
    "a running maximum": "running maximum",
    "an accumulator that is rescaled": " * M_scale",
    "chunks of a split": "chunk = pid",
    "an accumulator with the axes that the matrix units give it": "tl.zeros([BLOCK_y * BLOCK_x, BLOCK_e]",
    "the merge of a split": "i_s_split",
    "a loop that starts where masks let it": "begin_s = max(",
    "a loop that ends where masks let it": "end_s = min(",
    "tiles that need no mask, apart": "rest_s",
    "the longest loops first": "the longest loops first",
    "lanes past the end of a dimension": "mask=in_",
    "reductions that leave them out": "tl.where(in_",
    "reads by descriptors": "_desc.load(",
    "a kernel that waits for the one in front": "wait_for_data()",
    "and one that lets the next start": "release_next()",
    "in the last iterations of its loop": "release_before(",
    "iterations fetched ahead": "fetch(",
    "fetched by reads": "read=True",
    "what nobody reads again": "evict_first",
    "warps of their own that fetch": "warp_specialize=True",
    "float32 products in three of TF32": 'input_precision="tf32x3"',
    "float32 products by arithmetic": 'input_precision="ieee"',
    "products too small for the matrix units": "tl.sum(",
    "groups of tiles": "rows_",
    "64-bit offsets": ".to(tl.int64)",
    "bfloat16": "to_bfloat16(",
    "maxima that show NaN": "largest(",
    "sums up to each position": "tl.cumsum(",
    "maxima from each position on": 'running_largest(tl.where(in_j[None, :], X, float("-inf")), 1, True)',
    "one instance that stores for all": "one of them stores",
    "loads an iteration ahead": "_next = tl.load(",
    "bytes two at a time": "pair_bits(",
    "numbers of words": "tl.load(S_ptr.to(tl.pointer_type(tl.int32))",
    "loads of what lies in turns": "tl.split(",
    "and stores": "tl.reshape(tl.join(",
    "windows in registers": "i_y_rows",
    "several groups of a product as one": "# [g_2*k, g_1*n]",
    "a value that goes on as it is stored": "as it is stored",
}


def given(text: str) -> tuple[MuGraph, Schedule]:
    """What the comments at the start of a file say."""
    comments: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.removeprefix("#").removeprefix(" "))
    graph, _, schedule = "\n".join(comments).partition("\nschedule\n")
    return parse_mugraph(graph + "\n"), Schedule.parse(schedule)


def written(graph: MuGraph, schedule: Schedule) -> str:
    """The whole file."""
    comments = [*print_mugraph(graph).splitlines(), "schedule", *str(schedule).splitlines()]
    parts = ["\n".join(f"# {x}".rstrip() for x in comments) + "\n"]
    sizes = launch_sizes(graph, schedule)
    for k in graph.kernels:
        if k.kind == "library":
            continue
        made = emit_kernel(graph, k, schedule, sizes)
        launch = [f"# {k.name}: {made.programs} programs, {', '.join(made.options)}, of {', '.join(made.args)}"]
        launch += [f"#   {d.buffer}[{', '.join(d.dims)}] in boxes of {d.box}" for d in made.descriptors]
        parts.append("\n".join(launch) + "\n" + made.source)
    return "\n\n".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_text_is_what_it_was(path: Path) -> None:
    graph, schedule = given(path.read_text(encoding="utf-8"))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(written(graph, schedule), encoding="utf-8")
    assert written(graph, schedule) == path.read_text(encoding="utf-8")


@rows("feature", FEATURES)
def test_every_feature_is_in_one(feature: str) -> None:
    assert any(FEATURES[feature] in path.read_text(encoding="utf-8") for path in FILES)


def test_schedules_parse_as_they_print() -> None:
    rng = random.Random(0)
    plain = KernelSchedule((("order", 16), ("k", 64)), ("order", "k"))
    for _ in range(200):
        words = {word: rng.choice((False, True) if x is False else (0, 1, 4)) for word, x in WORDS.items()}
        numbers = {"warps": rng.choice((1, 8)), "split": rng.choice((1, 12)), "group": rng.choice((1, 4))}
        s = replace(plain, **numbers).choosing(**words)
        assert KernelSchedule.parse(str(s)) == KernelSchedule.from_json(s.to_json()) == s
    nothing = KernelSchedule((), ())
    assert KernelSchedule.parse(str(nothing)) == nothing
    with pytest.raises(ValueError, match="no warp"):
        KernelSchedule.parse("m=16 order=m warp=4")
