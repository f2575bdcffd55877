"""Does a μGraph compute its program? docs/verification.md states what a verdict says.

equivalence  the check before code is written: `structure`, `proof` by algebra, then random tests in finite fields
interpret    the definition of programs and of scheduled μGraphs, over any `semantics`
field        the finite fields, over `residues`; `reduced` makes small sizes, `draws` inputs, `guesses` counts what
             comparisons answer at random, `degree` the bound
numeric      the check of a generated kernel in floating point, against `float64`, on `testdata`
yardstick    what error is allowed; `decided` where whole numbers, masks or float8 depend on rounding
"""
