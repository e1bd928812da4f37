"""Commands that run workers and show what they do."""
