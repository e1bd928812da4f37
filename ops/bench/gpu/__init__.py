"""Benchmarks of the GPU engine beside its alternatives and its floor, in one run. Imports no torch."""
