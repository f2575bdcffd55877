"""One exported file for several sizes: one function that chooses kernels by the sizes of its inputs.

Of dynamic axes, every kernel is right at every size in their ranges, so which serves which is a matter of speed
(`Serving`). Of a spec's instances, each has kernels of its own, and other sizes are refused.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod

from mirage_cli.codegen.export import ExportInfo, export_source, header_rows
from mirage_cli.codegen.exported.carried import CHECKS, carried
from mirage_cli.codegen.exported.public import Templates, docstring, file_text, public_values, tables_text
from mirage_cli.codegen.exported.sized_text import (
    EXACT,
    PLANNED_SIZED,
    PUBLIC_SIZED,
    RANGED,
    RESERVED_SIZED,
    SELF_CHECK_SIZED,
    WITHOUT_AUTOCAST,
)
from mirage_cli.codegen.exported.start_text import start_body
from mirage_cli.codegen.parts import Parts, patience
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.codegen.writing import (
    filled,
    input_text,
    layout_text,
    spelled,
    stride_factors,
    table_text,
    tuple_text,
)
from mirage_cli.errors import MirageError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, Range, Tensor, mixed, spread
from mirage_cli.ir.schedule import Schedule, about_tiles

SIZES = Templates(PUBLIC_SIZED, PLANNED_SIZED, SELF_CHECK_SIZED)


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels for one size, or tuned for it. program: at that size."""

    program: Program
    graph: MuGraph
    schedule: Schedule
    info: ExportInfo


@dataclass(frozen=True, slots=True)
class Serving:
    """Which variant serves which sizes of dynamic axes.

    ends: of each axis, the last sizes of the parts of its range, in order. which: the variant's number for each
    combination of parts, those of the last axis first.
    """

    ends: tuple[tuple[int, ...], ...]
    which: tuple[int, ...]

    def cells(self, dynamic: Sequence[Range]) -> Iterator[tuple[int, tuple[Range, ...]]]:
        """Each combination of parts, with its variant."""
        return zip(
            self.which, product(*(_parts(r, ends) for r, ends in zip(dynamic, self.ends, strict=True))), strict=True
        )


Serves = Callable[[Sequence[Variant]], Serving]


def by_tuned_sizes(variants: Sequence[Variant]) -> Serving:
    """Where no more is known of them: as of `nearest`."""
    return nearest([v.program for v in variants])


def nearest(tuned_for: Sequence[Program]) -> Serving:
    """For each axis the first that is tuned for as much or more, or the last. Of those for the same sizes, the first.
    tuned_for: one program at several sizes."""
    dynamic = tuned_for[0].dynamic
    tuned = [sorted({p.sizes[r.dim] for p in tuned_for}) for r in dynamic]

    def serving(sizes: Sequence[int]) -> int:
        def short(p: Program) -> tuple[object, ...]:
            own = p.arguments
            less = [n < wanted for n, wanted in zip(own, sizes, strict=True)]
            return sum(less), [-n if below else n for n, below in zip(own, less, strict=True)]

        return min(range(len(tuned_for)), key=lambda i: short(tuned_for[i]))

    ends = tuple((*sizes[:-1], r.most) for r, sizes in zip(dynamic, tuned, strict=True))
    return Serving(ends, tuple(map(serving, product(*tuned))))


def any_source(v: Variant, *others: Variant, serves: Serves = by_tuned_sizes) -> str:
    """The text of an exported file, for one size or several. Raises MirageError."""
    if others or v.program.dynamic:
        return sized_source((v, *others), serves)
    return export_source(v.program, v.graph, v.schedule, v.info)


def sized_source(variants: Sequence[Variant], serves: Serves = by_tuned_sizes) -> str:
    """The text of a file for the sizes of all variants, of one spec. Raises MirageError where a call's inputs would not
    say which size it is. serves: which of the variants serves which sizes, where these are dynamic."""
    variants = sorted(variants, key=lambda v: v.program.dims)
    if other := [name for v in variants for name in _lying_elsewhere(v.program, variants[-1].program)]:
        raise MirageError(f"{other[0]} has other strides at other sizes: export each of its sizes by itself")
    if not variants[0].program.dynamic:
        return _File(variants).text()
    serving = serves(variants)
    used = sorted({*serving.which})
    renumbered = replace(serving, which=tuple(used.index(i) for i in serving.which))
    return _File([variants[i] for i in used], renumbered).text()


