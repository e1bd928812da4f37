"""Measurements of a step dispatcher: the time of a sequence, and the errors of predicted tasks."""

import math
from collections import deque

import numpy as np

from penstock.worker.stepping.contract import StepStats

_NUM_ERRORS = 1000
_WEIGHT = 0.98  # of what was seen before, at each sequence that ends


class StepTimes:
    """Called on the event loop."""

    def __init__(self) -> None:
        self._device_s = self._num_ended = 0.0  # decayed sums
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)

    def observe(self, stats: StepStats, num_ended: int) -> None:
        """A task ran, with which so many sequences ended."""
        decay = _WEIGHT**num_ended
        self._device_s = self._device_s * decay + stats.device_s
        self._num_ended = self._num_ended * decay + num_ended
        if stats.predicted_s > 0 and stats.device_s > 0:
            self._errors.append(abs(stats.predicted_s / stats.device_s - 1))

    @property
    def seconds_a_sequence(self) -> float:
        """Device time of a sequence among those that it runs with; 0 before the first has ended."""
        return self._device_s / self._num_ended if self._num_ended else 0.0

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the last 1,000 tasks. NaN: none was predicted yet."""
        if not self._errors:
            return math.nan, math.nan
        p50, p95 = np.quantile(self._errors, (0.5, 0.95)).tolist()
        return p50, p95
