"""The command line: the only place that prints or picks an exit code."""
