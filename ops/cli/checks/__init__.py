"""Commands that verify a set-up: its parts, its settings, its results."""
