"""The deadlines of active jobs, earliest first."""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

_FEW = 1000  # entries of jobs that have left, which are not worth a removal


class Deadline(NamedTuple):
    """When a job expires. Its number tells it from a later job of the same id."""

    at: float
    number: int
    job_id: int


class Deadlines:
    """A heap. The deadline of a job that has left stays in it until such deadlines are half of all."""

    def __init__(self, number_of: Callable[[int], int]) -> None:
        """number_of: the number of the active job of an id, if there is one."""
        self._heap: list[Deadline] = []
        self._number_of = number_of

    def push(self, deadlines: Iterable[Deadline]) -> None:
        """Add deadlines of jobs."""
        for deadline in deadlines:
            heapq.heappush(self._heap, deadline)

    def pop(self, now: float) -> list[Deadline]:
        """Remove those that have passed. Returns those of active jobs."""
        passed = []
        while self._heap and self._heap[0].at <= now:
            deadline = heapq.heappop(self._heap)
            if self._number_of(deadline.job_id) == deadline.number:
                passed.append(deadline)
        return passed

    def next(self, num_active: int) -> float | None:
        """The earliest deadline of an active job; None: there is none. num_active: active jobs."""
        if len(self._heap) > 2 * num_active + _FEW:
            self._heap = [entry for entry in self._heap if self._number_of(entry.job_id) == entry.number]
            heapq.heapify(self._heap)
        while self._heap and self._number_of(self._heap[0].job_id) != self._heap[0].number:
            heapq.heappop(self._heap)
        return self._heap[0].at if self._heap else None
