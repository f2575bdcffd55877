"""CUTS: every reason for which the search leaves a branch out, one row each, as `mirage explain` counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a search. A search that reaches one says which, and how often.

    decisions: how to have a class inside a kernel, on the way to its expansions, most of which may lead to none.
    algebras: kernel graphs of one structure, which differ in algebra alone. readings: sets of classes that kernels for
    the same targets read, for each number of intermediates among them. slack: how many times the best's time another
    may take. widening: kernels that are looked at, after which plans that are much slower than the best are let be.
    """

    kernels: int = 7
    equations: int = 56
    reductions: int = 12
    expansions: int = 600
    decisions: int = 12000
    intermediates: int = 3
    alternatives: int = 1
    readings: int = 12
    continuations: int = 24
    plans: int = 12
    algebras: int = 1
    slack: float = 2.0
    widening: int = 4000


UNVERIFIED = "not verified in time"

CUTS: Mapping[str, str] = {
    # of the algebra
    "outer product": "One side of a contraction would itself be a product of tensors that share none of the axes that "
    "it sums, which is larger than either.",
    "scaling of the larger operand": "A factor could multiply either side of a contraction; the smaller is cheaper.",
    "an exponential that may overflow": "exp(x - c) would be exp(x) times exp(-c), of which one may be "
    "infinite where the other is 0.",
    "cancellation": "The program subtracts here; other terms that all but cancel would leave rounding errors.",
    "a product of sums multiplied out": "The program multiplies two sums; each pair of their terms would be a product "
    "of its own.",
    "what decisions are made of": "Whole numbers, masks or float8 are made of this value, whose last bit may decide: "
    "its operators stay the program's.",
    # of what one kernel computes
    "expansions of one kernel": "More ways to compute these values in one kernel than the bound allows; a spread of "
    "them was kept.",
    "equations of one kernel": "The kernel would have more operators than the bound allows.",
    "reductions of one kernel": "The kernel would have more sums, maxima and products than the bound allows.",
    "intermediates read by one kernel": "The kernel would read more results of other kernels than the bound allows.",
    "a product that is there but for a factor": "The kernel has values already that make this one without a product.",
    "a number times another class in memory": "Two values differ by a number alone: one of them in memory is enough.",
    "operands of a higher degree": "An operand of a product would multiply more of the inputs than the program's own "
    "operands do, and so leave its type's range earlier.",
    "operands without the program's coefficient": "The program makes an operand of a product smaller by a number, "
    "or in float16 by an input, which would be applied too late.",
    "targets of different shape": "Values with different axes are not made by one kernel, unless both are outputs.",
    "rename inside a kernel": "One axis would stand for two inside a kernel, where it has one role.",
    "integers by floating point": "Whole numbers that are an output would be sums of floating-point products.",
    # of how a kernel is cut into blocks
    "blocks too large": "What a block holds at once exceeds what a multiprocessor has at every tile size.",
    "nested loop": "The kernel would need a loop inside of a loop; its loops follow each other.",
    "a split needs a second pass": "Chunks of an axis cannot be merged at the end: something needs the whole axis.",
    "uses a partial result": "A chunk of a split axis would use a sum over the whole of it.",
    "stores a partial result as a whole": "A chunk of a split axis would store its part as the whole.",
    "reduces a grid axis": "A sum would run over an axis that is cut over program instances, which do not meet.",
    "leaves a loop without a reduction": "A tile of a loop would be used behind the loop, where it is gone.",
    "adds up again what it compares": "A sum would be compared with what rests on the same sum of another kernel.",
    "needed before it is known": "A loop would use what a later loop makes.",
    "an operator of the program fits no kernel": "No roles of the axes suit an operator of the program.",
    "an operator of the program needs its own result": "The program's operators cannot be put in an order.",
    # of cost
    "more memory traffic than there is time for": "Moving the tensors once takes longer than the best plan may.",
    "more memory traffic from as many intermediates": "Other kernels that read as many intermediates move fewer bytes.",
    "more work from the same leaves": "Other kernels that read the same tensors do less arithmetic.",
    "more arithmetic than there is time for": "The operations alone take longer than the best plan may.",
    # of whole plans
    "kernels per graph": "The plan would have more kernels than the bound allows.",
    "cost above the best times the slack": "The cost model predicts more than the best's time times the slack.",
    "continuations of one state": "More ways to go on than the bound allows; the cheapest were kept.",
    "plans that are much slower": "After so many kernels, plans with up to the slack's times the best's time are not "
    "looked for.",
    # of verification
    UNVERIFIED: "The budget ended before the plan was verified, so it is not used.",
}
"""Reason, and what it means."""
