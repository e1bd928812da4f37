"""The lane driver: one batch a lane, one prepared ahead, and predictions of when lanes are free."""

import math
from collections.abc import Sequence

import pytest

from penstock.scheduler import Cause, Job, LaneBatch, LaneDriver, PackedCost, Scheduler, SchedulerSettings
from tests.scheduler.jobs import one_job

COST = PackedCost(floor_s=0.0, alpha_s=0.0, beta_s=0.01, gamma_s=0.0)  # 10 ms a token


def driver(num_lanes: int = 1, **settings: float) -> LaneDriver:
    chosen = SchedulerSettings(
        max_wait_s=0.0, max_batch_sequences=2, max_batch_tokens=100, slo_s=settings.get("slo_s"), num_lanes=num_lanes
    )
    return LaneDriver(Scheduler(chosen, COST), num_lanes)


def jobs(*ids: int, now: float = 0.0, deadline: float | None = None) -> list[Job]:
    return [one_job(id, 1, now, deadline) for id in ids]


def test_each_lane_gets_a_batch_and_one_more_is_prepared_ahead() -> None:
    lanes = driver(2)
    lanes.add(jobs(*range(10)), 0.0)
    dispatch = lanes.dispatch(0.0)
    assert [batch.ids for batch in dispatch.start] == [(0, 1), (2, 3), (4, 5)]
    assert [batch.started for batch in dispatch.start] == [0.0, 0.0, None]
    assert lanes.dispatch(0.0).start == []


def test_a_short_queue_leaves_the_last_idle_lane_free_until_another_is() -> None:
    lanes = driver(3)
    started = []
    for job_id in range(4):
        lanes.add(jobs(job_id), 0.0)
        started += lanes.dispatch(0.0).start
    assert [batch.ids for batch in started] == [(0,), (1,), (2, 3)]  # the third is a full batch
    lanes.finish(started[0], 0.01)
    lanes.add(jobs(4, now=0.01), 0.01)
    waiting = lanes.dispatch(0.01)
    assert (waiting.start, waiting.wake_at) == ([], 0.04)
    lanes.finish(started[1], 0.01)
    assert [batch.ids for batch in lanes.dispatch(0.01).start] == [(4,)]


@pytest.mark.parametrize(
    ("tokens", "deadline", "waits_until"),
    [
        (2, None, 0.03),  # a lane will be free at 0.02
        (2, 0.07, 0.025),  # half of its SLO, less the 0.01 s that it runs
        (2, 0.05, None),  # that is before 0.02
        (50, None, None),  # no lane will be free for 0.5 s
    ],
)
def test_the_last_lane_takes_a_job_that_cannot_wait(
    tokens: int, deadline: float | None, waits_until: float | None
) -> None:
    lanes = driver(2)
    lanes.add([one_job(0, tokens, 0.0)], 0.0)
    assert len(lanes.dispatch(0.0).start) == 1
    lanes.add(jobs(1, deadline=deadline), 0.0)
    dispatch = lanes.dispatch(0.0)
    if waits_until is not None:
        assert not dispatch.start
        assert dispatch.wake_at == pytest.approx(waits_until)
        dispatch = lanes.dispatch(dispatch.wake_at or 0.0)  # the first job is late
    assert [batch.ids for batch in dispatch.start] == [(1,)]


def test_the_last_lane_takes_bulk_work_and_what_is_drained() -> None:
    lanes = driver(2)
    lanes.add(jobs(0), 0.0)
    lanes.dispatch(0.0)
    lanes.add(jobs(1), 0.0)
    assert lanes.dispatch(0.0).start == []
    lanes.add([one_job(2, 1, 0.0, None, bulk=True)], 0.0)
    assert [batch.ids for batch in lanes.dispatch(0.0).start] == [(1,)]  # the bulk job is too long to fill it up
    lanes = driver(2)
    lanes.add(jobs(0), 0.0)
    lanes.dispatch(0.0)
    lanes.add(jobs(1), 0.0)
    lanes.is_draining = True
    assert [batch.ids for batch in lanes.dispatch(0.0).start] == [(1,)]


def test_planned_jobs_have_left_the_queue_before_their_batch_starts() -> None:
    chosen = SchedulerSettings(0.0, 2, 100, None, partition="sorted")  # plans several batches at a time
    lanes = LaneDriver(Scheduler(chosen, COST), 1)
    lanes.add(jobs(*range(10)), 0.0)
    dispatch = lanes.dispatch(0.0)
    started = {job_id for batch in dispatch.start for job_id in batch.ids}
    assert started < set(dispatch.planned)
    assert lanes.scheduler.remove(dispatch.planned) == 0
    assert lanes.scheduler.num_queued == 10 - len(dispatch.planned)


