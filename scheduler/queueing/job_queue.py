"""The queue of jobs in due order, with sums over its jobs, and how late it would make one more."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.scheduler.costs.cost import FloatArray


class QueuedJob(NamedTuple):
    """A queued job. It compares by its place in the queue. Its times are the scheduler's steady time."""

    due: float
    number: int  # unique: of two jobs due at once, the one that came first is first
    id: int
    num_tokens: int
    arrival: float
    deadline: float  # inf: none
    work_s: float  # estimated seconds for which it keeps the lanes busy, all of them together
    latest_begin: float  # the moment by which the work ahead of it must be done; inf: no deadline


class Bounds(NamedTuple):
    """Extremes over jobs, on which triggers and caps depend."""

    longest: int = 0  # tokens
    oldest_arrival: float = math.inf
    half_slo_at: float = math.inf  # earliest moment at which a job has used half the time its deadline gave it
    tightest_slo_s: float = math.inf  # least deadline - arrival

    def with_jobs(self, jobs: Sequence[QueuedJob]) -> "Bounds":
        """The bounds over these jobs too, at least one."""
        return Bounds(
            max(self.longest, max([job.num_tokens for job in jobs])),
            min(self.oldest_arrival, min([job.arrival for job in jobs])),
            min(self.half_slo_at, min([job.arrival + job.deadline for job in jobs]) / 2),
            min(self.tightest_slo_s, min([job.deadline - job.arrival for job in jobs])),
        )


