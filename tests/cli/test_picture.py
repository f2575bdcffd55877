"""Pictures of μGraphs: well-formed, complete, and nothing drawn over anything else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from mirage_cli.cli.picture import CHAR, Box, lay_out, load_text, rounded, store_text, svg
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.text import parse_mugraph, print_mugraph

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.mugraph"))
SVG = "{http://www.w3.org/2000/svg}"


def read(path: Path) -> MuGraph:
    return parse_mugraph(path.read_text(encoding="utf-8"))


def texts(picture: str) -> list[str]:
    return ["".join(e.itertext()) for e in Xml.fromstring(picture).iter(f"{SVG}text")]


@pytest.fixture(params=GOLDEN, ids=lambda p: p.stem)
def graph(request: pytest.FixtureRequest) -> MuGraph:
    return read(request.param)


def test_everything_of_the_graph_is_in_its_picture(graph: MuGraph) -> None:
    shown = texts(svg(graph))
    for t in (*graph.inputs, *graph.outputs, *graph.buffers):
        assert str(t) in shown
    for k in graph.kernels:
        assert any(x.startswith(f"{k.name}: ") for x in shown)
        for line in (*map(load_text, k.loads), *map(str, k.body), *map(store_text, k.stores)):
            assert any(x == rounded(line) for x in shown), line
    notes = [line.partition("# ")[2] for line in print_mugraph(graph).splitlines()]
    for note in notes:
        said = note if "map {" in note or not note.startswith("loop over") else note.partition(": ")[2]
        if note not in ("before the loop", "epilogue", "between loops"):
            assert any(said in x for x in shown), "but for where an equation stands, which its place shows"


def laid_out(graph: MuGraph) -> Xml.Element:
    return Xml.fromstring(svg(graph))


def rectangles(root: Xml.Element, *kinds: str) -> list[tuple[float, float, float, float]]:
    found = [r for r in root.iter(f"{SVG}rect") if r.get("class") in kinds]
    return [tuple(float(r.get(n, "0")) for n in ("x", "y", "width", "height")) for r in found]  # type: ignore[misc]


def segments(root: Xml.Element) -> list[tuple[float, float, float, float]]:
    """Every straight line of the arrows."""
    found: list[tuple[float, float, float, float]] = []
    for path in root.iter(f"{SVG}path"):
        if path.get("class") != "arrow":
            continue
        x = y = 0.0
        for step, a, b in re.findall(r"([MHV]) ([-\d.]+)(?: ([-\d.]+))?", path.get("d", "")):
            if step == "M":
                x, y = float(a), float(b)
                continue
            to = (float(a), y) if step == "H" else (x, float(a))
            found.append((min(x, to[0]), min(y, to[1]), max(x, to[0]), max(y, to[1])))
            x, y = to
    return found


def test_no_arrow_crosses_a_box_a_chip_or_a_text(graph: MuGraph) -> None:
    root = laid_out(graph)
    boxes = rectangles(root, "kernel", "library", "input", "buffer", "output")
    lines = segments(root)
    assert lines
    for left, top, right, bottom in lines:
        for x, y, width, height in boxes:
            apart = right <= x or left >= x + width or bottom <= y + 0.1 or top >= y + height - 0.1
            assert apart, "a line and a box meet at their edges alone"


def test_boxes_lie_apart_or_inside_one_another_with_their_texts(graph: MuGraph) -> None:
    root = laid_out(graph)
    outer = rectangles(root, "kernel", "library", "input", "buffer", "output")
    for i, (x, y, w, h) in enumerate(outer):
        for a, b, c, d in outer[i + 1 :]:
            assert x + w <= a or a + c <= x or y + h <= b or b + d <= y
    width, height = (float(root.get(n, "0")) for n in ("width", "height"))
    for text in root.iter(f"{SVG}text"):
        x, y, long = float(text.get("x", "0")), float(text.get("y", "0")), len("".join(text.itertext())) * CHAR
        inside = [r for r in outer if r[0] <= x and x + long <= r[0] + r[2] + 1 and r[1] < y < r[1] + r[3]]
        assert len(inside) == 1, "".join(text.itertext())
        assert x + long <= width and y <= height


def test_rows_have_what_the_kernels_around_them_write_and_read(graph: MuGraph) -> None:
    rows, boxes = lay_out(graph)
    assert [b.kind for b in boxes] == ["library" if k.kind == "library" else "kernel" for k in graph.kernels]
    for i, row in enumerate(rows):
        written = {s.buffer for s in graph.kernels[i - 1].stores} if i else set()
        read = set(graph.kernels[i].read) if i < len(graph.kernels) else set()
        assert {c.tensor.name for c in row.chips if c.written} == written
        assert {c.tensor.name for c in row.chips if c.read} == read
        assert len({c.tensor.name for c in row.chips}) == len(row.chips), "no tensor twice"


def test_many_tensors_stand_in_several_lines() -> None:
    graph = read(next(p for p in GOLDEN if p.stem.startswith("rmsnorm_linear")))
    more = tuple(replace(graph.inputs[0], name=f"A{i}") for i in range(12))
    loads = tuple(replace(graph.kernels[0].loads[0], buffer=t.name, out=f"a{i}") for i, t in enumerate(more))
    wide = replace(
        graph,
        inputs=(*graph.inputs, *more),
        kernels=(replace(graph.kernels[0], loads=(*graph.kernels[0].loads, *loads)), *graph.kernels[1:]),
    )
    root = laid_out(wide)
    chips = rectangles(root, "input")
    assert len({y for _, y, _, _ in chips}) > 1
    for left, top, right, bottom in segments(root):
        for x, y, width, height in chips:
            assert right <= x or left >= x + width or bottom <= y + 0.1 or top >= y + height - 0.1


def test_loops_are_boxes_inside_kernels() -> None:
    graph = read(next(p for p in GOLDEN if p.stem.startswith("gqa_decode")))
    loops = [x for b in lay_out(graph)[1] for x in b.content if isinstance(x, Box)]
    assert loops and all(x.kind == "loop" and x.heads[0].text.startswith("for each tile of ") for x in loops)
    inside = [line.text for x in loops for line in x.lines()]
    assert any("exp_sub" in x for x in inside) and any("load K" in x for x in inside)


def test_a_loop_that_masks_end_shows_the_part_that_runs() -> None:
    graph = read(next(p for p in GOLDEN if p.stem == "gqa_prefill"))
    (loop,) = [x for b in lay_out(graph)[1] for x in b.content if isinstance(x, Box)]
    (strip,) = [x for x in loop.heads if x.part is not None]
    assert strip.part == pytest.approx(0.5, abs=0.05) and strip.text.startswith("masks end it early: 5")
    root = laid_out(graph)
    (run,), (skipped,) = rectangles(root, "run"), rectangles(root, "skipped")
    assert run[2] / skipped[2] == pytest.approx(strip.part, abs=0.01)
    unmasked = read(next(p for p in GOLDEN if p.stem == "gqa"))
    assert not rectangles(laid_out(unmasked), "run", "skipped")


def test_characters_that_mean_something_in_xml_are_escaped() -> None:
    graph = read(GOLDEN[0])
    root = Xml.fromstring(svg(replace(graph, name='a<b>&"c\x00\x1b')))
    assert 'a<b>&"c  ' in (root.findtext(f"{SVG}title") or "")
