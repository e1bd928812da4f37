"""The jobs of a scheduler that have not left."""

from collections.abc import Sequence

import numpy as np

from penstock.scheduler.cellular.arrays import NO_JOB
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.types import Int64Array


class ActiveJobs:
    """Number and place of each active job, by id. Kernels add jobs to `index`, and remove those that end."""

    def __init__(self) -> None:
        self.index = _empty(64)
        self.num = 0  # of whoever changes `index`
        self._kernels = load_kernels()

    def make_room(self, num_jobs: int) -> None:
        """For so many more jobs. Half of the rows stay free, so that a search is short."""
        least = 2 * (self.num + num_jobs)
        if len(self.index) < least:
            larger = _empty(1 << (2 * least - 1).bit_length())
            self._kernels.copy(self.index, larger)
            self.index = larger

    def number(self, job_id: int) -> int:
        """The number of an active job; NONE: it is not active."""
        number: int = self._kernels.number_of(self.index, job_id)
        return number

    def remove(self, ids: Sequence[int] | Int64Array) -> Int64Array:
        """Jobs leave. Returns the rows of the index of those that were active."""
        removed = np.empty((len(ids), 3), np.int64)
        num_removed = self._kernels.remove_all(self.index, np.array(ids, np.int64), removed)
        self.num -= num_removed
        return removed[:num_removed]


def _empty(num_rows: int) -> Int64Array:
    return np.full((num_rows, 3), NO_JOB, np.int64)
