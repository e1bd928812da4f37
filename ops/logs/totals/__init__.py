"""Totals over the events of logs, and the story of one request."""
