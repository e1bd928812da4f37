"""Logs as tables and text in a terminal."""
