"""`penstock replay --route`: records of a route's input topic are enriched again, beside live ones."""
