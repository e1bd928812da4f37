"""Benchmark of the response cache: cost of a hit, hit rate beside an ideal LRU, and cost where nothing hits."""
