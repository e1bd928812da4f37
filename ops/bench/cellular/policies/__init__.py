"""Policies of other systems, and devices in virtual time."""
