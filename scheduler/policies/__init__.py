"""Interchangeable decisions: when to run, what runs together, which first, what to admit."""
