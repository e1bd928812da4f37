"""Whole bulk jobs: their share of the engine alone, their memory, and their bytes after kills."""
