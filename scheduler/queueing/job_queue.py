"""The queue of jobs: one list in due order, with the sums and bounds of its jobs."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, KeysView
from itertools import islice
from operator import attrgetter

from penstock.scheduler.queueing.queued_job import Bounds, QueuedJob
from penstock.scheduler.queueing.timeline import Timeline

_KEY = attrgetter("key")


class JobQueue:
    """Jobs by id, and in the order of their keys. The sums are to be read, not written.

    Adding at the end and taking from the front cost little however many jobs wait. Bounds and timeline are built when
    asked for, after jobs have left.
    """

    def __init__(self) -> None:
        self.tokens = self.squares = 0  # sums of lengths, and of squared lengths
        self.work_s = 0.0
        # If the lanes begin with this queue by this moment, every job is in time. It may err on the early side.
        self.safe_begin = math.inf
        self._by_id: dict[int, QueuedJob] = {}
        self._jobs: list[QueuedJob] = []
        self._bounds: Bounds | None = None
        self._timeline: Timeline | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[QueuedJob]:
        return iter(self._jobs)

    @property
    def ids(self) -> KeysView[int]:
        """Of the queued jobs."""
        return self._by_id.keys()

    def first(self, num: int) -> list[QueuedJob]:
        """The `num` jobs due first, or all when there are fewer. They stay queued."""
        return self._jobs[:num]

    def add(self, job: QueuedJob) -> None:
        """Queue a job whose id and key are not queued."""
        place = self._place_of(job)
        if place < len(self._jobs):
            self.safe_begin -= job.work_s  # as if every job were behind it, and below as if it were last
        if job.latest_begin - self.work_s < self.safe_begin:
            self.safe_begin = job.latest_begin - self.work_s
        self._jobs.insert(place, job)
        if self._timeline is not None:
            self._timeline.insert(place, job)
            if self._timeline.is_full:
                self._timeline = None
        if self._bounds is not None:
            self._bounds = self._bounds.widened_by(job)
        self._by_id[job.id] = job
        self.tokens += job.num_tokens
        self.squares += job.num_tokens * job.num_tokens
        self.work_s += job.work_s

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these jobs; ids that are not queued are skipped. Returns how many left."""
        gone = [job for job in [self._by_id.pop(job_id, None) for job_id in ids] if job is not None]
        if not gone:
            return 0
        keys = [job.key for job in gone]
        begin = bisect_left(self._jobs, min(keys), key=_KEY)
        end = bisect_left(self._jobs, max(keys), begin, key=_KEY) + 1
        self._jobs[begin:end] = [job for job in islice(self._jobs, begin, end) if job.id in self._by_id]
        if self._timeline is not None and end == len(gone):
            self._timeline.remove_first(end)
        else:
            self._timeline = None
        self._bounds = None
        self.tokens -= sum([job.num_tokens for job in gone])
        self.squares -= sum([job.num_tokens * job.num_tokens for job in gone])
        self.work_s -= sum([job.work_s for job in gone])
        if not self._jobs:
            self.work_s, self.safe_begin = 0.0, math.inf  # rounding leaves no work behind in an empty queue
        return len(gone)

    def bounds(self) -> Bounds:
        """Over all jobs."""
        if self._bounds is None:
            self._bounds = Bounds.of(self._jobs)
        return self._bounds

    def latest_begin_with(self, job: QueuedJob) -> float:
        """The latest moment for the lanes to begin with this queue and `job`, so that it and those behind are in time.

        `job` is not queued.
        """
        place = self._place_of(job)
        if place == len(self._jobs):
            return job.latest_begin - self.work_s
        if self._timeline is None:
            self._timeline = Timeline(self._jobs)
            self.safe_begin = self._timeline.latest_start(0)
        behind = self._timeline.latest_start(place) - job.work_s
        return min(job.latest_begin - self._timeline.ahead_s(place), behind)

    def check_integrity(self) -> None:
        """Raise RuntimeError when a kept sum or bound, or the order, differs from the jobs. O(queued)."""
        jobs = self._jobs
        keys = [job.key for job in jobs]
        if keys != sorted(keys) or self._by_id != {job.id: job for job in jobs}:
            raise RuntimeError(f"The queue of {len(jobs)} jobs is not in order. This is a bug.")
        kept = self.tokens, self.squares, self.bounds()
        tokens = sum(job.num_tokens for job in jobs)
        found = tokens, sum(job.num_tokens**2 for job in jobs), Bounds.of(jobs)
        work_s = sum(job.work_s for job in jobs)
        is_safe = self.safe_begin <= Timeline(jobs).latest_start(0) + 1e-6
        if kept != found or not is_safe or not math.isclose(work_s, self.work_s, rel_tol=1e-6, abs_tol=1e-9):
            raise RuntimeError(f"The queue's sums {kept} differ from its jobs' {found}. This is a bug.")

    def _place_of(self, job: QueuedJob) -> int:
        """Where it is due, among the jobs as they are."""
        if not self._jobs or self._jobs[-1].key < job.key:
            return len(self._jobs)
        return bisect_left(self._jobs, job.key, key=_KEY)
