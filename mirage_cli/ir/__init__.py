"""The intermediate representations: operators, programs and μGraphs. Everything here is frozen and prints as text."""
