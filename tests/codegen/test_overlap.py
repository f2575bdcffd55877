"""When a kernel is started before the one in front has ended."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.codegen.exported import direct, overlap
from mirage_cli.codegen.exported.direct import Step, captured
from mirage_cli.codegen.exported.overlap import KernelNode, releasing_kernels, starts_early
from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.tune.launches import Launches
from mirage_cli.tune.normal import normalised
from tools.launch_overhead import c_launcher, chain, inputs_of, schedule_of

OURS, OTHERS = 0x7000_0000_1000, 0x7000_0000_2000  # handles of kernels
MEMSET = 2


class StubLibrary:
    """A driver with a capture, whose last nodes are these: (type, handle of the kernel)."""

    def __init__(self, nodes: Sequence[tuple[int, int]], status: int = overlap.CAPTURING, error: int = 0) -> None:
        self.nodes, self.status, self.error = nodes, status, error
        self.array = (ctypes.c_void_p * 4)(*range(1, len(nodes) + 1))  # a node's handle is its number

    def cuStreamGetCaptureInfo_v3(self, _stream: Any, status: Any, *others: Any) -> int:  # noqa: N802
        _, _, nodes, _, count = others
        status._obj.value = self.status
        count._obj.value = len(self.nodes)
        ctypes.memmove(nodes, ctypes.byref(ctypes.c_void_p(ctypes.addressof(self.array))), 8)
        return self.error

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
        kind._obj.value = self.nodes[node.value - 1][0]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, parameters: Any) -> int:  # noqa: N802
        parameters._obj.function = self.nodes[node.value - 1][1]
        return 0


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which one kernel is known to release early."""
    monkeypatch.setitem(overlap.sys.modules, overlap.SHARED, SimpleNamespace(releasing={OURS}))


def in_front(monkeypatch: pytest.MonkeyPatch, *nodes: tuple[int, int], **given: int) -> None:
    monkeypatch.setattr(overlap, "driver_library", lambda: StubLibrary(nodes, **given))


def test_the_structure_is_the_drivers() -> None:
    assert (ctypes.sizeof(KernelNode), KernelNode.function.offset, KernelNode.pointers.offset) == (72, 0, 40)


@pytest.mark.parametrize(
    ("nodes", "early"),
    [
        ([(overlap.KERNEL_NODE, OURS)], True),
        ([(overlap.KERNEL_NODE, OTHERS)], False),
        ([(MEMSET, OURS)], False),
        ([], False),  # the first of a graph
        ([(overlap.KERNEL_NODE, OURS)] * 2, False),  # behind two streams
    ],
)
@pytest.mark.usefixtures("ours")
def test_in_a_capture_the_kernel_in_front_decides(
    nodes: list[tuple[int, int]], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_front(monkeypatch, *nodes)
    assert starts_early(7) == early


@pytest.mark.usefixtures("ours")
def test_outside_of_a_capture_kernels_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    in_front(monkeypatch, status=0)
    assert starts_early(7)
    in_front(monkeypatch, error=1)
    assert starts_early(7)
    monkeypatch.setattr(overlap, "driver_library", lambda: None)
    assert starts_early(7)


def started(monkeypatch: pytest.MonkeyPatch, step: Step, behind: int) -> Any:
    """What C is told of the start in a capture behind this kernel."""
    in_front(monkeypatch, (overlap.KERNEL_NODE, behind))
    told: list[Any] = []
    step.run.launch = lambda *args: told.append(args)
    captured(step, 7)(64)
    ((*_, function, _cooperative, early), *_) = [args[:7] for args in told]
    assert function == step.function
    return early


@pytest.mark.usefixtures("ours")
def test_a_planned_launch_overlaps_what_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(c_launcher(print), 3, 5, None, None, True)
    assert [started(monkeypatch, step, x) for x in (OURS, OTHERS, OURS)] == [True, False, True]


@pytest.mark.usefixtures("ours")
def test_plans_know_each_others_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct.triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(get_current_stream=id)))
    kernels = [SimpleNamespace(function=8, launch_pdl=True), SimpleNamespace(function=9, launch_pdl=False)]
    direct.Plan(0, [Step(run, 1, run.function, None, None) for run in kernels], {})
    assert releasing_kernels() == {OURS, 8}


