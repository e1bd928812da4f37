"""The scheduler through its door: what leaves, when, and that nothing is lost on the way."""

import ast
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock.scheduler
from penstock.scheduler import (
    Batch,
    Cause,
    Job,
    PackedCost,
    PaddedCost,
    Plan,
    RejectedJob,
    Scheduler,
    SchedulerSettings,
    Trigger,
    Wait,
)
from penstock.scheduler.policies.partition import POLICIES
from penstock.scheduler.settings import AdmissionName, OrderName, PartitionName, TriggerName
from tests.examples import examples
from tests.scheduler.integrity import check_scheduler
from tests.scheduler.jobs import one_job

COST = PackedCost(floor_s=0.0, alpha_s=0.0, beta_s=2**-10, gamma_s=0.0)
FREE = PackedCost(0.0, 0.0, 0.0, 0.0)


def limits(**change: Any) -> SchedulerSettings:
    given: dict[str, Any] = {"max_wait_s": 0.25, "max_batch_sequences": 4, "max_batch_tokens": 100, "slo_s": 1.0}
    return SchedulerSettings(**(given | change))


def scheduler(cost: PackedCost | PaddedCost = FREE, **change: Any) -> Scheduler:
    return Scheduler(limits(**change), cost)


def jobs(*lengths: int, first_id: int = 0, arrival: float = 10.0) -> list[Job]:
    return [one_job(first_id + index, length, arrival) for index, length in enumerate(lengths)]


def plan(decision: Plan | Wait | None) -> Plan:
    assert isinstance(decision, Plan)
    return decision


def batches(decision: Plan | Wait | None) -> list[tuple[int, ...]]:
    return [batch.ids for batch in plan(decision).batches]


def ids(decision: Plan | Wait | None) -> list[int]:
    return list(itertools.chain.from_iterable(batches(decision)))


def test_an_empty_queue_waits_for_arrivals() -> None:
    empty = scheduler()
    assert empty.poll(10.0, idle_lanes=1) == Wait(None)
    assert empty.poll(10.0, idle_lanes=1, draining=True) == Wait(None)
    assert empty.add([], 10.0) == []
    assert (empty.num_queued, empty.queued_tokens, empty.backlog_s) == (0, 0, 0.0)
    assert not empty.is_full


def test_lazy_gathers_until_the_timeout() -> None:
    lazy = scheduler()
    assert lazy.add(jobs(5, 6), 10.0) == []
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.25)
    assert (lazy.num_queued, lazy.queued_tokens) == (2, 11)
    assert lazy.poll(10.25, idle_lanes=1) == Plan((Batch((0, 1), 0.0),), Trigger.TIMEOUT, "fifo")
    assert lazy.num_queued == 0


@pytest.mark.parametrize("trigger", ["lazy", "hungry"])
def test_nothing_is_planned_while_the_engine_is_busy(trigger: TriggerName) -> None:
    busy = scheduler(trigger=trigger, slo_s=None)
    busy.add(jobs(*[50] * 20), 10.0)
    assert busy.poll(99.0, idle_lanes=0) == Wait(None)
    assert busy.num_queued == 20


def test_a_full_batch_never_waits_and_the_underfull_tail_stays() -> None:
    lazy = scheduler()
    lazy.add(jobs(1, 1, 1), 10.0)
    assert not lazy.is_full
    lazy.add(jobs(1, 1, 1, first_id=3, arrival=10.125), 10.125)
    assert lazy.is_full
    full = lazy.poll(10.125, idle_lanes=1)
    assert full == Plan((Batch((0, 1, 2, 3), 0.0),), Trigger.MAX_BATCH, "fifo")
    assert lazy.poll(10.125, idle_lanes=1) == Wait(10.375)  # under the timeout of the jobs that stayed
    assert lazy.poll(10.375, idle_lanes=1) == Plan((Batch((4, 5), 0.0),), Trigger.TIMEOUT, "fifo")


