"""Predicted seconds of a batch: the law, the measured table, and its correction by what runs."""
