"""mirage: a multi-level superoptimizer for tensor programs that writes plain Triton."""

__version__ = "0.1.0"
