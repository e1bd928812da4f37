"""Replies, error replies and dead letters, until the broker has acknowledged them."""
