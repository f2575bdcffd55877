"""Forms of a kernel for people to read, and to put into code of their own.

`bare_source` is the Triton functions and one launcher, nothing else. `layer_source` is a module class whose parameters
are some of a kernel's inputs, under their names.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.codegen.exported.globals import without_global
from mirage_cli.codegen.exported.public import interface
from mirage_cli.codegen.parts import Parts
from mirage_cli.codegen.writing import wrapped
from mirage_cli.errors import MirageError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule

LAUNCHER = "ƒ_launcher"
"""Stands for the launcher until the file's own globals have left its name to it."""


def bare_source(program: Program, graph: MuGraph, schedule: Schedule) -> str:
    """Module text with the kernels and a function of the spec's name that allocates and launches. It checks nothing."""
    parts = Parts(graph, schedule)
    imports = ["import functools", ""] if parts.overlap else []
    front = "\n".join([f'"""{program.name}: {interface(program)}"""', "", *imports, "import torch", *parts.imports()])
    body = "\n\n\n".join([front, *parts.functions(), launcher(parts)]) + "\n"
    return without_global(body, program.name).replace(LAUNCHER, program.name)


def launcher(parts: Parts) -> str:
    graph, names = parts.graph, parts.names
    given = [names[t.name] for t in graph.inputs]
    device = f"{given[0]}.device"
    lines = [f"def {LAUNCHER}({', '.join(given)}):", '    """Contiguous tensors on one GPU, on the current stream."""']
    launches = parts.launches()
    sizes = [x for x in launches if x.startswith("    SIZE_")]
    sizes += [f"    {names[t.name]} = {parts.made(t, device)}" for t in (*graph.outputs, *graph.buffers)]
    results = ", ".join(names[t.name] for t in graph.outputs)
    rest = [x for x in launches if not x.startswith("    SIZE_")]
    return "\n".join([*lines, *sizes, *rest, *([f"    return {results}"] if results else [])])


def layer_source(program: Program, weights: Sequence[str]) -> str:
    """The text of a module class that holds these inputs as parameters and is called with the others, for the end of an
    exported file. Raises MirageError."""
    inputs = {t.name: t for t in program.inputs}
    if unknown := [w for w in weights if w not in inputs or w in program.changed]:
        there = ", ".join(n for n in inputs if n not in program.changed)
        raise MirageError(f"{program.name} has no weight {', '.join(unknown)}; its inputs are {there}")
    if program.dynamic and any(r.dim in inputs[w].dims for r in program.dynamic for w in weights):
        raise MirageError(f"a weight of {program.name} has a size that differs by call")
    sizes = program.sizes
    name = "".join(word.capitalize() for word in program.name.split("_"))
    made = [
        f"        self.{w} = torch.nn.Parameter(torch.empty({[sizes[d] for d in inputs[w].dims]}, "
        f"dtype=torch.{inputs[w].dtype}, device=device), requires_grad=False)"
        for w in weights
    ]
    given = [n for n in inputs if n not in weights]
    called = [f"self.{n}" if n in weights else n for n in inputs]
    return "\n".join(
        [
            f"class {name}(torch.nn.Module):",
            f'    """{interface(program)}, where {", ".join(weights)} are parameters. Inference only."""',
            "",
            "    def __init__(self, device=None):",
            "        super().__init__()",
            *made,
            "",
            f"    def forward({', '.join(['self', *given])}):",
            wrapped(f"        return {program.name}(", called, ")"),
            "",
        ]
    )
