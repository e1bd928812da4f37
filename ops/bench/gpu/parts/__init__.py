"""The parts of a run. Each has a function that takes the Bench and returns figures."""
