"""Generated modules as files: what one process leaves to the next."""

import inspect
from pathlib import Path

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.modules import function_at, load_module
from mirage_cli.tune.space import first_schedules

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "best").glob("*.mugraph"))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
def test_functions_end_where_python_says(file: Path, tmp_path: Path) -> None:
    graph = parse_mugraph(file.read_text(encoding="utf-8"))
    (schedule, *_) = first_schedules(graph, find_target("h200"), 1)
    module = load_module(kernels_source(graph, schedule), tmp_path)
    text = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines(keepends=True)
    functions = [x.fn for x in vars(module).values() if hasattr(x, "fn")]
    assert functions
    for f in functions:
        assert function_at(text, f.__code__.co_firstlineno) == inspect.getsourcelines(f)[0]
