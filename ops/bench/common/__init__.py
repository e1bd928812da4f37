"""Shared by all benchmarks: machine facts, child processes, kept runs, targets and tables."""
