"""PyTorch models: the regions that kernels compute, and what stands between them. `model` is the file to read first."""
