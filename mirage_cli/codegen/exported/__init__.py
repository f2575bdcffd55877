"""What exported files hold beside their kernels: their public functions, calls that take little time, a self-check."""
