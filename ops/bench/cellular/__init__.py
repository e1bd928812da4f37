"""Benchmarks of requests of many steps: cellular batching, and encoder-decoder generation."""
