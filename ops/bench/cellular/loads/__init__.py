"""Loads on a runner, and the tasks that its engine ran."""
