"""Algebra: canonical forms, in which equal programs are equal, and the decompositions that lead back to operators."""
