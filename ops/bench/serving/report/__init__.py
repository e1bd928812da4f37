"""Tables, plots and measures of kept runs."""
