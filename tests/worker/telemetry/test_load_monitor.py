"""The load monitor: gauges at every tick, a log event every ten seconds, and only while there is work."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.engine.types import ModelInfo
from penstock.scheduler import (
    Cause,
    CostTable,
    LaneBatch,
    LaneDriver,
    LearnedCost,
    PackedCost,
    Scheduler,
    SchedulerSettings,
)
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.encoder_model import EncoderLoad
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.telemetry.load_monitor import LoadMonitor
from penstock.worker.telemetry.metrics import Metrics
from tests.scheduler.jobs import one_job

LATENCIES = ("0.005", "0.01", "30.0", "+Inf")
SECOND_A_TOKEN = PackedCost(0.0, 0.0, 1.0, 0.0)


class Bench:
    """A monitor, and what it reads and shows."""

    def __init__(self, info: ModelInfo) -> None:
        self.cost = LearnedCost(CostTable(SECOND_A_TOKEN))
        self.scheduler = Scheduler(SchedulerSettings(1.0, 8, 1000, None), self.cost)
        self.driver = LaneDriver(self.scheduler, 1)
        held = Backpressure(8)
        self.ledger = RecordLedger(held, OffsetTracker(), {"bulk"})
        load = EncoderLoad(self.driver, self.cost, TokenBudget(1000, lambda: 0.0))
        self.metrics = Metrics(info, load, held, self.ledger)
        self.monitor = LoadMonitor(load, self.metrics, lag=dict, dead_letters={})

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def work(self) -> None:
        """Two seconds of lane time and two queued jobs; one batch that took longer than predicted."""
        self.driver.run_now(LaneBatch((), "probe", "probe", 2.0), 0.0)
        self.scheduler.add([one_job(1, 30, 0.0), one_job(2, 10, 0.0)], 0.0)
        self.cost.observe(10, 100, 10, 1, 12.5)  # 10 s were predicted
        self.monitor.batch_done(BatchStats("drain", "fifo", 0.25, Sums(10, 100, 10, 1), 10.0, 12.5))

    def answer(self, requests: Sequence[PendingRequest], now: float) -> None:
        """Replies that the broker has at once."""
        self.monitor.answered(requests, None, now)
        self.metrics.count("ok", len(requests))

    def logged(self, now: float) -> list[Any]:
        with capture_logs() as logs:
            self.monitor.tick(now)
        return [entry for entry in logs if entry["event"] == "worker_load"]


@pytest.fixture
def bench(info: ModelInfo) -> Bench:
    return Bench(info)


@pytest.fixture
def late(make_sequences: Callable[..., list[SequenceBlock]]) -> PendingRequest:
    """A request whose deadline is before every answer of these tests."""
    return make_sequences([1, 2], deadline=-1.0)[0].request


def reject(bench: Bench, *causes: Cause) -> None:
    bench.monitor.rejected([deadline_error(cause, 1.0) for cause in causes])


def test_an_idle_worker_logs_nothing(bench: Bench) -> None:
    assert [bench.logged(float(now)) for now in range(30)] == [[]] * 30


def test_a_busy_worker_logs_its_load_every_ten_seconds(bench: Bench) -> None:
    bench.work()
    assert [now for now in range(40) if bench.logged(float(now))] == [0, 10, 20, 30]


def test_the_log_tells_the_queue_the_prediction_error_and_the_missed_deadlines(
    bench: Bench, late: PendingRequest
) -> None:
    bench.work()
    reject(bench, Cause.OVERLOADED, Cause.OVERLOADED, Cause.QUEUED)
    late.flights.append(1)
    bench.monitor.answered([late], None, -1.0)  # at its deadline: in time
    bench.monitor.answered([late], None, 0.0)
    [event] = bench.logged(0.0)
    assert (event["queued_sequences"], event["queued_tokens"], event["batches"]) == (2, 40, 1)
    assert event["backlog_s"] == pytest.approx(2.0 + bench.scheduler.backlog_s, abs=1e-3)
    assert bench.scheduler.backlog_s > 20
    assert event["prediction_error_p50"] == pytest.approx(0.2)
    assert (event["overloaded"], event["missed"]) == (2, {"arrived_late": 0, "queued": 1, "predicted_wrong": 1})
    [event] = bench.logged(10.0)
    assert (event["batches"], event["overloaded"], event["missed"]["queued"]) == (0, 0, 0)  # since the last


def test_before_the_first_batch_there_is_no_prediction_error(bench: Bench) -> None:
    bench.scheduler.add([one_job(1, 30, 0.0)], 0.0)
    [event] = bench.logged(0.0)
    assert (event["prediction_error_p50"], event["prediction_error_p95"]) == (None, None)


def test_metrics_show_the_same(bench: Bench, late: PendingRequest) -> None:
    bench.work()
    reject(bench, Cause.OVERLOADED, Cause.ARRIVED_LATE, Cause.QUEUED)
    late.flights.append(1)
    bench.answer([late, late], 0.0)
    bench.monitor.tick(0.0)
    assert bench.value("penstock_overload_refusals_total") == 1
    assert bench.value("penstock_deadline_misses_total", cause="arrived_late") == 1
    assert bench.value("penstock_deadline_misses_total", cause="queued") == 1
    assert bench.value("penstock_deadline_misses_total", cause="predicted_wrong") == 2
    assert bench.value("penstock_backlog_seconds") == pytest.approx(2.0 + bench.scheduler.backlog_s)
    assert bench.value("penstock_prediction_error_ratio", quantile="0.5") == pytest.approx(0.2)
    assert bench.value("penstock_requests_total", outcome="ok") == 2
    assert bench.value("penstock_requests_total", outcome="expired") == 2


def test_latencies_are_counted_a_slice_at_a_time_by_class(
    bench: Bench, make_sequences: Callable[..., list[SequenceBlock]]
) -> None:
    online = [make_sequences([n])[0].request for n in range(3)]
    bulk = make_sequences([1], bulk=True)[0].request
    bench.monitor.answered([*online, bulk], None, 0.01)
    bench.monitor.answered(online, None, 100.0)
    assert bench.value("penstock_request_seconds_count", **{"class": "online"}) == 6
    assert bench.value("penstock_request_seconds_sum", **{"class": "online"}) == pytest.approx(300.03)
    buckets = [bench.value("penstock_request_seconds_bucket", le=le, **{"class": "online"}) for le in LATENCIES]
    assert buckets == [0, 3, 3, 6]
    assert bench.value("penstock_request_seconds_count", **{"class": "bulk"}) == 1


def test_a_late_answer_without_a_job_was_not_predicted_wrong(bench: Bench, late: PendingRequest) -> None:
    bench.monitor.answered([late], None, 0.0)  # from the cache, or from another request's computation
    assert bench.value("penstock_deadline_misses_total", cause="queued") == 1


def test_each_batch_is_logged_and_counted_by_trigger_and_partition(bench: Bench) -> None:
    with capture_logs() as logs:
        bench.monitor.batch_done(BatchStats("timeout", "dp", 0.12345, Sums(6, 20, 4, 2), 0.5, 0.25, number=7))
    [event] = logs
    assert (event["event"], event["trigger"], event["partition"], event["dp_gain"]) == (
        "batch_done",
        "timeout",
        "dp",
        0.1235,
    )
    assert (event["sequences"], event["tokens"], event["max_seqlen"], event["padding_avoided"]) == (2, 6, 4, 0.25)
    assert (event["predicted_s"], event["device_s"], event["batch"]) == (0.5, 0.25, 7)
    assert bench.value("penstock_batches_total", trigger="timeout", policy="dp") == 1
    assert bench.value("penstock_padded_tokens_total") == 8


def test_of_many_batches_a_second_some_are_logged_and_all_are_counted(bench: Bench) -> None:
    stats = BatchStats("timeout", "dp", 0.0, Sums(6, 20, 4, 2), 0.5, 0.25)
    logged = []
    for now in range(3):
        with capture_logs() as logs:
            for _ in range(200):
                bench.monitor.batch_done(stats)
            bench.monitor.tick(float(now))
        logged.append(sum(event["event"] == "batch_done" for event in logs))
    assert logged == [100, 20, 20]
    assert bench.value("penstock_batches_total", trigger="timeout", policy="dp") == 600


def test_records_that_the_last_owner_answered_are_counted(bench: Bench) -> None:
    bench.ledger.num_skipped = 3
    assert bench.value("penstock_skipped_records_total") == 3


def test_the_log_has_what_was_counted_since_the_last(
    bench: Bench, make_sequences: Callable[..., list[SequenceBlock]]
) -> None:
    requests = [make_sequences([n])[0].request for n in range(3)]
    bench.answer(requests, 0.004)
    bench.metrics.from_cache.inc(2)
    bench.work()
    reject(bench, Cause.OVERLOADED)
    [event] = bench.logged(0.0)
    assert (event["answered"], event["sequences"], event["cached"]) == (3, 1, 2)
    assert (event["tokens"], event["padded_tokens"], event["device_s"]) == (10, 10, 12.5)
    assert (event["rejected"], event["latency_le_s"]) == ({"overloaded": 1}, {"0.005": 3})
    bench.answer(requests[:1], 0.02)
    [event] = bench.logged(10.0)
    assert (event["answered"], event["tokens"], event["latency_le_s"]) == (1, 0, {"0.025": 1})


def test_what_was_counted_last_is_logged_at_the_end(
    bench: Bench, make_sequences: Callable[..., list[SequenceBlock]]
) -> None:
    bench.monitor.tick(0.0)
    with capture_logs() as logs:
        bench.monitor.log_rest(1.0)
        bench.answer([make_sequences([1])[0].request], 1.0)
        bench.monitor.log_rest(2.0)
    assert [(one["event"], one.get("answered")) for one in logs] == [("request_done", None), ("worker_load", 1)]


def test_a_reply_that_is_acknowledged_when_no_other_work_is_left_is_logged(
    bench: Bench, make_sequences: Callable[..., list[SequenceBlock]]
) -> None:
    bench.monitor.answered([make_sequences([1])[0].request], None, 0.0)
    [event] = bench.logged(0.0)
    assert event["answered"] == 0
    bench.metrics.count("ok", 1)
    [event] = bench.logged(10.0)
    assert event["answered"] == 1
    assert bench.logged(20.0) == []


async def test_an_event_loop_that_stood_still_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("penstock.worker.telemetry.load_monitor.time.monotonic", lambda: now)

    async def late(seconds: float) -> None:
        nonlocal now
        now += seconds + 0.3
        if now > 102:
            raise asyncio.CancelledError

    monkeypatch.setattr("penstock.worker.telemetry.load_monitor.asyncio.sleep", late)
    with pytest.raises(asyncio.CancelledError):
        await bench.monitor.run()
    assert bench.value("penstock_event_loop_lag_seconds_count") == 1
    assert bench.value("penstock_event_loop_lag_seconds_sum") == pytest.approx(0.3)
