"""The scheduler through its door: what leaves, when, and that nothing is lost on the way."""

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.scheduler import Job, PackedCost, PaddedCost, Plan, Scheduler, SchedulerSettings, Trigger, Wait
from penstock.scheduler.cost import Value

COST = PackedCost(floor_s=0.0, alpha_s=0.0, beta_s=2**-10, gamma_s=0.0)
FREE = PackedCost(0.0, 0.0, 0.0, 0.0)


def scheduler(
    cost: PackedCost | PaddedCost = FREE, trigger: Literal["lazy", "hungry"] = "lazy", window: int = 1024
) -> Scheduler:
    return Scheduler(SchedulerSettings(0.25, 4, 100, 1.0, trigger, window), cost)


def jobs(*lengths: int, first_id: int = 0, arrival: float = 10.0) -> list[Job]:
    return [Job(first_id + index, length, arrival) for index, length in enumerate(lengths)]


def plan(decision: Plan | Wait | None) -> Plan:
    assert isinstance(decision, Plan)
    return decision


def ids(decision: Plan | Wait | None) -> list[int]:
    return list(itertools.chain.from_iterable(plan(decision).batches))


def test_an_empty_queue_waits_for_arrivals() -> None:
    empty = scheduler()
    assert empty.poll(10.0, idle_lanes=1) == Wait(None)
    assert empty.drain() is None
    assert (empty.num_queued, empty.queued_tokens, empty.oldest_arrival) == (0, 0, None)


def test_lazy_gathers_until_the_timeout() -> None:
    lazy = scheduler()
    lazy.add(jobs(5, 6))
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.25)
    assert (lazy.num_queued, lazy.queued_tokens, lazy.oldest_arrival) == (2, 11, 10.0)
    assert lazy.poll(10.25, idle_lanes=1) == Plan(((0, 1),), Trigger.TIMEOUT, 0.0, "fifo")
    assert lazy.num_queued == 0


@pytest.mark.parametrize("trigger", ["lazy", "hungry"])
def test_nothing_is_planned_while_the_engine_is_busy(trigger: Literal["lazy", "hungry"]) -> None:
    busy = scheduler(trigger=trigger)
    busy.add(jobs(*[50] * 20))
    assert busy.poll(99.0, idle_lanes=0) == Wait(None)
    assert busy.num_queued == 20


def test_a_full_batch_never_waits_and_the_underfull_tail_stays() -> None:
    lazy = scheduler()
    lazy.add(jobs(1, 1, 1))
    assert not lazy.is_full
    lazy.add(jobs(1, 1, 1, first_id=3, arrival=10.125))
    assert lazy.is_full
    full = lazy.poll(10.125, idle_lanes=1)
    assert full == Plan(((0, 1, 2, 3),), Trigger.MAX_BATCH, 0.0, "fifo")
    assert lazy.poll(10.125, idle_lanes=1) == Wait(10.375)  # under the timeout of the jobs that stayed
    assert lazy.poll(10.375, idle_lanes=1) == Plan(((4, 5),), Trigger.TIMEOUT, 0.0, "fifo")


def test_half_the_slo_counts_the_predicted_run_of_what_waits() -> None:
    lazy = Scheduler(SchedulerSettings(0.5, 64, 1000, 1.0), COST)
    lazy.add(jobs(128))
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.0 + 0.5 - 128 / 1024)
    lazy.add(jobs(256, first_id=1, arrival=10.0625))
    assert lazy.poll(10.0625, idle_lanes=1) == Wait(10.0 + 0.5 - 384 / 1024)
    assert plan(lazy.poll(10.125, idle_lanes=1)) == Plan(((0, 1),), Trigger.HALF_SLO, 384 / 1024, "fifo")


def test_a_jobs_deadline_is_an_slo_of_its_own_and_leaves_with_it() -> None:
    lazy = scheduler()
    lazy.add([*jobs(1), Job(1, 1, 10.0, deadline=10.25), Job(2, 1, 10.0, deadline=99.0)])
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.125)
    assert lazy.remove([1, 77]) == 1
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.25)
    lazy.check_integrity()


def test_hungry_runs_whatever_waits() -> None:
    hungry = scheduler(trigger="hungry")
    hungry.add(jobs(3))
    assert hungry.poll(10.0, idle_lanes=1) == Plan(((0,),), Trigger.HUNGRY, 0.0, "fifo")


def test_an_oversize_job_runs_alone() -> None:
    lazy = scheduler()
    lazy.add(jobs(5, 5000, 5))
    assert plan(lazy.poll(10.0, idle_lanes=1)).batches == ((0,), (1,))
    assert ids(lazy.poll(10.25, idle_lanes=1)) == [2]


