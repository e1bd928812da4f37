"""Margins of admission for batches that end later than predicted."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler import PackedCost, Plan, Scheduler, SchedulerSettings
from penstock.scheduler.types import Cause
from tests.scheduler.jobs import one_job
from tests.scheduler.simulation import GPU, Simulation, poisson, saturation

LINEAR = PackedCost(0.0, 0.0, 1 / 1024, 0.0)


@pytest.mark.slow
def test_overload_is_answered_in_time_though_the_host_adds_to_every_batch() -> None:
    """Every batch takes a fifth longer than predicted. Admission counts queued work as that much longer."""
    chosen = SchedulerSettings(0.002, 1024, 16_384, 0.05)
    capacity = saturation(GPU, 51, chosen)
    outcome = Simulation(chosen, run_s=lambda predicted_s: 1.2 * predicted_s).run(poisson(2 * capacity, 1.0))
    settled = [(at, end, deadline) for at, end, deadline in outcome.answered if at > 0.5]
    assert sum(end <= deadline for _, end, deadline in settled) >= 0.999 * len(settled)
    assert len(settled) >= 0.95 * 0.5 * capacity / 1.2


@pytest.mark.slow
def test_overload_is_answered_in_time_though_replies_take_their_time_to_the_broker() -> None:
    """In overload every answer is computed shortly before its deadline. Without a margin all of these would be late."""
    chosen = SchedulerSettings(0.002, 1024, 16_384, 0.05)
    capacity, chance = saturation(GPU, 51, chosen), random.Random(1)
    outcome = Simulation(chosen, reply_s=lambda: chance.uniform(0.004, 0.012)).run(poisson(2 * capacity, 1.0))
    settled = [(at, end, deadline) for at, end, deadline in outcome.answered if at > 0.5]
    assert sum(end <= deadline for _, end, deadline in settled) >= 0.999 * len(settled)
    assert len(settled) >= 0.93 * 0.5 * capacity


def test_deadlines_leave_room_for_replies_but_no_more_than_a_quarter_of_the_time() -> None:
    """The SLO of 1 s, less 1/4 s for the job's own batch, leaves 3/4 s of waiting. Slow replies shorten it."""
    for reply_s, margin_s in ((0.1, 0.1), (60.0, 0.25)):
        scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
        scheduler.replied(reply_s)
        (rejection,) = scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.75)
        assert rejection.late_s == pytest.approx(margin_s)
        assert scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.74 - margin_s) == []


def test_the_margin_for_replies_forgets_a_slow_one() -> None:
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    for reply_s in (5.0, *[0.01] * 500):
        scheduler.replied(reply_s)
    assert scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.73) == []


def test_a_promise_leaves_room_for_how_late_batches_end() -> None:
    """The SLO of 1 s, less 1/4 s for the job's own batch, leaves 3/4 s of waiting. Late batches shorten it."""
    chosen = SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry")
    scheduler = Scheduler(chosen, LINEAR)
    assert scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.75) == []
    for count in range(1, 9):
        scheduler.ended(1 / 4, 1 / 64, 10.0 + count)  # a sixteenth of what a full batch takes
    (rejection,) = scheduler.add([one_job(1, 64, 30.0)], 30.0, busy_s=0.75)
    assert rejection.late_s == pytest.approx(0.75 * (1 + 1 / 16) + 1 / 16 + 1 / 64 - 0.75)


@pytest.mark.parametrize(("reply_s", "late_s", "margin_s"), [(0.1, 0.05, 0.1), (0.05, 0.1, 0.1), (0.1, 0.1, 0.1)])
def test_the_longer_of_two_margins_counts(reply_s: float, late_s: float, margin_s: float) -> None:
    """A slow reply and a late batch seldom meet. Their sum refused what was answered in a third of its SLO."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    scheduler.replied(reply_s)
    for count in range(64):  # one batch of eight is late, and the others are sooner: blocks end as predicted
        scheduler.ended(1 / 4, late_s if count % 8 == 0 else -late_s / 7, 10.0)
    assert scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.749 - margin_s) == []
    (rejection,) = scheduler.add([one_job(1, 64, 10.0)], 10.0, busy_s=0.76 - margin_s)
    assert rejection.late_s > 0


def test_queued_work_is_late_as_most_blocks_of_batches_were() -> None:
    """One stall in eight blocks says little about the many batches that a request waits for."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    for count in range(64):
        scheduler.ended(1 / 4, 0.5 if count == 3 else 0.0, 10.0)
    assert scheduler.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.749) == []


@given(st.lists(st.one_of(st.floats(), st.floats(-1.0, 10.0)), min_size=1, max_size=300))
def test_an_idle_worker_admits_a_job_that_leaves_half_of_the_time(late_s: list[float]) -> None:
    """However late batches ended before. Otherwise nothing would run, and no improvement could be measured."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    for count, late in enumerate(late_s):
        scheduler.ended(0.1, late, 10.0 + count / 64)
    assert scheduler.add([one_job(0, 64, 20.0)], 20.0) == []


def test_batches_that_end_as_predicted_are_forgotten_last() -> None:
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    for count in range(100):
        scheduler.ended(0.1, 0.2, 10.0 + count / 4)
    assert scheduler.add([one_job(0, 64, 40.0)], 40.0, busy_s=0.6)
    for count in range(200):
        scheduler.ended(0.1, math.nan if count % 4 == 0 else 0.0, 40.0 + count / 4)
    assert scheduler.add([one_job(1, 64, 100.0)], 100.0, busy_s=0.6) == []


def test_a_full_plan_of_one_short_job_does_not_make_all_others_look_slow() -> None:
    """It is full because the next job does not fit. By this plan alone, a token would take six times as long."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), PackedCost(0.0, 0.01, 1 / 1024, 0.0))
    assert scheduler.add([one_job(0, 2, 1.0), one_job(1, 300, 1.0)], 1.0) == []
    plan = scheduler.poll(1.0, idle_lanes=1)
    assert isinstance(plan, Plan)
    assert [batch.ids for batch in plan.batches] == [(0,)]
    assert scheduler.add([one_job(2, 200, 1.0)], 1.0, busy_s=0.01) == []


def test_a_sequence_longer_than_a_batch_does_not_make_later_plans_count_little() -> None:
    """Alone it takes 5 s, twenty times a batch of this SLO. A token of shorter ones takes a quarter of its time."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), PackedCost(0.0, 0.001, 1e-6, 1.25e-6))
    for first_id, tokens, expected_s in ((0, 2000, 5.003), (10, 500, 0.314)):
        assert scheduler.add([one_job(first_id + index, tokens, 1.0, 600.0) for index in range(2)], 1.0) == []
        plan = scheduler.poll(1.0, idle_lanes=1)
        assert isinstance(plan, Plan)
        assert [batch.predicted_s for batch in plan.batches] == [pytest.approx(expected_s)]
        assert scheduler.remove([first_id + 1]) == 1
    assert scheduler.add([one_job(20, 500, 1.0)], 1.0) == []


def test_a_queued_job_that_would_end_late_is_rejected_by_how_late() -> None:
    """Its batch of 1/16 s would end 1/32 s after the deadline."""
    scheduler = Scheduler(SchedulerSettings(0.0, 64, 10_000, 1.0, "hungry"), LINEAR)
    assert scheduler.add([one_job(0, 64, 10.0)], 10.0) == []
    (rejection,) = scheduler.poll(11.0 - 1 / 32, idle_lanes=1).rejected
    assert (rejection.id, rejection.cause) == (0, Cause.QUEUED)
    assert rejection.late_s == pytest.approx(1 / 32)
