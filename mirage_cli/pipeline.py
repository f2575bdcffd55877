"""From a program to its best kernel: the stages in order. THE FILE TO READ FIRST.

    lower ─► search ─► verify ─► emit ─► tune on the GPU, or compile offline and interpret ─► store

`structural.search_program` is the part that needs neither torch nor a GPU; it runs in worker processes. `Pipeline` does
the rest, one program at a time.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mirage_cli import __version__
from mirage_cli.errors import MirageError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.masked import product_flops, program_bytes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import MuGraphTextError, canonical_text, mugraph_id, parse_mugraph
from mirage_cli.search.cost import floor_us
from mirage_cli.store import Best, Key, Measurement, Shown, Store, StoredMuGraph, StoredSearch
from mirage_cli.structural import Failed, Found, Options, Plan
from mirage_cli.target import Target, driver_version
from mirage_cli.verify.equivalence import Verdict
from mirage_cli.verify.numeric import independent_axis, longest_sum

# -- results


def program_hash(program: Program) -> str:
    """Identity of a program at its sizes."""
    return hashlib.sha256(str(program).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of what results depend on; empty where a package is missing."""
    found = {"mirage": __version__}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def key_of(program: Program, target: Target, measured: bool) -> Key:
    v = versions()
    driver = (driver_version() or "") if measured else ""
    gpu = target.name if measured else f"{target.name} (predicted)"
    return Key(program_hash(program), program.dims, program.dtype, gpu, driver, v["torch"], v["triton"], v["mirage"])


def floor_of(program: Program, target: Target) -> float:
    """Microseconds below which no kernel is expected: bytes that must move over the measured copy rate, or the
    program's products over the measured matmul rate. Of products under a mask, what it leaves of them is counted."""
    lowered = lower(program)
    return floor_us(program_bytes(lowered), product_flops(lowered), target, program.dtype)


def measured_problem(program: Program, seed: int) -> Any:
    """The program's tensors and its PyTorch forms, as the measuring process is given them (`measure.Problem`)."""
    from mirage_cli.codegen.torch_source import torch_source
    from mirage_cli.tune.measure import Problem, TensorSpec

    sizes = program.sizes

    def spec(t: Any) -> TensorSpec:
        return TensorSpec(t.name, tuple(sizes[d] for d in t.dims), t.dtype, t.scale)

    forms = [torch_source(program), torch_source(lower(program), "stepwise")]
    source = "\n\n\n".join(["import torch", *forms])
    tensors = tuple(spec(t) for t in program.inputs), tuple(spec(t) for t in program.outputs)
    return Problem(*tensors, source, seed, independent_axis(program))


def lost_row(graph: MuGraph, id: str, us: float | None, problem: str | None) -> dict[str, Any]:
    """An element of `lost`: a plan that was faster than the best, and why it was refused."""
    return {"id": id, "kernels": len(graph.kernels), "time_us": us, "problem": problem}


WRONG = "wrong in the interpreter"

Progress = Callable[[str], None]


