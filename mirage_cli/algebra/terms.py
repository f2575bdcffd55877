"""Ways to make a sum of terms: adding them, and taking out a factor that several share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from mirage_cli.algebra.canonical import ONE, Atom, Form, is_nonnegative, mono_dims
from mirage_cli.algebra.graph import Decomposition, Node
from mirage_cli.algebra.steps import Steps, chain, constant, product, product_after
from mirage_cli.algebra.typed import typed_dot
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn


def sum_nodes(d: Decomposition, form: Form, own: Sequence[Node]) -> Iterator[Node]:
    """Adding terms, and taking out a factor that several terms share, also from under their Σs."""
    yield from _by_reciprocal(d, form, own)
    steps = Steps()
    chain(d, steps, None, form.terms)
    if _is_difference(form) and d.type_of(form) != "int":
        # as the user took it, or a multiple of it: of what is rounded, other terms may cancel to nothing
        if _of_products(d, own):
            yield steps.node("program")
            return
        multiple = None if own else _multiple_of_own(d, form)
        if own or multiple:
            d.cuts["cancellation"] += 1
            yield from _mean_of_rounded(d, form)
            yield from (multiple,) if multiple else _scaled_after(d, own)
            return
    yield from _scaled_after(d, own)
    by_inverse = [*_by_inverse(own)]
    yield from by_inverse
    if by_inverse or any(_multiplies_sums(n) for n in own):
        d.cuts["a product of sums multiplied out"] += 1
        return
    yield steps.node()
    yield from _common_factors(d, form)
    yield from _common_under_sum(d, form)


def _by_reciprocal(d: Decomposition, form: Form, own: Iterable[Node]) -> Iterator[Node]:
    """y / √s = y·(1/√s), a quotient that the program takes by a root of fewer axes: one operator makes the reciprocal,
    of fewer elements. y, which has several terms, stays as the program has it."""
    for args in (n.steps[0].args for n in own if len(n.steps) == 1):
        match args:
            case Form() as y, Form() as root if len(y.terms) > 1 and root.single and root.dims < y.dims:
                reciprocal = d.algebra.pow(root, Fraction(-1))
                mono, c = reciprocal.single or ((), ONE)
                if any(k.denominator > 1 for _, k in mono) and d.algebra.mul(y, reciprocal) is form:
                    steps = Steps()
                    product(d, steps, [y], mono, c)
                    yield steps.node()
            case _:
                pass


def _by_inverse(own: Iterable[Node]) -> Iterator[Node]:
    """y / c = y·(1/c) of a number c, where the program divides a sum of several terms by it."""
    for step in (n.steps[0] for n in own if len(n.steps) == 1 and OPS[n.steps[0].op].by_number):
        match step.args:
            case Form() as y, Fraction() as c if len(y.terms) > 1:
                steps = Steps()
                steps.add(OPS[step.op].by_number, y, 1 / c)
                yield steps.node()
            case _:
                pass


def _is_difference(form: Form) -> bool:
    return len({c > 0 for _, c in form.terms}) > 1


def _of_products(d: Decomposition, own: Sequence[Node]) -> bool:
    """Whether the program multiplies a difference of values that hold sums, each scaled along other axes than the
    product's, by another factor: Σ (a - g·b)·v = Σ a·v - g·Σ b·v.

    What sums were rounded to is in the difference already, and with it an error of the size of theirs, not of what they
    leave. (It is not of inputs, which may be near each other; nor of squares: Σ (x - m)² is small where Σ x² is not.)
    """
    for step in (n.steps[0] for n in own if n.steps[0].op == "dot"):
        *factors, difference = sorted((a for a in step.args if isinstance(a, Form)), key=lambda f: len(f.terms))
        if _is_difference(difference) and all(len(f.terms) == 1 for f in factors):
            return all(_scaled_sum(d, dict(mono), frozenset(step.axes)) for mono, _ in difference.terms)
    return False


def _scaled_sum(d: Decomposition, mono: dict[Atom, Fraction], axes: frozenset[str]) -> bool:
    """Whether a term is a value of the program that holds a Σ, times factors without these axes."""
    for own in (f for f in d.own if len(f.terms) == 1 and axes <= f.dims):
        factors = dict(own.terms[0][0])
        held = factors.items() <= mono.items() and not any(a.dims & axes for a in mono.keys() - factors.keys())
        if held and any(a.kind == "sum" for a in factors):
            return True
    return False


def _multiplies_sums(node: Node) -> bool:
    """Whether an equation multiplies two sums, so that its result has a term for each pair of theirs; or a sum by a
    number, which has the ways of that sum."""
    step = node.steps[0]
    sums = [not isinstance(a, Form) or len(a.terms) > 1 for a in step.args]
    return OPS[step.op].growth == "product" and all(sums)


def _scaled_after(d: Decomposition, own: Iterable[Node]) -> Iterator[Node]:
    """Σ (g·a)·v = g·Σ a·v of a product that the program takes. g lacks the axes of the Σ; v, which has several terms,
    stays as the program has it."""
    for step in (n.steps[0] for n in own if len(n.steps) == 1 and n.steps[0].op == "dot"):
        for x, other in (step.args, step.args[::-1]):
            if isinstance(x, Form) and x.single:
                mono, c = x.single
                outside = tuple(f for f in mono if not f[0].dims & set(step.axes))
                inside = tuple(f for f in mono if f not in outside)
                if outside and inside:
                    steps = Steps()
                    dtype = next((dtype for _, dtype in step.casts), "")
                    first = steps.append(typed_dot(d, d.algebra.of_mono(inside), other, step.axes, dtype))
                    product_after(d, steps, first, outside, c)
                    yield steps.node()


def _mean_of_rounded(d: Decomposition, form: Form) -> Iterator[Node]:
    """Σ w·(x - b) = Σ w·x - b, where the program takes that of weights w that are not negative and add up to 1; so the
    entropy of a softmax, and its divergence from another, in one loop.

    b is one number for all x, and a sum that the program rounds, as the log of a Σ exp is. So what the program makes
    has an error of b's size, and Σ w·x has one of no more than w·(x - b) and b have together. (Not of a b that is
    exact, such as the maximum: then a row that lies far from 0 has no such error.)
    """
    made = {e.out: e for e in d.program.eqns}
    total = made.get(d.own.get(form, ""))
    weighted = total and (total if total.op == "dot" else made.get(total.values[0]) if total.op == "sum" else None)
    if not total or not weighted or OPS[weighted.op].growth != "product" or len(weighted.values) != 2:
        return
    version = next(i for i, f in enumerate(d.forms[total.out]) if f is form)
    for name, difference in (weighted.values, weighted.values[::-1]):
        w = d.forms[name][version]
        if len(w.terms) != 1 or w.terms[0][1] <= 0 or not all(is_nonnegative(a) for a, _ in w.terms[0][0]):
            continue
        if d.algebra.sum(w, total.axes).number != 1:
            continue
        steps = Steps()
        if _less_rounded(d, steps, made, difference, w, total.axes, version) is not None:
            yield steps.node("program")
            return


def _less_rounded(
    d: Decomposition, steps: Steps, made: Mapping[str, Eqn], y: str, w: Form, axes: tuple[str, ...], version: int
) -> int | None:
    """Steps for Σ w·y, where y is x - b with a b that has no such axis and is rounded as a sum; or a sum or difference
    of two such values. The last step's number."""
    e = made.get(y)
    if not e or len(e.values) != 2 or not OPS[e.op].linear:
        return None
    x, b = (d.forms[v][version] for v in e.values)
    if len(x.terms) == 1 and len(b.terms) > 1 and b in d.own and not b.dims & set(axes):
        return steps.add(e.op, d.algebra.sum(d.algebra.mul(w, x), axes), b)
    first = _less_rounded(d, steps, made, e.values[0], w, axes, version)
    second = None if first is None else _less_rounded(d, steps, made, e.values[1], w, axes, version)
    return None if first is None or second is None else steps.add(e.op, first, second)


