"""Random programs through the whole pipeline: searched, verified, emitted, and judged in the interpreter.

A plan of several kernels keeps intermediates in the program's type, as eager does, and may overflow where eager does.

MIRAGE_RANDOM_PROGRAMS says how many; a failure shows the smallest spec that still fails in the same way.
`tools.sweep` runs thousands in many processes, also on a GPU.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import WORDS, Schedule
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter, reduced_schedule
from mirage_cli.tune.space import first_schedules
from tests.codegen.test_access import elements_fetched
from tests.random_programs import random_spec, shrink

PROGRAMS = int(os.environ.get("MIRAGE_RANDOM_PROGRAMS", "30"))
TARGET = find_target("h100")
LIMIT_S = 60.0
SEARCH_S = 15.0
"""The budget of each search: most of the limit is the interpreter's."""
SHRINK_S = 150.0
PLANS = 3
INSTANCES = 64
"""Program instances of a source that the interpreter is asked to run, where there is one with fewer: each takes 5 ms
or more, for each distribution."""


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_program(seed: int, interpreter: Interpreter) -> None:
    check(random_spec(seed), seed, interpreter)


@pytest.mark.parametrize("seed", range(PROGRAMS // 3))
def test_random_program_with_accesses(seed: int, interpreter: Interpreter) -> None:
    check(random_spec(seed, accesses=True), seed, interpreter)


def check(text: str, seed: int, interpreter: Interpreter) -> None:
    found = problem(text, interpreter)
    if found is None:
        return

    def fails(smaller: str) -> bool:
        again = problem(smaller, interpreter)
        return again is not None and kind(again) == kind(found)

    smallest = shrink(text, fails, SHRINK_S)
    pytest.fail(f"seed {seed}: {problem(smallest, interpreter) or found}\n\n{smallest}")


FAILED = {
    "a whole number in bfloat16": """
name: whole
dims: {d: 1}
dtype: bfloat16
inputs: {X: [d]}
program: |
  A = reciprocal(abs(X) + 1)
  D = where(index(d) > index(d), A - A, -1)
outputs: {D: [d]}
""",
    "some positions of a softmax": """
name: some
dims: {h: 3, k: 2}
dtype: float32
inputs: {U: [h]}
program: |
  A = softmax(U, h)
  B = A[k]
outputs: {B: [k]}
""",
    "a product that is loaded before it would be made": """
name: loaded
dims: {d: 3, k: 3, m: 64, w: 8}
dtype: bfloat16
inputs: {W: {dims: [m, d], scale: 0.5}, H: {dims: [k], dtype: int32, below: d}}
program: |
  B = dot(W, W, m)
  C = B / (abs(B) + 0.5)
  D = B[H[k]]
  E = D[w + 2]
outputs: {C: [d], E: [w]}
""",
    "more than float16 has, of a float32 output": """
name: promoted
dims: {h: 7, k: 64}
inputs: {X: [k, h]}
program: |
  A = square(X)
  B = A / (A + 1)
outputs: {A: {dims: [k, h], dtype: float32}, B: [h, k]}
""",
    "a sum that jumps across the end of float16's range": """
name: jumps
dims: {h: 257}
inputs: {X: [h]}
program: |
  A = ceil(elu(X))
  D = dot(A, X, h)
  E = dot(A, A, h)
outputs: {D: [], E: []}
""",
    "a mean that is a number, of what bfloat16 rounds": """
name: mean
dims: {m: 64, k: 7}
dtype: bfloat16
inputs: {U: [m, k]}
program: |
  B = softmax(where(index(m) >= index(k), U, -inf), k)
  C = layer_norm(B, k, eps=0.001)
  E = dot(B, C, k)
outputs: {E: {dims: [m], dtype: float32}}
""",
    "scores with a factor, which a second loop makes again": """
name: divergence
dims: {q: 8, s: 260}
inputs: {X: [q], Y: [s], Z: [q, s]}
program: |
  P = softmax(tanh(X - Y) * 5, s)
  W = softmax(Z, s)
  O = sum(W * (log(W) - log(P)), s)
outputs: {O: [q]}
""",
    "a tensor that is written backwards": """
name: written
dims: {m: 7, n: 40}
dtype: float32
inputs: {X: [m, n]}
program: |
  O[m, 39 - n] = X + 1
outputs: {O: [m, n]}
""",
    "elements that several positions in a row read": """
name: halves
dims: {m: 4, k: 64, h: 32, i: 33, n: 48, g: 4, t: 22}
dtype: float32
inputs: {X: [m, k], W: [h, n], V: [i, n], S: [g, n], T: [t, n], U: [h, g]}
program: |
  A = dot(X, W[k // 2, n] * S[k // 16, n] + V[(k + 1) // 2, n] - T[k // 3, n], k)
  B = dot(X, U[k // 2, k // 16] * X, k)
  C = where(index(k) % 2 == 0, W[k // 2, n], S[k // 16, n])
outputs: {A: [m, n], B: [m], C: [n, k]}
""",
    "a product with what is 1 everywhere": """
name: ones
dims: {n: 7, d: 3}
dtype: float32
inputs: {W: [d, n]}
program: |
  A = softmax(where(index(d) >= index(n), W, -inf), n)
  C = sum(A, n)
  E = dot(A, C, d)
outputs: {E: [n]}
""",
    "attention on one packed projection with a bias, in float32": """
name: packed
dims: {b: 2, q: 5, c: 8, p: 3, h: 2, d: 4, s: 5}
dtype: float32
inputs: {X: [b, q, c], W: [p, h, d, c], B: [p, h, d]}
program: |
  R = dot(X, W, c) + B
  P = softmax(dot(R[b, q, 0, h, d], R[b, s, 1, h, d], d) * 0.5, s)
  O = dot(P, R[b, s, 2, h, d], s)
outputs: {O: [q, b, h, d]}
""",
    "a tensor that is read backwards": """
name: backwards
dims: {m: 7, n: 40, k: 5}
dtype: float32
inputs: {X: [m, n], W: [k]}
program: |
  A = X[m, 39 - n] + 1
  B = dot(X[m, n - k + 2], W, k)
outputs: {A: [m, n], B: [m, n]}
""",
    "masks of all elements beside masks of each": """
name: masks
dims: {m: 7, n: 40}
inputs: {X: [m, n]}
program: |
  S = sum(X, m, n)
  O = where((X > 0) and not (S > 0), X, 0) + where((S < 1) or (X < 0), 1, 0)
outputs: {O: [m, n]}
""",
    "a softmax that is read by windows and summed": """
name: windows
dims: {d: 100, v: 16, w: 8, u: 4}
dtype: float32
inputs: {X: [d], W: [u, v]}
program: |
  A = softmax(X, d)
  C = A[v + w + 77]
  E = dot(W, C, v)
outputs: {E: [u, w]}
""",
    "twice a position, of which a block has one": """
name: twice
dims: {h: 16, m: 7, v: 4}
dtype: bfloat16
inputs: {X: [h, m]}
program: |
  A = dot(X, X, h)
  C = pad(A, 2)[2*v + 5]
outputs: {A: [m], C: [v]}
""",
    "what is outside of a result, and so outside of the input": """
name: outside
dims: {k: 8, n: 6, u: 6, v: 8}
dtype: float32
inputs: {X: [k]}
program: |
  A = X[n + 4] + 1
  B = A[u + 4]
  C = pad(A, 3)[v - 7]
outputs: {B: [u], C: [v]}
""",
    "squares beside a float32 input": """
name: mixed
dims: {m: 7, n: 64, d: 7}
dtype: float16
inputs: {X: [d, n], U: {dims: [n], dtype: float32}}
program: |
  C = rsqrt(square(X) + 1)
  E = rename(C, d=m)
  F = U + 1
outputs: {E: [n, m], F: {dims: [n], dtype: float32}}
""",
    "products beside a float32 input": """
name: mixed
dims: {q: 3, h: 3, r: 3, k: 16}
dtype: float16
inputs: {X: [r, h, q], V: [r], U: [k, r], W: {dims: [q], dtype: float32}}
program: |
  F = dot(V, X, r)
  G = maximum(F, U)
  A = dot(G, F, h)
  B = rename(A, q=h)
  C = W + 1
outputs: {B: {dims: [h, r, k], dtype: float32}, C: {dims: [q], dtype: float32}}
""",
    "exponentials below bfloat16's range": """
name: tiny
dims: {r: 100}
dtype: bfloat16
inputs: {W: [r]}
program: |
  Y = exp(-abs(W))
outputs: {Y: [r]}
""",
    "differences of equal values": """
name: equal
dims: {n: 3}
dtype: float32
inputs: {A: [n]}
program: |
  C = rsqrt(A + 1)
  D = layer_norm(C, n)
outputs: {D: [n]}
""",
    "a function of what needs no exponential": """
name: one
dims: {h: 7, k: 5}
dtype: float32
inputs: {X: [h, k]}
program: |
  A = sum(softmax(softmax(X, k), k), k)
  F = tanh(rsqrt(A + 1))
outputs: {F: [h]}
""",
    "one sum from two kernels under an exponential": """
name: twice
dims: {d: 33, h: 7, k: 7}
dtype: float32
inputs: {X: [d, h], W: {dims: [k, d], scale: 0.02}}
program: |
  A = dot(X, W, d)
  B = layer_norm(W, d)
  C = logsumexp(B, k)
  D = dot(B, B, d, k)
  E = logsumexp(C, d)
  F = softmax(where(index(k) >= index(h), A, -inf), h)
outputs: {D: [], E: [], F: [h, k]}
""",
    "a shared factor of sums beside a function of the summed axis": """
name: capture
dims: {k: 7}
dtype: float32
inputs: {A: [k]}
program: |
  B = sum(A, k)
  C = B / A
  D = B + C
outputs: {D: [k]}
""",
    "a sum of two contractions over an axis of its factor": """
name: capture
dims: {k: 3, h: 7}
dtype: float32
inputs: {V: [k, h], D: [k]}
program: |
  A = logsumexp(V, h)
  B = dot(A, V, k)
  F = D * B
outputs: {F: [k, h]}
""",
    "a contraction over an axis that a rename takes and another": """
name: renamed
dims: {d: 3, k: 2, m: 3}
dtype: float32
inputs: {X: [d, k, m], V: [d, k, m]}
program: |
  B = dot(X, V, k, d)
  D = rename(B, m=d)
outputs: {D: [d]}
""",
    "an axis with positions alone": """
name: positions
dims: {m: 5, k: 5}
dtype: float32
inputs: {X: [k]}
program: |
  A = where(index(k) < index(m), X, -1)
  C = dot(A, A, m)
  D = rename(C, k=m)
outputs: {D: [m]}
""",
    "a logsumexp of what float16 has not": """
name: overflow
dims: {d: 1, k: 1, n: 33}
dtype: float16
inputs: {X: [d, k, n]}
program: |
  A = dot(X, X, k)
  B = logsumexp(A, d)
  D = X / B
outputs: {D: [d, k, n]}
""",
    "a square with an exponential in it": """
name: square
dims: {k: 33, d: 2}
dtype: float32
inputs: {X: {dims: [k, d], scale: 0.1}, W: {dims: [k], scale: 0.1}}
program: |
  A = dot(X, W, k)
  C = exp2(A)
  D = layer_norm(C, d, eps=0.001)
outputs: {D: [d]}
""",
    "few products that are rounded by chance": """
name: few
dims: {h: 3, m: 7}
dtype: bfloat16
inputs: {W: [h, m]}
program: |
  A = sum(W, h, m)
  C = A * W
  D = min(C, m)
  E = D - C
outputs: {E: [h, m]}
""",
    "one mean that all of an output rests on": """
name: mean
dims: {n: 1, h: 7, d: 100}
dtype: float32
inputs: {X: [h, n], W: {dims: [d, n], scale: 0.5}}
program: |
  A = abs(X)
  B = softmax(where(index(d) >= index(n), W, -inf), n)
  C = sqrt(B)
  D = dot(C, A, n)
  E = min(D, h)
  F = layer_norm(E, d)
outputs: {F: [d]}
""",
    "the mean of equal rows": """
name: rows
dims: {h: 257, k: 3, d: 257}
dtype: float32
inputs: {X: [k, d]}
program: |
  A = rename(X, d=h)
  B = layer_norm(A, h, eps=0.001)
outputs: {B: [h, k]}
""",
    "a norm of squared means": """
name: means
dims: {n: 257, m: 3}
dtype: float32
inputs: {X: [m, n]}
program: |
  A = mean(X, n)
  B = A ** 2
  C = layer_norm(B, m)
outputs: {C: [m]}
""",
    "a norm of a sum of products": """
name: sums
dims: {h: 100, m: 1, k: 33}
dtype: float32
inputs: {X: [k, m], W: [h, k]}
program: |
  A = W + 0.5
  C = dot(X, A, k)
  D = rms_norm(C, m)
  E = dot(D, A, h)
  F = exp(-abs(D))
outputs: {E: [m, k], F: [h, m]}
""",
}
"""Smallest specs with right kernels that were refused, with kernels that were no plan for them, or with plans that were
less exact than float32 need be."""


FAILED_ON_GPU = {
    "means of equal values": """
name: equal
dims: {d: 7, n: 64, h: 3}
dtype: float32
inputs: {W: [d, h, n]}
program: |
  A = minimum(2, W)
  D = where(index(h) >= 1, -1, A)
  E = layer_norm(D, d, eps=0.001)
outputs: {E: [d, n, h]}
""",
    "roots of values near 1": """
name: near
dims: {h: 3}
dtype: float32
inputs: {W: [h]}
program: |
  B = (abs(W * W) + 1) ** -1
  F = layer_norm(sqrt(sqrt(B)), h, eps=0.001)
outputs: {F: [h]}
""",
    "differences of equal products": """
name: products
dims: {k: 1, h: 3}
dtype: float16
inputs: {U: {dims: [k, h], dtype: float32, scale: 0.02}}
program: |
  A = U * U
  B = layer_norm(A, k, eps=0.001)
outputs: {A: [k, h], B: [k, h]}
""",
    "a softmax of large values after its loop": """
name: large
dims: {n: 64, h: 100}
dtype: float32
inputs: {X: [n, h], W: [n, h]}
program: |
  A = softmax(where(index(n) >= index(h), W, -inf), h)
  C = log(A + 1)
  D = exp(-abs(X))
  E = dot(C, D, h)
outputs: {E: [n]}
""",
}
"""Specs of which a plan was less exact on a GPU than in the interpreter, where every operation rounds correctly."""


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAILED_ON_GPU)
def test_gpu_programs_that_failed(name: str) -> None:
    from tools.sweep import GpuJudge

    judge = GpuJudge()
    try:
        assert problem(FAILED_ON_GPU[name], judge) is None
    finally:
        judge.close()


@pytest.mark.parametrize("name", [*FAILED, *FAILED_ON_GPU])
def test_programs_that_failed(name: str, interpreter: Interpreter) -> None:
    assert problem((FAILED | FAILED_ON_GPU)[name], interpreter) is None


@pytest.mark.parametrize("seed", range(PROGRAMS, PROGRAMS + 12))
def test_what_random_programs_fetch_ahead_is_theirs(seed: int) -> None:
    """A read of anything else could be a fault."""
    program = parse_spec(random_spec(seed)).at()
    for p in search_program(program, TARGET, Options(budget_s=SEARCH_S)).plans[:PLANS]:
        schedule = choosing(reduced_schedule(p.graph, p.schedule))
        source = emitted(p, schedule)
        if source and "    fetch(" in source and instances(source) <= INSTANCES:
            elements_fetched(p.graph, schedule)  # which looks at every address


def test_specs_do_not_depend_on_the_run() -> None:
    assert [random_spec(s) for s in range(20)] == [random_spec(s) for s in range(20)]


def test_some_specs_with_accesses_write_outputs_in_parts() -> None:
    programs = [parse_spec(random_spec(s, accesses=True)).at() for s in range(40)]
    assert {len(p.parts) for p in programs} >= {0, 1, 2}


def test_shrinking_keeps_what_fails_alone() -> None:
    """The smallest spec with a softmax of something."""
    text = next(t for t in map(random_spec, range(100)) if "softmax" in t and t.count("=") > 6)
    smallest = shrink(text, lambda t: "softmax" in t)
    assert len(parse_spec(smallest).at().eqns) == 1, smallest


# -- one program


class Judge(Protocol):
    """What runs a source and judges its outputs: the interpreter, or a GPU."""

    def judge(self, program: Program, source: str, seed: int, overflow_like_eager: bool = False) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What became of a spec. problem: None where all is well. kernels: of the plan that is predicted fastest.

    seconds: of the search, and of everything.
    """

    problem: str | None
    operators: int = 0
    kernels: int = 0
    sources: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


def problem(text: str, judge: Judge, plans: int = PLANS) -> str | None:
    """What goes wrong with a spec, or None."""
    return outcome(text, judge, plans).problem


def outcome(text: str, judge: Judge, plans: int = PLANS) -> Outcome:
    """A spec searched, and its best plans emitted and judged."""
    try:
        with time_limit(LIMIT_S):
            return _outcome(text, judge, plans)
    except Exception as error:  # whatever is raised is the finding
        if isinstance(error, TimeoutError):
            judge.close()  # it may still be at work
        return Outcome(f"{type(error).__name__}: {error}")


def _outcome(text: str, judge: Judge, plans: int) -> Outcome:
    program = parse_spec(text).at()
    start = time.monotonic()
    found = search_program(program, TARGET, Options(budget_s=SEARCH_S))
    took = time.monotonic() - start
    if found.rejected:
        return Outcome(f"rejected: {found.rejected[0]}")
    if not found.plans:
        return Outcome("no plan at all")
    if took > 2 * SEARCH_S:
        return Outcome(f"search: took {took:.0f} s with a budget of {SEARCH_S:.0f} s")
    judged = 0
    for place, p in enumerate(found.plans[:plans]):
        sources = plan_sources(p)
        if place and "reduced choosing schedule" in sources:  # which is the other with more
            sources.pop("reduced schedule", None)
        if not sources:
            return Outcome(f"no schedule: {p.id} cannot be emitted\n{p.graph}")
        for label, source in sources.items():
            verdict = judge.judge(program, source, 0, overflow_like_eager=len(p.graph.kernels) > 1)
            if not verdict.ok:
                return Outcome(f"{label}: {verdict.problem}\n\n{source}")
            judged += 1
    kernels = len(found.plans[0].graph.kernels)
    return Outcome(None, len(program.eqns), kernels, judged, (took, time.monotonic() - start))


def plan_sources(p: Plan) -> dict[str, str]:
    """The distinct texts of a plan by the schedule's name: the chosen one, and one with small blocks, which is also
    there with all choices that are off by default.

    One with very many program instances is left out where there is another.
    """
    sources: dict[str, str] = {}
    small = reduced_schedule(p.graph, p.schedule)
    for label, schedule in (
        ("own schedule", p.schedule),
        ("reduced schedule", small),
        ("reduced choosing schedule", choosing(small)),
    ):
        if (text := emitted(p, schedule)) and text not in sources.values():
            sources[label] = text
    if not sources:
        others = (emitted(p, s) for s in first_schedules(p.graph, TARGET, 4))
        if other := next(filter(None, others), None):
            sources["another schedule"] = other
    least = min(map(instances, sources.values()), default=0)
    return {label: t for label, t in sources.items() if instances(t) <= max(INSTANCES, least)}


def choosing(schedule: Schedule) -> Schedule:
    """With everything on that a schedule may do or leave; every other kernel relays, which leaves `early` no part."""
    on = {word: x is False or 2 for word, x in WORDS.items()}
    return Schedule({n: s.choosing(**{**on, "relay": i % 2 == 1}) for i, (n, s) in enumerate(schedule.kernels.items())})


def instances(source: str) -> int:
    """Program instances of all launches of a source."""
    return sum(int(n) for n in re.findall(r"^    \w+\[\((\d+),\)\]\(", source, re.MULTILINE))


def emitted(p: Plan, schedule: Any) -> str | None:
    try:
        return kernels_source(p.graph, schedule)
    except EmitError:  # blocks too large for Triton, say
        return None


def kind(found: str) -> str:
    """What two findings share when they are probably one fault."""
    head = found.split("\n", 1)[0]
    label, _, rest = head.partition(":")
    if label.endswith("schedule") and "in the interpreter" not in rest:
        ratios = [float(e) / float(a) for e, a in re.findall(r"error (\S+) \(row \S+\), allowed (\S+)", rest)]
        return f"wrong: {'inf or NaN' if 'where float64' in rest else 'far' if max(ratios, default=0) > 10 else 'near'}"
    return " ".join(re.findall(r"\b[A-Za-z_]{2,}\b", re.split(r"[(\[]", head)[0]))


@contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """Raises TimeoutError inside when the time is over."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
