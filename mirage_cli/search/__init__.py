"""Search: μGraphs from the decomposition graph, within stated bounds, ordered by a cost model.

generator   kernel graphs, exhaustive within bounds; `greedy` has the plans that need no search
expand      the part of the decomposition that one kernel computes; `roles` makes kernels of it
assembly    the μGraph of kernels in order; `layout`, `relaid`, `overwritten` and `unmerged` say what lies where
chains      lower bounds of what is left, from `least` and `storage`; `cuts` names what is left out
tiles       schedules that are worth a try, by `cost`
"""
