"""What a program computes, however it is written: the identity of a region of a model, whoever traced it.

O = dot(rms_norm(X, k) * G, W, k)      O = dot(X * rsqrt(mean(square(X), k) + 9.99999997e-7) * G, W, k)
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace
from fractions import Fraction

from mirage_cli.ir.access import access_text
from mirage_cli.ir.derived import lower
from mirage_cli.ir.op import Number
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.pipeline.keys import program_hash
from mirage_cli.verify.proof import forms_of


def computed_hash(program: Program) -> str:
    """Identity of what a program computes at its sizes, however it is written and called: its tensors, and the
    canonical forms of its results. Numbers that are one in float32 are the same."""
    plain = replace(program, name="", eqns=(), outputs=(), parts=())
    lowered = lower(program)
    forms = forms_of(replace(lowered, eqns=tuple(map(_in_float32, lowered.eqns))))
    if forms is None:
        return program_hash(replace(program, name=""))
    places = (f"{tensor} {access_text(access)} {forms[t.name].key}" for t, tensor, access in program.places())
    return hashlib.sha256("\n".join([str(plain), *places]).encode()).hexdigest()[:16]


def _in_float32(e: Eqn) -> Eqn:
    """The equation with its numbers as kernels have them."""
    return replace(e, args=tuple(a if isinstance(a, str) else _nearest(a) for a in e.args))


def _nearest(x: Number) -> Number:
    """The float32 nearest to a number; the number itself where it is whole, or beyond float32's range."""
    if isinstance(x, Fraction) and x.denominator == 1:
        return x
    try:
        (found,) = struct.unpack("f", struct.pack("f", x))
    except OverflowError:
        return x
    return Fraction(found) if math.isfinite(found) else x
