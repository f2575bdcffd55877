"""The machine: GPUs with their figures, the driver, environment variables, files."""