def test_half_the_slo_counts_the_predicted_run_of_what_waits() -> None:
    lazy = scheduler(COST, max_wait_s=0.5, max_batch_sequences=64, max_batch_tokens=1000)
    lazy.add(jobs(64), 10.0)
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.0 + 0.5 - 64 / 1024)
    lazy.add(jobs(128, first_id=1, arrival=10.0625), 10.0625)
    assert lazy.poll(10.0625, idle_lanes=1) == Wait(10.0 + 0.5 - 192 / 1024)
    moment = 10.0 + 0.5 - 192 / 1024
    assert plan(lazy.poll(moment, idle_lanes=1)) == Plan((Batch((0, 1), 192 / 1024),), Trigger.HALF_SLO, "fifo")


def test_a_jobs_deadline_is_an_slo_of_its_own_and_leaves_with_it() -> None:
    lazy = scheduler()
    lazy.add([*jobs(1), one_job(1, 1, 10.0, deadline=10.25), one_job(2, 1, 10.0, deadline=99.0)], 10.0)
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.125)
    assert lazy.remove([1, 77]) == 1
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.25)
    check_scheduler(lazy)


def test_hungry_runs_whatever_waits() -> None:
    hungry = scheduler(trigger="hungry")
    hungry.add(jobs(3), 10.0)
    assert hungry.poll(10.0, idle_lanes=1) == Plan((Batch((0,), 0.0),), Trigger.HUNGRY, "fifo")


def test_an_oversize_job_runs_alone() -> None:
    lazy = scheduler()
    lazy.add(jobs(5, 5000, 5), 10.0)
    assert batches(lazy.poll(10.0, idle_lanes=2)) == [(0,), (1,)]
    assert ids(lazy.poll(10.25, idle_lanes=1)) == [2]


def test_a_sequence_that_takes_longer_than_a_batch_may_still_runs() -> None:
    slow = scheduler(COST, max_batch_tokens=10_000)
    slow.add(jobs(800), 10.0)
    assert batches(slow.poll(10.0, idle_lanes=1)) == [(0,)]
    assert [rejection.cause for rejection in slow.add(jobs(2000, first_id=7), 10.0)] == [Cause.OVERLOADED]


def test_a_batch_takes_no_more_than_a_share_of_the_tightest_slo() -> None:
    """A request that comes just after it started can wait for it and still be run in time."""
    hungry = scheduler(COST, trigger="hungry", max_batch_sequences=64, max_batch_tokens=10_000)
    hungry.add(jobs(*[64] * 8), 10.0)
    assert [len(batch) for batch in batches(hungry.poll(10.0, idle_lanes=1))] == [4]  # a quarter of a second
    hungry.add([one_job(99, 64, 10.0, deadline=10.5)], 10.0)
    assert hungry.is_full
    assert batches(hungry.poll(10.0, idle_lanes=1)) == [(99, 4)]  # half of that, and the tightest first
    free = scheduler(COST, trigger="hungry", max_batch_sequences=64, max_batch_tokens=10_000, slo_s=None)
    free.add(jobs(*[64] * 8), 10.0)
    assert [len(batch) for batch in batches(free.poll(10.0, idle_lanes=1))] == [8]


def test_an_slo_shorter_than_the_shortest_batch_leaves_room_for_what_runs_for_nothing() -> None:
    launch = scheduler(PackedCost(0.5, 0.0, 2**-6, 0.0), trigger="hungry", admission="accept")
    launch.add(jobs(8, 8, 8, 8), 10.0)  # 32 tokens take the 0.5 s that one takes
    assert batches(launch.poll(10.0, idle_lanes=1)) == [(0, 1, 2, 3)]


def test_several_idle_lanes_share_a_short_queue() -> None:
    pair = scheduler(COST, trigger="hungry", num_lanes=2)
    pair.add(jobs(10, 10, 10, 10), 10.0)
    assert batches(pair.poll(10.0, idle_lanes=2)) == [(0, 1), (2, 3)]


