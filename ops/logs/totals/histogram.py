"""A histogram of positive numbers with bins of 0.8 to 1.6 %, in place of the numbers, for percentiles of any number.

A bin has the numbers of which the first bits are the same: each power of two is divided into 64 bins. Bin 0 has zero
and what is below 1e-7.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_SHIFT = 46  # of the 52 bits of a float's fraction, those that do not matter
_TO_CENTRE = 1.0 + 2.0**-7  # 1 is then in the middle of a bin
_BITS_BEFORE_LOWEST = int(np.float64(1e-7 * _TO_CENTRE).view(np.int64) >> _SHIFT) - 1
_NUM_BINS = 4100  # up to 1e12
_EDGES = ((np.arange(_NUM_BINS + 1) + _BITS_BEFORE_LOWEST) << _SHIFT).view(np.float64) / _TO_CENTRE
_CENTRES = (_EDGES[:-1] + _EDGES[1:]) / 2
_CENTRES[0] = 0.0


class Histogram:
    """Counts by bins."""

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, np.int64)
        self._sums = np.zeros(_NUM_BINS)
        self.greatest = 0.0

    @classmethod
    def of_bins(cls, bins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> "Histogram":
        """Of numbers of which only the bins are known, by `bins_of`."""
        made = cls()
        np.add.at(made._counts, bins, counts)
        made._sums = made._counts * _CENTRES
        return made

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count numbers, without those that are not finite; negative ones as zero."""
        values = np.maximum(values[np.isfinite(values)], 0.0)
        bins = bins_of(values)
        self._counts += np.bincount(bins, minlength=_NUM_BINS)
        self._sums += np.bincount(bins, values, _NUM_BINS)
        self.greatest = max(self.greatest, float(values.max(initial=0.0)))

    def percentile(self, percent: float) -> float:
        """The mean of its bin, so within 1 %. NaN without numbers."""
        count = len(self)
        if not count:
            return float("nan")
        index = int(np.searchsorted(np.cumsum(self._counts), max(1.0, np.ceil(count * percent / 100))))
        return float(self._sums[index] / self._counts[index])

    def deviation(self, percent: float) -> float:
        """A percentile of |number - 1|. NaN without numbers."""
        if not len(self):
            return float("nan")
        distances = np.abs(_CENTRES - 1.0)
        order = np.argsort(distances)
        index = np.searchsorted(np.cumsum(self._counts[order]), np.ceil(len(self) * percent / 100))
        return float(distances[order][index])

    def between(self, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Counts between edges, [len(edges) - 1], for a plot."""
        return np.histogram(_CENTRES, edges, weights=self._counts)[0].astype(np.int64)


def bins_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each number. None is negative."""
    bins: npt.NDArray[np.int64] = ((values * _TO_CENTRE).view(np.int64) >> _SHIFT) - _BITS_BEFORE_LOWEST
    return np.clip(bins, 0, _NUM_BINS - 1)


def bucket_percentile(bounds: Sequence[float], counts: npt.ArrayLike, percent: float) -> float:
    """A percentile of counts by buckets up to each bound, straight within a bucket.

    NaN without counts; at most the last finite bound.
    """
    numbers = np.asarray(counts, float)
    if not numbers.sum() > 0:
        return float("nan")
    wanted, below = numbers.sum() * percent / 100, 0.0
    edges = [0.0, *bounds]
    for (low, high), count in zip(pairwise(edges), numbers, strict=True):
        if count > 0 and below + count >= wanted:
            return low if np.isinf(high) else low + (high - low) * float((wanted - below) / count)
        below += count
    return edges[-2]
