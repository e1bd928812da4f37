"""Admission policies: which jobs to reject because they, or jobs behind them, would miss their deadlines."""

import math
from typing import Protocol

from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.queued_job import QueuedJob


class AdmissionPolicy(Protocol):
    """Asked for every job on arrival, and again when it is about to run."""

    def lateness(self, queue: JobQueue, job: QueuedJob, begin: float) -> float:
        """Seconds by which `job`, or a job behind it, would be late; above 0 it is rejected.

        `job` is not queued yet. `begin`: when the lanes are predicted to begin with the queue.
        """
        ...

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        """Whether a job that would run now, and end at the predicted `end`, is rejected instead."""
        ...


class Accept:
    """Admits every job. Only expired ones are not run."""

    def lateness(self, queue: JobQueue, job: QueuedJob, begin: float) -> float:
        return -math.inf

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        return deadline <= now


class InTime:
    """Admits a job only if it and all admitted jobs meet their deadlines.

    An admitted job counts at once, in the queue or in `begin`, so no delay in the loop can make it oscillate.
    """

    def lateness(self, queue: JobQueue, job: QueuedJob, begin: float) -> float:
        if begin + queue.work_s <= job.latest_begin and begin + job.work_s <= queue.safe_begin:
            return 0.0  # in time even as the last of the queue, and so are all others behind it
        return begin - queue.latest_begin_with(job)

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        return deadline <= now or deadline < end


def admission_policy(name: str) -> AdmissionPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[AdmissionPolicy]] = {"accept": Accept, "deadline": InTime}
    if name not in policies:
        raise ValueError(f"admission must be one of {', '.join(policies)}. Given: {name!r}")
    return policies[name]()