def test_a_finished_batch_hands_its_lane_to_the_one_that_waits() -> None:
    lanes = driver()
    lanes.add(jobs(0, 1, 2, 3), 0.0)
    first, second = lanes.dispatch(0.0).start
    assert lanes.finish(first, 1.0) is second
    assert second.started == 1.0
    assert lanes.finish(second, 2.0) is None
    assert lanes.num_unfinished == 0


def test_busy_seconds_count_what_runs_and_what_waits() -> None:
    lanes = driver()
    lanes.add(jobs(0, 1, 2, 3), 0.0)
    lanes.dispatch(0.0)
    assert math.isclose(lanes.busy_s(0.01), 0.03)
    assert math.isclose(lanes.busy_s(5.0), 0.02)  # the first is late, so its predicted end is now


def test_a_job_is_kept_out_by_one_of_its_sequences() -> None:
    lanes = driver()
    lanes.add([one_job(9, 100, 0.0)], 0.0)
    rejected = lanes.add([Job((1, 2), (1, 90), 0.0, 0.5)], 0.0)
    assert [rejection.id for rejection in rejected] == [1, 2]
    assert lanes.scheduler.num_queued == 1


LATE = one_job(1, 100, 0.0, 0.5), one_job(2, 100, 0.0, 0.5)


@pytest.mark.parametrize("late", [LATE, (Job((1, 2), (100, 100), 0.0, 0.5, sizes=(1, 1)),)], ids=["each", "one job"])
def test_an_idle_engine_tries_one_request_a_second_that_is_thought_to_be_late(late: Sequence[Job]) -> None:
    lanes = driver()
    assert [rejection.id for rejection in lanes.add(late, 0.0)] == [2]
    lanes.finish(lanes.dispatch(0.0).start[0], 0.1, failed=True)
    assert [rejection.cause for rejection in lanes.add([one_job(3, 100, 0.2, 0.5)], 0.2)] == [Cause.OVERLOADED]
    assert lanes.add([one_job(4, 100, 1.2, 1.5)], 1.2) == []


def test_halves_of_a_failed_batch_run_before_what_is_prepared() -> None:
    lanes = driver()
    lanes.add(jobs(*range(6)), 0.0)
    first, second = lanes.dispatch(0.0).start
    lanes.finish(first, 0.1, failed=True)
    lanes.run_first([LaneBatch((0,), "max_batch", "fifo", 0.01), LaneBatch((1,), "max_batch", "fifo", 0.01)])
    assert [batch.ids for batch in lanes.dispatch(0.1).start] == [(0,)]
    lanes.finish(second, 0.2)
    assert [batch.ids for batch in lanes.dispatch(0.2).start] == [(1,)]


@pytest.mark.parametrize(("failed", "refused"), [(False, [2]), (True, [])])
def test_admission_learns_how_late_a_batch_ends_unless_it_failed(failed: bool, refused: list[int]) -> None:
    lanes = driver()
    lanes.add(jobs(0), 0.0)
    (batch,) = lanes.dispatch(0.0).start
    lanes.finish(batch, 5.0, failed=failed)
    lanes.add([one_job(1, 60, 5.0)], 5.0)
    lanes.dispatch(5.0)  # until 5.6, as predicted
    assert [rejection.id for rejection in lanes.add(jobs(2, now=5.0, deadline=5.9), 5.0)] == refused


def test_a_probe_runs_beside_full_lanes_and_a_withdrawn_batch_gives_its_lane_up() -> None:
    lanes = driver()
    lanes.add(jobs(0, 1), 0.0)
    (running,) = lanes.dispatch(0.0).start
    probe = LaneBatch((), "probe", "probe", 0.0)
    lanes.run_now(probe, 0.0)
    assert probe.started is None
    assert lanes.finish(running, 0.5, failed=True) is probe
    assert probe.started == 0.5


def test_draining_runs_jobs_without_waiting_for_a_trigger() -> None:
    chosen = SchedulerSettings(max_wait_s=10.0, max_batch_sequences=8, max_batch_tokens=100, slo_s=None)
    lanes = LaneDriver(Scheduler(chosen, COST), 1)
    lanes.add(jobs(0), 0.0)
    waiting = lanes.dispatch(0.0)
    assert (waiting.start, waiting.wake_at) == ([], 10.0)
    lanes.is_draining = True
    assert [batch.ids for batch in lanes.dispatch(0.0).start] == [(0,)]


def test_a_batch_that_lost_jobs_is_expected_to_end_sooner() -> None:
    lanes = driver()
    lanes.add(jobs(0, 1), 0.0)
    (batch,) = lanes.dispatch(0.0).start
    assert math.isclose(lanes.busy_s(0.0), 0.02)
    batch.ids, batch.predicted_s = (1,), 0.01
    assert math.isclose(lanes.busy_s(0.0), 0.01)