class Pipeline:
    """Turns searched programs into results. Owns the processes that compile, interpret and measure."""

    def __init__(
        self, target: Target, options: Options, store: Store, has_gpu: bool, progress: Progress, command: str = ""
    ) -> None:
        self.target, self.options, self.store, self.progress, self.command = target, options, store, progress, command
        self.measures = has_gpu and options.tune
        self._stack = ExitStack()
        self._means: Any = None
        self._interpreter: Any = None
        self._farm: Any = None
        self._worker: Any = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self, program: Program) -> dict[str, Any] | None:
        """The document of an earlier run that answers what is asked, if it is there and nothing asks for a new one."""
        if self.options.fresh:
            return None
        best = self.store.best(key_of(program, self.target, self.measures))
        return best.document if best is not None and best.document and self.answers(best.document) else None

    def has_kernel(self, program: Program) -> bool:
        """Whether there is a kernel, whatever was asked when it was found."""
        return self.store.best(key_of(program, self.target, self.measures)) is not None

    def answers(self, document: Mapping[str, Any]) -> bool:
        """Whether an earlier run was asked at least as much as this one, and came to its end."""
        was, o = document.get("asked"), self.options
        if was is None:  # of a version that did not say
            return False
        in_time = document["search"]["stopped"] == "exhausted" or was["budget_s"] >= o.budget_s
        same = was["seed"] == o.seed and was["top"] == o.top and was["tune"] >= o.tune
        same &= not self.measures or was.get("context") == o.context
        return document["complete"] and document["search"]["stopped"] != "interrupted" and in_time and same

    def finish(self, program: Program, text: str, found: Found) -> dict[str, Any]:
        """Tune or predict, store, and describe the result of one program."""
        key = key_of(program, self.target, self.measures)
        self.store.put_spec(key.program_hash, program.name, text)
        self.store.put_mugraphs(
            key,
            [
                StoredMuGraph(p.id, canonical_text(p.graph), i, len(p.graph.kernels), p.predicted_us, asdict(p.verdict))
                for i, p in enumerate(found.plans)
            ],
        )
        self.store.put_search(
            key,
            StoredSearch(self.options.seed, [p.id for p in found.plans], found.stats, found.stopped, found.seconds),
        )
        measures = self.measures and found.stopped != "interrupted"
        return self.measured(program, key, found) if measures else self.predicted(program, key, found)

    def failed(self, program: Program, failure: Failed) -> dict[str, Any]:
        """The element of `results` of a program that has none."""
        about = {"spec": program.name, "dims": program.sizes, "dtype": program.dtype, "seed": self.options.seed}
        return {**about, "error": failure.problem, "best": None, "top": []}

    def left_s(self, found: Found) -> float:
        """Seconds of the budget for what comes after the search."""
        return max(self.options.budget_s - found.seconds, 0.0)

    # -- with a GPU

    def measured(self, program: Program, key: Key, found: Found) -> dict[str, Any]:
        from mirage_cli.tune.measure import Timing
        from mirage_cli.tune.space import bottlenecks

        stored = self.store.best(key)
        incumbent = self.incumbent(key, stored)
        tuned = self.tune(program, key, found.plans, incumbent, self.left_s(found))
        best = tuned.best
        base = self.document(program, found)
        eager = tuned.baselines.get("eager")
        eager_us = eager.median_us if isinstance(eager, Timing) else None
        base["tuning"] = tuned.stats
        graphs = {p.id: p.graph for p in found.plans}
        if incumbent is not None:
            graphs.setdefault(incumbent.mugraph, incumbent.graph)
        base["lost"] = [lost_row(graphs[t.mugraph], t.mugraph, t.us, v.problem) for t, v in tuned.lost]
        if best is None or best.timing is None or tuned.verdict is None:
            base["best"] = None
            return base
        graph = graphs[best.mugraph]
        base["best"] = {
            "id": best.mugraph,
            "as_written": best.mugraph == found.as_written,
            "kernels": len(graph.kernels),
            "status": "measured",
            **best.timing.to_json(),
            "hot_us": best.timing.hot_us,
            "floor_us": floor_of(program, self.target),
            "eager_us": eager_us,
            "eager": eager.to_json() if isinstance(eager, Timing) else None,
            "error_vs_float64": tuned.verdict.error,
            "eager_error_vs_float64": tuned.verdict.eager_error,
            "numerically_checked": True,
            "schedule": best.schedule.to_json(),
            "bottlenecks": bottlenecks(graph, best.schedule, self.target),
            "method": best.timing.method,
        }
        base["top"] = [
            {
                "id": t.mugraph,
                "time_us": t.us,
                **(t.timing.to_json() if t.timing else {"spread_us": None}),
                "schedule": t.schedule.to_json(),
            }
            for t in tuned.finalists[: self.options.top]
        ]
        self.keep(program, key, graph, best.schedule, base, best.timing.median_us, stored)
        return base

    def incumbent(self, key: Key, stored: Best | None) -> Any:
        """The stored best, to be timed with the finalists; None where there is none that this version can read."""
        from mirage_cli.tune.trials import Incumbent

        graphs = [readable_graph(m) for m in self.store.mugraphs(key) if stored is not None and m.id == stored.mugraph]
        if stored is None or not graphs or graphs[0] is None:
            return None
        schedule = Schedule.from_json(stored.schedule)
        return Incumbent(stored.mugraph, graphs[0], schedule) if schedule.fits(graphs[0]) else None

    def tune(self, program: Program, key: Key, plans: Sequence[Plan], incumbent: Any, budget_s: float) -> Any:
        """Run the tuner, continuing from the trials that the store already has, unless a fresh run is asked for."""
        from mirage_cli.codegen.export import kernels_source
        from mirage_cli.tune.explore import Means, Task
        from mirage_cli.tune.measure import Timing
        from mirage_cli.tune.select import tune
        from mirage_cli.tune.trials import Trial

        known: list[Trial] = []
        context = self.context
        for p in plans if not self.options.fresh else ():
            for m in self.store.measurements(key, p.id):
                schedule = Schedule.from_json(m.schedule)
                if not schedule.fits(p.graph) or (m.samples_us and not m.alone_samples_us and context != "chain"):
                    continue  # damaged, or of a run that asked for the chain alone
                timing = Timing(m.samples_us, 0, 0, m.method, None, None, m.alone_samples_us, context)
                timing = timing if m.samples_us else None
                known.append(Trial(p.id, schedule, "", timing, m.failure))

        def keep(trial: Trial) -> None:
            t = trial.timing
            self.store.put_measurement(
                key,
                Measurement(
                    trial.mugraph,
                    trial.schedule.to_json(),
                    t.samples_us if t else (),
                    t.median_us if t else None,
                    t.spread_us if t else None,
                    method=t.method if t else "",
                    failure=trial.failure,
                    alone_samples_us=t.alone_samples_us if t else (),
                ),
            )

        self._means = self._means or Means(self.worker(), self.farm(), self.target, kernels_source, self.tell)
        task = Task(
            {p.id: p.graph for p in plans},
            measured_problem(program, self.options.seed),
            program.tolerance,
            longest_sum(program),
            budget_s,
            known,
            keep,
            self.hints(key, plans),
        )
        return tune(self._means, task, incumbent)

    def hints(self, key: Key, plans: Sequence[Plan]) -> list[tuple[str, Schedule]]:
        """The schedules that won for these μGraphs at other sizes."""
        won = [(w, Schedule.from_json(w.schedule)) for w in self.store.winners(key)]
        return [
            (p.id, schedule)
            for w, schedule in won
            for p in plans
            if mugraph_id(p.graph.resized(dict(w.dims))) == w.mugraph and schedule.fits(p.graph)
        ]

    def prepare(self) -> None:
        """Starts the processes that tuning needs: their seconds of imports pass while the search is at work."""
        if self.measures:
            self.worker().start()
            self.farm().start()

    def farm(self) -> Any:
        """The processes that compile."""
        from mirage_cli.tune.compilefarm import CompileFarm

        if self._farm is None:
            self._farm = self._stack.enter_context(CompileFarm(self.target.sm, self.options.workers))
        return self._farm

    def worker(self) -> Any:
        """The process that owns the GPU."""
        from mirage_cli.tune.measure import GpuWorker

        if self._worker is None:
            self._worker = self._stack.enter_context(GpuWorker(context=self.context))
        return self._worker

    @property
    def context(self) -> Any:
        """In which calls are timed (`tune.measure.Context`)."""
        return self.options.context

    def tell(self, what: str, count: int, best: float | None) -> None:
        self.progress(f"{what}: {count} schedules" + (f", best {best:.2f} µs" if best is not None else ""))

    # -- without

    def predicted(self, program: Program, key: Key, found: Found) -> dict[str, Any]:
        """The cheapest plans by the cost model; with `tune`, compiled for the target and judged in the interpreter."""
        from mirage_cli.tune.space import bottlenecks

        base = self.document(program, found)
        failures: Counter[str] = Counter()
        end = time.monotonic() + self.left_s(found)
        base["top"] = self.check_plans(program, key, found, base, failures, end)
        base["dropped"] = dict(failures)
        if base["top"]:
            base["best"] = best = base["top"][0]
            best["as_written"] = best["id"] == found.as_written
            base["lost"] = [x for x in base["lost"] if x["predicted_us"] < best["predicted_us"]]
            graph = next(p.graph for p in found.plans if p.id == best["id"])
            schedule = Schedule.from_json(best["schedule"])
            best["bottlenecks"] = bottlenecks(graph, schedule, self.target)
            self.keep(program, key, graph, schedule, base, None, self.store.best(key))
        return base

    def check_plans(
        self, program: Program, key: Key, found: Found, base: dict[str, Any], failures: Counter[str], end: float
    ) -> list[dict[str, Any]]:
        """Rows of the first plans that pass, until the `end` if there is one. Plans that overflow where eager PyTorch
        does pass only if no other has. Behind an interrupt, none is checked."""
        checks = self.options.tune and found.stopped != "interrupted"
        rows: list[dict[str, Any]] = []
        overflowing: list[dict[str, Any]] = []
        for p in found.plans:
            if len(rows) >= self.options.top:
                break
            if (rows or overflowing) and checks and time.monotonic() > end:
                base["search"]["stopped"] = "budget"
                break
            schedule, row, passed = p.schedule, self.row(program, p), rows
            if checks:
                outcome = self.check_offline(program, p)
                if isinstance(outcome, str):
                    failures[outcome] += 1
                    if outcome.startswith(WRONG):
                        base["lost"].append(lost_row(p.graph, p.id, None, outcome) | {"predicted_us": p.predicted_us})
                    continue
                schedule, judged = outcome
                row |= {
                    "error_vs_float64": judged.error,
                    "eager_error_vs_float64": judged.eager_error,
                    "numerically_checked": True,
                    "schedule": schedule.to_json(),
                }
                passed = overflowing if judged.excused else rows
            passed.append(row)
            if len(passed) == 1 and (passed is rows or not rows):  # a run that is killed later leaves this behind
                unfinished = {**base, "best": row, "complete": False}
                self.keep(program, key, p.graph, schedule, unfinished, None, self.store.best(key))
        return rows or overflowing[: self.options.top]

    def row(self, program: Program, p: Plan) -> dict[str, Any]:
        return {
            "id": p.id,
            "kernels": len(p.graph.kernels),
            "status": "predicted",
            "time_us": None,
            "predicted_us": round(p.predicted_us, 3),
            "floor_us": floor_of(program, self.target),
            "eager_us": None,
            "error_vs_float64": None,
            "eager_error_vs_float64": None,
            "numerically_checked": False,
            "schedule": p.schedule.to_json(),
        }

    def check_offline(self, program: Program, p: Plan) -> Any:
        """(schedule, judgement) of the first schedule that compiles for the target without spilling and is right in
        the interpreter, but where eager PyTorch overflows too, at reduced sizes, and with sums as long as its own where
        that takes seconds; or the reason why there is none."""
        from mirage_cli.codegen.export import kernels_source
        from mirage_cli.tune.interpreted import Interpreter, Judged, own_sums, reduced_schedule, reduced_sizes

        interpreter = self._interpreter = self._interpreter or self._stack.enter_context(Interpreter())
        interpreter.start()

        def interpret(graph: MuGraph, schedule: Schedule) -> Judged:
            return interpreter.judge(program.resized(graph.sizes), kernels_source(graph, schedule), 0, True)

        problem = measured_problem(program, self.options.seed)
        reason = "no schedule fits"
        for schedule, answer in self.compiled_offline(p, problem):
            if isinstance(answer, str):
                reason = answer
                continue
            if any(k.spill_bytes > 256 or k.shared_bytes > self.target.smem_per_block_bytes for k in answer):
                reason = "spills registers or shared memory"
                continue
            self.progress(f"interpreting {p.id}")
            small = p.graph.resized(reduced_sizes(program))
            judged = interpret(small, reduced_schedule(small, schedule))
            if judged.ok and (long := own_sums(program, p.graph, schedule)) is not None:
                before, judged = judged, interpret(*long)
                if not judged.ok and not schedule.tf32x3:  # whatever else the schedule is
                    return f"{WRONG}: {judged.problem}"
                judged = replace(judged, excused=judged.excused + before.excused)
            if judged.ok:
                return schedule, judged
            reason = f"{WRONG}: {judged.problem}"
        return reason

    def compiled_offline(self, p: Plan, problem: Any) -> Iterator[tuple[Schedule, Any]]:
        """The plan's schedule and, if more are asked for, others, each with the kernels that it compiles to for the
        target, or why there are none. Those others are compiled side by side."""
        from mirage_cli.codegen.blocks import EmitError
        from mirage_cli.codegen.export import kernels_source
        from mirage_cli.tune.measure import Candidate as Contestant
        from mirage_cli.tune.measure import Failure
        from mirage_cli.tune.space import first_schedules

        for others in (False, True):
            self.progress(f"compiling {p.id} for {self.target.arch}")
            schedules = [p.schedule]
            if others:
                schedules = first_schedules(p.graph, self.target, 4)
                schedules += [p.schedule.by_arithmetic()] * p.schedule.tf32x3
            jobs: list[Contestant] = []
            for i, schedule in enumerate(schedules):
                try:
                    jobs.append(Contestant(f"{i}", kernels_source(p.graph, schedule)))
                except EmitError as error:
                    yield schedule, error.reason
            answers = dict(self.farm().compile_all(jobs, problem.inputs, problem.outputs))
            for job in jobs:
                yield schedules[int(job.id)], str(a.kind) if isinstance(a := answers[job.id], Failure) else a

    # -- both

    def document(self, program: Program, found: Found) -> dict[str, Any]:
        """One element of `results` of the JSON document."""
        return {
            "spec": program.name,
            "dims": program.sizes,
            "dtype": program.dtype,
            "seed": self.options.seed,
            "search": found.stats,
            "best": None,
            "top": [],
            "lost": [],
            "complete": True,
            "asked": {
                k: v for k, v in asdict(self.options).items() if k in ("seed", "top", "budget_s", "tune", "context")
            },
            "as_written": found.as_written,
            "rejections": list(found.rejected),
        }

    def keep(
        self,
        program: Program,
        key: Key,
        graph: MuGraph,
        schedule: Schedule,
        document: Mapping[str, Any],
        us: float | None,
        over: Best | None,
    ) -> None:
        """Store the result. over: the stored one that it was compared with, and replaces."""
        from mirage_cli.codegen.export import ExportInfo, export_source

        best = document["best"]
        info = ExportInfo(
            command=self.command,
            target=self.target.name,
            versions=versions(),
            measured=us is not None,
            time_us=us if us is not None else best.get("predicted_us"),
            floor_us=best["floor_us"],
            eager_us=best["eager_us"],
            error=best["error_vs_float64"],
            eager_error=best["eager_error_vs_float64"],
            checked=best["numerically_checked"],
        )
        source = export_source(program, graph, schedule, info)
        status = "measured" if us is not None else "predicted"
        time_us = us if us is not None else best.get("predicted_us")
        result = Best(mugraph_id(graph), status, time_us, schedule.to_json(), source, dict(document))
        self.store.put_best(key, result, over=over)


