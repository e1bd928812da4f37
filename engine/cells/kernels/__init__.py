"""Compiled loops over these arrays."""
