"""Rewrites: functions from a program to another one that computes the same, or None. The search takes those that
`pipeline.rewrites` lists; `shared` and `named` make the form that PyTorch evaluates. `rewriter` is what they have in
common, and `replaced` of those that put indices in the place of axes.
"""
