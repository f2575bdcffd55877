"""What users write, as programs: YAML specs, their expressions, and the same built in Python."""
