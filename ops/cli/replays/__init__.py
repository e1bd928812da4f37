"""`penstock replay`: records are sent again, and those of a route enriched again beside live ones."""
