"""Search: μGraphs from the decomposition graph, within stated bounds, ordered by a cost model."""
