"""Loads on the scheduler and its lanes, the systems that take them, and the outcome."""
