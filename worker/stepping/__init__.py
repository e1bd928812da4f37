"""Requests of many steps: they join a batch at their first step and leave it at their last."""
