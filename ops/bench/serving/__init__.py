"""Serving under load: every batching policy at every rate, on the real engine and in a simulator of the same code."""
