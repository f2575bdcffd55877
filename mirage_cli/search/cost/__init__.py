"""The cost model: from a kernel and many schedules of it to predicted times. `model` has the formula."""
