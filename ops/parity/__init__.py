"""Comparison of a checkpoint's answers here with those of sentence-transformers and transformers."""
