"""Encoder-decoder generation: paged caches, decoder steps of any sequences, and the search for tokens."""