def test_the_dp_groups_like_lengths_and_the_whole_window_leaves() -> None:
    padded = scheduler(PaddedCost(0.0, 2**-10, 2**-10, 0.0), trigger="hungry", partition="dp", slo_s=None)
    padded.add(jobs(40, 1, 40), 10.0)
    decision = plan(padded.poll(10.0, idle_lanes=1))
    assert decision.partition == "dp"
    assert decision.batches == (Batch((0, 2), 81 / 1024), Batch((1,), 2 / 1024))
    assert padded.num_queued == 0


def test_no_batching_runs_each_job_alone_and_at_once() -> None:
    alone = scheduler(partition="none")
    alone.add(jobs(1, 2), 10.0)
    assert plan(alone.poll(10.0, idle_lanes=1)) == Plan((Batch((0,), 0.0),), Trigger.MAX_BATCH, "none")


def test_a_plan_takes_a_window_of_the_oldest_but_no_less_than_a_full_batch() -> None:
    bounded = scheduler(window=6, partition="sorted", slo_s=None)
    bounded.add(jobs(*[1] * 20), 10.0)
    assert sorted(ids(bounded.poll(10.0, idle_lanes=1))) == [0, 1, 2, 3, 4, 5]
    narrow = scheduler(window=1)
    narrow.add(jobs(*[1] * 20), 10.0)
    assert ids(narrow.poll(10.0, idle_lanes=1)) == [0, 1, 2, 3]


def test_drain_empties_the_queue_in_plans_online_first() -> None:
    lazy = scheduler()
    lazy.add([one_job(50, 1, 10.0, bulk=True), *jobs(*[1] * 11), one_job(77, 1, 10.0, deadline=10.5)], 10.0)
    drained = [plan(lazy.poll(10.5, idle_lanes=1, draining=True)) for _ in range(3)]
    assert {decision.trigger for decision in drained} == {Trigger.DRAIN}
    assert [id for decision in drained for id in ids(decision)] == [*range(11), 50]
    assert drained[0].rejected == (RejectedJob(77, Cause.QUEUED, 0.0),)
    assert lazy.num_queued == 0


def test_a_drain_of_what_has_expired_rejects_it() -> None:
    lazy = scheduler(partition="fifo")
    lazy.add(jobs(1), 10.0)
    assert lazy.poll(11.0, idle_lanes=1, draining=True) == Wait(None, (RejectedJob(0, Cause.QUEUED, 0.0),))
    assert lazy.num_queued == 0


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        ([one_job(7, 1, 0.0)], r"unique among queued sequences. .*: \{7\}"),
        ([one_job(8, 1, 0.0), one_job(8, 1, 0.0)], r"unique among queued sequences. .*: \(8,\)"),
        ([one_job(8, 1, 0.0), one_job(9, 0, 0.0)], r"at least 1 token. Job \(9,\) has: \(0,\)"),
        ([Job((8, 8), (1, 1), 0.0)], r"unique among queued sequences. .*: \(8, 8\)"),
        ([Job((8, 9), (1,), 0.0)], r"at least 1 token. Job \(8, 9\) has: \(1,\)"),
        ([Job((), (), 0.0)], r"at least 1 token. Job \(\) has: \(\)"),
        ([Job((8, 9), (1, 1), 0.0, sizes=(1,))], r"must have its 2 sequences. Given: \(1,\)"),
        ([Job((8, 9), (1, 1), 0.0, sizes=(0, 2))], r"must have its 2 sequences. Given: \(0, 2\)"),
        ([one_job(9, 1, math.nan)], r"times must be numbers. Job \(9,\)"),
        ([one_job(9, 1, 0.0, deadline=math.nan)], r"times must be numbers. Job \(9,\)"),
    ],
)
def test_bad_jobs_are_rejected_and_nothing_of_their_call_is_queued(rejected: Sequence[Job], message: str) -> None:
    queue = scheduler()
    queue.add([one_job(7, 1, 0.0)], 0.0)
    with pytest.raises(ValueError, match=message):
        queue.add(rejected, 0.0)
    assert queue.num_queued == 1
    check_scheduler(queue)