def test_the_dp_is_used_where_padding_makes_it_cheaper() -> None:
    padded = scheduler(PaddedCost(0.0, 2**-10, 2**-10, 0.0), trigger="hungry")
    padded.add(jobs(40, 1, 40))
    decision = plan(padded.poll(10.0, idle_lanes=1))
    assert (decision.partition, decision.batches) == ("dp", ((1,), (0, 2)))
    assert decision.predicted_s == (2 + 81) / 1024


def test_a_plan_takes_a_window_of_the_oldest_but_no_less_than_a_full_batch() -> None:
    bounded = scheduler(window=6)
    bounded.add(jobs(*[1] * 20))
    assert ids(bounded.poll(10.0, idle_lanes=1)) == [0, 1, 2, 3]
    narrow = scheduler(window=1)
    narrow.add(jobs(*[1] * 20))
    assert ids(narrow.poll(10.0, idle_lanes=1)) == [0, 1, 2, 3]


def test_drain_empties_the_queue_in_plans() -> None:
    lazy = scheduler(window=8)
    lazy.add(jobs(*[1] * 11))
    plans = list(iter(lazy.drain, None))
    assert [decision.trigger for decision in plans] == [Trigger.DRAIN] * 2
    assert [id for decision in plans for id in ids(decision)] == list(range(11))
    assert lazy.num_queued == 0


def test_higher_priority_runs_first_among_the_jobs_of_a_plan() -> None:
    lazy = Scheduler(SchedulerSettings(0.25, 2, 100, 1.0), FREE)
    lazy.add([Job(0, 1, 10.0), Job(1, 1, 10.0, priority=1), Job(2, 1, 10.0), Job(3, 1, 10.0, priority=1)])
    assert plan(lazy.poll(10.0, idle_lanes=1)).batches == ((1, 3), (0, 2))
    padded = Scheduler(SchedulerSettings(0.25, 2, 100, 1.0), PaddedCost(0.0, 0.0, 2**-10, 0.0))
    padded.add([Job(0, 1, 10.0), Job(1, 40, 10.0, priority=1), Job(2, 1, 10.0), Job(3, 40, 10.0)])
    decision = plan(padded.poll(10.0, idle_lanes=1))
    assert decision.partition == "dp"
    assert 1 in decision.batches[0]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ([Job(7, 1, 0.0)], "unique among queued jobs. Already queued: 7"),
        ([Job(8, 1, 0.0), Job(8, 1, 0.0)], "unique among queued jobs. Already queued: 8"),
        ([Job(8, 1, 0.0), Job(9, 0, 0.0)], "at least 1 token. Job 9 has: 0"),
        ([Job(9, 1, math.nan)], "times must be numbers. Job 9"),
        ([Job(9, 1, 0.0, deadline=math.nan)], "times must be numbers. Job 9"),
    ],
)
def test_bad_jobs_are_refused_and_nothing_of_their_call_is_queued(refused: Sequence[Job], message: str) -> None:
    queue = scheduler()
    queue.add([Job(7, 1, 0.0)])
    with pytest.raises(ValueError, match=message):
        queue.add(refused)
    assert queue.num_queued == 1
    queue.check_integrity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_wait_s": -1.0}, "max_wait_s must be"),
        ({"max_wait_s": math.inf}, "max_wait_s must be"),
        ({"slo_s": 0.0}, "slo_s must be"),
        ({"max_batch_sequences": 0}, "max_batch_sequences must be at least 1. Given: 0"),
        ({"max_batch_tokens": -5}, "max_batch_tokens must be at least 1. Given: -5"),
        ({"window": 0}, "window must be at least 1. Given: 0"),
        ({"trigger": "eager"}, "trigger must be 'lazy' or 'hungry'. Given: 'eager'"),
    ],
)
def test_bad_limits_are_refused(change: dict[str, object], message: str) -> None:
    limits: dict[str, object] = {"max_wait_s": 0.1, "max_batch_sequences": 1, "max_batch_tokens": 1, "slo_s": 1.0}
    with pytest.raises(ValueError, match=message):
        SchedulerSettings(**(limits | change))  # type: ignore[arg-type]  # one field is wrong on purpose


class BrokenCost:
    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return math.nan

    def lower_bound(self, tokens: float, squares: float, num_batches: int) -> float:
        return 0.0


def test_a_cost_that_is_no_number_is_reported_and_loses_no_job() -> None:
    broken = Scheduler(SchedulerSettings(0.25, 4, 100, 1.0), BrokenCost())
    broken.add(jobs(1, 2))
    with pytest.raises(ValueError, match="cost function must give finite seconds"):
        broken.poll(99.0, idle_lanes=1)
    assert broken.num_queued == 2


