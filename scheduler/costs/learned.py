"""A cost that learns from every batch that ran, and from how long each waited for the device."""

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from penstock.scheduler.costs.cost import Value
from penstock.scheduler.costs.table import CostTable

_NUM_RECENT = 15  # batches whose medians are learned: seven outliers among them move nothing
_NUM_ERRORS = 1000
_ABSURD = 1e6  # times as long, or as short, as predicted


class LearnedCost:
    """`wait_s + scale * table`: seconds of a lane, learned from every batch. Not thread-safe.

    The scale corrects the table: the median of the last ratios of measured to tabulated seconds. `wait_s` is the median
    of the last waits for a device that other processes use in turns. So a step, such as another process that starts on
    the same device, is followed within eight batches, and a single outlier changes next to nothing.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.scale = 1.0
        self.wait_s = 0.0
        # Measured / tabulated. The table counts as two batches, so that the first batch alone decides nothing.
        self._recent = deque([1.0, 1.0], maxlen=_NUM_RECENT)
        self._waits = deque([0.0, 0.0], maxlen=_NUM_RECENT)
        self._errors: deque[tuple[float, float]] = deque(maxlen=_NUM_ERRORS)  # of device seconds, of lane seconds

    @property
    def padded(self) -> bool:
        return self.table.padded

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return self.wait_s + self.device_seconds(tokens, squares, longest, count)

    def device_seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        """Seconds without the wait: those that the device works."""
        return self.scale * self.table.seconds(tokens, squares, longest, count)

    def observe(
        self, tokens: int, squares: int, longest: int, count: int, measured_s: float, wait_s: float = 0.0
    ) -> None:
        """Learn from one batch that waited `wait_s` and then ran for `measured_s`.

        Impossible times (NaN, infinite, 0, negative, absurd) are ignored.
        """
        tabulated_s = float(self.table.seconds(tokens, squares, longest, count))
        predicted_s = self.scale * tabulated_s
        if not predicted_s / _ABSURD < measured_s < predicted_s * _ABSURD or not 0 <= wait_s < math.inf:
            return
        lane_error = abs((self.wait_s + predicted_s) / (wait_s + measured_s) - 1)
        self._errors.append((abs(predicted_s / measured_s - 1), lane_error))
        self._recent.append(measured_s / tabulated_s)
        self._waits.append(wait_s)
        self.scale, self.wait_s = _median(self._recent), _median(self._waits)

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the device's seconds, over 1,000 batches. NaN before the first.

        Each prediction was made before its batch was learned from.
        """
        return self._quantiles(0)

    def lane_errors(self) -> tuple[float, float]:
        """As `errors`, of the wait and the device's seconds together."""
        return self._quantiles(1)

    def _quantiles(self, kind: int) -> tuple[float, float]:
        if not self._errors:
            return math.nan, math.nan
        p50, p95 = np.quantile([errors[kind] for errors in self._errors], (0.5, 0.95)).tolist()
        return p50, p95


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
