"""Benchmarks: each figure beside its baseline and its floor, measured in one run."""
