"""The stages in their order: `optimize` is the file to read first.

    search     searching (one program), searchers (several, in processes), rewrites, verifying, clock
    tune       tuning (on this GPU), predicting (without one), problem, budgets
    keep       kept, keys, written (files), locked, serving (which file serves which sizes)
    tell       profile, roofline, reported, and what `mirage verify` says: judging
    callers    callers (`Graph.search`, `mirage_cli.optimize`), backend (`torch.compile`), models (whole models)
    machines   processes, cluster and onworker (Dask), parallel (one program over several GPUs)
    bench      `mirage bench`

What the stages share while programs are worked on is a `session`.
"""
