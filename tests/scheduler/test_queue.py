"""The queue beside a sorted list: the same jobs in the same order, and every sum and bound of them."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.scheduler.queueing.job_queue import JobQueue, Pace, QueuedJob
from tests.examples import examples
from tests.scheduler.integrity import check_queue

MANY = 128


def waiting(number: int, due: float, lengths: Sequence[int] = (1,), token_s: float = 0.5) -> QueuedJob:
    """The ids of job 3 begin at 30."""
    ids = range(10 * number, 10 * number + len(lengths))
    return QueuedJob.of(due, number, ids, lengths, (due - 1, due), Pace(token_s, 2**-8, 0.25, due))


def without(jobs: Sequence[QueuedJob], ids: Collection[int]) -> list[QueuedJob]:
    left = []
    for job in jobs:
        kept = [(one, length) for one, length in zip(job.ids, job.lengths, strict=True) if one not in ids]
        if kept:
            part = waiting(job.number, job.due, [length for _, length in kept], job.pace.token_s)
            left.append(part._replace(ids=[one for one, _ in kept]))
    return left


def plain(jobs: Iterable[QueuedJob]) -> list[tuple[int, list[int], list[int]]]:
    return [(job.number, list(job.ids), list(job.lengths)) for job in jobs]


def times(jobs: Iterable[QueuedJob]) -> list[float]:
    return [moment for job in jobs for moment in (job.due, job.deadline, job.work_s, job.latest_begin)]


lengths_of_a_job = st.lists(st.integers(1, 99), min_size=1, max_size=5)
shapes_of_jobs = st.tuples(st.floats(0, 9), lengths_of_a_job, st.floats(0, 0.1))


class Queues(RuleBasedStateMachine):
    """Many jobs come and leave at a time, at either end and in between, as a whole and in part."""

    @initialize(num=st.integers(0, 3 * MANY), seed=st.randoms(use_true_random=False))
    def start(self, num: int, seed: "st.random.Random") -> None:  # type: ignore[name-defined]  # hypothesis's own
        self.queue = JobQueue()
        self.jobs: list[QueuedJob] = []
        self.next_number = 0
        for _ in range(num):
            lengths = [seed.randint(1, 99) for _ in range(seed.randint(1, 3))]
            self.add_together([(seed.uniform(0, 9), lengths, seed.uniform(0, 0.1))])

    @rule(shapes=st.lists(shapes_of_jobs, min_size=1, max_size=9))
    def add_together(self, shapes: list[tuple[float, list[int], float]]) -> None:
        jobs = [waiting(self.next_number + number, *shape) for number, shape in enumerate(shapes)]
        self.queue.add(jobs)
        self.jobs = sorted([*self.jobs, *jobs])
        self.next_number += len(jobs)

    @rule(num=st.integers(1, 2 * MANY))
    def take(self, num: int) -> None:
        first = [one for job in self.jobs for one in job.ids][:num]
        assert [one for job in self.queue.front(num) for one in job.ids] == first
        assert self.queue.remove(first) == len(first)
        self.jobs = without(self.jobs, set(first))

    @rule(ids=st.lists(st.integers(0, 10 * MANY), max_size=20))
    def remove(self, ids: list[int]) -> None:
        queued = {one for job in self.jobs for one in job.ids}
        assert self.queue.has_any(ids) == bool(queued & set(ids))
        assert self.queue.remove(ids) == len(queued & set(ids))
        self.jobs = without(self.jobs, ids)

    @rule(
        shapes=st.lists(shapes_of_jobs, min_size=1, max_size=4),
        begin=st.floats(-50, 10),
        stay=st.booleans(),
    )
    def look_ahead(self, shapes: list[tuple[float, list[int], float]], begin: float, stay: bool) -> None:
        """How late new jobs, or a job behind them, would be; those in time may be queued then."""
        numbers = itertools.count(self.next_number)
        new = sorted([waiting(next(numbers), *shape) for shape in shapes])
        known, in_time = self.jobs, list[QueuedJob]()
        for job, late_s in zip(new, self.queue.lateness(new, begin), strict=True):
            latest, before_s = math.inf, 0.0
            for one in sorted([*known, job]):
                if one >= job:
                    latest = min(latest, one.latest_begin - before_s)
                before_s += one.work_s
            assert late_s == pytest.approx(begin - latest, abs=1e-6) or (late_s <= 0 and begin < latest)
            if late_s <= 0:
                known, in_time = sorted([*known, job]), [*in_time, job]
        if stay and in_time:
            self.queue.add(in_time)
            self.jobs, self.next_number = known, next(numbers)

    @rule(shapes=st.lists(shapes_of_jobs, min_size=1, max_size=4), begin=st.floats(-50, 10))
    def look_ahead_of_several(self, shapes: list[tuple[float, list[int], float]], begin: float) -> None:
        """Jobs that are surely in time are in time, and make no other late that was not."""
        jobs = [waiting(self.next_number + number, *shape) for number, shape in enumerate(shapes)]
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
        assert plain(self.queue) == plain(self.jobs)
        assert times(self.queue) == pytest.approx(times(self.jobs))
        assert len(self.queue) == sum(len(job.ids) for job in self.jobs)
        if self.jobs:
            bounds = self.queue.bounds()
            assert bounds.longest == max(length for job in self.jobs for length in job.lengths)
            assert bounds.oldest_arrival == min(job.arrival for job in self.jobs)


Queues.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=15)
TestQueues = Queues.TestCase
