"""Exported kernels: one file that imports only torch and triton, called as users call it, in Triton's interpreter."""

from __future__ import annotations

import ast
import builtins
import dis
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import ExportInfo, export_source, kernels_source, load_export
from mirage_cli.codegen.exported.carried import PLANS_WITH_MAPS, carried
from mirage_cli.codegen.exported.globals import without_global
from mirage_cli.codegen.helpers import HELPERS
from mirage_cli.codegen.library import makes_result
from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Builder, Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.tune.lanes import at_once
from mirage_cli.verify import facts
from mirage_cli.verify.numeric import judge
from mirage_cli.verify.pieces import as_tuple
from tests import forked
from tests.mugraphs import CASES, Case, Write, case

# A library kernel in front of a generated one, batch axes, an integer input, and a name that Python needs.
LIBRARY_FIRST = """
mugraph library_first float16
dims b=2 m=5 t=3 k=16 n=8
input X f16[m, b, t, k]
input W f16[b, k, n]
input lengths i32[b]
output Y f16[b, m, t, n]
output is f16[b, m, t]
buffer C f16[b, m, t, n]
kernel k0 library
  X = load X[m, b, t, k]
  W = load W[b, k, n]
  C[b, m, t, n] = dot(X, W; k)
  store C[b, m, t, n] = C
kernel k1 generated b:grid m:grid t:grid n:tile
  C = load C[b, m, t, n]
  L = load lengths[b]
  i[m] = index(m)
  c[b, m] = lt(i, L)
  Y[b, m, t, n] = where(c, C, 0)
  T[b, m, t] = max(Y; n)
  store Y[b, m, t, n] = Y
  store is[b, m, t] = T
"""


def library_first(w: Write) -> None:
    w.dot("C", "X", "W", over="k")
    w.lt("c", w.index("i", over="m"), "lengths")
    w.where("Y", "c", "C", 0)
    w.max("is", "Y", over="n")


ALL: dict[str, Case] = CASES | {"library_first": case(LIBRARY_FIRST, library_first)}

ODD = {"m": 5, "k": 19, "n": 33, "r": 3, "h": 2, "q": 7, "s": 37, "d": 16, "e": 9, "i": 6, "j": 6, "b": 2, "t": 3}


def schedule_of(graph: MuGraph, tile: int = 16, split: int = 3) -> Schedule:
    """Tiles of `tile` for every kernel, and of 1 for all grid dimensions but the last two."""
    kernels: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.kind == "generated":
            order = tuple(d for d, _ in k.roles)
            scalars = k.with_role("grid")[:-2]
            tiles = tuple((d, 1 if d in scalars else tile) for d in k.with_role("grid", "split", "loop"))
            kernels[k.name] = KernelSchedule(tiles, order, split=split if k.split else 1)
    return Schedule(kernels)


def reduced(c: Case) -> tuple[Program, MuGraph]:
    sizes = c.fitting({n: ODD.get(n, s) for n, s in c.program.dims})
    return c.program.resized(sizes), c.graph.resized(sizes)


def export(c: Case, **info: Any) -> tuple[Program, str]:
    program, graph = reduced(c)
    return program, export_source(program, graph, schedule_of(graph), ExportInfo(**info))


def eager_of(program: Program) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch}
    exec(torch_source(program.apart()), scope)
    return scope["reference"]


def inputs_of(program: Program) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    sizes = program.sizes
    return [
        torch.randint(0, 5, [sizes[d] for d in t.dims], generator=g, dtype=torch.int32)
        if t.dtype == "int32"
        else torch.randn([sizes[d] for d in t.dims], generator=g).to(getattr(torch, t.dtype))
        for t in program.inputs
    ]


def function(program: Program, source: str) -> Callable[..., Any]:
    return getattr(load_export(source), program.name)


def as_list(result: Any) -> list[torch.Tensor]:
    return list(as_tuple(result))


@pytest.mark.parametrize("name", ALL)
def test_an_exported_kernel_is_right_at_odd_sizes(name: str) -> None:
    program, source = export(ALL[name])
    f = function(program, source)
    named: dict[str, Any] = {"tolerance": 2, "overflow_like_eager": True, "at_once": at_once}
    verdict = judge(program, lambda xs: as_list(f(*xs)), eager_of(program), **named)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", ["library_first", "split_attention"])
