"""Trials: work that is predicted to be late, and runs all the same."""

import math

TRIAL_EVERY_S = 1.0  # an engine that is thought to be too slow for every deadline is measured again this often


class Trials:
    """When a trial may run. Predictions that are far too high are corrected only by work that runs."""

    def __init__(self) -> None:
        self._next = -math.inf

    def are_due(self, now: float) -> bool:
        """Whether the last one is long enough ago."""
        return now >= self._next

    def begin(self, now: float) -> None:
        """One is admitted."""
        self._next = now + TRIAL_EVERY_S
