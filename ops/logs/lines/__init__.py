"""The lines of logs: sources, readers, filters, and the events in them."""
