"""Encoders of transformers that the packed runtime does not know, run padded."""
