"""The part through Kafka: a worker process without a model behind librdkafka's mock, and the client that looks for its
critical point.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.engine import NullEngine
from penstock.ops.bench.serving.harness import BenchHarness, Known, Load
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.systems import DEFAULT, NO_BATCH, SYSTEMS, EngineKind, System
from penstock.ops.bench.serving.parts import critical, kafka
from penstock.ops.bench.serving.parts.critical import critical_point
from penstock.ops.bench.serving.run_plan import KAFKA, LOADS, RunPlan
from penstock.ops.bench.serving.serving_benchmark import measure, tables_of
from penstock.ops.kafka import MockBroker
from penstock.scheduler import CostTable, LearnedCost, PackedCost
from penstock.worker.resolved_settings import resolve, scheduler_settings
from penstock.worker.settings import WorkerSettings

pytestmark = pytest.mark.slow

SLO_S = 0.25


class Unloaded(BenchHarness):
    """Batches take no time, and are expected to take some. A run in process ends with its last answer."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings.model_validate({"model": "null"}), NullEngine())

    def measured(self, kind: EngineKind) -> Known:
        return Known(NullEngine(), LearnedCost(CostTable(PackedCost(0.02, 0.0, 0.0, 0.0))), 1.0)

    def real(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        return super().real(system, load, grace_s=grace_s + 600.0)  # a machine that stands still costs no answer


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        yield broker


def test_a_worker_behind_a_broker_is_searched_as_the_engine_is_in_process(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_FETCH_MAX_WAIT_MS", "5")  # the mock's
    monkeypatch.setattr(kafka, "COMPARED", (NO_BATCH,))
    monkeypatch.setattr(critical, "_REACH", 1.5)
    monkeypatch.setattr(kafka, "LOADS", (0.9,))
    monkeypatch.setattr(kafka, "_TIMES", 1.0)
    monkeypatch.setattr(kafka, "SATURATED", NO_BATCH)  # its saturation is some hundred requests a second
    monkeypatch.setattr(critical, "_MOST_CONFIRMED", 1)
    # Of this process: whether the client's runs keep up is the machine's affair, and so is the rate that it finds.
    monkeypatch.setattr(Outcome, "keeps_up", lambda outcome, slo_s: True)
    plan = RunPlan(
        parts=(KAFKA, LOADS),
        lengths=("2-100",),
        slo_s=SLO_S,
        seconds=1.0,
        bootstrap_servers=broker.bootstrap_servers,
    )
    bench = Unloaded()
    parts = measure(bench, plan, lambda line: None)
    (row,) = parts[KAFKA]["rows"]
    in_process, through_kafka = row["in_process"], row["through_kafka"]
    assert set(through_kafka) == set(in_process)
    for found in (in_process, through_kafka):
        assert found["tried"]
        assert found["rate_per_s"] > 0
        assert found["requests"] >= 60
        latency_s = found["latency_s"]
        assert 0 < latency_s["min"] <= latency_s["p50"] <= latency_s["p99"] <= latency_s["max"] < math.inf
        assert not found["refused"]  # every request was answered
    first = 0.7 * bench.capacity_per_s(bench.system(NO_BATCH, SLO_S), "2-100")
    assert in_process["tried"] == [(pytest.approx(first), True), (pytest.approx(2 * first), True)]
    assert (in_process["rate_per_s"], in_process["was_sustained"]) == (pytest.approx(2 * first), True)
    assert through_kafka["tried"][0][0] == pytest.approx(0.7 * in_process["rate_per_s"])
    text = tables_of({"parts": parts, "engines": {}})
    assert text.count("| packed, none | ") == 2
    assert "in time at 0.9 |" in text


def test_a_worker_is_told_all_that_makes_a_system() -> None:
    bench = Unloaded()
    for system in [bench.system(name, SLO_S) for name in (*SYSTEMS, DEFAULT)]:
        told = WorkerSettings.model_validate(kafka.worker_settings(bench, system))
        assert told.lanes is not None
        scheduler = scheduler_settings(resolve(told, bench.packed.info))
        assert scheduler == system.settings or scheduler.slo_s != system.settings.slo_s == SLO_S


def test_real_messages_come_with_the_lengths_of_their_token_ids() -> None:
    lengths = Unloaded().lengths("banking77", 4000)
    assert lengths[3080:].tolist() == lengths[:920].tolist()  # from the start again
    assert lengths.min() >= 3  # two special tokens and a word
    assert lengths[:3080].mean() == pytest.approx(15.07, abs=0.01)


@pytest.mark.parametrize("limit", [70.0, 130.0, 400.0])
def test_the_critical_point_is_where_answers_still_keep_up(limit: float) -> None:
    def run(rate_per_s: float, times: float) -> Outcome:
        arrival = np.arange(round(rate_per_s * times * 10)) / rate_per_s
        latency = 0.01 if rate_per_s <= limit else 0.1
        return Outcome(arrival, arrival, arrival + latency, {})

    found = critical_point(run, 100.0, 0.05)
    assert found["was_sustained"]
    assert 0.8 * limit < found["rate_per_s"] <= limit
    assert found["latency_s"]["p99"] == pytest.approx(0.01)


def test_a_system_that_is_never_in_time_has_no_critical_point() -> None:
    def run(rate_per_s: float, times: float) -> Outcome:
        arrival = np.arange(100) / rate_per_s
        return Outcome(arrival, arrival, np.full(100, math.nan), {"Expired": 100})

    found = critical_point(run, 100.0, 0.05)
    assert not found["was_sustained"]
    assert found["latency_s"]["p99"] == math.inf
    assert found["refused"] == {"Expired": 100}
