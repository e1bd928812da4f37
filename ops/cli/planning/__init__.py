"""Commands that measure a model on this machine, and compute the size of a fleet."""