def test_an_id_may_not_be_in_both_classes() -> None:
    queue = scheduler()
    queue.add([one_job(7, 1, 0.0, bulk=True)], 0.0)
    with pytest.raises(ValueError, match=r"\{7\}"):
        queue.add([one_job(7, 1, 0.0)], 0.0)


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_number_is_rejected(now: float) -> None:
    queue = scheduler()
    queue.add(jobs(1), 10.0)
    for ask in (
        lambda: queue.poll(now, idle_lanes=1),
        lambda: queue.poll(now, idle_lanes=1, draining=True),
        lambda: queue.add(jobs(1, first_id=9), now),
    ):
        with pytest.raises(ValueError, match="now must be a finite number of seconds"):
            ask()
    for busy_s in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="busy_s must be"):
            queue.add(jobs(1, first_id=9), 10.0, busy_s=busy_s)
        with pytest.raises(ValueError, match="busy_s must be"):
            queue.poll(10.0, idle_lanes=1, busy_s=busy_s)
    assert queue.num_queued == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_wait_s": -1.0}, "max_wait_s must be"),
        ({"max_wait_s": math.inf}, "max_wait_s must be"),
        ({"max_wait_s": math.nan}, "max_wait_s must be"),
        ({"slo_s": 0.0}, "slo_s must be a finite number of seconds above 0, or None. Given: 0.0"),
        ({"slo_s": math.nan}, "slo_s must be"),
        ({"max_batch_sequences": 0}, "max_batch_sequences must be at least 1. Given: 0"),
        ({"max_batch_tokens": -5}, "max_batch_tokens must be at least 1. Given: -5"),
        ({"max_batch_tokens": math.nan}, "max_batch_tokens must be at least 1. Given: nan"),
        ({"num_lanes": 0}, "num_lanes must be at least 1. Given: 0"),
        ({"window": 0}, "window must be at least 1. Given: 0"),
        ({"bulk_slice_s": 0.0}, "bulk_slice_s must be"),
        ({"bulk_quiet_s": math.nan}, "bulk_quiet_s must be"),
        ({"trigger": "eager"}, f"trigger must be one of {', '.join(get_args(TriggerName))}. Given: 'eager'"),
        ({"partition": "lifo"}, f"partition must be one of {', '.join(POLICIES)}. Given: 'lifo'"),
        ({"order": "fifo"}, f"order must be one of {', '.join(get_args(OrderName))}. Given: 'fifo'"),
        ({"admission": "all"}, "admission must be one of accept, deadline. Given: 'all'"),
    ],
)
def test_bad_limits_are_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limits(**change)


class BrokenCost:
    padded = False

    def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
        return math.nan


def test_a_cost_that_is_no_number_is_reported_and_loses_no_job() -> None:
    broken = Scheduler(limits(), BrokenCost())
    with pytest.raises(ValueError, match="cost function must give finite seconds"):
        broken.add(jobs(1, 2), 10.0)
    assert broken.num_queued == 0


def test_a_clock_that_steps_back_counts_as_no_time_elapsed() -> None:
    lazy = scheduler()
    lazy.add([*jobs(1), one_job(1, 1, 10.0, deadline=10.25), one_job(9, 1, 10.0, deadline=12.0)], 10.0)
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.125)
    assert lazy.poll(-3600.0, idle_lanes=1) == Wait(-3599.875)  # the allowance of a quarter second is still whole
    assert lazy.remove([1]) == 1
    assert lazy.poll(-3600.0, idle_lanes=1) == Wait(-3599.75)
    lazy.add(jobs(1, first_id=2, arrival=-3599.875), -3599.875)
    assert lazy.poll(-3599.875, idle_lanes=1) == Wait(-3599.75)
    check_scheduler(lazy)
    assert ids(lazy.poll(-3599.75, idle_lanes=1)) == [0, 2, 9]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_whatever_the_clock_did_no_wake_up_is_early(moments: list[float], wait_s: float) -> None:
    """The time in which it went forward counts, to within rounding: the job has then waited for `max_wait_s`."""
    lazy = scheduler(slo_s=None, max_wait_s=wait_s)
    lazy.add(jobs(1, arrival=moments[0]), moments[0])
    forward_s = 0.0
    for earlier, later in itertools.pairwise(moments):
        forward_s += max(0.0, later - earlier)
        if isinstance(lazy.poll(later, idle_lanes=1), Plan):
            assert forward_s >= wait_s - 1e-6
            return
    waited = lazy.poll(moments[-1], idle_lanes=1)
    if isinstance(waited, Wait):
        assert forward_s <= wait_s + 1e-6
        assert waited.wake_at is not None
        assert waited.wake_at - moments[-1] == pytest.approx(wait_s - forward_s, abs=1e-6)
        assert ids(lazy.poll(waited.wake_at, idle_lanes=1)) == [0]


