"""Cellular batching beside the policies that came before it."""
