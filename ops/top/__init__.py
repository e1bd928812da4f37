"""`penstock top`: a live view of members from their metrics."""
