"""The deadlines of active jobs, earliest first."""

import heapq
import math
from collections.abc import Callable

from penstock.scheduler.cellular.arrays import DEADLINE, NUMBER
from penstock.scheduler.cellular.jobs import JobRows

_FEW = 1000  # entries of jobs that have left, which are not worth a removal

Deadline = tuple[float, int, int]  # of a job: when, its number, which tells it from a later job of the same id, its id


class Deadlines:
    """A heap. The deadline of a job that has left stays in it until such deadlines are half of all."""

    def __init__(self, number_of: Callable[[int], int]) -> None:
        """number_of: the number of the active job of an id, if there is one."""
        self._heap: list[Deadline] = []
        self._number_of = number_of

    def push(self, rows: JobRows) -> None:
        """Add the deadlines of jobs."""
        deadlines, numbers = rows.times[DEADLINE].tolist(), rows.columns[NUMBER].tolist()
        for deadline in zip(deadlines, numbers, rows.ids, strict=True):
            if deadline[0] < math.inf:
                heapq.heappush(self._heap, deadline)

    def pop(self, now: float) -> list[Deadline]:
        """Remove those that have passed. Returns those of active jobs."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            deadline = heapq.heappop(self._heap)
            if self._is_active(deadline):
                passed.append(deadline)
        return passed

    def next(self, num_active: int) -> float | None:
        """The earliest deadline of an active job; None: there is none. num_active: active jobs."""
        if len(self._heap) > 2 * num_active + _FEW:
            self._heap = list(filter(self._is_active, self._heap))
            heapq.heapify(self._heap)
        while self._heap and not self._is_active(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_active(self, deadline: Deadline) -> bool:
        _, number, job_id = deadline
        return self._number_of(job_id) == number
