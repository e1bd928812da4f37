"""Batching policies of other systems."""
