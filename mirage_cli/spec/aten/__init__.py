"""PyTorch's graphs (ATen, as `torch.export` gives them) as programs: a table of operators, and the trace over it."""
