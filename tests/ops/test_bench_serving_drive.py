"""Real runs: the event loop, the scheduler and lanes over engines that compute nothing, or take their time."""

import gc
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from penstock.engine import BatchOutput, NullEngine, PackedBatch
from penstock.engine.errors import EngineError
from penstock.ops.bench.serving.loads.arrivals import poisson
from penstock.ops.bench.serving.loads.drive import drive, random_ids
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import BULK_WAITING, TOGETHER, Stream
from penstock.scheduler import CostTable, Job, LearnedCost, PackedCost, Scheduler, SchedulerSettings
from penstock.scheduler.types import RejectedJob

pytestmark = pytest.mark.slow

BATCH_S = 0.01  # of `Slow`
NO_END_S = 3600.0  # a grace that no test outlasts: a run ends with its last answer


class Slow(NullEngine):
    """Each batch takes as long, in which other threads run, as beside a device."""

    def run(self, batch: PackedBatch) -> BatchOutput:
        began = time.monotonic()
        threading.Event().wait(BATCH_S)
        return BatchOutput(super().run(batch).rows, time.monotonic() - began)


class Broken(NullEngine):
    """Answers once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_run = 0

    def run(self, batch: PackedBatch) -> BatchOutput:
        self.num_run += 1
        if self.num_run > 1:
            raise EngineError("the device fell off the bus")
        return super().run(batch)


class Watched(Scheduler):
    """Remembers how much it was given at once, and how much waited."""

    most_added = most_queued = 0

    def add(self, jobs: Sequence[Job], now: float, *, busy_s: float = 0.0) -> list[RejectedJob]:
        refused = super().add(jobs, now, busy_s=busy_s)
        self.most_added = max(self.most_added, len(jobs))
        self.most_queued = max(self.most_queued, self.num_queued)
        return refused


def settings(**changes: object) -> SchedulerSettings:
    plain: dict[str, object] = {
        "max_wait_s": 0.002,
        "max_batch_sequences": 64,
        "max_batch_tokens": 4096,
        "slo_s": None,
        "trigger": "hungry",
        "admission": "accept",
    }
    return SchedulerSettings(**{**plain, **changes})  # type: ignore[arg-type]  # one dict of all kinds of values


def stream(rate_per_s: float, count: int, num_bulk: int = 0) -> Stream:
    return Stream.beside_bulk(poisson(rate_per_s, count, 0), draw("2-100", count + num_bulk, 1))


def run(
    engine: NullEngine, offered: Stream, chosen: SchedulerSettings, *, grace_s: float = NO_END_S, num_lanes: int = 1
) -> tuple[Outcome, Watched]:
    cost = LearnedCost(CostTable(PackedCost(BATCH_S, 0.0, 0.0, 0.0)))
    scheduler = Watched(chosen, cost)
    ids = random_ids(offered.lengths, 1000, seed=0)
    return drive(offered, ids, MeasuredDriver(scheduler, num_lanes), engine, cost, grace_s=grace_s), scheduler


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_every_request_is_answered_once_and_the_run_ends_with_the_last(num_lanes: int) -> None:
    offered = stream(3000.0, 300)
    outcome, _ = run(NullEngine(), offered, settings(), num_lanes=num_lanes)
    assert np.all(outcome.start >= outcome.arrival)
    assert np.all(outcome.finish >= outcome.start)
    assert sum(batch.count for batch in outcome.batches) == 300
    assert sum(batch.tokens for batch in outcome.batches) == int(offered.lengths.sum())
    assert gc.isenabled()


def test_a_lazy_scheduler_is_asked_again_when_it_wants_to_be() -> None:
    lazy = settings(trigger="lazy", max_wait_s=0.03, max_batch_sequences=2)
    outcome, _ = run(NullEngine(), Stream(np.array([0.0, 0.01, 0.02]), np.full(3, 5)), lazy)
    waited = outcome.start - outcome.arrival
    assert waited[2] >= 0.03 - 1e-6  # alone
    assert outcome.start[0] == outcome.start[1]  # a full batch


def test_what_is_not_answered_when_the_grace_is_over_stays_unanswered() -> None:
    offered = stream(1000.0, 100)
    num_answered = 0
    while num_answered == 0:  # on a machine that stands still the grace may be over before the first answer
        outcome, _ = run(Slow(), offered, settings(max_batch_sequences=1), grace_s=0.05)
        num_answered = int(np.isfinite(outcome.finish).sum())
        assert num_answered < 100
        assert outcome.percentile_s(99) == np.inf
        assert len(outcome.batches) == num_answered
    assert not any(thread.name.startswith("engine-lane") for thread in threading.enumerate())


def test_the_engines_error_ends_the_run() -> None:
    engine = Broken()
    with pytest.raises(EngineError, match="fell off the bus"):
        run(engine, stream(1000.0, 100), settings(max_batch_sequences=1))
    assert 2 <= engine.num_run <= 3  # one batch more may wait behind the one that fails
    assert gc.isenabled()
    assert not any(thread.name.startswith("engine-lane") for thread in threading.enumerate())


def test_bulk_is_topped_up_until_it_is_worked_off() -> None:
    outcome, scheduler = run(NullEngine(), stream(2000.0, 200, num_bulk=6000), settings(max_batch_sequences=256))
    assert np.all(np.isfinite(outcome.finish))
    assert outcome.num_bulk == 6000
    assert len(outcome.latency_s) == 200
    assert scheduler.most_added <= TOGETHER
    assert TOGETHER < scheduler.most_queued <= BULK_WAITING + 200


def test_refused_requests_are_counted_by_cause_and_never_run() -> None:
    strict = settings(max_batch_sequences=1, slo_s=5 * BATCH_S, order="edf", admission="deadline")
    outcome, _ = run(Slow(), stream(1000.0, 100), strict)  # and ends: nothing is left to wait for
    num_refused = sum(outcome.refused.values())
    assert num_refused > 20
    assert set(outcome.refused) <= {"overloaded", "queued", "arrived_late"}
    assert int(np.isfinite(outcome.finish).sum()) + num_refused == 100
    assert np.array_equal(np.isnan(outcome.start), np.isnan(outcome.finish))


def test_the_cost_learns_from_what_was_measured_and_errors_are_those_of_the_plans() -> None:
    outcome, _ = run(Slow(), stream(500.0, 50), settings(max_batch_sequences=8))
    assert outcome.busy_s == pytest.approx(sum(batch.measured_s for batch in outcome.batches))
    assert all(batch.measured_s >= 0.9 * BATCH_S for batch in outcome.batches)
    expected = [abs(batch.predicted_s / batch.measured_s - 1) for batch in outcome.batches]
    assert outcome.prediction_errors() == expected
    assert len(expected) == len(outcome.batches) >= 7
