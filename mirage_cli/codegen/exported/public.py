"""The public part of an exported file: its functions, its torch operators, and how all blocks of text are joined.

A file for one size (`codegen.export`) and one for several (`codegen.sized`) differ in templates; what both say of the
program is here.
"""

from __future__ import annotations

import builtins
import hashlib
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.exported.carried import PLANS, PLANS_WITH_MAPS, carried
from mirage_cli.codegen.exported.globals import without_global
from mirage_cli.codegen.exported.text import (
    ALLOCATORS,
    APART,
    BUILTIN,
    CALL_CHANGES,
    CAPTURE,
    CAPTURED_APART,
    CHECKED_APART,
    CHECKED_TABLES,
    COMPILE,
    COMPILE_BESIDE_STATE,
    INTO,
    TABLES,
    TRAINED,
    WRITE,
)
from mirage_cli.codegen.parts import Parts
from mirage_cli.codegen.writing import WIDTH, filled, tuple_text, wrapped
from mirage_cli.ir.inplace import reread
from mirage_cli.ir.program import Program, below
from mirage_cli.ir.text import print_mugraph

THE_FUNCTION, THE_GRAPH = "ƒ", "ƒ_graph"
"""Stand for the public functions until the file's own globals have left their names to them. No tensor is called so."""


@dataclass(frozen=True, slots=True)
class Templates:
    """The texts of a file with @places@: the public functions, the launches by a plan, and the self-check."""

    public: str
    planned: str
    self_check: str


def file_text(
    program: Program,
    header: str,
    parts: Sequence[Parts],
    blocks: Iterable[str],
    templates: Templates,
    values: Mapping[str, str],
) -> str:
    """The whole file. parts: of each size; their μGraphs are printed as comments. blocks: what stands in front of the
    public functions. values: for the places of the templates.
    """
    maps = any(p.descriptors for p in parts)
    plans = carried(PLANS_WITH_MAPS if maps else PLANS, also=("os", "sys", "threading"))
    imports = dict.fromkeys(line for p in parts for line in p.imports()) or ["import triton"]
    imported = "\n".join([plans.standard, "", "import torch", *imports])
    comments = ("\n".join(f"# {x}".rstrip() for x in print_mugraph(p.graph).splitlines()) for p in parts)
    name = program.name
    blocks = ["\n\n".join(["from __future__ import annotations", imported, *comments]), *blocks]
    blocks.append(filled(templates.public, values))
    blocks += [filled(WRITE, values)] * bool(program.results)
    blocks += [filled(APART, values)] * bool(program.changed)
    blocks += [filled(BUILTIN, values)] * hasattr(builtins, name)
    blocks.append(plans.body)
    blocks += [filled(text, values) for text in (ALLOCATORS, templates.planned, templates.self_check)]
    body = "\n\n\n".join(blocks) + "\n"
    for public, placeholder in ((f"{name}_graph", THE_GRAPH), (name, THE_FUNCTION)):
        body = without_global(body, public).replace(placeholder, public)
    return "\n\n".join([header, body])


def public_values(
    program: Program, parameters: Sequence[str], digested: Iterable[str], tables: str, there: str, sizes_of_inputs: str
) -> dict[str, str]:
    """What the templates say of the program and its operators.

    digested: the texts by which files of one name differ. there: the outputs' strides, shapes and dtypes.
    sizes_of_inputs: what `_by_triton` takes in front of the inputs.
    """
    name, results = program.name, len(program.results)
    digest = hashlib.sha256("\n".join([name, *map(str, program.inputs), *digested]).encode()).hexdigest()[:12]
    operator = f"{name}_{digest}"
    changed = [i for i, t in enumerate(program.inputs) if t.name in program.changed]
    return {
        "name": name,
        "function": f"_{name}" if hasattr(builtins, name) else THE_FUNCTION,
        "graph": THE_GRAPH,
        "capture": capture_text(program),
        "operator": operator,
        "call": tuple_text(parameters),
        "doc": interface(program),
        "register": _registered(program, operator, "_run_checked", out=False),
        "parameters": ", ".join(parameters),
        "signature": ", ".join([*parameters, *["*", "out=None"] * bool(results)]),
        "into": INTO.replace("@call@", tuple_text(parameters)) * bool(results),
        "count": str(len(program.inputs)),
        "there": there,
        "results": str(results),
        "out": "a tensor" if results == 1 else f"a tuple of {results} tensors",
        "sizes_of_inputs": sizes_of_inputs,
        "register_out": _registered(program, f"{operator}_out", "_write", out=True),
        "trained": TRAINED * bool(program.changed),
        "apart": CHECKED_APART * bool(program.changed),
        "changed": changed_text(program),
        "changes": "".join(f"{' ' * 16}_changes({parameters[i]})\n" for i in changed),
        "call_changes": CALL_CHANGES * bool(changed),
        "changed_places": tuple_text(map(str, changed)),
        "tables": CHECKED_TABLES * bool(tables),
        "result": ("None", "outputs[0]", "tuple(outputs)")[min(results, 2)],
    }