class JobQueue:
    """Jobs by id and in due order. Adding at the end and taking from the front cost little however many jobs wait."""

    def __init__(self) -> None:
        self.tokens = self.squares = 0  # sums of lengths, and of squared lengths; the caller only reads them
        self.work_s = 0.0
        # If the lanes begin with this queue by this moment, every job is in time. It may err on the early side.
        self._safe_begin = math.inf
        self._by_id: dict[int, QueuedJob] = {}
        self._jobs: list[QueuedJob] = []
        self._bounds: Bounds | None = None  # None: not known since jobs have left
        # [2, n]: work before each job, and the latest moment to begin with the first so that this one is in time.
        self._timeline: FloatArray | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[QueuedJob]:
        return iter(self._jobs)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._by_id

    def add(self, jobs: Sequence[QueuedJob]) -> None:
        """Queue jobs, at least one, whose ids and numbers are not queued."""
        jobs = sorted(jobs)
        work_s = sum([job.work_s for job in jobs])
        are_last = not self._jobs or self._jobs[-1] < jobs[0]
        # As if each of them came before all queued jobs, and behind them.
        latest_s = min([job.latest_begin for job in jobs]) - self.work_s - (work_s if len(jobs) > 1 else 0.0)
        self._safe_begin = min(self._safe_begin - (0.0 if are_last else work_s), latest_s)
        if self._timeline is not None:
            self._timeline = self._timeline_with(jobs, self._timeline)
        if self._bounds is not None:
            self._bounds = self._bounds.with_jobs(jobs)
        if are_last:
            self._jobs += jobs
        else:
            for job in jobs:
                insort(self._jobs, job)
        self._by_id.update(zip([job.id for job in jobs], jobs, strict=True))
        self.tokens += sum([job.num_tokens for job in jobs])
        self.squares += sum([job.num_tokens * job.num_tokens for job in jobs])
        self.work_s += work_s

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these jobs; ids that are not queued are skipped. Returns how many left."""
        gone = [job for job in [self._by_id.pop(job_id, None) for job_id in ids] if job is not None]
        if not gone:
            return 0
        if gone == self._jobs[: len(gone)]:
            del self._jobs[: len(gone)]
            if self._timeline is not None:
                gone_s = sum([job.work_s for job in gone])
                self._timeline = self._timeline[:, len(gone) :] + [[-gone_s], [gone_s]]
        else:
            begin, end = bisect_left(self._jobs, min(gone)), bisect_left(self._jobs, max(gone)) + 1
            self._jobs[begin:end] = [job for job in self._jobs[begin:end] if job.id in self._by_id]
            self._timeline = None
        self._bounds = None
        self.tokens -= sum([job.num_tokens for job in gone])
        self.squares -= sum([job.num_tokens * job.num_tokens for job in gone])
        self.work_s -= sum([job.work_s for job in gone])
        if not self._jobs:
            # Rounding leaves no work behind in an empty queue.
            self.work_s, self._safe_begin, self._timeline = 0.0, math.inf, None
        return len(gone)

    def bounds(self) -> Bounds:
        """Over all jobs, at least one."""
        self._bounds = self._bounds or Bounds().with_jobs(self._jobs)
        return self._bounds

    def surely_in_time(self, jobs: Sequence[QueuedJob], begin: float) -> bool:
        """Whether these, not queued yet, are in time in any order and make no other late. False if that is not sure.

        `begin`: when the lanes are predicted to begin with the queue.
        """
        work_s = sum([job.work_s for job in jobs])
        if begin + self.work_s + work_s > min([job.latest_begin for job in jobs]):
            return False
        return begin + work_s <= self._safe_begin or not self._jobs or self._jobs[-1] < min(jobs)

    def lateness(self, groups: Sequence[Sequence[QueuedJob]], begin: float) -> list[float]:
        """Seconds by which each of these groups would make a job late, of itself or queued behind it; 0 or less: none.

        Each counts as queued for those after it, unless it is late. Their jobs are not queued yet, and in due order; no
        other job is due between those of one group.
        """
        found: list[float] = []
        came_s = 0.0  # work of the groups before that are in time
        least: FloatArray | None = None  # [n] the least of the timeline's moments from each job on
        for jobs in groups:
            work_s, latest_begin = _as_one(jobs)
            late_s = begin + self.work_s + came_s - latest_begin  # as the last of the queue
            is_safe = late_s <= 0 and begin + came_s + work_s <= self._safe_begin
            if not (is_safe or not self._jobs or self._jobs[-1] < jobs[0]):
                timeline = self._known_timeline()
                least = np.minimum.accumulate(timeline[1, ::-1])[::-1] if least is None else least
                place = bisect_left(self._jobs, jobs[0])
                own = latest_begin - float(timeline[0, place])
                late_s = begin + came_s - min(own, float(least[place]) - work_s)
            found.append(late_s)
            if late_s <= 0:
                came_s += work_s
        return found

    def _known_timeline(self) -> FloatArray:
        if self._timeline is None:
            work_s = np.array([job.work_s for job in self._jobs])
            ahead_s = np.cumsum(work_s) - work_s
            self._timeline = np.array([ahead_s, np.array([job.latest_begin for job in self._jobs]) - ahead_s])
            self._safe_begin = float(self._timeline[1].min())
        return self._timeline

    def _timeline_with(self, jobs: Sequence[QueuedJob], timeline: FloatArray) -> FloatArray:
        """With `jobs`, which are not queued yet, in due order."""
        places = np.array([bisect_left(self._jobs, job) for job in jobs])
        came_s = np.append(0.0, np.cumsum([job.work_s for job in jobs]))  # before each of them, and of all
        ahead_s = np.append(timeline[0], self.work_s)[places] + came_s[:-1]
        own = np.array([ahead_s, np.array([job.latest_begin for job in jobs]) - ahead_s])
        later_s = came_s[np.searchsorted(places, np.arange(len(self._jobs)), side="right")]
        return np.insert(timeline + np.array([later_s, -later_s]), places, own, axis=1)


def _as_one(jobs: Sequence[QueuedJob]) -> tuple[float, float]:
    """Work of jobs that are due one after another, and the latest moment to begin with it so that all are in time."""
    work_s, latest_begin = 0.0, math.inf
    for job in jobs:
        latest_begin = min(latest_begin, job.latest_begin - work_s)
        work_s += job.work_s
    return work_s, latest_begin
