"""A cost that learns from every batch that ran."""

import math
from collections import deque
from dataclasses import replace

import numpy as np

from penstock.scheduler.cost import Value
from penstock.scheduler.cost_table import CostTable, knot_weights

_NUM_RECENT = 9  # batches whose median the scale follows: four hiccups among them move nothing
_SCALE_GAIN = 0.2  # share of the way to that median, a batch
_REGION_GAIN = 0.05
_MAX_REGION_STEP = 0.2  # log: a batch that is further off than 20 % pulls no harder
_MAX_REGION = math.log(2.0)
_PUBLISH_EVERY = 16  # batches
_WORTH_PUBLISHING = 0.02  # log
_NUM_ERRORS = 1000


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
        self._measured = table
        self._regions = np.zeros((len(table.sizes), len(table.lengths)))  # log corrections of `_measured`
        self._published = self._regions.copy()  # those in `table`
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)  # log(measured / predicted by the regions alone)
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
        """Learn from one batch that ran. A time that is no time (NaN, infinite, 0, negative) is ignored."""
        predicted_s = float(self.seconds(tokens, squares, longest, count))
        if not 0 < measured_s < math.inf or not predicted_s > 0:
            return
        self._errors.append(abs(predicted_s / measured_s - 1))
        sizes, lengths, _ = self._measured.arrays
        size = np.array([float(count if self.padded else tokens)])
        weights = knot_weights(sizes, size).T * knot_weights(lengths, np.array([float(longest)]))
        calibrated_s = float(self._measured.seconds(tokens, squares, longest, count))
        off = math.log(measured_s / calibrated_s) - float(np.sum(weights * self._regions))
        self._recent.append(off)
        common = float(np.median(self._recent))
        self.scale *= math.exp(_SCALE_GAIN * (common - math.log(self.scale)))
        step = _REGION_GAIN * max(-_MAX_REGION_STEP, min(_MAX_REGION_STEP, off - common))
        self._regions = np.clip(self._regions + step * weights, -_MAX_REGION, _MAX_REGION)
        self._num_observed += 1
        if self._num_observed % _PUBLISH_EVERY == 0:
            self._publish()

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the last 1,000 batches, predicted before they ran.

        NaN before the first.
        """
        if not self._errors:
            return math.nan, math.nan
        p50, p95 = np.quantile(self._errors, (0.5, 0.95)).tolist()
        return p50, p95

    def _publish(self) -> None:
        if np.abs(self._regions - self._published).max() <= _WORTH_PUBLISHING:
            return
        factors = np.array(self._measured.factors) * np.exp(self._regions)
        self.table = replace(self._measured, factors=tuple(map(tuple, factors.tolist())))
        self._published = self._regions.copy()