def _multiple_of_own(d: Decomposition, form: Form) -> Node | None:
    """The form as a number times a value of the program."""
    leading = form.terms[0][1]
    for own in d.own:
        if (
            own is not form
            and len(own.terms) == len(form.terms)
            and d.algebra.scale(own, leading / own.terms[0][1]) is form
        ):
            steps = Steps()
            steps.add("mul", own, leading / own.terms[0][1])
            return steps.node()
    return None


def _common_factors(d: Decomposition, form: Form) -> Iterator[Node]:
    shared: Counter[tuple[Atom, Fraction]] = Counter(f for mono, _ in form.terms for f in mono)
    for factor, count in sorted(shared.items(), key=lambda f: f[0][0].key):
        if count < 2 or not factor[0].dims:
            continue
        inside = [(tuple(f for f in m if f != factor), c) for m, c in form.terms if factor in m]
        outside = [(m, c) for m, c in form.terms if factor not in m]
        rest = d.algebra.add(*(d.algebra.of_mono(m, c) for m, c in inside))
        steps = Steps()
        first = steps.add("mul", d.algebra.of_mono((factor,)), constant(rest))
        chain(d, steps, first, outside)
        yield steps.node()


def _common_under_sum(d: Decomposition, form: Form) -> Iterator[Node]:
    """Σ f·a + g·Σ f·b = Σ f·(a + g·b), where a and b may be Σs over further axes, and g lacks the axes of the Σ."""
    candidates: dict[tuple[Atom, Fraction], list[int]] = {}
    for i, (mono, _) in enumerate(form.terms):
        sums = [a for a, e in mono if a.kind == "sum" and e == 1]
        if len(sums) == 1:
            beside = mono_dims(f for f in mono if f[0] is not sums[0])
            for factor in sums[0].args[1]:
                if not beside & factor[0].dims & frozenset(sums[0].args[0]):
                    candidates.setdefault(factor, []).append(i)
    for factor, where in sorted(candidates.items(), key=lambda f: f[0][0].key):
        if len(where) < 2:
            continue
        axes: set[frozenset[str]] = set()
        types: set[str] = set()
        inner: list[Form] = []
        for i in where:
            mono, c = form.terms[i]
            total = next(a for a, e in mono if a.kind == "sum" and e == 1)
            here = factor[0].dims & frozenset(total.args[0])
            axes.add(here)
            types.add(d.products.get(total, ""))
            left = d.algebra.of_mono(tuple(f for f in total.args[1] if f != factor))
            summed = d.algebra.sum(left, frozenset(total.args[0]) - here)
            inner.append(d.algebra.mul(summed, d.algebra.of_mono(tuple(f for f in mono if f[0] is not total), c)))
        if len(axes) > 1:
            continue
        steps = Steps()
        dtype = types.pop() if len(types) == 1 else ""
        own = tuple(sorted(axes.pop()))
        first = steps.append(typed_dot(d, d.algebra.of_mono((factor,)), d.algebra.add(*inner), own, dtype))
        chain(d, steps, first, [t for i, t in enumerate(form.terms) if i not in where])
        yield steps.node()
