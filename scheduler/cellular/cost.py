"""Predicted seconds of a task."""

import math

_WEIGHT = 0.2  # of the last task in the mean
_FAR = 4.0  # an outlier counts as a task that took so many times the mean, or such a part of it


def corrected(mean_s: float | None, measured_s: float) -> float:
    """A mean of recent times after one more, above 0. None: of no time yet."""
    if not mean_s:
        return measured_s
    return mean_s + _WEIGHT * (min(max(measured_s, mean_s / _FAR), mean_s * _FAR) - mean_s)


def bucket_of(num_rows: int) -> int:
    """The bucket of tasks of so many rows: powers of two."""
    return (num_rows - 1).bit_length()


class TaskCost:
    """A table of measured seconds, by cell, rows (in powers of two) and quantum. Each is a mean of recent tasks."""

    def __init__(self) -> None:
        self._measured: dict[tuple[int, int, int], float] = {}
        self._estimated: dict[tuple[int, int, int], float] = {}  # kept until another entry is measured

    def seconds(self, cell: int, num_rows: int, quantum: int) -> float:
        """The mean, or an estimate from the nearest measured entry of the cell; 0 where there is none."""
        key = cell, bucket_of(num_rows), quantum
        known = self._measured.get(key)
        if known is None:
            known = self._estimated.get(key)
        if known is None:
            known = self._estimated[key] = self._estimate(*key)
        return known

    def seconds_at_most(self, cell: int, num_rows: int, quantum: int) -> float:
        """As `seconds`, but no more than a task of more rows takes, in proportion to the quantum.

        So one slow task does not reject the jobs without which its entry is never corrected.
        """
        bucket = bucket_of(num_rows)
        larger = [key for key in self._measured if key[0] == cell and key[1] > bucket]
        return min([self._measured[key] * quantum / key[2] for key in larger] + [self.seconds(cell, num_rows, quantum)])

    def observe(self, cell: int, num_rows: int, quantum: int, measured_s: float) -> None:
        """Correct the table by a task that ran. Times that are not finite and above 0 are ignored."""
        if not 0 < measured_s < math.inf:
            return
        key = cell, bucket_of(num_rows), quantum
        mean_s = self._measured.get(key)
        if mean_s is None:
            self._estimated.clear()
        self._measured[key] = corrected(mean_s, measured_s)

    def _estimate(self, cell: int, bucket: int, quantum: int) -> float:
        """In proportion to the quantum. Rows matter less: the next measured bucket counts as it is."""
        measured = [key for key in self._measured if key[0] == cell]
        if not measured:
            return 0.0
        nearest = min(measured, key=lambda key: (abs(key[1] - bucket), abs(math.log(key[2] / quantum))))
        return self._measured[nearest] * quantum / nearest[2]
