"""What a program writes by indices: parts of outputs, which together are all of them, and inputs changed in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mirage_cli.ir.access import Distinct, dims_of
from mirage_cli.ir.footprint import apart
from mirage_cli.ir.inplace import reads_of
from mirage_cli.ir.program import Eqn, Part, Tensor, distinct_tables
from mirage_cli.spec.scope import Report
from mirage_cli.spec.statements import IndexedStore


def check_stores(
    stores: Iterable[IndexedStore],
    inputs: Iterable[Tensor],
    eqns: Iterable[Eqn],
    sizes: Mapping[str, int],
    report: Report,
) -> None:
    """Whether no element is written twice, every output is written whole, and nothing of an input that is changed in
    place is read behind the statement that writes it. Whatever cannot be told is reported too."""
    inputs = tuple(inputs)
    given, distinct = {t.name for t in inputs}, distinct_tables(inputs)
    by_tensor: dict[str, list[IndexedStore]] = {}
    for s in stores:
        by_tensor.setdefault(s.tensor.name, []).append(s)
    for name, found in by_tensor.items():
        overlap = False
        for i, s in enumerate(found):
            other = next((o for o in found[:i] if not apart(s.access, o.access, sizes, distinct)), None)
            if other is not None:
                overlap = True
                line = other.place[0]
                report(*s.place, f"this writes elements of {name} that line {line} writes, as far as can be told", None)
        if name in given:
            _check_reads(name, found, eqns, sizes, distinct, report)
        elif not overlap:
            _check_whole(found, sizes, report)


def _check_whole(found: list[IndexedStore], sizes: Mapping[str, int], report: Report) -> None:
    """Parts that are apart are all of a tensor if they have as many elements."""
    tensor = found[0].tensor
    written = sum(prod(sizes[d] for d in dims_of(s.access)) for s in found)
    elements = prod(sizes[d] for d in tensor.dims)
    if written < elements:
        report(*found[0].place, f"{tensor.name} has {elements} elements, and only {written} of them are written", None)


def _check_reads(
    name: str,
    found: list[IndexedStore],
    eqns: Iterable[Eqn],
    sizes: Mapping[str, int],
    distinct: Distinct,
    report: Report,
) -> None:
    """Statements in front of a store read the input as it is given; those behind it, nothing that was written."""
    eqns = tuple(eqns)
    for s in found:
        behind = reads_of(s.tensor, eqns[s.behind :])
        if any(not apart(s.access, read, sizes, distinct) for read in behind):
            report(
                *s.place,
                f"this writes elements of the `inout` {name} that statements behind it read, as far as can be told: "
                "let them use the value that is written, or stand in front of it",
                None,
            )


def parts_of(stores: Iterable[IndexedStore], outputs: Mapping[str, Tensor]) -> tuple[list[Tensor], tuple[Part, ...]]:
    """The outputs of a program, in the order in which they are declared, with a value for each part; and the parts."""
    stores = list(stores)
    found: list[Tensor] = []
    parts: list[Part] = []
    for t in outputs.values():
        own = [s for s in stores if s.tensor.name == t.name]
        found += [Tensor(s.value, dims_of(s.access), t.dtype) for s in own] or [t]
        parts += [Part(s.value, s.tensor, s.access) for s in own]
    return found, tuple(parts)