# -- what other commands need


def readable_graph(stored: StoredMuGraph) -> MuGraph | None:
    """The μGraph; None where it is of a version of other operators, or no μGraph."""
    try:
        return parse_mugraph(stored.text)
    except MuGraphTextError:
        return None


def stored_search(store: Store, program: Program) -> Found | None:
    """The μGraphs that some search stored for this program, on whatever machine, as a search result."""
    stored = store.mugraphs_of(program_hash(program), program.dims, program.dtype)
    plans: dict[str, Plan] = {}
    for m in stored:
        if m.verification is not None and (graph := readable_graph(m)) is not None:
            verdict = Verdict.from_json(m.verification)
            plans.setdefault(m.id, Plan(m.id, graph, Schedule({}), m.predicted_us or 0.0, verdict))
    if not plans:
        return None
    return Found(tuple(plans.values()), "", 0, 0, 0, {}, (), "stored", 0.0)


def export_plan(found: Sequence[Shown], programs: Sequence[Program], id: str, command: str) -> tuple[Shown, str]:
    """The export of a stored μGraph, at its fastest measured schedule or the cost model's, of the first of these keys
    that is of one of the programs. Raises MirageError."""
    from mirage_cli.codegen.export import ExportInfo, export_source
    from mirage_cli.target import find_target
    from mirage_cli.tune.space import first_schedules

    for s in found:
        program = next((p for p in programs if program_hash(p) == s.key.program_hash), None)
        if program is None:
            continue
        graph = parse_mugraph(s.mugraph.text)
        timed = [m for m in s.measurements if m.median_us is not None and Schedule.from_json(m.schedule).fits(graph)]
        info = ExportInfo(command=command, target=s.key.gpu, versions=versions(), measured=bool(timed))
        if timed:
            best = min(timed, key=lambda m: m.median_us or 0.0)
            return s, export_source(program, graph, Schedule.from_json(best.schedule), info)
        schedules = first_schedules(graph, find_target(s.key.gpu.split()[0]), 1)
        if schedules:
            return s, export_source(program, graph, schedules[0], info)
    raise MirageError(f"no μGraph of this spec is stored under {id}; `mirage cache list` says what is")
