"""The jobs that wait, in the order in which they are due: sorted blocks, each with its sums and extremes.

Adding at the end and taking from the front touch one block or a few; what is asked of the whole queue is put together
from the blocks, not from the jobs.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import attrgetter, sub
from typing import NamedTuple

MAX_BLOCK = 128  # jobs; a longer block is halved

Key = tuple[float, ...]

_KEY, _FIRST_KEY = attrgetter("key"), attrgetter("first_key")


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
    block: "_Block | None" = None  # where it is, while it is queued


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


class _Block:
    """Neighbours in the queue, at least one. Their work is kept; the rest is worked out when it is asked for."""

    __slots__ = ("_extremes", "_latest_begin", "first_key", "jobs", "work_s")

    def __init__(self, jobs: list[Waiting]) -> None:
        self.hold(jobs)
        for job in jobs:
            job.block = self

    def hold(self, jobs: list[Waiting]) -> None:
        """From now on hold these, which are in order and know this block."""
        self.jobs = jobs
        self.first_key: Key = jobs[0].key if jobs else ()
        self.work_s = sum([job.work_s for job in jobs])
        self._extremes: Extremes | None = None
        self._latest_begin: float | None = None

    def insert(self, job: Waiting, place: int) -> None:
        job.block = self
        self.jobs.insert(place, job)
        if place == 0:
            self.first_key = job.key
        self.work_s += job.work_s
        self._latest_begin = None
        if self._extremes is not None and self._extremes.widened_by(job):
            self._extremes = _widest([self._extremes, _extremes([job])])

    def place(self, key: Key) -> int:
        """How many of its jobs are due before `key`."""
        return bisect_right(self.jobs, key, key=_KEY)

    @property
    def extremes(self) -> Extremes:
        if self._extremes is None:
            self._extremes = _extremes(self.jobs)
        return self._extremes

    @property
    def latest_begin(self) -> float:
        """The latest moment to begin with its jobs for none of them to be late."""
        if self._latest_begin is None:
            self._latest_begin = _latest_begin(self.jobs)
        return self._latest_begin


class JobQueue:
    """Jobs by id, and in the order of their keys. The sums are to be read, not written."""

    def __init__(self) -> None:
        self.tokens = self.squares = 0  # sums of lengths, and of squared lengths
        self.work_s = 0.0
        # If the lanes begin with this queue by this moment, nobody is late. It may err on the early side.
        self.safe_begin = math.inf
        self._by_id: dict[int, Waiting] = {}
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._by_id

    def __iter__(self) -> Iterator[Waiting]:
        return chain.from_iterable([block.jobs for block in self._blocks])

    def add(self, job: Waiting) -> None:
        """Queue a job whose id and key are not queued."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.jobs[-1].key < job.key:
            if last is None or len(last.jobs) == MAX_BLOCK:
                last = _Block([])
                self._blocks.append(last)
            last.insert(job, len(last.jobs))
        else:
            self._squeeze_in(job)
            self.safe_begin -= job.work_s
        self.safe_begin = min(self.safe_begin, job.latest_begin - self.work_s)
        self._by_id[job.id] = job
        self.tokens += job.num_tokens
        self.squares += job.num_tokens * job.num_tokens
        self.work_s += job.work_s

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these jobs; ids that are not queued are skipped. Returns how many left."""
        gone = [job for job in [self._by_id.pop(job_id, None) for job_id in ids] if job is not None]
        touched = {job.block for job in gone if job.block is not None}
        for block in touched:
            block.hold([job for job in block.jobs if job.id in self._by_id])
        if not all(block.jobs for block in touched):
            self._blocks = [block for block in self._blocks if block.jobs]
        self.tokens -= sum([job.num_tokens for job in gone])
        self.squares -= sum([job.num_tokens * job.num_tokens for job in gone])
        self.work_s -= sum([job.work_s for job in gone])
        if not self._by_id:
            self.work_s, self.safe_begin = 0.0, math.inf  # rounding leaves no work behind in an empty queue
        return len(gone)

    def first(self, num: int) -> list[Waiting]:
        """The `num` jobs due first, or all when there are fewer. They stay queued."""
        return list(islice(self, num))

    def extremes(self) -> Extremes:
        return _widest([block.extremes for block in self._blocks])

    def work_ahead(self, key: Key) -> float:
        """Seconds of work of the jobs due before `key`."""
        if not self._blocks or self._blocks[-1].jobs[-1].key < key:
            return self.work_s
        index = self._block_for(key)
        block = self._blocks[index]
        ahead_s = sum([before.work_s for before in self._blocks[:index]])
        return ahead_s + sum([job.work_s for job in block.jobs[: block.place(key)]])

    def latest_begin(self, key: Key) -> float:
        """The latest moment for the lanes to begin with this queue, if no job due after `key` is to be late."""
        if not self._blocks or self._blocks[-1].jobs[-1].key < key:
            return math.inf
        index = self._block_for(key)
        block = self._blocks[index]
        place = block.place(key)
        starts_s = list(accumulate([block.work_s for block in self._blocks], initial=0.0))
        moments = list(map(sub, [block.latest_begin for block in self._blocks], starts_s))
        self.safe_begin = min(moments)
        own_s = starts_s[index] + sum([job.work_s for job in block.jobs[:place]])
        return min(_latest_begin(block.jobs[place:]) - own_s, min(moments[index + 1 :], default=math.inf))

    def check_integrity(self) -> None:
        """Raise RuntimeError when a kept sum or extreme, or the order, is not what the jobs say. O(queued)."""
        jobs = list(self)
        keys = [job.key for job in jobs]
        in_place = all(
            job.block is block and self._by_id.get(job.id) is job for block in self._blocks for job in block.jobs
        )
        if keys != sorted(keys) or not in_place or not all(0 < len(block.jobs) <= MAX_BLOCK for block in self._blocks):
            raise RuntimeError(f"The queue of {len(jobs)} jobs is not in order. This is a bug.")
        kept = len(self._by_id), self.tokens, self.squares, self.extremes()
        found = len(jobs), sum(job.num_tokens for job in jobs), sum(job.num_tokens**2 for job in jobs), _extremes(jobs)
        work_s = sum(job.work_s for job in jobs)
        is_safe = self.safe_begin <= _latest_begin(jobs) + 1e-6
        if kept != found or not is_safe or not math.isclose(work_s, self.work_s, rel_tol=1e-6, abs_tol=1e-9):
            raise RuntimeError(f"The queue's sums {kept} differ from its jobs' {found}. This is a bug.")

    def _squeeze_in(self, job: Waiting) -> None:
        """Insert a job that is not due last."""
        index = self._block_for(job.key)
        block = self._blocks[index]
        block.insert(job, block.place(job.key))
        if len(block.jobs) > MAX_BLOCK:
            half = len(block.jobs) // 2
            self._blocks.insert(index + 1, _Block(block.jobs[half:]))
            block.hold(block.jobs[:half])

    def _block_for(self, key: Key) -> int:
        """Index of the block that has, or would have, this key. There is at least one block."""
        return max(0, bisect_right(self._blocks, key, key=_FIRST_KEY) - 1)


def _extremes(jobs: Sequence[Waiting]) -> Extremes:
    slos_s = [job.deadline - job.arrival for job in jobs]
    halves = [job.arrival + slo_s / 2 for job, slo_s in zip(jobs, slos_s, strict=True)]
    tokens, arrivals = [job.num_tokens for job in jobs], [job.arrival for job in jobs]
    return Extremes(
        max(tokens, default=0),
        min(arrivals, default=math.inf),
        min(halves, default=math.inf),
        min(slos_s, default=math.inf),
    )


def _widest(extremes: Sequence[Extremes]) -> Extremes:
    if len(extremes) == 1:
        return extremes[0]
    longest, oldest_arrivals, half_slos_at, slos_s = zip(_NO_EXTREMES, *extremes, strict=True)
    return Extremes(max(longest), min(oldest_arrivals), min(half_slos_at), min(slos_s))


def _latest_begin(jobs: Sequence[Waiting]) -> float:
    """The latest moment to begin with these jobs, one after the other, for none of them to be late."""
    ahead_s = accumulate([job.work_s for job in jobs], initial=0.0)
    return min(map(sub, [job.latest_begin for job in jobs], ahead_s), default=math.inf)
