"""Whom to refuse: nobody whose deadline has not passed, or whoever could not be answered in time."""

import math
from typing import Protocol

from penstock.scheduler.queueing.block import Waiting
from penstock.scheduler.queueing.job_queue import JobQueue


class AdmissionPolicy(Protocol):
    """Asked for every job that comes, and again when it is about to run."""

    def lateness(self, queue: JobQueue, job: Waiting, begin: float) -> float:
        """Seconds by which `job` in this queue, or a job behind it, would be late; above 0 it is refused.

        `job` is not queued yet. `begin` is when the lanes are predicted to begin with the queue.
        """
        ...

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        """Whether a job that would run now, and end at the predicted `end`, must be refused instead."""
        ...


class Accept:
    """Everybody is let in. Only what has expired is not run."""

    def lateness(self, queue: JobQueue, job: Waiting, begin: float) -> float:
        return -math.inf

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        return deadline <= now


class InTime:
    """Let in who can be answered in time without making late who was let in before.

    What is let in counts at once, in the queue or in `begin`, so there is no delay in the loop that could oscillate.
    """

    def lateness(self, queue: JobQueue, job: Waiting, begin: float) -> float:
        if begin + queue.work_s <= job.latest_begin and begin + job.work_s <= queue.safe_begin:
            return 0.0  # even if it were last, and everybody else were behind it
        return begin - queue.latest_begin_with(job, enough=begin)

    def is_late(self, deadline: float, now: float, end: float) -> bool:
        return deadline <= now or deadline < end


def admission_policy(name: str) -> AdmissionPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[AdmissionPolicy]] = {"accept": Accept, "deadline": InTime}
    if name not in policies:
        raise ValueError(f"admission must be one of {', '.join(policies)}. Given: {name!r}")
    return policies[name]()
