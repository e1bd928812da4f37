"""Faults against a whole fleet: three brokers, `penstock worker` and its clients, and a check of every record."""
