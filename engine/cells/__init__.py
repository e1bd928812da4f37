"""Cellular batching: requests unfold into cells, and cells of many requests run together, step by step."""
