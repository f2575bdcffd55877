"""CUTS: every reason for which the search leaves a branch out, one row each, as `mirage explain` counts them."""

from __future__ import annotations

from collections.abc import Mapping

CUTS: Mapping[str, str] = {
    # of the algebra
    "outer product": "A product whose two sides share no axis makes a larger tensor than either; it is only taken where "
    "the program has it.",
    "scaling of the larger operand": "A factor could multiply either operand of a product; the smaller one is cheaper.",
    "cancellation": "A sum of terms that all but cancel would leave rounding errors, and the program has no such sum.",
    # of what one kernel computes
    "expansions of one kernel": "More ways to compute these values in one kernel than the bound allows; a spread of them "
    "was kept.",
    "equations of one kernel": "The kernel would have more operators than the bound allows.",
    "reductions of one kernel": "The kernel would have more sums, maxima and products than the bound allows.",
    "intermediates read by one kernel": "The kernel would read more results of other kernels than the bound allows.",
    "a number times another class in memory": "Two values differ by a constant factor: one of them in memory is enough.",
    "operands of a higher degree": "An operand would lie further outside of its type's range than the program's do.",
    "operands without the program's coefficient": "A constant would move behind a product whose operand it keeps in range.",
    "targets of different shape": "Values with different axes are not made by one kernel, unless both are outputs.",
    # of how a kernel is cut into blocks
    "blocks too large": "What a block holds at once exceeds registers and shared memory at every tile size.",
    "nested loop": "The kernel would need a loop inside a loop; kernels walk axes one after another.",
    "a split needs a second pass": "Chunks of a split axis cannot be merged: a value needs the whole axis before it ends.",
    "rename inside a kernel": "One axis stands for two in the kernel, which has no role for both.",
    "uses a partial result": "A value would be used before the loop that completes it has ended.",
    "reduces a grid dimension": "A sum runs over an axis that is cut over program instances, which do not meet.",
    "leaves a loop without a reduction": "A value of a loop's tile would be used behind the loop, where only the last is.",
    "stores a partial result as a whole": "A value would be stored before the loop that completes it has ended.",
    "needed before it is known": "Two loops would each need what the other makes.",
    "an operator of the program fits no kernel": "None of the operator's forms fits the bounds.",
    "an operator of the program needs its own result": "The operators cannot be put in an order.",
    # of cost
    "more memory traffic than there is time for": "Moving these tensors once takes longer than the best plan may.",
    "more memory traffic from as many intermediates": "Other kernels that read as many intermediates move fewer bytes.",
    "more work from the same leaves": "Other kernels that read the same tensors do less arithmetic.",
    "more arithmetic than there is time for": "The operations alone take longer than the best plan may.",
    # of whole plans
    "kernels per graph": "The plan would have more kernels than the bound allows.",
    "cost above the best times the slack": "By the cost model, the plan takes over twice as long as the best.",
    "continuations of one state": "More ways to go on than the bound allows; the cheapest were kept.",
}
"""Reason, and what it means."""
