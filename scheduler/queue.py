"""The jobs that wait, in the order they came, with the sums that triggers and plans are made from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from penstock.scheduler.types import Job


class QueueSummary(NamedTuple):
    """What a trigger may know of the queue. Describes at least one job."""

    num_jobs: int
    tokens: int  # sum of lengths
    squares: int  # sum of squared lengths
    longest: int
    oldest_arrival: float
    half_deadline: float  # earliest moment at which a job has used half the time its deadline gave it; inf: no deadline


class JobQueue:
    """Jobs by id, oldest first. Sums are kept as jobs come; extremes are looked up again after jobs have left."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._tokens = 0
        self._squares = 0
        self._longest = 0
        self._oldest_arrival = math.inf
        self._half_deadline = math.inf
        self._newest_arrival = -math.inf  # of all jobs ever added, unless the clock was seen to step back
        self._extremes_known = True

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def tokens(self) -> int:
        return self._tokens

    def add(self, jobs: Sequence[Job]) -> None:
        """All of `jobs`, or, when one of them is refused with ValueError, none."""
        incoming: dict[int, Job] = {}
        for job in jobs:
            if job.id in self._jobs or job.id in incoming:
                raise ValueError(f"Job ids must be unique among queued jobs. Already queued: {job.id}")
            if job.num_tokens < 1:
                raise ValueError(f"A job must have at least 1 token. Job {job.id} has: {job.num_tokens}")
            if not -math.inf < job.arrival < math.inf or job.deadline != job.deadline:
                raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")
            incoming[job.id] = job
        self._jobs.update(incoming)
        for job in jobs:
            self._tokens += job.num_tokens
            self._squares += job.num_tokens * job.num_tokens
        self._stretch_extremes(jobs)

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these jobs; ids that are not queued are skipped. Returns how many left."""
        num_before = len(self._jobs)
        for job_id in ids:
            job = self._jobs.pop(job_id, None)
            if job is not None:
                self._tokens -= job.num_tokens
                self._squares -= job.num_tokens * job.num_tokens
        num_left = num_before - len(self._jobs)
        if num_left:
            self._extremes_known = False
        return num_left

    def oldest(self, num: int) -> list[Job]:
        """The first `num` jobs in the order they were added, or all when there are fewer. They stay queued."""
        return list(islice(self._jobs.values(), num))

    def summary(self) -> QueueSummary:
        self._find_extremes()
        return QueueSummary(
            len(self._jobs), self._tokens, self._squares, self._longest, self._oldest_arrival, self._half_deadline
        )

    def clamp_arrivals(self, now: float) -> None:
        """A job cannot come from the future: the clock stepped back, and the job counts as having arrived now.

        Its time allowance, deadline - arrival, stays. So no job waits longer than if it had come at this moment.
        """
        if now >= self._newest_arrival:
            return
        for job in self._jobs.values():
            if job.arrival > now:
                deadline = None if job.deadline is None else now + (job.deadline - job.arrival)
                self._jobs[job.id] = replace(job, arrival=now, deadline=deadline)
        self._newest_arrival = now
        self._extremes_known = False

    def check_integrity(self) -> None:
        """Raise RuntimeError when a kept sum or extreme is not what the jobs say."""
        kept = self.summary()
        self._extremes_known = False
        lengths = [job.num_tokens for job in self._jobs.values()]
        sums = (len(lengths), sum(lengths), sum(length * length for length in lengths))
        if kept[:3] != sums or kept != self.summary():
            raise RuntimeError(f"The queue's sums {kept} differ from its jobs' {self.summary()}. This is a bug.")

    def _find_extremes(self) -> None:
        if not self._extremes_known:
            self._longest, self._oldest_arrival, self._half_deadline = 0, math.inf, math.inf
            self._extremes_known = True
            self._stretch_extremes(self._jobs.values())

    def _stretch_extremes(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            arrival = job.arrival
            if job.num_tokens > self._longest:
                self._longest = job.num_tokens
            if arrival < self._oldest_arrival:
                self._oldest_arrival = arrival
            if arrival > self._newest_arrival:
                self._newest_arrival = arrival
            if job.deadline is not None:
                self._half_deadline = min(self._half_deadline, arrival + (job.deadline - arrival) / 2)
