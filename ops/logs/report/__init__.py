"""Logs as a page with plots."""
