"""Tables, plots, measures and the report of kept runs."""
