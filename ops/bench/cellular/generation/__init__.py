"""Encoder-decoder generation on one GPU."""
