"""Records of routes on their way: in as requests, out as enriched records, in the order of their keys."""
