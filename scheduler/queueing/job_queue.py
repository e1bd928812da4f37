"""The queue of jobs in due order, with sums over its sequences, and how late it would make one more job."""

import math
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from penstock.scheduler.costs.cost import FloatArray


class Pace(NamedTuple):
    """How long sequences take, as it was estimated when their job came."""

    token_s: float  # a token of those ahead, which all lanes share
    alone_s: float  # a token of a sequence's own batch
    least_s: float  # of its batch
    end: float  # the moment by which they must have run, in steady time; inf: no deadline

    def latest_begin(self, lengths: Sequence[int]) -> float:
        """The moment by which the work ahead of sequences must be done, so that each of them is in time; inf: any."""
        if self.end == math.inf:
            return math.inf
        longest_s = self.token_s * (sum(lengths) - lengths[-1]) + self.least_s
        if max(lengths) * self.alone_s > self.least_s:
            ahead = accumulate(lengths, initial=0)
            ends = [own * self.alone_s + before * self.token_s for own, before in zip(lengths, ahead, strict=False)]
            longest_s = max(longest_s, *ends)
        return self.end - longest_s


class QueuedJob(NamedTuple):
    """The sequences of a job that are queued. It compares by its place. Its times are the scheduler's steady time."""

    due: float
    number: int  # unique: of two jobs due at once, the one that came first is first
    ids: Sequence[int]
    lengths: Sequence[int]
    arrival: float
    deadline: float  # inf: none
    pace: Pace
    tokens: int  # sum of the lengths
    squares: int  # sum of the squared lengths
    work_s: float  # estimated seconds for which it keeps the lanes busy, all of them together
    latest_begin: float  # see `Pace.latest_begin`

    @classmethod
    def of(
        cls, due: float, number: int, ids: Sequence[int], lengths: Sequence[int], times: tuple[float, float], pace: Pace
    ) -> "QueuedJob":
        """With what follows from its lengths. `times`: its arrival and its deadline."""
        tokens, squares = sum(lengths), sum([length * length for length in lengths])
        work = tokens * pace.token_s, pace.latest_begin(lengths)
        return cls(due, number, ids, lengths, *times, pace, tokens, squares, *work)

    def first(self, count: int) -> "QueuedJob":
        """The first of its sequences."""
        return self._with(self.ids[:count], self.lengths[:count])

    def without(self, ids: Container[int], count: int) -> "QueuedJob":
        """Its other sequences, of which there is one at least. `count`: how many of its own are among `ids`."""
        if all([one in ids for one in self.ids[:count]]):
            return self._with(self.ids[count:], self.lengths[count:])
        left = [(one, length) for one, length in zip(self.ids, self.lengths, strict=True) if one not in ids]
        return self._with([one for one, _ in left], [length for _, length in left])

    def _with(self, ids: Sequence[int], lengths: Sequence[int]) -> "QueuedJob":
        return self.of(self.due, self.number, ids, lengths, (self.arrival, self.deadline), self.pace)


class Bounds(NamedTuple):
    """Extremes over jobs, on which triggers and caps depend."""

    longest: int = 0  # tokens
    oldest_arrival: float = math.inf
    half_slo_at: float = math.inf  # earliest moment at which a job has used half the time its deadline gave it
    tightest_slo_s: float = math.inf  # least deadline - arrival

    def with_jobs(self, jobs: Sequence[QueuedJob]) -> "Bounds":
        """The bounds over these jobs too, at least one."""
        return Bounds(
            max(self.longest, max([max(job.lengths) for job in jobs])),
            min(self.oldest_arrival, min([job.arrival for job in jobs])),
            min(self.half_slo_at, min([job.arrival + job.deadline for job in jobs]) / 2),
            min(self.tightest_slo_s, min([job.deadline - job.arrival for job in jobs])),
        )


