"""What `mirage verify` does: a μGraph or a kernel from a file, judged against a spec's programs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from mirage_cli.errors import NotAKernelError, OtherInterfaceError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program, Tensor, mixed
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.problem import specs_of
from mirage_cli.spec.reader import KERNEL_INTERFACE
from mirage_cli.target.gpus import Target
from mirage_cli.verify.equivalence import check_equivalence

COMPILE_TIMEOUT_S = 120.0

Numbers = tuple[int | None, ...]
"""None for one that differs by call."""


class Held(NamedTuple):
    """What a tensor is in memory. strides: () where it is contiguous."""

    shape: Numbers
    dtype: str
    strides: Numbers

    def holds(self, other: Held) -> bool:
        """Whether the other is such a tensor: a number that differs by call is any."""
        pairs = ((self.shape, other.shape), (self.strides, other.strides))
        if self.dtype != other.dtype or any(len(x) != len(y) for x, y in pairs):
            return False
        return all(a is None or a == b for x, y in pairs for a, b in zip(x, y, strict=True))

    def __str__(self) -> str:
        shape, strides = (", ".join("any" if n is None else str(n) for n in x) for x in (self.shape, self.strides))
        return f"{self.dtype}[{shape}]" + f" with the strides ({strides})" * bool(strides)


Interface = tuple[Held, ...]
INTERFACES = (("_inputs", "_INPUTS"), ("_outputs", "_OUTPUTS"))
"""Where exported files have them: functions of the sizes that differ by call, or tables."""
SOON = 100
"""The largest dynamic size at which a kernel is judged in the interpreter."""


def judge_file(programs: Sequence[Program], text: str, seed: int, target: Target | None) -> dict[str, object]:
    """The answer of `mirage verify`: a μGraph by the structural and finite-field nets, a kernel by the numeric one.

    Of the programs, which are one spec's at several sizes, those that the file is made for count. A kernel is also
    compiled for the target, where there is one. `claim` says what is known then, in few words. Raises MirageError.
    """
    if text.lstrip().startswith("mugraph "):
        graph = parse_mugraph(text)
        program = next((p for p in programs if graph.sizes | p.sizes == graph.sizes), programs[0])
        verdict = check_equivalence(lower(program), graph, seed)
        return {**asdict(verdict), "detail": str(verdict)}
    judged = [judge_source(p, text, seed, target) for p in kernel_programs(programs, text)]
    refused = next((x for x in judged if not x["ok"]), None)
    return refused or judged[0]


def judge_source(program: Program, text: str, seed: int, target: Target | None) -> dict[str, object]:
    """By the standard of `mirage search`, and of an exported file's own check: what overflows where eager PyTorch does
    passes, and is said."""
    from mirage_cli.tune.interpreted import Interpreter

    problem = compile_problem(program, text, target) if target is not None else None
    if problem is not None:
        return {
            "ok": False,
            "net": "compilation",
            "claim": "refused by compilation",
            "problem": problem,
            "detail": problem,
        }
    with Interpreter() as interpreter:
        judged = interpreter.judge(program, text, seed, overflow_like_eager=True)
    net = "floating point, in the interpreter"
    if not judged.ok:
        return {**asdict(judged), "net": net, "claim": f"refused by {net}", "detail": judged.problem}
    claim = f"compared in {net}: {judged.error_text}"
    if judged.excused:
        claim += f"; {judged.excused} places overflow, as in eager PyTorch"
    return {**asdict(judged), "net": net, "claim": claim, "detail": claim}


def compile_problem(program: Program, text: str, target: Target) -> str | None:
    """Why a GPU cannot run the kernel, found without one; None where it can."""
    from mirage_cli.tune.compilefarm import CompileFarm
    from mirage_cli.tune.measure import Candidate, Failure

    with CompileFarm(target.sm, 1) as farm:
        kernel = Candidate("kernel", text, timeout_s=COMPILE_TIMEOUT_S)
        ((_, answer),) = farm.compile_all([kernel], *specs_of(program))
    if isinstance(answer, Failure):
        return f"does not compile for {target.name} ({target.arch}): {answer.message}"
    needed = max((k.shared_bytes for k in answer), default=0)
    if needed > target.smem_per_block_bytes:
        return f"needs {needed} bytes of shared memory, and {target.name} has {target.smem_per_block_bytes} for a block"
    return None


def kernel_programs(programs: Sequence[Program], text: str) -> list[Program]:
    """The programs whose tensors the kernel takes, by what its file says of them; the first where it says nothing. Of a
    dynamic axis, also at the least size and around those that it is tuned for, as far as they take no minutes.

    The text is read, not run. Raises NotAKernelError, OtherInterfaceError.
    """
    functions, tables = _definitions(text)
    sides = tuple(_interface(functions.get(name) or tables.get(table)) for name, table in INTERFACES)
    if None in sides:
        return [programs[0]]
    made_for = tuple(x or () for x in sides)
    found = [p for p in programs if all(map(_fits, made_for, (_wanted(p, p.inputs), _wanted(p, p.results))))]
    if exact := tables.get("_EXACT"):
        sizes = set(ast.literal_eval(exact))
        names = ast.literal_eval(tables["_SIZE_NAMES"])
        found = [p for p in found if tuple(p.sizes[d] for d in names) in sizes]
    if not found:
        wanted = [_sides(_wanted(p, p.inputs), _wanted(p, p.results)) for p in programs]
        raise OtherInterfaceError(_sides(*made_for), wanted)
    if "_which" not in functions:
        return found[:1]
    return found if not found[0].dynamic else _at_several_sizes(found)


def defines(program: Program, text: str) -> bool:
    """Whether a file is an exported kernel of this program: by its public function, and the tensors that it names. The
    text is read, not run."""
    try:
        if program.name not in _definitions(text)[0]:
            return False
        return bool(kernel_programs([program], text))
    except (NotAKernelError, OtherInterfaceError):
        return False


def _at_several_sizes(programs: Sequence[Program]) -> list[Program]:
    """Programs with dynamic axes, at sizes that the interpreter takes seconds for, and one of them at least."""
    some: dict[str, list[int]] = {}
    for r in programs[0].dynamic:
        near = {n for p in programs for n in (p.sizes[r.dim] - 1, p.sizes[r.dim], p.sizes[r.dim] + 1)}
        some[r.dim] = sorted({r.least, *(n for n in near if r.least <= n <= min(r.most, SOON))})
    return [programs[0].resized(sizes) for sizes in mixed(some)]


def _definitions(text: str) -> tuple[dict[str, ast.FunctionDef], dict[str, ast.expr]]:
    """The functions of a kernel's file, and what it assigns. Raises NotAKernelError."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotAKernelError(f"line {error.lineno or 1}: neither a μGraph nor Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotAKernelError(f"neither a μGraph nor Python: {error}") from None
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    if missing := [f"`{name}`" for name in KERNEL_INTERFACE if name not in functions]:
        raise NotAKernelError(f"no kernel to judge: this Python file defines no {' and no '.join(missing)}")
    tables = {
        s.targets[0].id: s.value for s in tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    }
    return functions, tables


