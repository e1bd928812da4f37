"""Interchangeable decisions: when to run, what runs together, which first, and what bulk may add."""
