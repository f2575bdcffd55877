"""Choosing a schedule by measurement: the schedule space, offline compilation, timing, and selection.

    select      μGraphs -> the one schedule that is fastest and right; `explore`, then `finals`
    space       the schedules of a kernel, ranked by `price`; `changes` are those near one, `normal` its normal form
    proposals   which to try next: the first of each μGraph (`near`), then by a Gaussian process (`surrogate`)
    trials      what was tried and found; `judge`, `trust` and `hidden` say which kernels are right, or cannot be
    measure     asks the process that owns the GPU (`worker`) to run candidates -> errors, times, named failures
    compilefarm asks processes that compile with no GPU (`offline`) -> resources, and Triton's cache for the launch
    interpreted asks processes that judge in Triton's interpreter, which `triton_interpreter` makes compute as a GPU
    template    forks all of these processes from one that has imported what they need

A candidate is the text of a Python module and nothing else: the processes know nothing of the μGraph it came from.
"""
