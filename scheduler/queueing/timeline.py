"""Predicted begin of every queued job, and how much later it may begin: the exact part of admission."""

from collections.abc import Sequence

import numpy as np

from penstock.scheduler.queueing.queued_job import QueuedJob

_HEADROOM = 1024  # insertions before the arrays are built anew


class Timeline:
    """Jobs that run one after the other, by place in the queue. An insertion shifts the arrays behind it.

    A job's latest start is the latest moment to begin with the first job so that this one is in time.
    """

    def __init__(self, jobs: Sequence[QueuedJob]) -> None:
        self._first, self._end = 0, len(jobs)  # of the jobs in the arrays; those before have left the queue
        self._ahead_s = np.zeros(self._end + _HEADROOM + 1)  # work before each job, of those that left too
        self._ahead_s[1 : self._end + 1] = np.cumsum([job.work_s for job in jobs])
        self._slack = np.full(self._end + _HEADROOM + 1, np.inf)  # latest begin of each job, less the work before it
        self._slack[: self._end] = np.array([job.latest_begin for job in jobs]) - self._ahead_s[: self._end]

    @property
    def is_full(self) -> bool:
        """Whether no job fits any more."""
        return self._end + 1 == len(self._ahead_s)

    def insert(self, place: int, job: QueuedJob) -> None:
        """Put a job before the one at `place`."""
        at, end, ahead_s, slack = self._first + place, self._end, self._ahead_s, self._slack
        ahead_s[at + 1 : end + 2] = ahead_s[at : end + 1] + job.work_s
        slack[at + 1 : end + 1] = slack[at:end] - job.work_s
        slack[at] = job.latest_begin - ahead_s[at]
        self._end = end + 1

    def remove_first(self, num: int) -> None:
        """The first `num` jobs leave."""
        self._first += num

    def ahead_s(self, place: int) -> float:
        """Seconds of work before the job at `place`."""
        return float(self._ahead_s[self._first + place] - self._ahead_s[self._first])

    def latest_start(self, begin: int) -> float:
        """The least over the jobs from place `begin` on; inf for none."""
        return float(self._slack[self._first + begin : self._end + 1].min() + self._ahead_s[self._first])
