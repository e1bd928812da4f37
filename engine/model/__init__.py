"""A checkpoint as weights, and its forward pass written once for every device."""