@dataclass(frozen=True)  # without slots, for what is cached
class _File:
    """The file, and what follows from its variants. serving: of dynamic axes."""

    variants: Sequence[Variant]
    serving: Serving = field(default=Serving((), ()))

    @property
    def program(self) -> Program:
        """The program of the last variant, for what is the same in all."""
        return self.variants[-1].program

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The axes whose sizes a call says."""
        if self.program.dynamic:
            return tuple(r.dim for r in self.program.dynamic)
        all_sizes = [v.program.sizes for v in self.variants]
        found = [d for d in self.program.order if len({s[d] for s in all_sizes}) > 1]
        shown = tuple(d for d in found if any(d in t.dims for t in self.program.inputs))
        told_apart = len({tuple(s[d] for d in shown) for s in all_sizes}) == len(all_sizes)
        for d in found:
            needed = any(d in (*t.dims, t.below) for t in (*self.program.inputs, *self.program.results))
            if d not in shown and (not told_apart or needed):
                raise MirageError(f"no input of {self.program.name} has the axis {d}, so a call would not say its size")
        return shown

    @cached_property
    def names(self) -> list[str]:
        """What holds these sizes in the text."""
        return [f"SIZE_{d}" for d in self.differing]

    @cached_property
    def texts(self) -> dict[str, int | str]:
        """All sizes, with names for those that differ."""
        return {**self.program.sizes, **dict(zip(self.differing, self.names, strict=True))}

    @cached_property
    def labels(self) -> list[str]:
        """What stands behind the names of each variant's functions."""
        tuned = ["_" + "_".join(f"{d}{v.program.sizes[d]}" for d in self.differing) for v in self.variants]
        earlier = [tuned[:i].count(label) for i, label in enumerate(tuned)]
        return [f"{label}_{n + 1}" if n else label for label, n in zip(tuned, earlier, strict=True)]

    @cached_property
    def parts(self) -> list[Parts]:
        pairs = zip(self.variants, self.labels, strict=True)
        return [Parts(v.graph, v.schedule, label, self.names) for v, label in pairs]

    @cached_property
    def parameters(self) -> list[str]:
        def taken(name: str) -> bool:
            return name in RESERVED_SIZED or name.startswith("SIZE_")

        return [*spelled((t.name for t in self.program.inputs), taken).values()]

    def guarded_strides(self, t: Tensor) -> list[int | None]:
        """The strides of an input; None for those that differ by call."""
        factors = stride_factors(t, self.texts)
        return [None if any(isinstance(x, str) for x in some) else prod(map(int, some)) for some in factors]

    def said_by(self, d: str) -> list[tuple[int, int]]:
        """The inputs that have an axis, and which of theirs it is."""
        return [(n, t.dims.index(d)) for n, t in enumerate(self.program.inputs) if d in t.dims]

    @cached_property
    def tables(self) -> str:
        """What checks the integers of tables."""
        return tables_text(self.program, self.texts, ", ".join(self.names), "*_sizes(inputs)")

    # -- which kernels serve a call

    @cached_property
    def cells(self) -> list[tuple[int, tuple[Range, ...]]]:
        """The kernels that serve a range of each dynamic axis, in order of these."""
        return [*self.serving.cells(self.program.dynamic)]

    @cached_property
    def choice(self) -> str:
        """The number of the kernels for dynamic sizes."""
        place = ""
        for name, ends in zip(self.names, self.serving.ends, strict=True):
            own = "".join(f"{i} if {name} <= {n} else " for i, n in enumerate(ends[:-1])) + str(len(ends) - 1)
            place = f"({place}) * {len(ends)} + ({own})" if place else own
        numbers = self.serving.which
        return place if [*numbers] == [*range(len(numbers))] else f"{tuple_text(map(str, numbers))}[{place}]"

    @property
    def inside(self) -> list[str]:
        """Whether each dynamic size is in its range."""
        return [f"{r.least} <= {name} <= {r.most}" for r, name in zip(self.program.dynamic, self.names, strict=True)]

    def which(self) -> str:
        names = ", ".join(self.names)
        if self.program.dynamic:
            refused = [
                f"    if not {inside}:\n"
                f'        raise ValueError(f"{r.dim} should be {r.least} to {r.most}, not {{{name}}}")'
                for r, name, inside in zip(self.program.dynamic, self.names, self.inside, strict=True)
            ]
            return filled(RANGED, {"refused": "\n".join(refused), "choice": self.choice, "size_names": names})
        keys = [tuple_text(str(v.program.sizes[d]) for d in self.differing) for v in self.variants]
        exact = "{" + ", ".join(f"{k}: {i}" for i, k in enumerate(keys)) + "}"
        there = "; ".join(", ".join(f"{d}={v.program.sizes[d]}" for d in self.differing) for v in self.variants)
        asked = ", ".join(f"{d}={{{n}}}" for d, n in zip(self.differing, self.names, strict=True))
        return filled(EXACT, {"exact": exact, "there": there, "asked": asked, "size_names": names})

    def fast(self) -> str:
        """What a call does whose inputs are known but for the sizes."""
        lines: list[str] = []
        conditions: list[str] = []
        for d, name in zip(self.differing, self.names, strict=True):
            (first, axis), *others = self.said_by(d)
            lines.append(f"{name} = {self.parameters[first]}.shape[{axis}]")
            conditions += [f"{self.parameters[n]}.shape[{i}] == {name}" for n, i in others]
        for p, t in zip(self.parameters, self.program.inputs, strict=True):
            if None in self.guarded_strides(t):  # then they differ by call, and guards know none of them
                strides = layout_text(t, self.texts)[1]
                conditions.append(f"_lies({p}, {strides})" if t.strides else f"{p}.is_contiguous()")
        if self.program.dynamic:
            lines.append(f"if {' and '.join([*self.inside, *conditions])}:")
            lines += [f"    _kernels = {self.choice}", "    _plan = _known.get(_kernels)"]
        else:
            lines.append(f"_kernels = _EXACT.get(({', '.join(self.names)},))")
            lines.append(f"if {' and '.join(['_kernels is not None', *conditions])}:")
            lines.append("    _plan = _known.get(_kernels)")
        given = ", ".join(["_plan", *self.names, *self.parameters])
        lines += ["    if _plan is not None:", f"        return _STARTS[_kernels]({given})"]
        return textwrap.indent("\n".join(lines), " " * 16)

    # -- the text

    def text(self) -> str:
        blocks = [*dict.fromkeys(b for p in self.parts for b in p.blocks())]
        values = self.values(blocks) | self.check()
        blocks += patience([name for p in self.parts for name in p.patient])
        blocks += [self.tables] * bool(self.tables)
        return file_text(self.program, self.header(), self.parts, blocks, SIZES, values)

    def header(self) -> str:
        rows = [header_rows(v.program, v.graph, v.schedule, v.info) for v in self.variants]
        own = ("dims", "μGraph", "schedule", "measured", "predicted", "error", "numbers")
        ranges = ", ".join(f"{r.dim} from {r.least} to {r.most}" for r in self.program.dynamic)
        found = [row for row in rows[-1] if row[0] not in own]
        found.insert(1, ("sizes", ranges or "of the kernels below alone"))
        return docstring(self.program, found + [row for some in rows for row in some if row[0] in own])

    def values(self, kernels: Sequence[str]) -> dict[str, str]:
        """For the places of the templates, but those of the self-check."""
        program, names = self.program, self.names
        inputs = (input_text(t, self.texts) for t in program.inputs)
        outputs = (f"({', '.join(layout_text(t, self.texts)[::-1])}, torch.{t.dtype})," for t in program.results)
        first = [self.said_by(d)[0] for d in self.differing]
        tuned = [f"{n}={program.sizes[d]}" for d, n in zip(self.differing, names, strict=True)]
        guarded = [[None if d in self.differing else program.sizes[d] for d in t.dims] for t in program.inputs]
        which = self.which()
        there, sizes_of_inputs = "_outputs(*_sizes(inputs))", "_which(*_sizes(inputs)), _sizes(inputs), "
        return public_values(program, self.parameters, [*kernels, which], self.tables, there, sizes_of_inputs) | {
            "sizes": ", ".join(f"inputs[{n}].shape[{i}]" for n, i in first),
            "size_names": ", ".join(names),
            "size_texts": tuple_text(f'"{d}"' for d in self.differing),
            "size_defaults": ", ".join(tuned),
            "inputs": textwrap.indent(table_text(inputs), "    ").lstrip(),
            "outputs": textwrap.indent(table_text(outputs), "    ").lstrip(),
            "dims": tuple_text(str(len(t.dims)) for t in program.inputs),
            "which": which,
            "fast": self.fast(),
            "autocast": WITHOUT_AUTOCAST * any(p.libraries for p in self.parts),
            "launches": tuple_text(f"launch{x}" for x in self.labels),
            "scratch": tuple_text(f"make_scratch{x}" for x in self.labels),
            "recorded": "\n".join(p.recorded() for p in self.parts),
            "kernels": tuple_text(tuple_text(k.name for k in p.graph.kernels) for p in self.parts),
            "guarded_sizes": str(guarded),
            "guarded_strides": str([self.guarded_strides(t) for t in program.inputs]),
            "starts": "\n\n\n".join(self.start(i) for i in range(len(self.parts))),
            "start_names": tuple_text(f"_start{x}" for x in self.labels),
        }

    def start(self, i: int) -> str:
        p = self.parts[i]
        given = ", ".join(["plan", *self.names, *(p.names[t.name] for t in p.graph.inputs)])
        by_triton = f"_by_triton({i}, ({', '.join(self.names)},), "
        body = start_body(p.graph, p.texts, p.kernels, p.names, bool(p.patient), by_triton)
        return (
            f'def _start{self.labels[i]}({given}):\n    """What `launch{self.labels[i]}` does, by the plan."""\n{body}'
        )

    # -- the check

    def check(self) -> dict[str, str]:
        forms: list[str] = []
        programs: list[str] = []
        for i, v in enumerate(self.variants):
            apart = v.program.apart()
            eager, stepwise, whole = f"eager_{i}", f"stepwise_{i}", f"whole_{i}" if v.program.parts else f"eager_{i}"
            forms += [torch_source(apart, eager).strip(), torch_source(lower(apart), stepwise).strip()]
            forms += [torch_source(v.program, whole).strip()] * bool(v.program.parts)
            programs.append(f"{i}: ({eager}, {stepwise}, {whole})")
        on_gpu, interpreted = self.cases()
        return {
            "forms": textwrap.indent("\n\n".join(forms), "    "),
            "checks": textwrap.indent(carried(CHECKS).inside_function(), "    "),
            "programs": f"{{{', '.join(programs)}}}",
            "on_gpu": _lines(on_gpu),
            "interpreted": _lines(interpreted),
            "precision": f"torch.{self.program.dtype}",
            "tolerance": f"{self.program.tolerance:g}",
            "edges": str(self.edges()),
        }

    def cases(self) -> tuple[list[str], list[str]]:
        """At which sizes each variant checks itself, on a GPU and in the interpreter."""
        found: tuple[list[str], list[str]] = [], []
        for i, v in enumerate(self.variants):
            if not v.program.dynamic:
                for some in found:
                    some.append(_case(i, v.program, self.differing, True))
                continue
            own = [sizes for j, ranges in self.cells if j == i for sizes in v.program.some_sizes(ranges)]
            for sizes in own:
                timed = sizes.items() <= v.program.sizes.items()
                found[0].append(_case(i, v.program.resized(sizes), self.differing, timed))
            for sizes in mixed(about_tiles(v.program.dynamic, v.schedule)):
                found[1].append(_case(i, v.program.resized(sizes), self.differing, False))
        return found

    def edges(self) -> list[tuple[tuple[int, ...], int | None]]:
        """Sizes at the ends of what each variant serves, with its number, and sizes that none serves."""
        if not self.program.dynamic:
            return [(tuple(v.program.sizes[d] for d in self.differing), i) for i, v in enumerate(self.variants)]
        inside = [
            (sizes, i) for i, ranges in self.cells for sizes in product(*(sorted({r.least, r.most}) for r in ranges))
        ]
        least = [r.least for r in self.program.dynamic]
        outside = [
            ((*least[:j], n, *least[j + 1 :]), None)
            for j, r in enumerate(self.program.dynamic)
            for n in (r.least - 1, r.most + 1)
        ]
        return [*inside, *outside]


