"""Simulated devices, clients and fleets that drive the worker's own scheduler."""
