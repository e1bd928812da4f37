"""Measures, tables and plots of the kept runs."""