def test_a_clock_that_steps_back_counts_as_no_time_elapsed() -> None:
    lazy = scheduler()
    lazy.add([*jobs(1), Job(1, 1, 10.0, deadline=10.25), Job(9, 1, 10.0, deadline=12.0)])
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.125)
    assert lazy.poll(-3600.0, idle_lanes=1) == Wait(-3599.875)  # the allowance of a quarter second is still whole
    assert lazy.remove([1]) == 1
    assert lazy.poll(-3600.0, idle_lanes=1) == Wait(-3599.75)
    lazy.add(jobs(1, first_id=2, arrival=-3599.875))
    assert lazy.poll(-3599.875, idle_lanes=1) == Wait(-3599.75)
    lazy.check_integrity()
    assert ids(lazy.poll(-3599.75, idle_lanes=1)) == [0, 9, 2]


def test_every_job_leaves_within_a_bounded_number_of_polls() -> None:
    """Short jobs keep arriving faster than they are served, under a cost that loves short jobs; the long one leaves."""
    greedy = scheduler(PaddedCost(0.0, 0.0, 1.0, 1.0), window=8)
    greedy.add(jobs(*[1] * 40))
    greedy.add(jobs(90, first_id=1000))
    next_id, polls = 2000, 0
    while 1000 not in ids(greedy.poll(10.0 + polls, idle_lanes=1)):
        greedy.add(jobs(*[1] * 12, first_id=next_id, arrival=10.0 + polls))
        next_id, polls = next_id + 12, polls + 1
    assert polls <= 40 // 8 + 1


class Interleavings(RuleBasedStateMachine):
    """Random operations against a plain model: the set of ids that must still be queued."""

    @initialize(
        trigger=st.sampled_from(("lazy", "hungry")),
        kind=st.sampled_from((PackedCost, PaddedCost)),
        max_sequences=st.integers(1, 6),
        max_tokens=st.integers(1, 60),
        window=st.integers(1, 12),
    )
    def start(
        self,
        trigger: Literal["lazy", "hungry"],
        kind: type[PackedCost] | type[PaddedCost],
        max_sequences: int,
        max_tokens: int,
        window: int,
    ) -> None:
        self.settings = SchedulerSettings(0.05, max_sequences, max_tokens, 0.4, trigger, window)
        self.scheduler = Scheduler(self.settings, kind(0.001, 0.002, 0.0005, 0.00001))
        self.now = 100.0
        self.model: dict[int, Job] = {}
        self.fresh = itertools.count()

    @rule(
        shapes=st.lists(
            st.tuples(st.integers(1, 80), st.none() | st.floats(-0.1, 1.0), st.integers(0, 1)), min_size=1, max_size=8
        )
    )
    def add(self, shapes: list[tuple[int, float | None, int]]) -> None:
        batch = [
            Job(next(self.fresh), length, self.now, None if left is None else self.now + left, priority)
            for length, left, priority in shapes
        ]
        self.scheduler.add(batch)
        self.model.update((job.id, job) for job in batch)

    @rule(step=st.floats(-5.0, 0.2))
    def tick(self, step: float) -> None:
        self.now += step

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.integers(0, 60), max_size=5, unique=True))
        assert self.scheduler.remove(gone) == len([job_id for job_id in gone if self.model.pop(job_id, None)])

    @rule()
    def poll_busy(self) -> None:
        assert self.scheduler.poll(self.now, idle_lanes=0) == Wait(None)

    @rule()
    def poll_idle(self) -> None:
        was_full = self.scheduler.is_full
        decision = self.scheduler.poll(self.now, idle_lanes=1)
        if isinstance(decision, Plan):
            self._check(decision)
            return
        assert not was_full
        assert (decision.wake_at is None) == (not self.model)
        if decision.wake_at is not None:
            assert self.now < decision.wake_at <= self.now + self.settings.max_wait_s
            self.now = decision.wake_at
            self._check(plan(self.scheduler.poll(self.now, idle_lanes=1)))

    @precondition(lambda self: self.model)
    @rule()
    def drain(self) -> None:
        self._check(plan(self.scheduler.drain()))

    def _check(self, decision: Plan) -> None:
        planned = ids(decision)
        assert planned
        assert len(set(planned)) == len(planned) <= max(self.settings.window, self.settings.max_batch_sequences)
        assert set(planned) == set(list(self.model)[: len(planned)])  # the oldest
        for batch in decision.batches:
            tokens = sum(self.model[job_id].num_tokens for job_id in batch)
            assert 1 <= len(batch) <= self.settings.max_batch_sequences
            assert len(batch) == 1 or tokens <= self.settings.max_batch_tokens
        for job_id in planned:
            del self.model[job_id]

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.num_queued == len(self.model)
            assert self.scheduler.queued_tokens == sum(job.num_tokens for job in self.model.values())


Interleavings.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestInterleavings = Interleavings.TestCase


def test_the_room_imports_no_other_room_and_no_clock() -> None:
    code = (
        "import sys\n"
        "for room in ('producer', 'worker', 'engine', 'cache', 'ops'): sys.modules[f'penstock.{room}'] = None\n"
        "for library in ('torch', 'asyncio', 'aiokafka'): sys.modules[library] = None\n"
        "import penstock.scheduler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
