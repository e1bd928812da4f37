"""Predicted seconds of a task."""

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from statistics import median_low

_WEIGHT = 0.2  # of the last task in the mean
_NUM_RECENT = 5  # tasks of an entry from which `surely_s` takes the median: the lower one of two
_FAR = 4.0  # an outlier counts as a task that took so many times the mean, or such a part of it


def corrected(mean_s: float | None, measured_s: float) -> float:
    """A mean of recent times after one more, above 0. None: of no time yet."""
    if not mean_s:
        return measured_s
    if not mean_s / _FAR <= measured_s <= mean_s * _FAR:
        measured_s = min(max(measured_s, mean_s / _FAR), mean_s * _FAR)
    return mean_s + _WEIGHT * (measured_s - mean_s)


def bucket_of(num_rows: int) -> int:
    """The bucket of tasks of so many rows: powers of two."""
    return (num_rows - 1).bit_length()


class TaskCost:
    """A table of measured seconds, by cell, rows (in powers of two) and quantum. Each is a mean of recent tasks."""

    def __init__(self) -> None:
        # By cell, bucket and quantum.
        self._measured: defaultdict[int, defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        # The measured bucket and quantum from which another entry is estimated; kept until one more is measured.
        self._nearest: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._least_step_s: defaultdict[int, dict[int, float]] = defaultdict(dict)  # by cell and bucket: of all quanta
        self._recent: defaultdict[int, dict[tuple[int, int], deque[float]]] = defaultdict(dict)  # by bucket and quantum

    def seconds(self, cell: int, num_rows: int, quantum: int) -> float:
        """The mean, or an estimate from the nearest measured entry of the cell; 0 where there is none."""
        bucket = bucket_of(num_rows)
        known = self._measured[cell][bucket].get(quantum)
        return self._estimate(cell, bucket, quantum) if known is None else known

    def surely_s(self, cell: int, num_rows: int, quantum: int) -> float:
        """Seconds that a task takes at least, by which jobs are rejected. No single measurement can raise it.

        The median of recent tasks. An entry with one or none is bounded by others, as a task takes no less than one of
        fewer rows and steps, and no less than its share of one of more. 0: nothing was measured twice. It is no more
        than a task of more rows takes: slow tasks must not reject the jobs without which they are never corrected.
        """
        bucket = bucket_of(num_rows)
        known = self._recent[cell].get((bucket, quantum), ())
        seconds = median_low(known) if len(known) > 1 else max(self._bounds(cell, bucket, quantum), default=0.0)
        for other, step_s in self._least_step_s[cell].items():
            if other > bucket and quantum * step_s < seconds:
                seconds = quantum * step_s
        return seconds

    def step_s(self, cell: int, num_rows: int) -> float:
        """Of a step in the quantum in which it takes least; 0 where nothing was measured."""
        known = self._least_step_s[cell].get(bucket_of(num_rows))
        return self.seconds(cell, num_rows, 1) if known is None else known

    def observe(self, cell: int, num_rows: int, quantum: int, measured_s: float) -> None:
        """Correct the table by a task that ran. Times that are not finite and above 0 are ignored."""
        if not 0 < measured_s < math.inf:
            return
        bucket = bucket_of(num_rows)
        measured = self._measured[cell][bucket]
        mean_s = measured.get(quantum)
        if mean_s is None:
            self._nearest.clear()
        measured[quantum] = corrected(mean_s, measured_s)
        self._recent[cell].setdefault((bucket, quantum), deque(maxlen=_NUM_RECENT)).append(measured_s)
        least = self._least_step_s[cell]
        if (step_s := measured[quantum] / quantum) <= least.get(bucket, math.inf):
            least[bucket] = step_s
        else:
            least[bucket] = min([mean_s / steps for steps, mean_s in measured.items()])

    def _bounds(self, cell: int, bucket: int, quantum: int) -> Iterator[float]:
        """The least seconds of a task, by each entry of its cell that was measured twice."""
        for (other, steps), recent in self._recent[cell].items():
            if len(recent) > 1:
                share = min(1.0, 2.0 ** (bucket - other)) * min(1.0, quantum / steps)
                yield share * median_low(recent)

    def _estimate(self, cell: int, bucket: int, quantum: int) -> float:
        """In proportion to the quantum. Rows matter less: the next measured bucket counts as it is."""
        measured, key = self._measured[cell], (cell, bucket, quantum)
        if key not in self._nearest:
            found = [(other, steps) for other, by_steps in measured.items() for steps in by_steps]
            if not found:
                return 0.0
            self._nearest[key] = min(found, key=lambda one: (abs(one[0] - bucket), abs(math.log(one[1] / quantum))))
        near, steps = self._nearest[key]
        return measured[near][steps] * quantum / steps