class JobQueue:
    """Jobs in due order. Adding at the end and taking from the front cost little however many jobs wait.

    What is done once a job costs the same for one sequence or many. Each sequence costs an entry of a dictionary.
    """

    def __init__(self) -> None:
        self.tokens = self.squares = 0  # sums of lengths, and of squared lengths; the caller only reads them
        self.work_s = 0.0
        # If the lanes begin with this queue by this moment, every job is in time. It may err on the early side.
        self._safe_begin = math.inf
        self._job_of: dict[int, int] = {}  # the number of each sequence's job
        self._by_number: dict[int, QueuedJob] = {}
        self._jobs: list[QueuedJob] = []
        self._bounds: Bounds | None = None  # None: not known since jobs have left
        # [2, n]: work before each job, and the latest moment to begin with the first so that this one is in time.
        self._timeline: FloatArray | None = None

    def __len__(self) -> int:
        """Queued sequences."""
        return len(self._job_of)

    def __iter__(self) -> Iterator[QueuedJob]:
        return iter(self._jobs)

    def has_any(self, ids: Iterable[int]) -> bool:
        """Whether one of these sequences is queued."""
        return not self._job_of.keys().isdisjoint(ids)

    def front(self, most: int) -> list[QueuedJob]:
        """The jobs with the first sequences, so many at most; of the last job there may be a part."""
        if len(self) <= most:
            return list(self._jobs)
        found: list[QueuedJob] = []
        for job in self._jobs:
            found.append(job if len(job.ids) <= most else job.first(most))
            most -= len(job.ids)
            if most <= 0:
                break
        return found

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
        self._job_of.update([(one, job.number) for job in jobs for one in job.ids])
        self._by_number.update([(job.number, job) for job in jobs])
        self.tokens += sum([job.tokens for job in jobs])
        self.squares += sum([job.squares for job in jobs])
        self.work_s += work_s

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these sequences; ids that are not queued are skipped. Returns how many left."""
        gone = {one: number for one in ids if (number := self._job_of.pop(one, None)) is not None}
        if not gone:
            return 0
        counts: dict[int, int] = {}
        for number in gone.values():
            counts[number] = counts.get(number, 0) + 1
        before = sorted([self._by_number.pop(number) for number in counts])
        left = [job.without(gone, counts[job.number]) for job in before if counts[job.number] < len(job.ids)]
        gone_s = self._forget(before) + self._forget(left, -1)
        self._bounds = None
        are_first = before[-1] is self._jobs[len(before) - 1] and len(left) <= 1
        if are_first:
            self._jobs[: len(before)] = left
        else:
            begin, end = bisect_left(self._jobs, before[0]), bisect_left(self._jobs, before[-1]) + 1
            between = [job for job in self._jobs[begin:end] if job.number in self._by_number]
            self._jobs[begin:end] = sorted([*between, *left])
        self._by_number.update([(job.number, job) for job in left])
        if self._timeline is not None:
            self._timeline = self._timeline_behind(len(before), left, gone_s, self._timeline) if are_first else None
        if not self._jobs:
            # Rounding leaves no work behind in an empty queue.
            self.work_s, self._safe_begin, self._timeline = 0.0, math.inf, None
        return len(gone)

    def _forget(self, jobs: Sequence[QueuedJob], times: int = 1) -> float:
        """Take jobs out of the sums, or with -1 back into them. Returns their work."""
        work_s = 0.0
        for job in jobs:
            self.tokens -= times * job.tokens
            self.squares -= times * job.squares
            work_s += times * job.work_s
        self.work_s -= work_s
        return work_s

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

    def lateness(self, jobs: Sequence[QueuedJob], begin: float) -> list[float]:
        """Seconds by which each of these would make a job late, itself or one queued behind it; 0 or less: none.

        Each counts as queued for those after it, unless it is late. They are not queued yet, and in due order.
        """
        found: list[float] = []
        came_s = 0.0  # work of the jobs before that are in time
        least: FloatArray | None = None  # [n] the least of the timeline's moments from each job on
        for job in jobs:
            work_s, latest_begin = job.work_s, job.latest_begin
            late_s = begin + self.work_s + came_s - latest_begin  # as the last of the queue
            is_safe = late_s <= 0 and begin + came_s + work_s <= self._safe_begin
            if not (is_safe or not self._jobs or self._jobs[-1] < job):
                timeline = self._known_timeline()
                least = np.minimum.accumulate(timeline[1, ::-1])[::-1] if least is None else least
                place = bisect_left(self._jobs, job)
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

    @staticmethod
    def _timeline_behind(num_before: int, left: Sequence[QueuedJob], gone_s: float, timeline: FloatArray) -> FloatArray:
        """Without the work of the first jobs, of which the sequences of one at most are left, at the front now."""
        behind = timeline[:, num_before:] + [[-gone_s], [gone_s]]
        return np.insert(behind, 0, [0.0, left[0].latest_begin], axis=1) if left else behind
