"""Accesses: one normal form, that prints as it is read, and says where in memory each element is."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from mirage_cli.ir.access import (
    Access,
    Index,
    Lookup,
    access_text,
    atom_index,
    combined,
    dims_of,
    index,
    is_plain,
    is_whole,
    nested,
    plain,
    quotient,
    remainder,
    strides,
)
from mirage_cli.ir.access_text import parse_access, parse_index
from mirage_cli.ir.footprint import apart, elements_read, is_injective, large_enough, read_once, untold
from tests.rows import rows
from tests.seeds import over_seeds

SIZES = {"a": 3, "b": 4, "c": 2, "d": 5}


def some_index(rng: random.Random) -> Index:
    axes = rng.sample(sorted(SIZES), rng.randint(0, 3))
    return index({a: rng.choice((-7, -1, 0, 1, 1, 2, 16)) for a in axes}, rng.choice((0, 0, 3, -2, 4096)))


TABLES = {"S": ("a",), "T": ("b", "d")}
ENTRIES = {"S": [2, 0, 4], "T": [[1, 3, 0, 2, 4], [4, 4, 1, 0, 2], [0, 0, 0, 0, 1], [3, 1, 2, 4, 0]]}


def any_index(rng: random.Random, depth: int = 2) -> Index:
    """A sum of axes, quotients, remainders and entries of tables below 5, with bounds of their own."""
    parts = [(some_index(rng), 1)]
    for _ in range(rng.randint(0, 2) if depth else 0):
        kind, factor = rng.choice(("quotient", "remainder", "S", "T")), rng.choice((-2, 1, 1, 3, 8))
        inner = any_index(rng, depth - 1)
        if kind in TABLES:
            access = tuple(remainder(any_index(rng, depth - 1), SIZES[d]) for d in TABLES[kind])
            parts.append((atom_index(Lookup(kind, access, "d")), factor))
        else:
            parts.append(((quotient if kind == "quotient" else remainder)(inner, rng.choice((1, 2, 3, 8))), factor))
    return combined(0, parts)


def value(i: Index, at: dict[str, int]) -> int:
    return i.value(at.__getitem__, lambda x, p: ENTRIES["S"][p[0]] if x.table == "S" else ENTRIES["T"][p[0]][p[1]])


def every(dims: tuple[str, ...]) -> list[dict[str, int]]:
    return [dict(zip(dims, at, strict=True)) for at in product(*(range(SIZES[d]) for d in dims))]


@over_seeds(range(200))
def test_quotients_remainders_and_tables_print_as_they_are_read_and_are_where_they_say(seed: int) -> None:
    rng = random.Random(seed)
    i, names = any_index(rng), {"a": any_index(rng, 1), "c": some_index(rng)}
    assert parse_index(str(i)) == i
    low, high = i.bounds(SIZES)
    tables = {name: ((), np.array(entries)) for name, entries in ENTRIES.items()}
    found = i.positions(i.dims, {d: (0, n) for d, n in SIZES.items()}, tables)
    shape = [SIZES[d] for d in i.dims]
    for at in every(i.dims):
        assert low <= value(i, at) <= high
        assert np.broadcast_to(found, shape)[tuple(at.values())] == value(i, at)
    inner = i.within(names)
    for at in every(tuple(SIZES)):
        there = at | {d: value(j, at) for d, j in names.items()}
        if all(0 <= there[d] < SIZES[d] for d in names):
            assert value(inner, at) == value(i, there)


@rows("of", ["a*16 + b", "a*32 + b*4 + 9", "b - 40", "-b + 3", "a*6 + b*4 + 2", "(b*3 + 1)//4", "b%12"])
@rows("by", [1, 2, 3, 4, 16])
def test_a_quotient_and_a_remainder_are_those_of_python(of: str, by: int) -> None:
    i = parse_index(of)
    for at in every(i.dims):
        assert value(quotient(i, by), at) == value(i, at) // by
        assert value(remainder(i, by), at) == value(i, at) % by


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("(a*16 + b)//16", "a + b//16"),
        ("(a*32 + 5)%16", "5"),
        ("(a*32 + b*4)%16", "b%4*4"),
        ("a//4//8", "a//32"),
        ("a%12%4", "a%4"),
        ("(a - 64)%128", "(a + 64)%128"),
        ("T{d}[b, (2*a)//2]*8 + T{d}[b, a]", "T{d}[b, a]*9"),
    ],
)
def test_a_quotient_has_one_normal_form(text: str, normal: str) -> None:
    assert str(parse_index(text)) == normal


def test_sizes_are_made_large_enough_for_several_pages_and_entries() -> None:
    """Two pages, the second read at two places; a table that names so many pages that luck is rare."""
    full = {"pages": 512, "page": 16, "s": 4096, "p": 256, "b": 8}
    read = [("pages", parse_index("P{pages}[b, s//16]")), ("page", parse_index("s%16"))]
    found = large_enough({"pages": 3, "page": 5, "s": 7, "p": 2, "b": 2}, nested(read, {"P": ("b", "p")}), full, str)
    assert found == {"pages": 16, "page": 16, "s": 18, "p": 2, "b": 2}


@over_seeds(range(200))
def test_an_index_prints_as_it_is_read(seed: int) -> None:
    i = some_index(random.Random(seed))
    assert parse_index(str(i)) == i
    assert parse_access(access_text((i, *plain(("a",))))) == (i, *plain(("a",)))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("h*64+d", "h*64 + d"),
        ("d + 64*h + 128", "h*64 + d + 128"),
        ("a - a + 3", "3"),
        ("-a + 2", "-a + 2"),
        ("a - b*2", "-b*2 + a"),
        ("a + a", "a*2"),
        ("0", "0"),
    ],
)
def test_an_index_has_one_normal_form(text: str, normal: str) -> None:
    assert str(parse_index(text)) == normal


@pytest.mark.parametrize(
    "text", ["", "a*b", "a//b", "a%0", "a//-2", "a b", "1.5", "a[b]", "T{v}", "T{v}[a", "a)", "a+"]
)
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an index is a sum of axes"):
        parse_index(text)


@over_seeds(range(100))
def test_bounds_are_the_least_and_the_largest_position(seed: int) -> None:
    i = some_index(random.Random(seed))
    positions = [value(i, at) for at in every(i.dims)]
    assert i.bounds(SIZES) == (min(positions), max(positions))


@over_seeds(range(100))
def test_an_index_within_an_index_is_the_position_there(seed: int) -> None:
    rng = random.Random(seed)
    outer, names = some_index(rng), {d: some_index(rng) for d in rng.sample(sorted(SIZES), 2)}
    inner = outer.within(names)
    for at in every(tuple(SIZES)):
        assert value(inner, at) == value(outer, at | {d: value(i, at) for d, i in names.items()})


@over_seeds(range(50))
def test_strides_lead_to_the_elements(seed: int) -> None:
    rng = random.Random(seed)
    drawn = (rng.sample(sorted(SIZES), rng.randint(0, 2)) for _ in range(3))
    access = tuple(index({d: rng.randint(1, 3) for d in axes}, rng.randint(0, 2)) for axes in drawn)
    shape = [i.bounds(SIZES)[1] + rng.randint(1, 3) for i in access]
    tensor = np.arange(np.prod(shape)).reshape(shape)
    steps, start = strides(access, [x // tensor.itemsize for x in tensor.strides])
    for at in every(dims_of(access)):
        assert tensor[tuple(value(i, at) for i in access)] == start + sum(n * at[d] for d, n in steps.items())


def test_plain_and_whole_accesses_are_told_from_others() -> None:
    sizes = {"m": 8, "n": 8, "k": 4}
    assert is_plain(plain(("m", "k"))) and not is_plain(parse_access("m, m")) and not is_plain(parse_access("m, k + 1"))
    assert is_whole(plain(("n", "k")), ("m", "k"), sizes)
    assert not is_whole(plain(("k", "n")), ("m", "k"), sizes), "the first half of m"
    assert not is_whole(parse_access("m, 0"), ("m", "k"), sizes)


def test_sizes_are_made_large_enough_for_what_is_read_of_what_is_read() -> None:
    sizes = {"n": 2, "k": 2, "h": 3, "d": 4, "other": 2}
    read = [("n", parse_index("k + 5")), ("k", parse_index("h*10 + d"))]
    full = {"n": 60, "k": 40, "h": 3, "d": 4, "other": 60}
    assert large_enough(sizes, read, full, str) == sizes | {"k": 24, "n": 29}
    together = {"n": "n", "other": "n"}
    assert large_enough(sizes, read, full, lambda d: together.get(d, d)) == sizes | {"k": 24, "n": 29, "other": 29}


def test_what_is_not_there_in_full_is_not_there_in_part() -> None:
    read = [("x", parse_index("y + i - 1"))]
    full = {"x": 64, "y": 64, "i": 3}
    assert read[0][1].leaves(64, full) == (1, 1)
    assert large_enough({"x": 2, "y": 5, "i": 3}, read, full, str) == {"x": 5, "y": 5, "i": 3}


@pytest.mark.parametrize("text", ["d - 32", "d + 32"])
def test_what_is_there_in_full_is_there_in_part(text: str) -> None:
    i = parse_index(text)
    sizes = large_enough({"d": 3}, [("d", i)], {"d": 64}, str)
    assert 32 < sizes["d"] < 40
    inside = [p for p in range(i.offset, i.offset + sizes["d"]) if 0 <= p < sizes["d"]]
    assert 2 <= len(inside) < sizes["d"]


@over_seeds(range(200))
def test_no_more_elements_are_counted_than_are_read(seed: int) -> None:
    rng = random.Random(seed)
    shape = {"x": rng.randint(1, 12), "y": rng.randint(1, 12)}
    accesses = []
    for _ in range(rng.randint(1, 3)):
        steps = ({d: rng.choice((1, 1, 2, 5)) for d in rng.sample(sorted(SIZES), rng.randint(0, 2))} for _ in shape)
        access = tuple(index(s, rng.randint(-2, n - 1)) for s, n in zip(steps, shape.values(), strict=True))
        if all(i.bounds(SIZES)[1] >= 0 for i in access):
            accesses.append(access)
    places = {tuple(value(i, at) for i in access) for access in accesses for at in every(dims_of(access))}
    read = {p for p in places if all(0 <= x < n for x, n in zip(p, shape.values(), strict=True))}
    assert elements_read(tuple(shape), [(x, 1.0) for x in accesses], SIZES | shape) <= len(read)


@pytest.mark.parametrize(
    ("texts", "elements"),
    [
        (["m, k"], 8 * 64),
        (["m, k", "n, k"], 8 * 64),
        (["m, h*16 + d", "m, h*16 + d + 32"], 8 * 64),
        (["m, h*16 + d", "m, h*16 + d"], 8 * 32),
        (["m + i - 1, k"], 8 * 64),
        (["m, d*2"], 8 * 16),
        (["0, k"], 64),
    ],
)
def test_elements_that_are_read_are_counted_once(texts: list[str], elements: int) -> None:
    sizes = {"m": 8, "n": 8, "k": 64, "h": 2, "d": 16, "i": 3}
    assert elements_read(("m", "k"), [(parse_access(x), 1.0) for x in texts], sizes) == elements


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("m, k", 1.0),
        ("m, h*16 + d", 1.0),
        ("m + i - 1, k", 10 / 24),
        ("2*m + i, k", 17 / 24),
        ("2*m + 3*i, k", 19 / 24),
        ("m + i, d + 2*h", 10 / 24 * 18 / 32),
        ("m + i, i", 1.0),
        ("m//2 + i, k", 1.0),
    ],
)
def test_the_part_of_positions_that_read_another_element(text: str, part: float) -> None:
    sizes = {"m": 8, "k": 64, "h": 2, "d": 16, "i": 3}
    assert read_once(parse_access(text), sizes) == pytest.approx(part)


@pytest.mark.parametrize(
    ("text", "distinct", "elements"),
    [
        ("P{x}[b, s//16], s%16", "P", 8 * 64),
        ("P{x}[b, s//16], s%16", "", 16),
        ("P{x}[b, s//16], 0", "P", 8 * 4),
        ("P{x}[b, s//32], s%16", "P", 8 * 2 * 16),
        ("x//4, y", "", 8 * 16),
        ("P{x}[b, 0] // 2, (y + 3)%16", "P", 16),
        ("s//16, s//16", "", 4),
    ],
)
def test_elements_that_tables_name_are_counted_where_they_differ(text: str, distinct: str, elements: int) -> None:
    sizes = {"x": 32, "y": 16, "b": 8, "p": 4, "s": 64}
    assert elements_read(("x", "y"), [(parse_access(text), 1.0)], sizes, {distinct}) == elements


def test_no_size_is_made_larger_than_it_is() -> None:
    read = [("x", parse_index("y - 32")), ("z", parse_index("x + 3"))]
    full = {"x": 4, "y": 33, "z": 5}
    assert large_enough(dict.fromkeys(full, 1), read, full, str) == {"x": 1, "y": 33, "z": 5}


# -- what is written


def elements(access: Access) -> list[tuple[int, ...]]:
    """Where an access lies, once for each of its elements."""
    dims = dims_of(access)
    ranges = {d: (0, SIZES[d]) for d in dims}
    tables = {name: ((), np.array(entries)) for name, entries in ENTRIES.items()}
    places = [i.positions(dims, ranges, tables) for i in access]
    return [tuple(map(int, at)) for at in zip(*(p.ravel() for p in np.broadcast_arrays(*places)), strict=True)]


@over_seeds(range(300))
def test_accesses_that_are_told_apart_are_and_single_indices_always_are(seed: int) -> None:
    rng = random.Random(seed)
    x, y = (tuple(some_index(rng) for _ in range(rng.randint(1, 2))) for _ in range(2))
    y = (*y, *x)[: len(x)]
    meet = {*elements(x)} & {*elements(y)}
    assert not (apart(x, y, SIZES) and meet)
    if len(x) == 1:
        assert apart(x, y, SIZES) == (not meet)


@over_seeds(range(300))
def test_an_access_that_is_injective_has_every_element_once(seed: int) -> None:
    rng = random.Random(seed)
    x = tuple(some_index(rng) for _ in range(rng.randint(1, 3)))
    found = elements(x)
    if is_injective(x, SIZES):
        assert len({*found}) == len(found)


S_IS_DISTINCT = {"S": TABLES["S"]}
"""Of the two tables, `S` holds no integer twice."""


@over_seeds(range(1500))
def test_what_tables_and_quotients_tell_is_so(seed: int) -> None:
    """Of random accesses with tables, quotients and remainders, those that are said to be one to one are, and those
    that are said to be apart are. Of these forms, many are."""
    rng = random.Random(seed)

    def part() -> Index:
        form = rng.choice(
            ("S{d}[a]", "S{d}[0]", "T{d}[b, d]", "{i}//{n}", "{i}%{n}", "S{d}[a]//{n}", "S{d}[a]%{n}", "{i}", "{r}")
        )
        i, n = str(some_index(rng)), rng.choice((2, 3, 4, 8))
        text = form.replace("{i}", f"({i})").replace("{n}", str(n)).replace("{r}", f"({i} + S{{d}}[c])%{n}")
        return combined(0, ((parse_index(text), rng.choice((1, 1, 2, -3))), (index({}, rng.choice((0, 0, 1))), 1)))

    x, y = (tuple(part() for _ in range(rng.randint(1, 3))) for _ in range(2))
    y = (*y, *x)[: len(x)]
    found = elements(x)
    if is_injective(x, SIZES, S_IS_DISTINCT):
        assert len({*found}) == len(found)
    if apart(x, y, SIZES, S_IS_DISTINCT):
        assert not {*found} & {*elements(y)}


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("S{d}[a]", "a"),
        ("T{d}[b, d]", ""),
        ("S{d}[a], b", "a b"),
        ("S{d}[a]*4 + b", "a b"),
        ("S{d}[a]*3 + b", ""),
        ("S{d}[a]//2, S{d}[a]%2", "a"),
        ("S{d}[a]//2, S{d}[a]%3", ""),
        ("S{d}[a]//2", ""),
        ("S{d}[a]%5", "a"),
        ("S{d}[a]%4", ""),
        ("S{d}[a - 1]", ""),
        ("S{d}[d//2]", ""),
        ("S{d}[d//2], d%2", "d"),
        ("S{d}[(a*2 + c)//2], (a*2 + c)%2", "a c"),
        ("T{d}[b, d], b, d", "b d"),
        ("b, T{d}[b, 0] + d", "b d"),
        ("(b + S{d}[0])%4", "b"),
        ("(b + S{d}[0])%3", ""),
        ("(b + T{d}[d, 0])%4, d", "b d"),
        ("S{d}[a], (b + T{d}[a, 0])%8", "a b"),
        ("(a + b)%4, b", "a b"),
        ("(a + b)%2, b", "b"),
        ("a//2, a%2", "a"),
        ("(a*8 + b)//8, (a*8 + b)%8", "a b"),
    ],
)
def test_the_axes_that_positions_tell(text: str, tells: str) -> None:
    access = parse_access(text)
    assert {*dims_of(access)} - {*untold(access, SIZES, S_IS_DISTINCT)} == {*tells.split()}


@pytest.mark.parametrize(
    ("text", "other", "told"),
    [
        ("S{d}[a], b", "S{d}[a], b + 4", True),
        ("S{d}[0]", "S{d}[c + 1]", True),
        ("S{d}[0]", "S{d}[a]", False),
        ("S{d}[0]", "S{d}[1] + 1", False),
        ("S{d}[0]", "S{d}[a + 1]", False),
        ("T{d}[0, 0]", "T{d}[0, 1]", False),
        ("S{d}[0]*2", "S{d}[1]*2", True),
        ("S{d}[0]", "d + 5", True),
        ("d//2", "d//2 + 3", True),
        ("d//2", "d//2 + 2", False),
    ],
)
def test_entries_of_a_table_that_holds_none_twice_are_apart(text: str, other: str, told: bool) -> None:
    assert apart(parse_access(text), parse_access(other), SIZES, S_IS_DISTINCT) == told


@pytest.mark.parametrize(
    ("text", "other", "told"),
    [
        ("a*8 + b", "a*8 + b + 4", True),
        ("a*8 + b", "a*8 + b + 3", False),
        ("a*2", "b*2 + 1", True),
        ("a", "b + 3", True),
        ("a", "b + 2", False),
        ("a*7 + b", "c*7 + d + 4", False),
        ("a*9 + b", "c*9 + d + 4", True),
        ("-a + 2", "b + 3", True),
        ("a, b", "a, b + 4", True),
        ("a, a", "a, a + 1", False),
    ],
)
def test_blocks_in_turn_are_told_apart(text: str, other: str, told: bool) -> None:
    assert apart(parse_access(text), parse_access(other), SIZES) == told


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("a*4 + b", True),
        ("a*3 + b", False),
        ("a + b*3", True),
        ("-a - b*3 + 40", True),
        ("a, a + b", True),
        ("a + b, a*2", True),
        ("a + b, c", False),
        ("a*20 + b*5 + d", True),
        ("a*19 + b*5 + d", False),
        ("", True),
        ("7", True),
    ],
)
def test_elements_that_are_written_once_are_told_from_others(text: str, once: bool) -> None:
    assert is_injective(parse_access(text), SIZES) == once


def test_whether_long_indices_meet_is_told_without_a_look_at_every_position() -> None:
    sizes = {"h": 1 << 20, "d": 1 << 9, "e": 1 << 9}
    x, y = parse_access("h*1024 + d"), parse_access("h*1024 + e + 512")
    assert apart(x, y, sizes) and not apart(x, parse_access("h*1024 + e + 511"), sizes)
