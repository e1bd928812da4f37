"""Logs, metrics and the load monitor of a worker."""
