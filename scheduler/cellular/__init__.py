"""Schedules cells of many requests: a request joins at its next step and leaves at its last."""