def _wanted(p: Program, tensors: Iterable[Tensor]) -> Interface:
    return tuple(
        Held(tuple(p.sizes[d] for d in t.dims), t.dtype, t.steps(p.sizes) if t.strides else ()) for t in tensors
    )


def _fits(made_for: Interface, wanted: Interface) -> bool:
    """Whether these are the tensors that a file names."""
    return len(made_for) == len(wanted) and all(x.holds(y) for x, y in zip(made_for, wanted, strict=True))


def _interface(table: ast.expr | ast.FunctionDef | None) -> Interface | None:
    """The tensors that a table of an exported file names, as `export_source` writes it, or a function that returns one;
    None where it is none."""
    if isinstance(table, ast.FunctionDef):
        table = next((s.value for s in table.body if isinstance(s, ast.Return)), None)
    if not isinstance(table, ast.Tuple):
        return None
    found: list[Held] = []
    for row in table.elts:
        match row:
            case ast.Tuple(
                elts=[ast.Constant(), ast.Tuple(elts=steps), ast.Tuple(elts=sizes), ast.Attribute(attr=dtype)]
            ):
                found.append(Held(_numbers(sizes), dtype, _numbers(steps)))
            case ast.Tuple(elts=[*_, ast.Tuple(elts=sizes), ast.Attribute(attr=dtype)]):
                found.append(Held(_numbers(sizes), dtype, ()))
            case _:
                return None
    return tuple(found)


def _numbers(elements: Sequence[ast.expr]) -> Numbers:
    """None for what is no number, but a size that differs by call."""
    return tuple(x.value if isinstance(x, ast.Constant) and isinstance(x.value, int) else None for x in elements)


def _sides(inputs: Interface, outputs: Interface) -> str:
    return " -> ".join(", ".join(map(str, side)) or "nothing" for side in (inputs, outputs))
