"""A cost that learns from every batch that ran."""

import math
from collections import deque

import numpy as np

from penstock.scheduler.costs.cost import Value
from penstock.scheduler.costs.table import CostTable

_NUM_RECENT = 15  # batches whose median the scale is: seven outliers among them move nothing
_NUM_ERRORS = 1000
_ABSURD = 1e6  # times as long, or as short, as predicted


class LearnedCost:
    """`scale * table`: a table corrected by the measured seconds of every batch. Not thread-safe.

    The scale is the median of the last ratios of measured to tabulated seconds. So a step, such as another process that
    starts on the same device, is followed within eight batches, and a single outlier changes next to nothing.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.scale = 1.0
        # Measured / tabulated. The table counts as two batches, so that the first batch alone decides nothing.
        self._recent = deque([1.0, 1.0], maxlen=_NUM_RECENT)
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)

    @property
    def padded(self) -> bool:
        return self.table.padded

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return self.scale * self.table.seconds(tokens, squares, longest, count)

    def observe(self, tokens: int, squares: int, longest: int, count: int, measured_s: float) -> None:
        """Learn from one batch that ran. Impossible times (NaN, infinite, 0, negative, absurd) are ignored."""
        tabulated_s = float(self.table.seconds(tokens, squares, longest, count))
        predicted_s = self.scale * tabulated_s
        if not predicted_s / _ABSURD < measured_s < predicted_s * _ABSURD:
            return
        self._errors.append(abs(predicted_s / measured_s - 1))
        self._recent.append(measured_s / tabulated_s)
        self.scale = sorted(self._recent)[len(self._recent) // 2]

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the last 1,000 batches. NaN before the first.

        Each prediction was made before its batch was learned from.
        """
        if not self._errors:
            return math.nan, math.nan
        p50, p95 = np.quantile(self._errors, (0.5, 0.95)).tolist()
        return p50, p95
