"""Faults of brokers, members, topics and the cache."""
