"""Commands that look at dead letters, answer them, and send records again."""