def _lying_elsewhere(program: Program, other: Program) -> Iterator[str]:
    """The inputs whose elements lie elsewhere than those of another program's at the same sizes. The stride of an axis
    with one position does not matter."""
    sizes = program.sizes
    several = {d for d, n in program.dims if n > 1} | {r.dim for r in program.dynamic}
    for t, u in zip(program.inputs, other.inputs, strict=True):
        steps = zip(t.dims, t.steps(sizes), u.steps(sizes), strict=True)
        if any(a != b for d, a, b in steps if d in several):
            yield t.name


def _parts(r: Range, ends: Sequence[int]) -> list[Range]:
    """The parts of a range that end there."""
    return [Range(r.dim, a + 1, b) for a, b in zip([r.least - 1, *ends[:-1]], ends, strict=True)]


def _case(i: int, program: Program, differing: Sequence[str], timed: bool) -> str:
    from mirage_cli.verify.facts import independent_axis, longest_sum, where_outputs_lie

    cut, lies = independent_axis(program), where_outputs_lie(program)
    sizes = tuple(program.sizes[d] for d in differing)
    spreads = tuple(spread(t, program.sizes) for t in program.inputs)
    where = "None" if lies is None else tuple_text(f"Lies{x}" for x in lies)
    pieces = "None" if cut is None else f"Cut{cut}"
    return f"({i}, {sizes}, {spreads}, {timed}, {longest_sum(program)}, {pieces}, {where}),"


def _lines(cases: Sequence[str]) -> str:
    return "\n".join(["(", *(f"            {x}" for x in cases), "        )"])
