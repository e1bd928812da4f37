"""A request's graph: how it is unfolded and checked."""
