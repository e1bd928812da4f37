"""Compiled loops over the arrays of requests and their nodes."""
