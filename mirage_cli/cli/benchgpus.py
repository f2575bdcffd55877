"""`mirage bench --gpus`: programs split over several GPUs, beside one GPU and the prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mirage_cli.cli.documents import envelope
from mirage_cli.cli.shared import err, out
from mirage_cli.errors import FewGpusError, MirageError
from mirage_cli.target.device import device_count
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    from mirage_cli.cli.layout import Sheet
    from mirage_cli.ir.program import Program
    from mirage_cli.pipeline.bench.benchmark import Document
    from mirage_cli.pipeline.session import Session


def check_gpus(gpus: int, gate: bool, here: bool) -> None:
    """gate: whether a page or a comparison with an earlier run is asked for too. here: not on a cluster. Raises
    typer.BadParameter, FewGpusError."""
    if not here:
        raise typer.BadParameter("--gpus is of this machine's GPUs, not of a cluster's")
    if gate:
        raise typer.BadParameter("--gpus has a table and --json, and no page and no gate")
    if (there := device_count()) < gpus:
        raise FewGpusError(gpus, there)


def bench_gpus(session: Session, programs: Sequence[tuple[Program, str]], gpus: int, json_file: Path | None) -> None:
    """Prints a row for each program. Exit code 1 where one is wrong, or has none."""
    from mirage_cli.cli.tables import sizes_text
    from mirage_cli.pipeline.bench.several import measured_split

    rows: list[Document] = []
    problems: list[str] = []
    for i, (program, text) in enumerate(programs, 1):
        session.progress.program(i, program.name)
        try:
            row = measured_split(session, program, text, gpus)
        except MirageError as error:
            problems.append(str(error))
            continue
        rows.append(row)
        problems += [f"{program.name} {sizes_text(program.sizes)} is wrong: {row['wrong']}"] if row["wrong"] else []
        if json_file:
            write_text(json_file, json.dumps(envelope("bench --gpus", rows, session.target), indent=1))
    if rows:
        out.print(table(rows))
    for problem in problems:
        err.print(f"error: {problem}", style="red")
    if problems:
        raise typer.Exit(1)


def table(rows: Sequence[Document]) -> Sheet:
    """Medians of cold calls in a chain, the slowest GPU's; the prediction is the cost model's."""
    from mirage_cli.cli.layout import Column, Sheet, figures
    from mirage_cli.cli.tables import sizes_text
    from mirage_cli.cli.units import bytes_text

    title = f"{rows[0]['gpus']} x {rows[0]['gpu']}, cold, calls follow each other, median µs ± interquartile range"
    split = figures("measured", "predicted", "predicted / measured", "all-reduce")
    one = figures("one GPU", "predicted", "one GPU / split", "error / eager's")
    sheet = Sheet(title, (Column("spec"), Column("dims"), Column("split"), *split, *one))
    for r in rows:
        measured, predicted = r["measured"], r["predicted"]
        sheet.add(
            r["spec"],
            sizes_text(r["dims"]),
            ", ".join(r["axes"]),
            f"{measured['us']:.2f} ± {measured['spread_us']:.2f}",
            f"{predicted['us']:.2f}",
            f"{predicted['us'] / measured['us']:.2f}",
            f"{bytes_text(r['all_reduce_bytes'])}, {measured['us'] - measured['computed_us']:.2f} µs",
            f"{measured['one_gpu_us']:.2f} ± {measured['one_gpu_spread_us']:.2f}",
            f"{predicted['one_gpu_us']:.2f}",
            f"{measured['one_gpu_us'] / measured['us']:.2f}",
            f"{r['error'] / r['eager_error']:.2f}" if r["eager_error"] else "-",
        )
    return sheet
