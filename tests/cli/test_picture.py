"""Pictures of μGraphs: well-formed, complete, and nothing drawn over anything else."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from mirage_cli.cli.picture import CHAR, Box, html, lay_out, load_text, store_text, svg
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
            assert any(x.startswith(line) for x in shown), line
    notes = [line.partition("# ")[2] for line in print_mugraph(graph).splitlines()]
    assert all(any(note in x for x in shown) for note in notes)


def test_boxes_stand_below_or_inside_one_another_with_their_lines(graph: MuGraph) -> None:
    boxes, _ = lay_out(graph)
    y = 0.0
    for b in boxes:
        y = b.place(y)
    width = max(b.width() for b in boxes)

    def check(b: Box, width: float) -> None:
        y = b.title.y
        assert b.y < y < b.y + b.height
        for x in (b.title, *(x for x in b.content if not isinstance(x, Box))):
            assert len(x.text + x.note) * CHAR < width
        for x in b.content:
            assert x.y > y, "below what stands before it"
            y = x.y
            if isinstance(x, Box):
                check(x, width - 20)
                y += x.height
        assert y < b.y + b.height

    for before, after in pairwise(boxes):
        assert before.y + before.height <= after.y
    for b in boxes:
        check(b, width)


def test_arrows_lead_from_where_a_tensor_is_made_to_where_it_is_used(graph: MuGraph) -> None:
    boxes, arrows = lay_out(graph)
    made = {str(t): t.name for t in graph.tensors().values()}
    assert {made[a.tensor] for a in arrows} == set(graph.tensors())
    for a in arrows:
        name = made[a.tensor]
        assert all(x.text == a.tensor or x.text.startswith(f"store {name}[") for x in a.starts)
        assert all(x.text == a.tensor or f" = load {name}[" in x.text for x in a.ends)
    assert len(re.findall('class="arrow"', svg(graph))) == len(arrows)
    kinds = {"generated": "kernel", "library": "library"}
    assert [b.kind for b in boxes] == ["memory", *(kinds[k.kind] for k in graph.kernels), "memory"]


def test_loops_are_boxes_inside_kernels() -> None:
    graph = read(next(p for p in GOLDEN if p.stem.startswith("gqa_decode")))
    loops = [x for b in lay_out(graph)[0] for x in b.content if isinstance(x, Box)]
    assert loops and all(x.kind == "loop" and x.title.text.startswith("for each tile of ") for x in loops)
    inside = [line.text for x in loops for line in x.lines()]
    assert any("exp_sub" in x for x in inside) and any("load K" in x for x in inside)


def test_characters_that_mean_something_in_xml_are_escaped() -> None:
    graph = read(GOLDEN[0])
    strange = replace(graph, name='a<b>&"c\x00\x1b')
    page = html(strange, "# <script>alert('&amp;')</script>\x0b\nO = X < 1")
    assert "<script" not in page and "\x00" not in page and "\x0b" not in page
    root = Xml.fromstring(page.partition("\n")[2])
    assert "".join(root.itertext()).count("<script>alert('&amp;')</script>") == 1
    assert root.findtext("head/title") == 'a<b>&"c  '
    assert any(x.startswith('inputs of a<b>&"c  ') for x in texts(svg(strange)))


def test_a_page_stands_alone_with_picture_text_and_program(graph: MuGraph) -> None:
    page = html(graph, "name: spec\nprogram: |\n  O = X")
    assert page.startswith("<!DOCTYPE html>\n")
    assert re.findall(r'(?:src|href)="', page) == [] and svg(graph) in page
    whole = "".join(Xml.fromstring(page.partition("\n")[2]).itertext())
    assert print_mugraph(graph) in whole and "name: spec\nprogram: |\n  O = X" in whole
