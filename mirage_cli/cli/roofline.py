"""`mirage roofline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.shared import Dims, Dtype, Json, Specs, TargetName, choose_target, command, out, print_text, read

if TYPE_CHECKING:
    from mirage_cli.cli.layout import Sheet
    from mirage_cli.ir.program import Program
    from mirage_cli.pipeline.parallel import Cost, Join, Split
    from mirage_cli.pipeline.roofline import Roofline
    from mirage_cli.target.gpus import Target

MOST_GPUS = 1024


@dataclass(frozen=True, slots=True)
class Parallel:
    """A program on several GPUs: the ways to cut it, the cheapest first, and why other axes cannot be cut."""

    gpus: int
    ways: Sequence[tuple[Split, Cost]]
    refused: dict[str, str]


@command(
    "mirage roofline gqa.yaml --target h100",
    "mirage roofline mlp.yaml --gpus 2,4,8          which axis to split, and what that takes",
    "mirage roofline gqa.yaml --svg > gqa.svg",
)
def roofline(
    specs: Specs,
    gpus: Annotated[
        str, typer.Option(help="also on so many GPUs of one host, by tensor parallelism", metavar="N,...")
    ] = "",
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    as_svg: Annotated[bool, typer.Option("--svg", help="as a picture")] = False,
    as_json: Json = False,
) -> None:
    """Say what the hardware allows a spec at best.

    A bound for each level: matrix units, memory, L2, launches. Nothing is run, and no GPU is needed.
    """
    from mirage_cli.pipeline.parallel import splits
    from mirage_cli.pipeline.roofline import bounds

    if as_svg and as_json:
        raise typer.BadParameter("--svg and --json are forms of the same: name one")
    counts = counts_of(gpus)
    chosen, _ = choose_target(target)
    programs = [p for p, _ in read(specs, dim, dtype)]
    found = [(p, bounds(p, chosen), [Parallel(n, *splits(p, n, chosen)) for n in counts]) for p in programs]
    if as_json:
        emit("roofline", [document(*x) for x in found], chosen)
    elif as_svg:
        print_text(picture(found, chosen))
    else:
        for program, b, parallel in found:
            for sheet in (levels_sheet(program, b, chosen), *(parallel_sheet(b, x) for x in parallel)):
                out.print(sheet)
                out.print()


def counts_of(text: str) -> list[int]:
    """`2,4,8` as numbers. Raises typer.BadParameter."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        if not part.strip().isdecimal() or not 2 <= int(part) <= MOST_GPUS:
            raise typer.BadParameter(f"--gpus takes numbers from 2 to {MOST_GPUS}, such as 2,4,8, not {part!r}")
        counts.append(int(part))
    return counts


def levels_sheet(program: Program, b: Roofline, target: Target) -> Sheet:
    from mirage_cli.cli.layout import Column, Sheet, figures
    from mirage_cli.cli.tables import sizes_text
    from mirage_cli.cli.units import bytes_text, flops_text, us_text

    amounts = {"FLOP": flops_text, "B": bytes_text, "kernels": lambda n: f"{n:.0f} kernel"}
    rates = {"FLOP": "TFLOP/s", "B": "TB/s", "kernels": "kernels a µs"}
    title = f"{program.name} {sizes_text(program.sizes)}, {program.dtype}, on {target.name}: at least {us_text(b.us)}, "
    title += f"bound by {b.limit.name}; {b.intensity:.3g} operations a byte"
    sheet = Sheet(title, (Column("level"), *figures("at least", "rate", "µs"), Column("")))
    for x in b.levels:
        rate = x.per_us if x.unit == "kernels" else x.per_us / 1e6
        sheet.add(
            x.name, amounts[x.unit](x.amount), f"{rate:.3g} {rates[x.unit]}", f"{x.us:.2f}", "bound" * (x is b.limit)
        )
    written = b.written_kernels * b.levels[-1].us
    sheet.add("launches as written", f"{b.written_kernels} kernels", "", f"{written:.2f}", "")
    return sheet


def parallel_sheet(one: Roofline, x: Parallel) -> Sheet:
    from mirage_cli.cli.layout import Column, Sheet, figures
    from mirage_cli.cli.units import bytes_text, flops_text

    title = f"{x.gpus} GPUs: split {', '.join(x.ways[0][0].axes)}" if x.ways else f"{x.gpus} GPUs: no axis can be split"
    names = figures("all-reduce", "its µs", "a GPU moves", "computes", "µs", "one GPU / this")
    sheet = Sheet(title, (Column("split"), *names, Column("joined, and what stays split", prose=True)))
    for split, cost in x.ways:
        joined = [f"{j.tensor} ({j.op})" for s in split.stages for j in s.joins]
        kept = f"each GPU keeps a part of {', '.join(split.kept)}" if split.kept else ""
        moved, flops = (sum(getattr(b, name) for b in cost.computed) for name in ("moved_bytes", "flops"))
        figures_of = bytes_text(split.joined_bytes), f"{cost.joined_us:.2f}", bytes_text(moved), flops_text(flops)
        speedup = f"{one.us / cost.us:.2f}"
        sheet.add(
            ", ".join(split.axes),
            *figures_of,
            f"{cost.us:.2f}",
            speedup,
            "; ".join(filter(None, [", ".join(joined), kept])),
        )
    for axis, why in x.refused.items():
        sheet.add(axis, *[""] * 6, f"not: {why}")
    return sheet


def document(program: Program, b: Roofline, parallel: Sequence[Parallel]) -> dict[str, object]:
    """An element of `results`: docs/json.md has its keys."""
    from dataclasses import asdict

    return {
        "spec": program.name,
        "dims": program.sizes,
        "dtype": program.dtype,
        "flops": b.flops,
        "bytes": b.moved_bytes,
        "intensity": b.intensity,
        "bound": b.limit.name,
        "bound_us": b.us,
        "levels": [{**asdict(x), "us": x.us} for x in b.levels],
        "written_kernels": b.written_kernels,
        "parallel": [
            {
                "gpus": x.gpus,
                "splits": [
                    {
                        "axes": list(split.axes),
                        "all_reduce_bytes": split.joined_bytes,
                        "all_reduce_us": cost.joined_us,
                        "bound_us": cost.us,
                        "kept": list(split.kept),
                        "stages": [
                            {"program": s.program and str(s.program), "joins": [join(j) for j in s.joins]}
                            for s in split.stages
                        ],
                    }
                    for split, cost in x.ways
                ],
                "refused": x.refused,
            }
            for x in parallel
        ],
    }


def join(j: Join) -> dict[str, object]:
    return {"tensor": j.tensor, "op": j.op, "dtype": j.travels_as, "moved_bytes": j.moved_bytes}


def picture(found: Sequence[tuple[Program, Roofline, Sequence[Parallel]]], target: Target) -> str:
    """The roofs with a circle for each program, at the time that no plan undercuts."""
    from mirage_cli.cli.charts import Point
    from mirage_cli.cli.charts import roofline as drawn
    from mirage_cli.cli.tables import sizes_text, telling_sizes
    from mirage_cli.cli.units import us_text

    several = len({p.name for p, _, _ in found}) > 1
    points: list[Point] = []
    for program, b, _ in found:
        name = f"{program.name} {sizes_text(program.sizes)}"
        sizes = telling_sizes(program.sizes, (p.sizes for p, _, _ in found if p.name == program.name))
        label = " ".join(filter(None, [program.name * (several or not sizes), sizes]))
        points.append(Point(label, b.intensity, b.flops / b.us, f"{name}: at least {us_text(b.us)}", bound=True))
    return drawn(target, found[0][0].dtype, points)