def test_python_file_checks_itself(name: str, tmp_path: Path) -> None:
    _, source = export(ALL[name])
    path = tmp_path / "kernel.py"
    path.write_text(source, encoding="utf-8")
    done = run_file(path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passes") == 7


def test_python_file_says_that_it_is_wrong_or_has_no_gpu(tmp_path: Path) -> None:
    _, source = export(ALL["gram"])
    path = tmp_path / "kernel.py"
    path.write_text(source, encoding="utf-8")
    without_gpu = run_file(path, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert without_gpu.returncode == 1
    assert "set TRITON_INTERPRET=1" in without_gpu.stderr
    path.write_text(source.replace("    launch(inputs, outputs, make_scratch", "    print(make_scratch"))
    wrong = run_file(path, TRITON_INTERPRET="1")
    assert wrong.returncode == 1
    assert "nan at" in wrong.stdout


def run_file(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`python FILE` somewhere else, where this package cannot be imported."""
    return forked.ran((path.name,), path.parent, os.environ | env, forked.FILE)


def test_the_file_imports_nothing_else_and_says_what_it_is() -> None:
    _, source = export(
        ALL["split_attention"], command="mirage export x.yaml --triton", target="NVIDIA H200", measured=True,
        versions={"torch": "2.11"}, time_us=12.5, floor_us=10.0, eager_us=99.0, error=1e-4, eager_error=2e-4,
    )  # fmt: skip
    tree = ast.parse(source)
    imported = {a.name.split(".")[0] for x in ast.walk(tree) if isinstance(x, ast.Import) for a in x.names}
    imported |= {str(x.module).split(".")[0] for x in ast.walk(tree) if isinstance(x, ast.ImportFrom)}
    assert imported <= {*sys.stdlib_module_names, "torch", "triton"}
    header = ast.get_docstring(tree) or ""
    for text in (
        "NVIDIA H200", "torch 2.11", "measured  time 12.50 µs, eager 99.00 µs, floor 10.00 µs", "h=2 q=7 s=37",
        "this kernel 1.00e-04, eager 2.00e-04", "mirage export x.yaml --triton", "split=3",
    ):  # fmt: skip
        assert text in header
    assert "# kernel k0 generated h:grid q:grid e:tile d:tile s:split" in source


def test_a_name_with_quotes_and_backslashes_leaves_the_header_whole() -> None:
    _, source = export(ALL["gram"], command='mirage export C:\\new\\"""x.yaml')
    assert "C:\\new\\'''x.yaml" in (ast.get_docstring(ast.parse(source)) or "")


@pytest.fixture(scope="module")
def two_outputs() -> tuple[list[torch.Tensor], ModuleType]:
    program, source = export(ALL["library_first"])
    return inputs_of(program), load_export(source)


Loaded = tuple[list[torch.Tensor], ModuleType]


def test_calls_by_position_and_by_keyword(two_outputs: Loaded) -> None:
    (x, w, lengths), module = two_outputs
    y, t = module.library_first(x, w, lengths)
    y2, t2 = module.library_first(lengths=lengths, X=x, W=w)
    assert torch.equal(y, y2)
    assert torch.equal(t, t2)
    assert y.shape == (2, 5, 3, 33)
    assert y.dtype == t.dtype == torch.float16


def test_wrong_inputs_say_what_was_expected(two_outputs: Loaded) -> None:
    (x, w, lengths), module = two_outputs
    f = module.library_first
    with pytest.raises(TypeError, match="X should be a tensor, not list"):
        f([1], w, lengths)
    with pytest.raises(TypeError, match=r"W should have the dtype torch.float16, not torch.float32"):
        f(x, w.float(), lengths)
    with pytest.raises(TypeError, match=r"lengths should have the dtype torch.int32, not torch.int64"):
        f(x, w, lengths.long())
    with pytest.raises(ValueError, match=r"X should have the shape \(5, 2, 3, 19\), not \(2, 5, 3, 19\)"):
        f(x.transpose(0, 1), w, lengths)
    with pytest.raises(ValueError, match=r"W should be contiguous"):
        f(x, w.mT.contiguous().mT, lengths)
    with pytest.raises(ValueError, match=r"W should be on cpu like the first input, not on meta"):
        f(x, w.to("meta"), lengths)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'lengths'"):
        f(x, w)


def test_torch_compile_keeps_it_whole(two_outputs: Loaded) -> None:
    inputs, module = two_outputs
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def layer(x: torch.Tensor, w: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y, t = module.library_first(x * 1, w, lengths)
        return y + t[..., None]

    expected = layer(*inputs)
    assert torch.equal(torch.compile(layer, backend=backend, fullgraph=True)(*inputs), expected)
    calls = [n for g in graphs for n in g.graph.nodes if "mirage" in str(n.target)]
    assert len(graphs) == len(calls) == 1
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(*inputs), expected)


def test_the_operator_is_sound(two_outputs: Loaded) -> None:
    inputs, module = two_outputs
    names = (n for n in dir(torch.ops.mirage) if n.startswith("library_first"))
    name = next(n for n in names if not n.endswith("_out"))
    operator = getattr(torch.ops.mirage, name).default
    torch.library.opcheck(operator, tuple(inputs), test_utils=("test_schema", "test_faketensor"))
    assert torch.equal(operator(*inputs)[0], module.library_first(*inputs)[0])


def test_outputs_may_be_there_already(two_outputs: Loaded) -> None:
    (x, w, lengths), module = two_outputs
    f = module.library_first
    expected = f(x, w, lengths)
    out = tuple(torch.full_like(y, torch.nan) for y in expected)
    assert f(x, w, lengths, out=out) is out
    assert all(map(torch.equal, out, expected))
    y, t = (torch.empty_like(y) for y in expected)
    with pytest.raises(
        ValueError, match=r"contiguous torch.float16\[2, 5, 3, 33\] on cpu, not torch.float16\[2, 5, 3\]"
    ):
        f(x, w, lengths, out=(t, y))
    with pytest.raises(
        ValueError, match=r"not torch.float16\[2, 5, 3, 33\] on cpu with the strides \(33, 66, 330, 1\)"
    ):
        f(x, w, lengths, out=(torch.empty(3, 5, 2, 33).half().permute(2, 1, 0, 3), t))
    with pytest.raises(ValueError, match=r"not torch.float32\[2, 5, 3\]"):
        f(x, w, lengths, out=(y, t.float()))
    with pytest.raises(ValueError, match="share no memory with an input, or with other outputs"):
        f(x, w, lengths, out=(y, y.view(-1)[:30].view(2, 5, 3)))
    with pytest.raises(ValueError, match=r"X should have the shape"):
        f(x[1:], w, lengths, out=(y, t))
    with pytest.raises(TypeError, match="out should be a tuple of 2 tensors"):
        f(x, w, lengths, out=y)


def test_the_operator_that_writes_outputs_says_so(two_outputs: Loaded) -> None:
    inputs, module = two_outputs
    names = [n for n in dir(torch.ops.mirage) if n.startswith("library_first") and n.endswith("_out")]
    operator = getattr(torch.ops.mirage, names[-1]).default
    written = [a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments]
    assert written == [False, False, False, True, True]
    expected = module.library_first(*inputs)
    out = tuple(map(torch.empty_like, expected))
    torch.library.opcheck(operator, (*inputs, *out), test_utils=("test_schema", "test_faketensor"))

    def layer(x: torch.Tensor, w: torch.Tensor, lengths: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
        module.library_first(x, w, lengths, out=(y, t))
        return y * 2  # what stands behind the call sees what it wrote

    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        y, t = (torch.zeros_like(x) for x in expected)
        twice = torch.compile(layer, backend=backend, fullgraph=True)(*inputs, y, t)
        assert torch.equal(twice, expected[0] * 2) and torch.equal(y, expected[0]) and torch.equal(t, expected[1])


def test_a_file_loads_twice_and_two_files_do_not_clash() -> None:
    program, source = export(ALL["gram"])
    first, second = load_export(source), load_export(source)
    graph = ALL["gram"].graph
    other_program = ALL["gram"].program
    other = load_export(export_source(other_program, graph, schedule_of(graph)))
    inputs, other_inputs = inputs_of(program), inputs_of(other_program)
    for module in (first, second):
        assert torch.equal(torch.compile(module.gram, backend="eager")(*inputs), first.gram(*inputs))
    assert other.gram(*other_inputs).shape == (32, 32)
    assert first.gram(*inputs).shape == (6, 6)


def test_inputs_that_want_a_gradient_are_told_there_is_none() -> None:
    program, source = export(ALL["gram"])
    (x,) = inputs_of(program)
    y = function(program, source)(x.requires_grad_())
    with pytest.raises(RuntimeError):
        y.sum().backward()


def test_outputs_that_are_there_lose_no_gradient_in_silence() -> None:
    program, source = export(ALL["gram"])
    f, (x,) = function(program, source), inputs_of(program)
    out = f(x)
    for y in (x.clone().requires_grad_(), torch.nn.Parameter(x.clone())):
        with pytest.raises(NotImplementedError, match=r"under torch\.no_grad"):
            f(y, out=torch.empty_like(out))
        with torch.no_grad():
            assert torch.equal(f(y, out=torch.empty_like(out)), out)


def test_several_threads(two_outputs: Loaded) -> None:
    inputs, module = two_outputs
    expected = module.library_first(*inputs)[0]
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(module.library_first(*inputs)[0])) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4
    assert all(torch.equal(r, expected) for r in results)


def gram(name: str) -> tuple[Program, MuGraph]:
    graph = parse_mugraph(ALL["gram"].text.replace("mugraph gram", f"mugraph {name}")).resized(
        {"i": 6, "j": 6, "k": 19}
    )
    b = Builder(graph.inputs, [n for n, _ in graph.dims])
    b.emit("dot", "X", b.emit("rename", "X", axes=("i", "j")), axes="k", out="Y")
    return Program(name, graph.dims, graph.dtype, graph.inputs, tuple(b.eqns), graph.outputs), graph


BUILTINS = ["sum", "max", "print", "int", "range", "enumerate", "isinstance", "zip", "type", "float", "getattr"]
BUILTINS += ["hasattr", "property", "round", "list", "tuple", "super", "globals", "bool", "len"]
OWN = ["torch", "triton", "tl", "k0", "functools", "sys", "on_stream", "larger", "check", "annotations", "f_graph"]


@pytest.mark.parametrize("name", BUILTINS + OWN)
def test_a_spec_may_have_any_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own, or one that the file needs itself, or that is something within the self-check."""
    program, graph = gram(name)
    module = load_export(export_source(program, graph, schedule_of(graph)))
    f, (x,) = getattr(module, name), inputs_of(program)
    torch.testing.assert_close(f(X=x), x @ x.mT)
    assert f.__name__ == name and getattr(module, f"{name}_graph").__name__ == f"{name}_graph"
    assert module._check_this_file(), capsys.readouterr().out


def test_a_file_checks_itself_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one head of attention takes more memory than a GPU has. Its mask has the positions of each block."""
    monkeypatch.setattr(facts, "BLOCK_BYTES", 1 << 11)
    source = export(ALL["causal_attention"])[1]
    assert load_export(source)._check_this_file()
    shifted = source.replace("arange(start_q, start_q + ", "arange(0, ")
    assert source.count("(Block(") == 1 and shifted != source and not load_export(shifted)._check_this_file()


def test_torch_compile_finds_a_function_with_the_name_of_a_builtin() -> None:
    program, graph = gram("sum")
    module = load_export(export_source(program, graph, schedule_of(graph)))
    (x,) = inputs_of(program)
    compiled = torch.compile(lambda x: module.sum(x) + sum([1, 2]), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), module.sum(x) + 3)


ACCESSES = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL")


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those in it."""
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from codes(c)


def uses(code: CodeType, *names: str) -> Counter[str]:
    """How often code and what is in it loads or stores each of these names as one that is none of a function's own."""
    having = [c for c in codes(code) if not set(names).isdisjoint(c.co_names)]
    found = (i for c in having for i in dis.get_instructions(c))
    return Counter(i.argval for i in found if i.opname in ACCESSES and i.argval in names)


def test_every_global_of_a_file_leaves_its_name_to_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = export(ALL["library_first"])
    monkeypatch.setattr(ast, "parse", cache(ast.parse))  # of one text, for each of its names
    file = compile(source, "file", "exec")
    names = {name for c in codes(file) for name in c.co_names}
    used = uses(file, *names)
    hidden, count = Counter[str](), 0
    for name in used.keys() - {*dir(builtins)}:
        changed = without_global(source, name)
        if changed != source:
            renamed = compile(changed, "file", "exec")
            (new,) = {n for c in codes(renamed) for n in c.co_names} - names
            left = uses(renamed, name, new)
            assert left[new] == used[name] - left[name], name
            hidden[name], count = left[name], count + 1
    assert count > 60 and {"torch", "k0", "launch", "os", "Plan", "_start"} <= set(hidden)
    assert +hidden == Counter(larger=1, launch=1)  # a method and a field


def test_parameters_and_attributes_keep_a_name_that_a_global_leaves() -> None:
    before = "import torch\ndef f(torch): return torch\nclass C:\n    torch = 1\n    def g(self): return torch.nan\n"
    after = without_global(before, "torch")
    assert after == before.replace("import torch", "import torch as torch_").replace("torch.nan", "torch_.nan")
    assert without_global(before, "nan") == before


AWKWARD = [("torch", "torch_"), ("tl", "tl_"), ("plan", "plan_"), ("i_m_", "i_m"), ("max", "max_"), ("X_ptr", "X")]


@pytest.mark.parametrize(("x", "y"), AWKWARD)
def test_tensors_may_be_called_as_the_text_calls_others(x: str, y: str) -> None:
    text = f"""
mugraph twice float16
dims m=4 m_=6
input {x} f16[m, m_]
input {y} f16[m, m_]
output O f16[m, m_]
kernel k0 generated m:grid m_:tile
  {x} = load {x}[m, m_]
  {y} = load {y}[m, m_]
  t0[m, m_] = mul({x}, 2)
  O[m, m_] = add(t0, {y})
  store O[m, m_] = O
"""
    graph = parse_mugraph(text)
    b = Builder(graph.inputs, [n for n, _ in graph.dims])
    b.emit("add", b.emit("mul", x, 2), y, out="O")
    program = Program("twice", graph.dims, graph.dtype, graph.inputs, tuple(b.eqns), graph.outputs)
    f = function(program, export_source(program, graph, schedule_of(graph)))
    first, second = inputs_of(program)
    second = second + 1
    expected = eager_of(program)(first, second)
    assert torch.equal(expected, first * 2 + second)
    assert torch.equal(f(first, second), expected) and torch.equal(f(**{y: second, x: first}), expected)


def test_nothing_of_the_plans_hides_what_kernels_call() -> None:
    """They are names of one file; modules are the same for both."""
    functions = {x.name for x in ast.parse(carried(PLANS_WITH_MAPS).body).body if isinstance(x, ast.FunctionDef)}
    assert functions and not functions & HELPERS


def test_launch_runs_on_meta_tensors_as_the_tuner_calls_it() -> None:
    program, graph = reduced(ALL["matmul"])
    module = load_export(kernels_source(graph, schedule_of(graph)))
    x, w = inputs_of(program)
    y = torch.empty(5, 33, dtype=torch.float16)
    module.launch([x, w], [y], module.make_scratch("cpu"))
    assert torch.equal(y, x @ w)
    module.launch([x.to("meta"), w.to("meta")], [y.to("meta")], module.make_scratch("meta"))


def test_chunk_axes_have_the_size_of_the_split() -> None:
    graph = ALL["split_attention"].graph
    assert launch_sizes(graph, schedule_of(graph, split=5))["s_split"] == 5
    module = load_export(kernels_source(graph, schedule_of(graph, tile=4, split=5)))
    assert [tuple(x.shape) for x in module.make_scratch("meta")] == [(2, 256, 5), (2, 256, 5), (2, 256, 5, 64)]


# -- library kernels

LIBRARY = """
mugraph product {dtype}
dims b=2 c=3 m=4 t=5 k=6 l=7 n=8
input X {short}[{x}]
input W {short}[{w}]
output Y {out}[{y}]
kernel k0 library
  X = load X[{x}]
  W = load W[{w}]
  Y[{dims}] = dot(X, W; {axes})
  store Y[{y}] = Y
"""

PRODUCTS = [
    ("m k", "k n", "m n", "k", "torch.mm(X, W, out=Y)"),
    ("k m", "n k", "n m", "k", "torch.mm(X.mT, W.mT, out=Y.mT)"),
    ("m t k", "k n", "m t n", "k", "torch.mm(X.view(20, 6), W, out=Y.view(20, 8))"),
    ("b m k", "b k n", "b m n", "k", "torch.bmm(X, W, out=Y)"),
    ("m b k", "b n k", "m n b", "k", "torch.bmm("),
    ("b c m k", "b c k n", "b c m n", "k", "torch.bmm(X.view(6, 4, 6)"),
    ("m k l", "n k l", "m n", "k l", "torch.mm("),
    ("m k l", "n l k", "m n", "k l", "torch.einsum("),
    ("b m t k", "b n k", "b m n t", "k", "torch.einsum("),
    ("k", "k n", "n", "k", "torch.mm("),
    ("b k", "b k", "b", "k", "torch.bmm("),
    ("k", "k", "", "k", "torch.mm("),
    ("m k", "k n l", "m n", "k l", "torch.einsum("),
]


@pytest.mark.parametrize("out", ["f16", "f32"])
@pytest.mark.parametrize(("x", "w", "y", "axes", "call"), PRODUCTS)
def test_library_kernels(x: str, w: str, y: str, axes: str, call: str, out: str) -> None:
    places = {k: ", ".join(v.split()) for k, v in {"x": x, "w": w, "y": y, "axes": axes}.items()}
    dims = ", ".join(d for d in "bcmtkln" if d in y)
    text = LIBRARY.format(dtype="float16", short="f16", out=out, dims=dims, **places)
    graph = parse_mugraph(text)
    program = Program("product", graph.dims, "float16", graph.inputs, graph.kernels[0].body, graph.outputs)
    source = export_source(program, graph, Schedule({}))
    assert call in source or out == "f32"
    assert "triton.language" not in source
    f = function(program, source)
    verdict = judge(program, lambda xs: as_list(f(*xs)), eager_of(program), overflow_like_eager=True)
    assert verdict.ok, str(verdict)
    inputs = [torch.randn([program.sizes[d] for d in t.dims]).half() for t in program.inputs]
    if makes_result(graph, graph.kernels[0]):
        made = load_export(source).k0(*inputs)
        assert torch.equal(made, f(*inputs))
        assert made.is_contiguous()
    else:
        assert call != "torch.mm(X, W, out=Y)" or out == "f32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = f(*inputs)
    assert torch.equal(under, f(*inputs))


TOKENS = parse_mugraph("""
mugraph tokens float16
dims t=12 v=32 k=16
input T i64[t] below v
input E f16[v, k]
output O f16[t, k]
kernel k0 generated t:grid k:tile
  E = load E[T{v}[t], k]
  O[t, k] = mul(E, 2)
  store O[t, k] = O
""")


def test_tables_are_checked_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(TOKENS.inputs, TOKENS.sizes)
    b.emit("rename", "E", "T", axes=("v", "T{v}[t]"), out="R")
    b.emit("mul", "R", Fraction(2), out="O")
    program = Program("tokens", TOKENS.dims, "float16", TOKENS.inputs, tuple(b.eqns), TOKENS.outputs)
    tokens = load_export(
        export_source(program, TOKENS, Schedule({"k0": KernelSchedule((("t", 4),), ("t", "k"))}))
    ).tokens
    E = torch.randn(32, 16).half()
    T = torch.tensor([31, 0, 5] * 4)
    assert torch.equal(tokens(T, E), E[T] * 2)
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    assert torch.equal(tokens(T, E), E[T] * 2)
    T[3] = 32
    with pytest.raises(ValueError, match="T should be from 0 to 31, and holds 0 to 32"):
        tokens(T, E)
    T[3] = -1
    with pytest.raises(ValueError, match="T should be from 0 to 31, and holds -1 to 31"):
        tokens(T, E)