def test_a_job_from_the_future_came_now_and_keeps_its_allowance() -> None:
    lazy = scheduler()
    lazy.add([one_job(0, 1, 5000.0, deadline=5000.25)], 10.0)
    assert lazy.poll(10.0, idle_lanes=1) == Wait(10.125)


class Interleavings(RuleBasedStateMachine):
    """Random operations, under a clock that jumps, stands still and steps back, against a plain model.

    The model: the jobs that must still be queued, with their deadlines in time that never steps back.
    """

    @initialize(
        trigger=st.sampled_from(get_args(TriggerName)),
        partition=st.sampled_from(get_args(PartitionName)),
        order=st.sampled_from(get_args(OrderName)),
        admission=st.sampled_from(get_args(AdmissionName)),
        slo_s=st.none() | st.floats(0.001, 1.0),
        kind=st.sampled_from((PackedCost, PaddedCost)),
        limits=st.tuples(st.integers(1, 6), st.integers(1, 60), st.integers(1, 12), st.integers(1, 3)),
    )
    def start(
        self,
        trigger: TriggerName,
        partition: PartitionName,
        order: OrderName,
        admission: AdmissionName,
        slo_s: float | None,
        kind: type[PackedCost] | type[PaddedCost],
        limits: tuple[int, int, int, int],
    ) -> None:
        max_sequences, max_tokens, window, num_lanes = limits
        self.settings = SchedulerSettings(
            0.05, max_sequences, max_tokens, slo_s, trigger, partition, order, admission, num_lanes, window=window
        )
        self.cost = kind(0.001, 0.002, 0.0005, 0.00001)
        self.scheduler = Scheduler(self.settings, self.cost)
        self.now = self.steady = 100.0
        self.model: dict[int, tuple[int, bool, float]] = {}  # of each sequence: length, class, deadline
        self.fresh = itertools.count()

    @rule(
        shapes=st.lists(
            st.tuples(
                st.lists(st.integers(1, 80), min_size=1, max_size=4), st.none() | st.floats(-0.1, 1.0), st.booleans()
            ),
            min_size=1,
            max_size=8,
        ),
        busy_s=st.floats(0, 0.1),
    )
    def add(self, shapes: list[tuple[list[int], float | None, bool]], busy_s: float) -> None:
        coming = [
            Job([next(self.fresh) for _ in lengths], lengths, self.now, None if left is None else self.now + left, bulk)
            for lengths, left, bulk in shapes
        ]
        rejected = {rejection.id: rejection for rejection in self.scheduler.add(coming, self.now, busy_s=busy_s)}
        for job in coming:
            slo_s = self.settings.slo_s if job.deadline is None and not job.bulk else None
            due_s = math.inf if job.deadline is None else job.deadline - self.now
            due_s = due_s if slo_s is None else slo_s
            rejections = [rejected.pop(one, None) for one in job.ids]
            rejection = rejections[0]
            if rejection is None:
                assert due_s > 0
                assert not any(rejections)  # all or none
                for one, length in zip(job.ids, job.lengths, strict=True):
                    self.model[one] = (length, job.bulk, self.steady + due_s)
            elif rejection.cause is Cause.ARRIVED_LATE:
                assert due_s <= 0
                assert rejection.late_s >= 0
            else:
                assert (rejection.cause, self.settings.admission) == (Cause.OVERLOADED, "deadline")
                assert rejection.late_s > 0
            assert rejection is None or all(rejections)
        assert not rejected

    @rule(step=st.sampled_from([0.0, 1e-9, 0.05, 1000.0]) | st.floats(-5.0, 0.2))
    def tick(self, step: float) -> None:
        self.now += step
        self.steady += max(0.0, step)
        self._take(self.scheduler.poll(self.now, idle_lanes=0).rejected)  # so that both know of the step

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.integers(0, 60), max_size=5, unique=True))
        assert self.scheduler.remove(gone) == len([job_id for job_id in gone if self.model.pop(job_id, None)])

    @rule(idle_lanes=st.integers(1, 3))
    def poll(self, idle_lanes: int) -> None:
        was_full = self.scheduler.is_full
        decision = self.scheduler.poll(self.now, idle_lanes=idle_lanes)
        if isinstance(decision, Plan):
            self._check(decision, idle_lanes)
            return
        self._take(decision.rejected)
        assert not was_full or decision.rejected
        assert not any(is_bulk for _, is_bulk, _ in self.model.values())  # an idle lane leaves no bulk job waiting
        assert (decision.wake_at is None) == (not self.model)
        if decision.wake_at is not None:
            assert self.now < decision.wake_at <= self.now + self.settings.max_wait_s + 1e-9
            self.steady += decision.wake_at - self.now
            self.now = decision.wake_at
            woken = self.scheduler.poll(self.now, idle_lanes=idle_lanes)
            assert isinstance(woken, Plan) or woken.rejected
            if isinstance(woken, Plan):
                self._check(woken, idle_lanes)
            else:
                self._take(woken.rejected)

    @precondition(lambda self: self.model)
    @rule()
    def drain(self) -> None:
        decision = self.scheduler.poll(self.now, idle_lanes=1, draining=True)
        if isinstance(decision, Plan):
            self._check(decision, 1)
        else:
            self._take(decision.rejected)
            assert not self.model

    def _check(self, decision: Plan, idle_lanes: int) -> None:
        self._take(decision.rejected)
        planned = ids(decision)
        assert planned
        assert len(set(planned)) == len(planned)
        end = self.steady
        for batch in decision.batches:
            members = [self.model[job_id] for job_id in batch.ids]
            lengths = [length for length, _, _ in members]
            slots = max(lengths) * len(lengths) if self.cost.padded else sum(lengths)
            assert 1 <= len(lengths) <= self.settings.max_batch_sequences
            keeps_tokens = POLICIES[decision.partition].caps_tokens
            assert len(lengths) == 1 or slots <= self.settings.max_batch_tokens or not keeps_tokens
            squares = sum(length * length for length in lengths)
            seconds = self.cost.seconds(sum(lengths), squares, max(lengths), len(lengths))
            assert math.isclose(float(seconds), batch.predicted_s)
            end += batch.predicted_s if idle_lanes == 1 else 0.0
            earliest = min(deadline for _, _, deadline in members)
            assert earliest > self.steady - 1e-6  # nothing that has expired
            assert self.settings.admission == "accept" or earliest >= end - 1e-6  # and nothing that would
        for job_id in planned:
            del self.model[job_id]

    def _take(self, rejected: Sequence[RejectedJob]) -> None:
        for rejection in rejected:
            _, _, deadline = self.model.pop(rejection.id)
            assert rejection.cause is Cause.QUEUED
            assert deadline < math.inf
            assert rejection.late_s >= 0

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            check_scheduler(self.scheduler)
            assert self.scheduler.num_queued == len(self.model)
            assert self.scheduler.queued_tokens == sum(length for length, _, _ in self.model.values())
            assert self.scheduler.backlog_s >= 0


Interleavings.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30)
TestInterleavings = Interleavings.TestCase


def test_the_room_imports_no_clock_and_no_chance() -> None:
    folder = Path(str(penstock.scheduler.__file__)).parent
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "numpy" in imported
    assert not imported & {"asyncio", "time", "datetime", "threading", "random"}
