"""Text from μGraphs: Triton kernels, library calls, PyTorch, and the exported file."""
