"""A histogram of positive numbers with bins 2 % wide, in place of the numbers: percentiles of any number of them."""

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_GROWTH = np.log(1.02)
_LOWEST = 1.02**-813.5  # 1e-7; 1 is the centre of a bin
_MAX_SINGLE = 4096
_BINS = 2200  # up to 8e11


class LogHistogram:
    """Counts by bins. Bin 0 has zero and what is below 1e-7."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._sums = np.zeros(_BINS)
        self.total = 0.0  # sum of the numbers
        self.greatest = 0.0
        self._single: list[float] = []  # numbers that are not in the bins yet

    def __len__(self) -> int:
        return int(self._counts.sum()) + len(self._single)

    def add_one(self, value: float) -> None:
        """Count one finite number."""
        self._single.append(value)
        self.greatest = max(self.greatest, value)
        if len(self._single) >= _MAX_SINGLE:
            self._settle()

    def add(self, numbers: Iterable[float] | npt.NDArray[np.float64]) -> None:
        """Count finite numbers; negative ones as zero."""
        values = np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.float64)
        if not values.size:
            return
        values = np.maximum(values, 0.0)
        places = bins_of(values)
        self._counts += np.bincount(places, minlength=_BINS)
        self._sums += np.bincount(places, values, _BINS)
        self.total += float(values.sum())
        self.greatest = max(self.greatest, float(values.max()))

    def add_counts(self, bins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Count numbers of which only the bins are known, by `bins_of`."""
        np.add.at(self._counts, bins, counts)
        np.add.at(self._sums, bins, counts * _centres()[bins])

    def percentile(self, percent: float) -> float:
        """The mean of its bin, so within 1 %. NaN without numbers."""
        self._settle()
        count = len(self)
        if not count:
            return float("nan")
        index = int(np.searchsorted(np.cumsum(self._counts), max(1.0, np.ceil(count * percent / 100))))
        return float(self._sums[index] / self._counts[index])

    def deviation(self, centre: float, percent: float) -> float:
        """A percentile of |number / centre - 1|. NaN without numbers."""
        self._settle()
        if not len(self):
            return float("nan")
        distances = np.abs(_centres() / centre - 1.0)
        order = np.argsort(distances)
        index = np.searchsorted(np.cumsum(self._counts[order]), np.ceil(len(self) * percent / 100))
        return float(distances[order][index])

    @property
    def mean(self) -> float:
        """NaN without numbers."""
        self._settle()
        return self.total / len(self) if len(self) else float("nan")

    def between(self, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Counts between edges, [len(edges) - 1], for a plot."""
        self._settle()
        return np.histogram(_centres(), edges, weights=self._counts)[0].astype(np.int64)

    def _settle(self) -> None:
        numbers, self._single = self._single, []
        self.add(numbers)


def bins_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each number. None is negative."""
    bins = np.log(np.maximum(values, _LOWEST) / _LOWEST) / _GROWTH + 1.0
    return np.where(values < _LOWEST, 0, np.minimum(bins, _BINS - 1)).astype(np.int64)


@functools.cache
def _centres() -> npt.NDArray[np.float64]:
    centres: npt.NDArray[np.float64] = _LOWEST * np.exp((np.arange(_BINS) - 0.5) * _GROWTH)
    centres[0] = 0.0
    return centres
