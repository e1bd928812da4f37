"""Open requests: their states and what they have emitted."""
