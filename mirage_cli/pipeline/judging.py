"""What `mirage verify` does: a μGraph or a kernel from a file, judged against a spec's programs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from mirage_cli.errors import NotAKernelError, OtherInterfaceError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program, Tensor
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import KERNEL_INTERFACE
from mirage_cli.target.gpus import Target
from mirage_cli.verify.equivalence import check_equivalence

COMPILE_TIMEOUT_S = 120.0

Interface = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each tensor."""


def judge_file(programs: Sequence[Program], text: str, seed: int, target: Target | None = None) -> dict[str, object]:
    """The answer of `mirage verify`: a μGraph by the structural and finite-field nets, a kernel by the numeric one.

    Of the programs, which are one spec's at several sizes, the one that the file is made for counts. A kernel is also
    compiled for the target, where there is one. `claim` says what is known then, in few words. Raises MirageError.
    """
    if text.lstrip().startswith("mugraph "):
        graph = parse_mugraph(text)
        program = next((p for p in programs if graph.sizes | p.sizes == graph.sizes), programs[0])
        verdict = check_equivalence(lower(program), graph, seed)
        return {**asdict(verdict), "detail": str(verdict)}
    return judge_kernel(kernel_program(programs, text), text, seed, target)


def judge_kernel(program: Program, text: str, seed: int, target: Target | None) -> dict[str, object]:
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
    claim = f"compared in {net}: error {judged.error:.2e} against float64, eager's {judged.eager_error:.2e}"
    if judged.excused:
        claim += f"; {judged.excused} places overflow, as in eager PyTorch"
    return {**asdict(judged), "net": net, "claim": claim, "detail": claim}


def compile_problem(program: Program, text: str, target: Target) -> str | None:
    """Why a GPU cannot run the kernel, found without one; None where it can."""
    from mirage_cli.tune.compilefarm import CompileFarm
    from mirage_cli.tune.measure import Candidate, Failure, TensorSpec

    inputs, outputs = (
        tuple(TensorSpec(t.name, tuple(program.sizes[d] for d in t.dims), t.dtype) for t in side)
        for side in (program.inputs, program.results)
    )
    with CompileFarm(target.sm, 1) as farm:
        ((_, answer),) = farm.compile_all([Candidate("kernel", text, timeout_s=COMPILE_TIMEOUT_S)], inputs, outputs)
    if isinstance(answer, Failure):
        return f"does not compile for {target.name} ({target.arch}): {answer.message}"
    needed = max((k.shared_bytes for k in answer), default=0)
    if needed > target.smem_per_block_bytes:
        return f"needs {needed} bytes of shared memory, and {target.name} has {target.smem_per_block_bytes} for a block"
    return None


def kernel_program(programs: Sequence[Program], text: str) -> Program:
    """The program whose tensors the kernel takes, by what its file says of them; the first where it says nothing.

    The text is read, not run. Raises NotAKernelError, OtherInterfaceError.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotAKernelError(f"line {error.lineno}: neither a μGraph nor Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotAKernelError(f"neither a μGraph nor Python: {error}") from None
    functions = {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
    if missing := [f"`{name}`" for name in KERNEL_INTERFACE if name not in functions]:
        raise NotAKernelError(f"no kernel to judge: this Python file defines no {' and no '.join(missing)}")
    tables = {
        s.targets[0].id: s.value for s in tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    }
    made_for = tuple(_interface(tables.get(name)) for name in ("_INPUTS", "_OUTPUTS"))
    if None in made_for:
        return programs[0]
    for p in programs:
        if made_for == (_wanted(p, p.inputs), _wanted(p, p.results)):
            return p
    wanted = [_sides(_wanted(p, p.inputs), _wanted(p, p.results)) for p in programs]
    raise OtherInterfaceError(_sides(*(x or () for x in made_for)), wanted)


def _wanted(p: Program, tensors: Iterable[Tensor]) -> Interface:
    return tuple((tuple(p.sizes[d] for d in t.dims), t.dtype) for t in tensors)


def _interface(table: ast.expr | None) -> Interface | None:
    """The tensors that a table of an exported file names, as `export_source` writes it; None where it is none."""
    if not isinstance(table, ast.Tuple):
        return None
    found: list[tuple[tuple[int, ...], str]] = []
    for row in table.elts:
        match row:
            case ast.Tuple(elts=[*_, ast.Tuple(elts=sizes), ast.Attribute(attr=dtype)]):
                found.append((tuple(s.value for s in sizes if isinstance(s, ast.Constant)), dtype))  # type: ignore[misc]
            case _:
                return None
    return tuple(found)


def _sides(inputs: Interface, outputs: Interface) -> str:
    return " -> ".join(", ".join(f"{dtype}{list(shape)}" for shape, dtype in side) for side in (inputs, outputs))
