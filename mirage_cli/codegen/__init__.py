"""Text from μGraphs: Triton kernels, library calls, PyTorch, and the exported file.

planner      a kernel and its schedule -> `KernelPlan`; it decides with `blocks`, `loops`, `iterations`, `moves` ..
plan         what a plan is: statements, over `scalars`, `addresses` and `nodes`; `check` refuses a wrong one
triton       a plan as text, with `triton_addresses` and `triton_expressions`; `library` has calls of libraries
parts        the kernels of a μGraph as pieces of text; `export` and `sized` make files of them, with `exported`
torch_source a program as PyTorch: the baseline, and in float64 the reference
races        races in what Triton has compiled
"""
