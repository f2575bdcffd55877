"""Functions that bfloat16 rounds by more than a shorter text is off.

    t = tanh(s), C = mul(t, 50)  -->  the hardware's tanh, which is 2^-11 of it off; PyTorch rounds t by up to 2^-8

PyTorch rounds what it has as a tensor. What stands within one of its operators it does not, and there a sum may leave
of t little more than what it is off: 1 + tanh(v) in gelu. So what is made of t is multiplied, chosen, or added to what
is made of other tensors, up to where it is stored, summed up or an exponent.
"""

from __future__ import annotations

from collections.abc import Collection

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, cast_of


def coarse(kernel: Kernel, exact: Collection[str], dtypes: Collection[str]) -> frozenset[str]:
    """The values of a kernel for which the text in bfloat16 will do. exact: values of float32. dtypes: of the program
    and its tensors."""
    some = [e for e in kernel.body if OPS[e.op].in_bfloat16 and e.out not in exact]
    other = "float16" in dtypes or any(cast_of(e) == "float16" for e in kernel.body)
    if not some or other or "bfloat16" not in dtypes:
        return frozenset()
    return frozenset(e.out for e in some if _is_rounded(kernel, e))


def _is_rounded(kernel: Kernel, e: Eqn) -> bool:
    """Whether what is made of a value shows it no better than rounded."""
    made_of = {x.out: {*x.buffers} for x in kernel.loads}
    for q in kernel.body:
        made_of[q.out] = {b for v in q.values for b in made_of[v]}
    along = {e.out}
    for q in (q for q in kernel.body if not along.isdisjoint(q.values)):
        row = OPS[q.op]
        beside = [a for a in q.args if a not in along]
        apart = len(beside) == 1 and isinstance(beside[0], str) and made_of[beside[0]].isdisjoint(made_of[e.out])
        if row.kind in ("reduction", "contraction") or row.shift:
            continue
        alone = row.growth in ("product", "quotient") or row.masks or row.cast or len(row.linear) == 1
        if not alone and not (row.linear and apart):
            return False
        along.add(q.out)
    return True
