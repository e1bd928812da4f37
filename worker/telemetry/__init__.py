"""Logs, metrics and the load monitor of one worker."""
