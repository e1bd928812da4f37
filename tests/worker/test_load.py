"""The worker's load: gauges at every tick, a log event every ten seconds, and only while there is work."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.scheduler import Cause, CostTable, Job, LearnedCost, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.requests.record import Row
from penstock.worker.telemetry.load_monitor import PREDICTED_WRONG, Load, why_late
from penstock.worker.telemetry.metrics import Metrics

SECOND_A_TOKEN = PackedCost(0.0, 0.0, 1.0, 0.0)


class Stand:
    def __init__(self) -> None:
        self.cost = LearnedCost(CostTable(SECOND_A_TOKEN))
        self.scheduler = Scheduler(SchedulerSettings(1.0, 8, 1000, None), self.cost)
        self.metrics = Metrics(queued_sequences=lambda: 0, queued_tokens=lambda: 0, unfinished_records=lambda: 0)
        self.load = Load(self.scheduler, self.cost, self.metrics, busy_s=lambda: 2.0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def logged(self, now: float) -> list[Any]:
        with capture_logs() as logs:
            self.load.tick(now)
        return [entry for entry in logs if entry["event"] == "worker_load"]


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_an_idle_worker_says_nothing(stand: Stand) -> None:
    assert [stand.logged(float(now)) for now in range(30)] == [[]] * 30


def test_a_busy_one_says_every_ten_seconds_what_waits_and_what_came_of_the_rest(stand: Stand) -> None:
    stand.scheduler.add([Job(1, 30, 0.0), Job(2, 10, 0.0)], 0.0)
    stand.cost.observe(10, 100, 10, 1, 12.5)  # 10 s were predicted
    stand.load.batch_done()
    for cause in (Cause.OVERLOADED, Cause.OVERLOADED, Cause.QUEUED, PREDICTED_WRONG):
        stand.load.missed(cause)
    times = [now for now in range(40) if stand.logged(float(now))]
    assert times == [0, 10, 20, 30]


def test_what_it_says(stand: Stand) -> None:
    stand.scheduler.add([Job(1, 30, 0.0), Job(2, 10, 0.0)], 0.0)
    stand.cost.observe(10, 100, 10, 1, 12.5)  # 10 s were predicted
    stand.load.batch_done()
    for cause in (Cause.OVERLOADED, Cause.OVERLOADED, Cause.QUEUED, PREDICTED_WRONG):
        stand.load.missed(cause)
    [event] = stand.logged(0.0)
    assert (event["queued_sequences"], event["queued_tokens"], event["batches"]) == (2, 40, 1)
    assert event["backlog_s"] == pytest.approx(2.0 + stand.scheduler.backlog_s, abs=1e-3)
    assert stand.scheduler.backlog_s > 20
    assert event["prediction_error_p50"] == pytest.approx(0.2)
    assert (event["overloaded"], event["missed"]) == (2, {"arrived_late": 0, "queued": 1, "predicted_wrong": 1})
    [event] = stand.logged(10.0)
    assert (event["batches"], event["overloaded"], event["missed"]["queued"]) == (0, 0, 0)  # since the last


def test_before_the_first_batch_there_is_no_prediction_error(stand: Stand) -> None:
    stand.scheduler.add([Job(1, 30, 0.0)], 0.0)
    [event] = stand.logged(0.0)
    assert (event["prediction_error_p50"], event["prediction_error_p95"]) == (None, None)


def test_prometheus_is_told_the_same(stand: Stand) -> None:
    stand.scheduler.add([Job(1, 30, 0.0)], 0.0)
    stand.cost.observe(10, 100, 10, 1, 12.5)
    for cause in (Cause.OVERLOADED, Cause.ARRIVED_LATE, Cause.QUEUED, PREDICTED_WRONG, PREDICTED_WRONG):
        stand.load.missed(cause)
    stand.load.tick(0.0)
    assert stand.value("penstock_overload_refusals_total") == 1
    assert stand.value("penstock_deadline_misses_total", cause="arrived_late") == 1
    assert stand.value("penstock_deadline_misses_total", cause="queued") == 1
    assert stand.value("penstock_deadline_misses_total", cause="predicted_wrong") == 2
    assert stand.value("penstock_backlog_seconds") == pytest.approx(2.0 + stand.scheduler.backlog_s)
    assert stand.value("penstock_prediction_error", quantile="0.5") == pytest.approx(0.2)


def test_only_what_had_a_job_can_have_been_predicted_wrong(make_rows: Callable[..., list[Row]]) -> None:
    [row] = make_rows([1, 2])  # from the cache, or from another's computation
    assert why_late(row.owner) == Cause.QUEUED
    row.owner.job_ids.append(1)
    assert why_late(row.owner) == PREDICTED_WRONG