def _registered(program: Program, operator: str, function: str, out: bool) -> str:
    """The call that registers a torch operator. out: whether it writes outputs that it is given."""
    changed = [f'"x{i}"' for i, t in enumerate(program.inputs) if t.name in program.changed]
    changed += [f'"y{i}"' for i in range(len(program.results) * out)]
    given = [f'"mirage::{operator}"', function, f"mutates_args={tuple_text(changed) if changed else '()'}"]
    given.append(f'schema="{schema(program, out)}"')
    return wrapped("    _operator = torch.library.custom_op(", given, ")")


def schema(program: Program, out: bool = False) -> str:
    """The types of a torch operator. out: whether it writes outputs that it is given."""
    types = (f"Tensor(a{i}!)" if t.name in program.changed else "Tensor" for i, t in enumerate(program.inputs))
    arguments = [f"{t} x{i}" for i, t in enumerate(types)]
    n = len(program.results)
    if out:
        return f"({', '.join([*arguments, *(f'Tensor(b{i}!) y{i}' for i in range(n))])}) -> ()"
    return f"({', '.join(arguments)}) -> " + ("Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})")


def capture_text(program: Program) -> str:
    """What makes a CUDA graph of a call."""
    read = reread(program)
    state = {p.tensor.name for p in program.parts if p.value in read}
    inputs = [f"inputs[{i}]" for i, t in enumerate(program.inputs) if t.name in state]
    compiles = COMPILE_BESIDE_STATE.replace("@state@", tuple_text(inputs)) if inputs else COMPILE
    apart = CAPTURED_APART * bool(program.changed)
    return CAPTURE.strip("\n").replace("@compile@", compiles).replace("@captured_apart@", apart)


def tables_text(program: Program, sizes: Mapping[str, int | str], names: str = "", given: str = "") -> str:
    """The checks that stand in front of the public functions where integers are declared to be less than a number.

    sizes: numbers, or the names of what holds them. names: those that differ by call, and given: where they are from.
    """
    limits = ((i, t, below(t, sizes)) for i, t in enumerate(program.inputs))
    entries = [f'({i}, "{t.name}", {-t.padded}, {n}, {t.distinct})' for i, t, n in limits if n is not None]
    values = {"entries": tuple_text(entries), "size_names": names, "table_sizes": given}
    return filled(TABLES, values) if entries else ""


def docstring(program: Program, rows: Sequence[tuple[str, str]]) -> str:
    """The file's docstring: the interface, and rows of a label and a text."""
    lines = [f"{program.name}: {interface(program)}", ""]
    for label, value in rows:
        if value:
            lines += textwrap.wrap(
                value, WIDTH, initial_indent=f"{label:<10}", subsequent_indent=" " * 10, break_on_hyphens=False
            )
    about = (
        f"Inference only: it has no gradient. `{program.name}_graph` makes a CUDA graph of a call. "
        "`python FILE` checks it against float64 and, on a GPU, times it."
    )
    lines += ["", *textwrap.wrap(about, WIDTH)]
    plain = "".join(
        c if c == "\n" or unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in "\n".join(lines)
    )
    text = plain.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'


def interface(program: Program) -> str:
    """Inputs -> outputs, as text."""
    inputs, outputs = (", ".join(str(t) for t in group) for group in (program.inputs, program.results))
    changed = changed_text(program)
    return f"{inputs} -> {outputs or 'nothing'}" + (f"; changes {changed}" if changed else "")


def changed_text(program: Program) -> str:
    """The inputs that change in place."""
    return ", ".join(t.name for t in program.inputs if t.name in program.changed)
