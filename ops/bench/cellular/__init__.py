"""Benchmarks of cellular batching."""
