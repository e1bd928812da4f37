"""Graphs as arrays: nodes, their order in memory, and the slots that they need."""
