"""The jobs that wait, in the order in which they are due: sorted blocks, each with its sums and extremes.

Adding at the end and taking from the front touch one block or a few; what is asked of the whole queue is put together
from the blocks, not from the jobs.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, KeysView
from itertools import chain, islice

from penstock.scheduler.queueing.block import (
    MAX_BLOCK,
    Block,
    Extremes,
    Key,
    Waiting,
    extremes_of,
    latest_begin_of,
    widest,
)
from penstock.scheduler.queueing.timeline import Timeline


class JobQueue:
    """Jobs by id, and in the order of their keys. The sums are to be read, not written."""

    def __init__(self) -> None:
        self.tokens = self.squares = 0  # sums of lengths, and of squared lengths
        self.work_s = 0.0
        # If the lanes begin with this queue by this moment, nobody is late. It may err on the early side.
        self.safe_begin = math.inf
        self._by_id: dict[int, Waiting] = {}
        self._blocks: list[Block] = []
        self._first_keys: list[Key] = []  # of each block
        self._extremes: Extremes | None = None
        self._timeline: Timeline | None = None  # None: not known since blocks were cut or lost jobs

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> KeysView[int]:
        """Of the jobs that wait."""
        return self._by_id.keys()

    def __iter__(self) -> Iterator[Waiting]:
        return chain.from_iterable(block.jobs for block in self._blocks)

    def add(self, job: Waiting) -> None:
        """Queue a job whose id and key are not queued."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.jobs[-1].key < job.key:
            if last is None or len(last.jobs) == MAX_BLOCK:
                last = Block([])
                self._blocks.append(last)
                self._first_keys.append(job.key)
                self._timeline = None
            self._insert(len(self._blocks) - 1, job, len(last.jobs))
        else:
            self._squeeze_in(job)
            self.safe_begin -= job.work_s
        if job.latest_begin - self.work_s < self.safe_begin:
            self.safe_begin = job.latest_begin - self.work_s
        if self._extremes is not None and self._extremes.widened_by(job):
            self._extremes = None
        self._by_id[job.id] = job
        self.tokens += job.num_tokens
        self.squares += job.num_tokens * job.num_tokens
        self.work_s += job.work_s

    def remove(self, ids: Iterable[int]) -> int:
        """Forget these jobs; ids that are not queued are skipped. Returns how many left."""
        gone = [job for job in [self._by_id.pop(job_id, None) for job_id in ids] if job is not None]
        if not gone:
            return 0
        touched = {job.block for job in gone if job.block is not None}
        for block in touched:
            block.keep([job for job in block.jobs if job.id in self._by_id])
        self._extremes = self._timeline = None
        if not all(block.jobs for block in touched):
            self._blocks = [block for block in self._blocks if block.jobs]
        self._first_keys = [block.jobs[0].key for block in self._blocks]
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
        if self._extremes is None:
            self._extremes = widest([block.extremes for block in self._blocks])
        return self._extremes

    def latest_begin_with(self, job: Waiting, enough: float) -> float:
        """The latest moment for the lanes to begin with this queue and `job`, for neither it nor one behind to be late.

        It is worked out only until it is known whether it is `enough` or later: what is returned lies on the same side
        of that, and no further from it.
        """
        if not self._blocks or self._blocks[-1].jobs[-1].key < job.key:
            return job.latest_begin - self.work_s
        timeline, index = self._up_to_date(), self._block_for(job.key)
        behind = self._earliest_moment(timeline, index + 1, enough + job.work_s) - job.work_s
        block, own = self._blocks[index], job.latest_begin - timeline.ahead_s(index)
        if min(own, behind) < enough:
            return min(own, behind)  # though it came first in its block
        early = min(own - block.work_s, behind, timeline.moment(index) - job.work_s)
        if early >= enough:
            return early  # though it came last, and all of its block were behind it
        place = block.place(job.key)
        own -= sum([before.work_s for before in block.jobs[:place]])
        ahead_s = job.latest_begin - own
        return min(own, behind, latest_begin_of(block.jobs[place:]) - ahead_s - job.work_s)

    def check_integrity(self) -> None:
        """Raise RuntimeError when a kept sum or extreme, or the order, is not what the jobs say. O(queued)."""
        jobs = list(self)
        keys = [job.key for job in jobs]
        in_place = all(
            job.block is block and self._by_id.get(job.id) is job for block in self._blocks for job in block.jobs
        )
        in_place = in_place and self._first_keys == [block.jobs[0].key for block in self._blocks]
        if keys != sorted(keys) or not in_place or not all(0 < len(block.jobs) <= MAX_BLOCK for block in self._blocks):
            raise RuntimeError(f"The queue of {len(jobs)} jobs is not in order. This is a bug.")
        kept = len(self._by_id), self.tokens, self.squares, self.extremes()
        found = (
            len(jobs),
            sum(job.num_tokens for job in jobs),
            sum(job.num_tokens**2 for job in jobs),
            extremes_of(jobs),
        )
        work_s = sum(job.work_s for job in jobs)
        is_safe = self.safe_begin <= latest_begin_of(jobs) + 1e-6
        if kept != found or not is_safe or not math.isclose(work_s, self.work_s, rel_tol=1e-6, abs_tol=1e-9):
            raise RuntimeError(f"The queue's sums {kept} differ from its jobs' {found}. This is a bug.")

    def _squeeze_in(self, job: Waiting) -> None:
        """Insert a job that is not due last."""
        index = self._block_for(job.key)
        block = self._blocks[index]
        self._insert(index, job, block.place(job.key))
        if len(block.jobs) > MAX_BLOCK:
            half = len(block.jobs) // 2
            self._timeline = None
            self._blocks.insert(index + 1, Block(block.jobs[half:]))
            self._first_keys.insert(index + 1, block.jobs[half].key)
            block.hold(block.jobs[:half])

    def _insert(self, index: int, job: Waiting, place: int) -> None:
        block = self._blocks[index]
        block.insert(job, place)
        if self._timeline is not None:
            self._timeline.lengthen(index, job.work_s, block.latest_begin)
        if place == 0:
            self._first_keys[index] = job.key

    def _up_to_date(self) -> Timeline:
        """The blocks' timeline as of now. There is at least one block."""
        if self._timeline is None:
            blocks = self._blocks
            self._timeline = Timeline([block.work_s for block in blocks], [block.latest_begin for block in blocks])
            self.safe_begin = self._timeline.moment(self._timeline.tightest(0))
        return self._timeline

    def _earliest_moment(self, timeline: Timeline, begin: int, enough: float) -> float:
        """Of the blocks from `begin` on; exact if it is before `enough`."""
        while True:
            tightest = timeline.tightest(begin)
            moment = timeline.moment(tightest)
            if moment >= enough or not self._blocks[tightest].is_rough:
                return moment
            self._blocks[tightest].sharpen()
            timeline.set_latest_begin(tightest, self._blocks[tightest].latest_begin)

    def _block_for(self, key: Key) -> int:
        """Index of the block that has, or would have, this key. There is at least one block."""
        return max(0, bisect_right(self._first_keys, key) - 1)