def test_only_a_kernel_behind_others_is_patient() -> None:
    """A schedule that asks it of both: the second kernel is always behind the first, which releases it."""
    program, graph = chain(2)
    asked = schedule_of(graph, overlap=True, patient=True)
    schedule = normalised(graph, asked)
    assert [k.patient for k in schedule.kernels.values()] == [True, False]
    assert KernelSchedule.parse(str(asked.kernels["k0"])) == asked.kernels["k0"]
    text = export_source(program, graph, schedule)
    assert "k0 = RecordedKernel(k0, patient=True)\nk1 = RecordedKernel(k1)\n" in text
    assert 'PATIENT = ("k0",)' in text
    assert 'PATIENT = ("k0",)' in kernels_source(graph, schedule)
    hasty = schedule_of(graph, overlap=True)
    assert "is_capturing() and" in text
    assert "is_capturing() and" not in export_source(program, graph, hasty)
    idle = normalised(graph, schedule_of(graph, patient=True))
    assert not any(k.patient for k in idle.kernels.values())
    _, behind_a_library = chain(2, library=True)
    only = normalised(behind_a_library, schedule_of(behind_a_library, overlap=True, patient=True))
    assert [k.patient for k in only.kernels.values()] == [True]


PATIENT = ("first",)


def first() -> None:
    """A kernel that is to be patient."""


@pytest.mark.usefixtures("ours")
def test_the_tuner_launches_as_exported_files_do(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bool, int]] = []

    class Run:
        def __init__(self, _source: Any, metadata: bool) -> None:
            self.launch_pdl = metadata

        def __call__(self, *args: int) -> None:
            told.append((self.launch_pdl, args[4]))

    driver = SimpleNamespace(launcher_cls=Run)
    launches = Launches(driver)
    launches.install()
    run, plain, hasty = (
        driver.launcher_cls(SimpleNamespace(fn=SimpleNamespace(fn=fn)), pdl)
        for fn, pdl in [(first, True), (first, False), (started, True)]
    )
    for x in (run, plain, hasty):
        in_front(monkeypatch, (overlap.KERNEL_NODE, OTHERS))
        x(1, 1, 1, 7, 11)
        with launches.early():
            x(1, 1, 1, 7, 12)
        in_front(monkeypatch, (overlap.KERNEL_NODE, OURS))
        x(1, 1, 1, 7, 13)
    assert told == [
        (False, 11),
        (True, 12),
        (True, 13),
        (False, 11),
        (False, 12),
        (False, 13),
        (True, 11),
        (True, 12),
        (True, 13),
    ]
    assert releasing_kernels() == {OURS, 11, 12, 13}
    with launches.as_triton():
        assert driver.launcher_cls is Run
    assert driver.launcher_cls is launches


# On a GPU


def noting(answers: list[bool], ask: Callable[[int], bool]) -> Callable[[int], bool]:
    def asked(stream: int) -> bool:
        answers.append(ask(stream))
        return answers[-1]

    return asked


@pytest.mark.gpu
def test_gpu_the_driver_says_what_is_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph: behind a kernel of torch, behind one's own, behind that of another file, behind torch again."""
    program, graph = chain(1)
    source = export_source(program, graph, schedule_of(graph, overlap=True, patient=True))
    files: list[Any] = [load_export(f"# file {i}\n{source}") for i in range(2)]
    answers: list[bool] = []
    for file in files:
        monkeypatch.setattr(file, "starts_early", noting(answers, file.starts_early))
    x, w = (t.cuda() for t in inputs_of(program))
    for file in files:
        file.stubbed(x, w)
    captured_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured_graph):
        x.mul_(2)
        files[0].stubbed(x, w)
        files[0].stubbed(x, w)
        files[1].stubbed(x, w)
        x.mul_(0.5)
        y = files[1].stubbed(x, w)
    expected = files[0].stubbed(x, w)
    captured_graph.replay()
    assert answers == [False, True, True, False]
    assert torch.equal(y, expected)
