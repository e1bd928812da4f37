"""The engines of one model on this machine, and the plan of a run."""
