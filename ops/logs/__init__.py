"""Inspection of the workers' JSON logs: reading, filters, aggregation, screens and the report."""
