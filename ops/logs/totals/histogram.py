"""A histogram of positive numbers with bins of 0.8 to 1.6 %, in place of the numbers, for percentiles of any number.

A bin has the numbers of which the first bits are the same: each power of two is divided into 64 bins.
"""

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_SHIFT = 46  # of the 52 bits of a float's fraction, those that do not matter
_TO_CENTRE = 1.0 + 2.0**-7  # 1 is then in the middle of a bin
_LOWEST = 1e-7
_MAX_COUNTED = 1 << 17
NUM_BINS = 4100  # up to 1e12


class LogHistogram:
    """Counts by bins. Bin 0 has zero and what is below 1e-7."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BINS, np.int64)
        self._sums = np.zeros(NUM_BINS)
        self.total = 0.0  # sum of the numbers
        self._greatest = 0.0

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, numbers: Iterable[float] | npt.NDArray[np.float64]) -> None:
        """Count finite numbers; negative ones as zero."""
        values = np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.float64)
        if not values.size:
            return
        values = np.maximum(values, 0.0)
        places = bins_of(values)
        self._counts += np.bincount(places, minlength=NUM_BINS)
        self._sums += np.bincount(places, values, NUM_BINS)
        self.total += float(values.sum())
        self._greatest = max(self._greatest, float(values.max()))

    def add_integers(self, values: npt.NDArray[np.int64]) -> None:
        """The same as `add`, in less time for many small integers."""
        if not values.size or not 0 <= values.min() <= values.max() < _MAX_COUNTED:
            self.add(values.astype(np.float64))
            return
        counts = np.bincount(values)
        numbers = np.flatnonzero(counts)
        counts = counts[numbers]
        places, sums = bins_of(numbers.astype(np.float64)), numbers * counts
        self._counts += np.bincount(places, counts, NUM_BINS).astype(np.int64)
        self._sums += np.bincount(places, sums, NUM_BINS)
        self.total += float(sums.sum())
        self._greatest = max(self._greatest, float(numbers[-1]))

    def add_counts(self, bins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Count numbers of which only the bins are known, by `bins_of`."""
        self._counts += np.bincount(bins, counts, NUM_BINS).astype(np.int64)
        self._sums += np.bincount(bins, counts * _centres()[bins], NUM_BINS)

    def percentile(self, percent: float) -> float:
        """The mean of its bin, so within 1 %. NaN without numbers."""
        count = len(self)
        if not count:
            return float("nan")
        index = int(np.searchsorted(np.cumsum(self._counts), max(1.0, np.ceil(count * percent / 100))))
        return float(self._sums[index] / self._counts[index])

    def deviation(self, centre: float, percent: float) -> float:
        """A percentile of |number / centre - 1|. NaN without numbers."""
        if not len(self):
            return float("nan")
        distances = np.abs(_centres() / centre - 1.0)
        order = np.argsort(distances)
        index = np.searchsorted(np.cumsum(self._counts[order]), np.ceil(len(self) * percent / 100))
        return float(distances[order][index])

    @property
    def mean(self) -> float:
        """NaN without numbers."""
        return self.total / len(self) if len(self) else float("nan")

    @property
    def greatest(self) -> float:
        """Of the numbers that were added themselves; 0 without any."""
        return self._greatest

    def between(self, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Counts between edges, [len(edges) - 1], for a plot."""
        return np.histogram(_centres(), edges, weights=self._counts)[0].astype(np.int64)


def bins_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each number. None is negative."""
    bins = (values * _TO_CENTRE).view(np.int64) >> _SHIFT
    bins -= _bits_before_lowest()
    return np.clip(bins, 0, NUM_BINS - 1, out=bins)


@functools.cache
def _bits_before_lowest() -> int:
    return int(np.float64(_LOWEST * _TO_CENTRE).view(np.int64) >> _SHIFT) - 1


@functools.cache
def _centres() -> npt.NDArray[np.float64]:
    edges = ((np.arange(NUM_BINS + 1) + _bits_before_lowest()) << _SHIFT).view(np.float64) / _TO_CENTRE
    centres: npt.NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
    centres[0] = 0.0
    return centres
