"""PyTorch models: the regions that kernels compute, and what stands between them. `model` is the file to read first.

    model ─► its graph ─► regions ─► a kernel each ─► those that are faster ─► the model with these in place

The modules in the order of these stages:

* the graph, written so that programs can be made of it: `symbols` has sizes that differ by call, `inplace` what is
  changed in place; `attention`, `groups` and `fused` keep PyTorch's large operators whole or write them out; `pairs` is
  for complex numbers, `constants` for what is made of numbers alone, `named` for numbers that name rows; the other
  rewrites are `passes`;
* its regions, in `regions`: `partition` cuts, `region` is one of them; `anysize` and `counts` make its program one for
  all sizes, `agreement` compares the program with PyTorch, `outlining` makes modules of parts, `taken` is the report;
* which kernels stay: `inductors` compiles the same nodes by Inductor, `beside` times a region, `inmodel` and `whole`
  time the model, `figures` keeps what was timed;
* the model with kernels: `straight` has the steps around one, `layout` how results lie, `pieces` what stands between;
  `compiled` is what PyTorch's cache keeps of it;
* other entries: `functions` is `@mirage_cli.kernel`, `package` writes kernels as a Python package.
"""
