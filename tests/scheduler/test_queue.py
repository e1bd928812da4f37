"""The queue beside a sorted list: the same jobs in the same order, and every sum and bound of them."""

import itertools
import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from tests.examples import examples
from tests.scheduler.integrity import check_queue

MANY = 128


def waiting(job_id: int, due: float, tokens: int = 1, work_s: float = 0.5, batch_s: float = 0.25) -> QueuedJob:
    return QueuedJob(due, job_id, job_id, tokens, due - 1, due, work_s, due - batch_s)


class Queues(RuleBasedStateMachine):
    """Many jobs come and leave at a time, at either end and in between."""

    @initialize(num=st.integers(0, 3 * MANY), seed=st.randoms(use_true_random=False))
    def start(self, num: int, seed: "st.random.Random") -> None:  # type: ignore[name-defined]  # hypothesis's own
        self.queue = JobQueue()
        self.jobs: list[QueuedJob] = []
        self.next_id = 0
        self.add([(seed.uniform(0, 9), seed.randint(1, 99), seed.uniform(0, 1)) for _ in range(num)])

    @rule(shapes=st.lists(st.tuples(st.floats(0, 9), st.integers(1, 99), st.floats(0, 1)), max_size=9))
    def add(self, shapes: list[tuple[float, int, float]]) -> None:
        for due, tokens, work_s in shapes:
            self.queue.add([waiting(self.next_id, due, tokens, work_s)])
            self.jobs = sorted([*self.jobs, waiting(self.next_id, due, tokens, work_s)])
            self.next_id += 1

    @rule(shapes=st.lists(st.tuples(st.floats(0, 9), st.integers(1, 99), st.floats(0, 1)), min_size=1, max_size=9))
    def add_together(self, shapes: list[tuple[float, int, float]]) -> None:
        jobs = [waiting(self.next_id + number, *shape) for number, shape in enumerate(shapes)]
        self.queue.add(jobs)
        self.jobs = sorted([*self.jobs, *jobs])
        self.next_id += len(jobs)

    @rule(num=st.integers(0, 2 * MANY))
    def take(self, num: int) -> None:
        assert list(itertools.islice(self.queue, num)) == self.jobs[:num]
        assert self.queue.remove([job.id for job in self.jobs[:num]]) == len(self.jobs[:num])
        del self.jobs[:num]

    @rule(ids=st.lists(st.integers(0, 3 * MANY), max_size=20))
    def remove(self, ids: list[int]) -> None:
        left = [job for job in self.jobs if job.id not in ids]
        assert self.queue.remove(ids) == len(self.jobs) - len(left)
        self.jobs = left

    @rule(
        groups=st.lists(
            st.tuples(st.floats(-1, 10), st.lists(st.floats(0, 1), min_size=1, max_size=5)), min_size=1, max_size=4
        ),
        begin=st.floats(-50, 10),
        stay=st.booleans(),
    )
    def look_ahead(self, groups: list[tuple[float, list[float]]], begin: float, stay: bool) -> None:
        """How late groups of new jobs, due at once, or a job behind them would be; those in time may be queued then."""
        ids = itertools.count(self.next_id)
        new = [[waiting(next(ids), due, work_s=work_s) for work_s in works_s] for due, works_s in sorted(groups)]
        known, in_time = self.jobs, list[QueuedJob]()
        for jobs, late_s in zip(new, self.queue.lateness(new, begin), strict=True):
            latest, before_s = math.inf, 0.0
            for one in sorted([*known, *jobs]):
                if one >= jobs[0]:
                    latest = min(latest, one.latest_begin - before_s)
                before_s += one.work_s
            assert late_s == pytest.approx(begin - latest, abs=1e-6) or (late_s <= 0 and begin < latest)
            if late_s <= 0:
                known, in_time = sorted([*known, *jobs]), [*in_time, *jobs]
        if stay and in_time:
            self.queue.add(in_time)
            self.jobs, self.next_id = known, next(ids)

    @rule(dues=st.lists(st.floats(-1, 10), min_size=1, max_size=4), begin=st.floats(-50, 10))
    def look_ahead_of_several(self, dues: list[float], begin: float) -> None:
        """Jobs that are surely in time are in time, and make no other late that was not."""
        jobs = [waiting(self.next_id + number, due) for number, due in enumerate(dues)]
        if self.queue.surely_in_time(jobs, begin):
            late = self.late(self.jobs, begin)
            assert [job for job in self.late([*self.jobs, *jobs], begin) if job not in late] == []

    @staticmethod
    def late(jobs: list[QueuedJob], begin: float) -> list[QueuedJob]:
        before_s, late = begin, []
        for job in sorted(jobs):
            if before_s > job.latest_begin + 1e-9:
                late.append(job)
            before_s += job.work_s
        return late

    @invariant()
    def equals_the_list(self) -> None:
        if not hasattr(self, "queue"):
            return
        check_queue(self.queue)
        assert list(self.queue) == self.jobs
        assert len(self.queue) == len(self.jobs)
        assert self.queue.tokens == sum(job.num_tokens for job in self.jobs)
        assert self.queue.squares == sum(job.num_tokens**2 for job in self.jobs)
        if self.jobs:
            bounds = self.queue.bounds()
            assert bounds.longest == max(job.num_tokens for job in self.jobs)
            assert bounds.oldest_arrival == min(job.arrival for job in self.jobs)


Queues.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=15)
TestQueues = Queues.TestCase
