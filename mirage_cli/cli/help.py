"""`mirage help`: what a user looks up while working: the language, the reasons of a search, exit codes, JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from typer.core import TyperGroup

from mirage_cli.cli.shared import app, command, out
from mirage_cli.errors import UnknownTopicError

EXIT_CODES: Mapping[str, str] = {
    "0": "done",
    "1": "the input or the machine is at fault; the message says how, and what to do",
    "2": "wrong command line",
    "3": "ran well, and found nothing better than the baseline",
    "4": "bench --check: a kernel is slower than in the earlier file, wrong, failed or missing",
    "130": "interrupted by Ctrl-C, SIGTERM or SIGHUP; what was found is kept, and printed",
}
ENVELOPE: Mapping[str, str] = {
    "schema": "1; counts up where something goes or changes, and stays where something is added",
    "command": "which command made it, such as `search` or `cache list`",
    "mirage": "the version of mirage",
    "versions": "of mirage, torch and triton; empty where one is not installed",
    "gpu": "this machine's GPU by name, or null",
    "driver": "the version of its driver, or null",
    "target": "the GPU that the results are for, with all its figures, or null",
    "results": "a list; its elements are those of the command",
}
"""The keys of every document of `--json`, in their order."""


def language(name: str | None) -> None:
    """The functions and operators of specs, or one of them."""
    from mirage_cli.cli.layout import Column, Sheet
    from mirage_cli.spec import forms
    from mirage_cli.spec.idioms import IDIOMS
    from mirage_cli.spec.vocabulary import FUNCTIONS, closest

    def sheet(title: str, found: list[forms.Form]) -> Sheet:
        made = Sheet(title, (Column("form"), Column("meaning", prose=True)))
        for f in found:
            made.add(f.text, f.meaning)
        return made

    if name is None:
        for title, names in forms.functions().items():
            out.print(sheet(title, [forms.form(n) for n in names]))
            out.print()
        out.print(sheet("Operators", forms.operators()))
        out.print()
        _rows("Reading and writing by indices", "form", forms.INDICES, None)
        return
    if name in IDIOMS and name not in FUNCTIONS:
        out.print(f"{name} is no function of specs: {IDIOMS[name]}")
        return
    if name not in FUNCTIONS:
        raise UnknownTopicError("function", name, closest(name, FUNCTIONS), FUNCTIONS)
    found = forms.form(name)
    out.print(f"{found.text}\n  {found.meaning}\n  result   {found.type}\n  PyTorch  {found.torch}")


def cuts(reason: str | None) -> None:
    """The reasons for which a search leaves something out, as `mirage explain` counts them."""
    from mirage_cli.search.cuts import CUTS

    _rows("", "reason", CUTS, reason)


def exit_codes(code: str | None) -> None:
    """What the exit codes mean."""
    _rows("", "exit code", EXIT_CODES, code)


def envelope(key: str | None) -> None:
    """The envelope of every JSON document."""
    _rows("", "key", ENVELOPE, key)


def _rows(title: str, what: str, rows: Mapping[str, str], name: str | None) -> None:
    from mirage_cli.cli.layout import Column, Sheet
    from mirage_cli.spec.vocabulary import closest

    if name is not None and name not in rows:
        raise UnknownTopicError(what, name, closest(name, rows), rows)
    sheet = Sheet(title, (Column(what), Column("meaning", prose=True)))
    for row in rows if name is None else [name]:
        sheet.add(row, rows[row])
    out.print(sheet)


TOPICS: Mapping[str, Callable[[str | None], None]] = {
    "lang": language,
    "cuts": cuts,
    "exit-codes": exit_codes,
    "json": envelope,
}


@command(
    "mirage help lang                all functions and operators of specs",
    "mirage help lang softmax",
    "mirage help cuts                the reasons that `mirage explain` counts",
    name="help",
)
def show_help(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help=f"{', '.join(TOPICS)}, or a command", metavar="TOPIC")] = None,
    name: Annotated[str | None, typer.Argument(help="one row of it", metavar="NAME")] = None,
) -> None:
    """Explain the spec language, cut reasons, exit codes, JSON."""
    from mirage_cli.spec.vocabulary import closest

    root = context.find_root()
    if topic is None:
        sys.stdout.write(root.get_help() + "\n\nTopics of `mirage help`:\n")
        for known, tell in TOPICS.items():
            sys.stdout.write(f"  {known:<11} {(tell.__doc__ or '').rstrip('.')}\n")
    elif topic in TOPICS:
        TOPICS[topic](name)
    elif isinstance(root.command, TyperGroup) and topic not in root.command.commands:
        known = [*TOPICS, *root.command.commands]
        raise typer.BadParameter(str(UnknownTopicError("topic or command", topic, closest(topic, known), known)))
    else:
        app(args=[topic, *([name] if name else []), "--help"], prog_name="mirage", standalone_mode=False)
