"""Models of cells and requests for them."""
