"""Comparisons of answers: of a checkpoint with its reference, and of two versions of a model."""
