"""When each queued job would begin, and how much later it may: the exact half of admission."""

from collections.abc import Sequence

import numpy as np

from penstock.scheduler.queueing.queued_job import QueuedJob

_HEADROOM = 1024  # jobs that fit before the arrays are built anew


class Timeline:
    """Jobs that run one after the other, by place in the queue. An insertion shifts the arrays behind it.

    A job's latest start is the latest moment to begin with the first job so that this one is in time.
    """

    def __init__(self, jobs: Sequence[QueuedJob]) -> None:
        self._num = len(jobs)
        self._ahead_s = np.zeros(self._num + _HEADROOM + 1)  # [place]: work of the jobs before it
        self._latest_start = np.full(self._num + _HEADROOM + 1, np.inf)
        self._ahead_s[1 : self._num + 1] = np.cumsum([job.work_s for job in jobs])
        latest_begin = np.array([job.latest_begin for job in jobs], np.float64)
        self._latest_start[: self._num] = latest_begin - self._ahead_s[: self._num]

    @property
    def is_full(self) -> bool:
        """Whether no job fits any more."""
        return self._num + 1 == len(self._ahead_s)

    def insert(self, place: int, job: QueuedJob) -> None:
        """Put a job before the one at `place`."""
        num, ahead_s, latest_start = self._num, self._ahead_s, self._latest_start
        ahead_s[place + 1 : num + 2] = ahead_s[place : num + 1] + job.work_s
        latest_start[place + 1 : num + 1] = latest_start[place:num] - job.work_s
        latest_start[place] = job.latest_begin - ahead_s[place]
        self._num = num + 1

    def ahead_s(self, place: int) -> float:
        """Seconds of work before the job at `place`."""
        return float(self._ahead_s[place])

    def latest_start(self, begin: int) -> float:
        """The least over the jobs from place `begin` on; inf for none."""
        return float(self._latest_start[begin : self._num + 1].min())
