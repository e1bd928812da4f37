"""A cost that learns from every batch that ran."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.scheduler.costs.cost import Value
from penstock.scheduler.costs.table import CostTable

_NUM_RECENT = 15  # batches whose median the scale follows: seven hiccups among them move nothing
_SLOW_GAIN, _QUICK_GAIN = 0.05, 0.3  # share of the way to that median, a batch: more, the further it is
_REGION_GAIN = 0.05
_MAX_REGION_STEP = 0.2  # log: a batch that is further off than 20 % pulls no harder
_MAX_REGION = math.log(2.0)
_MEAN_GAIN = 0.02
_PUBLISH_EVERY = 16  # batches
_WORTH_PUBLISHING = 0.02  # log
_NUM_ERRORS = 1000
_ABSURD = 1e6  # times as long, or as short, as predicted


class LearnedCost:
    """`scale * table`: a table corrected by the measured seconds of every batch. Not thread-safe.

    Two corrections, both of logarithms. `scale` is for all batches and follows the median of the last few, so a lasting
    change is followed within tens of batches and a single slow one changes next to nothing. Factors at the knots of the
    grid are for what differs between small and large batches, short and long; they move slowly, and by bounded steps.
    The table that is read changes only when they have moved by more than noise, since what is derived from a table
    (may the faster partition be used?) is then derived anew.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table  # with the factors learned so far
        self.scale = 1.0
        self._calibrated = table
        self._regions = [[0.0] * len(table.lengths) for _ in table.sizes]  # log corrections of the calibrated factors
        self._published = np.array(self._regions)  # those in `table`
        self._mean_region = 0.0  # over the batches that come
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)  # log of what the regions leave to the scale
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)
        self._num_observed = 0

    @property
    def padded(self) -> bool:
        return self.table.padded

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return self.scale * self.table.seconds(tokens, squares, longest, count)

    def lower_bound(self, tokens: float, squares: float, num_batches: int) -> float:
        return self.scale * self.table.lower_bound(tokens, squares, num_batches)

    def observe(self, tokens: int, squares: int, longest: int, count: int, measured_s: float) -> None:
        """Learn from one batch that ran. What can be no measurement (NaN, infinite, 0, negative, absurd) is ignored."""
        predicted_s = float(self.seconds(tokens, squares, longest, count))
        if not predicted_s / _ABSURD < measured_s < predicted_s * _ABSURD:
            return
        self._errors.append(abs(predicted_s / measured_s - 1))
        corners = [
            (row, column, row_weight * column_weight)
            for row, row_weight in _neighbours(self.table.sizes, count if self.padded else tokens)
            for column, column_weight in _neighbours(self.table.lengths, longest)
        ]
        calibrated_s = float(self._calibrated.seconds(tokens, squares, longest, count))
        known = sum([weight * self._regions[row][column] for row, column, weight in corners])
        off = math.log(measured_s / calibrated_s) - known
        self._recent.append(off)
        common = sorted(self._recent)[len(self._recent) // 2]
        gap = common - math.log(self.scale)
        self.scale *= math.exp(gap * min(_QUICK_GAIN, _SLOW_GAIN + abs(gap)))
        # What all regions had in common would be the scale's: without the pull to a mean of 0 both drift apart.
        self._mean_region += _MEAN_GAIN * (known - self._mean_region)
        step = _REGION_GAIN * (max(-_MAX_REGION_STEP, min(_MAX_REGION_STEP, off - common)) - self._mean_region)
        for row, column, weight in corners:
            moved = self._regions[row][column] + step * weight
            self._regions[row][column] = max(-_MAX_REGION, min(_MAX_REGION, moved))
        self._num_observed += 1
        if self._num_observed % _PUBLISH_EVERY == 0:
            self._publish()

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the last 1,000 batches. NaN before the first.

        Each is predicted anew when its measurement comes, by what was learned until then, without that batch.
        """
        if not self._errors:
            return math.nan, math.nan
        p50, p95 = np.quantile(self._errors, (0.5, 0.95)).tolist()
        return p50, p95

    def _publish(self) -> None:
        regions = np.array(self._regions)
        if np.abs(regions - self._published).max() <= _WORTH_PUBLISHING:
            return
        factors = np.array(self._calibrated.factors) * np.exp(regions)
        self.table = replace(self._calibrated, factors=tuple(map(tuple, factors.tolist())))
        self._published = regions


def _neighbours(knots: Sequence[float], value: float) -> list[tuple[int, float]]:
    """The knots on both sides of a value, with their weights in a linear interpolation; beyond the knots, the edge."""
    gap = bisect_right(knots, value)
    if gap == 0 or gap == len(knots):
        return [(max(0, gap - 1), 1.0)]
    share = (value - knots[gap - 1]) / (knots[gap] - knots[gap - 1])
    return [(gap - 1, 1 - share), (gap, share)]
