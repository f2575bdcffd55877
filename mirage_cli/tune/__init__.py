"""Choosing a schedule by measurement: the schedule space, offline compilation, timing, and selection.

    space      which schedules a kernel has            (sees kernels' shapes, not what they compute)
    compilefarm  compiles candidates with no GPU       -> resources, and Triton's disk cache filled for the launch
    measure    runs candidates in a process of its own -> errors, times, named failures
    select     which candidates to measure, and when one has won
    bench      the same measurement for baselines      -> rows of a table

A candidate is the text of a Python module and nothing else: nothing here knows the μGraph it came from.
"""
