"""Which kernels of one file serve which dynamic sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_cli.codegen.export import ExportInfo, load_export
from mirage_cli.codegen.sized import Serves, Serving, Variant, by_tuned_sizes, sized_source
from mirage_cli.errors import StoredKernelError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import Program, Range
from mirage_cli.ir.text import canonical_text, mugraph_id
from mirage_cli.pipeline import written
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.serving import GAIN, MOST_OTHERS, MOST_PARTS, fastest, with_others
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.records import Best, Key, StoredMuGraph
from mirage_cli.store.results import Nearby, Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.price import total_us
from tests.programs import result_document
from tests.searched import BEST

GATED = """
name: gated
dims: {m: {min: 1, max: 4096, tune: [16, 128, 256, 2048]}, k: 4096, n: 4096}
inputs: {X: [m, k], W1: [k, n], W2: [k, n]}
program: O = silu(dot(X, W1, k)) * dot(X, W2, k)
outputs: {O: [m, n]}
"""
DECODE = """
name: decode
dims: {b: {min: 1, max: 64, tune: [8, 64]}, s: {min: 1, max: 8192, tune: [128, 8192]}, h: 8, d: 128}
inputs: {Q: [b, h, d], K: [b, s, h, d], V: [b, s, h, d]}
program: O = dot(softmax(dot(Q, K, d), s), V, s)
outputs: {O: [b, h, d]}
"""
TARGET = find_target("h200")


@cache
def variants(text: str) -> tuple[Variant, ...]:
    found = ((p, search(lower(merge_axes(p)), TARGET, bounds=BEST).candidates[0]) for p in parse_spec(text).programs())
    return tuple(Variant(p, c.graph, c.schedule, ExportInfo()) for p, c in found)


def predicted_us(v: Variant, sizes: Mapping[str, int]) -> float:
    graph = v.graph.resized(sizes)
    return total_us(graph, v.schedule, TARGET)


def served(serving: Serving, dynamic: tuple[Range, ...], sizes: Mapping[str, int]) -> int:
    (i,) = (i for i, some in serving.cells(dynamic) if all(r.least <= sizes[r.dim] <= r.most for r in some))
    return i


def test_kernels_that_are_faster_serve_a_size_between_tuned_ones() -> None:
    """Above 128 rows, where kernels for 256 leave most of their tiles empty, others take less time."""
    some = variants(GATED)
    dynamic = some[0].program.dynamic
    serving, usual = fastest(TARGET)(some), by_tuned_sizes(some)
    changed = 0
    for i, (part,) in serving.cells(dynamic):
        at = {"m": part.most}
        before = served(usual, dynamic, at)
        least_us = min(predicted_us(v, at) for v in some)
        assert predicted_us(some[i], at) <= least_us / GAIN
        if i != before:
            changed += 1
            assert predicted_us(some[i], at) < GAIN * predicted_us(some[before], at)
    assert changed


def test_what_is_measured_counts() -> None:
    """Kernels that were slower than predicted serve less than others of the same prediction."""
    some = variants(GATED)
    dynamic = some[0].program.dynamic

    def measured(times: float, only: int) -> list[Variant]:
        us = [predicted_us(v, {}) * (times if i == only else 1.0) for i, v in enumerate(some)]
        return [replace(v, info=replace(v.info, measured=True, time_us=x)) for v, x in zip(some, us, strict=True)]

    assert fastest(TARGET)(measured(1.0, 0)) == fastest(TARGET)(some)
    slow = fastest(TARGET)(measured(3.0, 2))
    assert 2 not in slow.which
    fast = fastest(TARGET)(measured(0.2, 1))
    assert served(fast, dynamic, {"m": 300}) == 1


def test_neighbouring_parts_are_of_different_kernels() -> None:
    serving = fastest(TARGET)(variants(GATED))
    assert all(a != b for a, b in pairwise(serving.which))
    assert serving.ends[0][-1] == 4096


def test_several_axes_are_cut_into_few_parts() -> None:
    some = variants(DECODE)
    serving = fastest(TARGET)(some)
    assert len(serving.which) <= MOST_PARTS
    assert len(serving.which) == len(serving.ends[0]) * len(serving.ends[1])
    assert served(serving, some[0].program.dynamic, {"b": 64, "s": 8192}) == len(some) - 1


def timed(v: Variant, us: float) -> Variant:
    return replace(v, info=replace(v.info, measured=True, time_us=us))


def with_a_second() -> tuple[list[Variant], Variant]:
    """Kernels that take as long as predicted, and for 256 rows others, as fast there, with the smaller tiles of those
    for 128: faster at 300."""
    bests = [timed(v, predicted_us(v, {})) for v in variants(GATED)]
    at_256, schedule = bests[2], bests[1].schedule
    assert schedule.fits(at_256.graph)
    second = replace(at_256, graph=bests[1].graph.resized({"m": 256}), schedule=schedule)
    return bests, timed(second, predicted_us(at_256, {}))


def test_kernels_that_are_not_the_best_anywhere_are_had_where_they_bring_something() -> None:
    bests, second = with_a_second()
    assert with_others(bests, [], TARGET) == bests
    assert with_others(bests, [second], TARGET) == [*bests, second]
    slow = timed(second, 3 * predicted_us(second, {}))
    assert with_others(bests, [slow], TARGET) == bests
    assert with_others(bests, [second] * (MOST_OTHERS + 1), TARGET) == [*bests, second]  # twice brings nothing


def test_a_file_has_several_kernels_for_one_tuned_size() -> None:
    """Under names of their own; the best serves where no others are expected to be faster."""
    bests, second = with_a_second()
    serving = fastest(TARGET)([*bests[:3], second, *bests[3:]])
    module = load_export(sized_source([*bests, second], fastest(TARGET)))
    used = sorted({*serving.which})
    assert 3 in used
    names = [f.__name__ for f in module._LAUNCHES]
    assert len({*names}) == len(names) == len(used)
    for i, (part,) in serving.cells(second.program.dynamic):
        assert module._which(part.most) == used.index(i)
    same = sized_source(
        [bests[2], timed(replace(second, graph=bests[2].graph), 1.0)], lambda _: Serving(((9, 4096),), (0, 1))
    )
    module = load_export(same)
    assert [f.__name__ for f in module._LAUNCHES] == ["launch_m256", "launch_m256_2"]


@pytest.mark.parametrize("text", [GATED, DECODE])
def test_the_file_chooses_as_it_is_told(text: str) -> None:
    """Kernels that serve nothing are not in it."""
    some = variants(text)
    serving = fastest(TARGET)(some)
    module = load_export(sized_source(some, fastest(TARGET)))
    used = sorted({*serving.which})
    assert len(module._LAUNCHES) == len(used)
    for i, part in serving.cells(some[0].program.dynamic):
        for end in ("least", "most"):
            assert module._which(*(getattr(r, end) for r in part)) == used.index(i)


@pytest.mark.parametrize(
    ("gpu", "rule"), [("h200", fastest(TARGET)), ("h200 (predicted)", fastest(TARGET)), ("mine", None)]
)
def test_a_stored_file_chooses_by_what_is_known_of_its_gpu(
    gpu: str, rule: Serves | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = variants(GATED)
    result = SimpleNamespace(nearby=())
    found: list[Any] = [(v.program, Key("", (), "float16", gpu), SimpleNamespace(of=v, result=result)) for v in some]
    monkeypatch.setattr(written, "checked_variant", lambda _store, _program, _key, best, _command: (best.of, None))
    store: Any = None
    assert written.export_all(store, found, "") == sized_source(some, rule or by_tuned_sizes)


def test_a_stored_file_has_what_was_kept_near_its_sizes(tmp_path: Path) -> None:
    """As far as it brings something, and the verifier still takes it."""
    bests, second = with_a_second()
    slow = timed(second, 30 * predicted_us(second, {}))

    def exported(near: Sequence[tuple[Variant, str]]) -> str:
        with Database(tmp_path / f"{len([*tmp_path.iterdir()])}.db") as store:
            found: list[tuple[Program, Key, Best]] = []
            for v in bests:
                key = key_of(v.program, TARGET, False)
                own = [(w, text) for w, text in near if w.program is v.program]
                kept = {mugraph_id(w.graph): text for w, text in own} | {mugraph_id(v.graph): canonical_text(v.graph)}
                store.put_mugraphs(key, [StoredMuGraph(id, text, 0, 1) for id, text in kept.items()])
                result = Result.from_json(result_document(time_us=v.info.time_us))
                nearby = tuple(Nearby(mugraph_id(w.graph), w.schedule, w.info.time_us or 0.0) for w, _ in own)
                result = replace(result, nearby=nearby)
                best = Best(mugraph_id(v.graph), "measured", v.info.time_us, v.schedule.to_json(), "text", result)
                found.append((v.program, key, store.put_best(key, best)))
            return written.export_all(store, found, "")

    def launches(text: str) -> list[str]:
        return re.findall(r"^def (launch_\w+)", text, re.MULTILINE)

    text = canonical_text(second.graph)
    alone = exported([])
    assert exported([(slow, text)]) == alone
    both = exported([(second, text)])
    assert {*launches(both)} > {"launch_m256", "launch_m256_2"} and "launch_m256_2" not in launches(alone)
    expected = fastest(TARGET)([*bests[:3], second, *bests[3:]])
    assert len(launches(both)) == len({*expected.which})
    with pytest.raises(StoredKernelError, match="another μGraph than the one that is stored"):
        exported([(replace(second, graph=bests[3].graph.resized({"m": 256}), schedule=bests[3].schedule), text)])
