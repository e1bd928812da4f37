"""How far predictions were from what was measured."""

import math
from collections import deque

import numpy as np

_NUM_ERRORS = 1000


class PredictionErrors:
    """|predicted / measured - 1| of the last 1,000 batches, or tasks, each as it was predicted then."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_NUM_ERRORS)

    def note(self, predicted_s: float, measured_s: float) -> None:
        """One ran. Both times are above 0."""
        self._recent.append(abs(predicted_s / measured_s - 1))

    def quantiles(self) -> tuple[float, float]:
        """p50 and p95. NaN: there is none yet."""
        if not self._recent:
            return math.nan, math.nan
        p50, p95 = np.quantile(self._recent, (0.5, 0.95)).tolist()
        return p50, p95
