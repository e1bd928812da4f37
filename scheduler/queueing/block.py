"""Jobs that wait, and blocks of neighbours among them, each with its sums and extremes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

MAX_BLOCK = 128  # jobs; a longer block is halved

Key = tuple[float, ...]

_KEY = attrgetter("key")


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued job. Its times are the scheduler's, which never step back."""

    id: int
    num_tokens: int
    bulk: bool
    arrival: float
    deadline: float  # inf: none
    key: Key  # place in the queue, unique
    work_s: float  # seconds for which it will keep the lanes busy, all of them together
    latest_begin: float  # the moment by which the work ahead of it must be done; inf: no deadline
    block: "Block | None" = None  # where it is, while it is queued


class Extremes(NamedTuple):
    """What triggers and caps depend on. Of no jobs: 0 and infinities."""

    longest: int  # tokens
    oldest_arrival: float
    half_slo_at: float  # earliest moment at which a job has used half the time its deadline gave it
    tightest_slo_s: float  # least deadline - arrival

    def widened_by(self, job: Waiting) -> bool:
        slo_s = job.deadline - job.arrival
        return (
            job.num_tokens > self.longest
            or job.arrival < self.oldest_arrival
            or job.arrival + slo_s / 2 < self.half_slo_at
            or slo_s < self.tightest_slo_s
        )


_NO_EXTREMES = Extremes(0, math.inf, math.inf, math.inf)


class Block:
    """Neighbours in the queue, at least one. Their work is kept; the rest is worked out when it is asked for.

    `latest_begin` is the latest moment to begin with its jobs for none of them to be late; earlier, if it `is_rough`.
    """

    __slots__ = ("_extremes", "is_rough", "jobs", "latest_begin", "work_s")

    def __init__(self, jobs: list[Waiting]) -> None:
        self.hold(jobs)
        for job in jobs:
            job.block = self

    def hold(self, jobs: list[Waiting]) -> None:
        """From now on hold these, which are in order and know this block."""
        self.keep(jobs)
        self.sharpen()

    def keep(self, jobs: list[Waiting]) -> None:
        """Hold these of its own from now on. Nobody's turn comes later by it, so that `latest_begin` errs early."""
        self.jobs = jobs
        self.work_s = sum([job.work_s for job in jobs])
        self._extremes: Extremes | None = None
        self.is_rough = True

    def sharpen(self) -> None:
        self.latest_begin, self.is_rough = latest_begin_of(self.jobs), False

    def insert(self, job: Waiting, place: int) -> None:
        job.block = self
        if place < len(self.jobs):
            self.latest_begin -= job.work_s  # as if it came first, and below as if it came last
            self.is_rough = True
        if job.latest_begin - self.work_s < self.latest_begin:
            self.latest_begin = job.latest_begin - self.work_s
        self.jobs.insert(place, job)
        self.work_s += job.work_s
        if self._extremes is not None and self._extremes.widened_by(job):
            self._extremes = widest([self._extremes, extremes_of([job])])

    def place(self, key: Key) -> int:
        """How many of its jobs are due before `key`."""
        return bisect_right(self.jobs, key, key=_KEY)

    @property
    def extremes(self) -> Extremes:
        if self._extremes is None:
            self._extremes = extremes_of(self.jobs)
        return self._extremes


def extremes_of(jobs: Sequence[Waiting]) -> Extremes:
    slos_s = [job.deadline - job.arrival for job in jobs]
    halves = [job.arrival + slo_s / 2 for job, slo_s in zip(jobs, slos_s, strict=True)]
    tokens, arrivals = [job.num_tokens for job in jobs], [job.arrival for job in jobs]
    return Extremes(
        max(tokens, default=0),
        min(arrivals, default=math.inf),
        min(halves, default=math.inf),
        min(slos_s, default=math.inf),
    )


def widest(extremes: Sequence[Extremes]) -> Extremes:
    longest, oldest_arrivals, half_slos_at, slos_s = zip(_NO_EXTREMES, *extremes, strict=True)
    return Extremes(max(longest), min(oldest_arrivals), min(half_slos_at), min(slos_s))


def latest_begin_of(jobs: Sequence[Waiting]) -> float:
    """The latest moment to begin with these jobs, one after the other, for none of them to be late."""
    latest, ahead_s = math.inf, 0.0
    for job in jobs:  # twice as fast as accumulate, map and min
        if job.latest_begin - ahead_s < latest:
            latest = job.latest_begin - ahead_s
        ahead_s += job.work_s
    return latest
