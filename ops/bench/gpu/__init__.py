"""Benchmarks of the GPU engine beside its baselines and its floor, in one process and one run. Imports no torch."""
