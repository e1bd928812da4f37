"""The sums over logs, against the same sums over the lines of real logs."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars
import pytest

from penstock.ops.logs.totals.facts import facts
from penstock.ops.logs.totals.histogram import Histogram
from penstock.ops.logs.totals.series import (
    LATENCIES,
    LATENCY_BOUNDS_S,
    MISSES,
    TRIGGERS,
    Series,
    latency_column,
    latency_percentile_s,
    slow_periods,
)
from penstock.scheduler import Cause, Trigger
from penstock.worker.telemetry import metrics
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B, SAMPLES, batch, digest, line, lines, rejections

ALL = (FLEET, HOST_A, HOST_B)


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.name))
def test_batches_add_up(path: Path) -> None:
    expected = [one for one in lines(path) if one["event"] == "batch_done"]
    found = digest(path)
    group, totals = found.batches.all, found.series.totals()
    assert group.batches == totals["logged_batches"] == len(expected) > 20
    assert group.tokens == totals["logged_tokens"] == sum(one["tokens"] for one in expected)
    assert group.padded_tokens == sum(one["sequences"] * one["max_seqlen"] for one in expected)
    assert group.device_s == pytest.approx(sum(one["device_s"] for one in expected))
    triggers = Counter(one["trigger"] for one in expected)
    assert {group.name: group.batches for group in found.batches.by("trigger")} == triggers
    assert {name: totals[name] for name in TRIGGERS if totals[name]} == triggers
    seconds = sorted(one["device_s"] for one in expected)
    assert found.batches.histograms["device_s"].percentile(50) == pytest.approx(
        seconds[(len(seconds) - 1) // 2], rel=0.02
    )
    assert found.batches.longest.events[0].number("device_s") == seconds[-1]
    errors = sorted(abs(one["predicted_s"] / one["device_s"] - 1) for one in expected)
    assert group.ratios.deviation(50) == pytest.approx(errors[(len(errors) - 1) // 2], abs=0.02)


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.name))
def test_counts_come_from_the_fields_of_worker_load(path: Path) -> None:
    loads = [one for one in lines(path) if one["event"] == "worker_load"]
    totals = digest(path).series.totals()
    for name in ("batches", "answered", "sequences", "cached", "tokens", "padded_tokens"):
        assert totals[name] == pytest.approx(sum(one[name] for one in loads)), name
    assert totals["overloaded"] == pytest.approx(rejections(path)["overloaded"])  # of a killed worker: its lines
    for cause in MISSES[1:]:
        assert totals[cause] == pytest.approx(sum(one["missed"][cause] for one in loads))
    assert sum(totals[name] for name in LATENCIES) == pytest.approx(totals["answered"])


def test_records_of_routes_are_added_up_over_loads_and_logs(tmp_path: Path) -> None:
    loads = [
        line("worker_load", routes={"orders": {"ok": 5, "too_long": 1}, "tickets": {"passed": 2}}),
        line("worker_load", routes={"orders": {"ok": 4, "expired": "no", "passed": -1}, "bad": [1]}),
        line("worker_load", routes="none"),
        line("worker_load"),
    ]
    paths = [tmp_path / "a.log", tmp_path / "b.log"]
    for path in paths:
        path.write_text("".join(loads))
    routes = digest(*paths).routes
    assert routes == {"orders": {"ok": 18, "too_long": 2}, "tickets": {"passed": 4}, "bad": {}}


def test_a_graceful_stop_leaves_no_answer_uncounted() -> None:
    """`stopped` has the number; the last worker_load counts what came after the one before it."""
    stopped = [one["answered"] for one in lines(HOST_A) if one["event"] == "stopped"]
    assert digest(HOST_A).series.totals()["answered"] == pytest.approx(sum(stopped))


def test_several_workers_are_merged() -> None:
    one, other, both = digest(HOST_A), digest(HOST_B), digest(HOST_A, HOST_B)
    first, second, merged = (found.series.totals() for found in (one, other, both))
    for name in ("answered", "batches", "refused", "timeout"):
        assert merged[name] == pytest.approx(first[name] + second[name])
    assert merged["slowest_s"] == max(first["slowest_s"], second["slowest_s"])
    assert both.lives.counts["start"] == 3
    slowest = [event.number("total_ms") or 0.0 for event in both.requests.slowest["online"].events]
    assert slowest == sorted(slowest, reverse=True)


def test_life_of_a_fleet() -> None:
    counts = digest(FLEET).lives.counts
    events = Counter(one["event"] for one in lines(FLEET))
    assert counts["start"] == events["worker_starting"]
    assert counts["rebalance"] == events["partitions_assigned"]
    assert counts["death"] == 1
    assert counts["restart"] == 2


def test_gaps_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text(batch(0) + batch(20) + batch(320) + line("stopped", "2026-11-22T03:05:21Z"))
    found = digest(path).gaps
    assert found.count == 1
    assert found.longest[0].end_s - found.longest[0].start_s == 300


def test_slow_periods_are_late_or_far_slower_than_usual(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    usual, slow, late = {"0.01": 50}, {"0.01": 25, "0.5": 25}, {"0.01": 50}
    with path.open("w") as file:
        for number in range(60):
            load = slow if number in (20, 21) else late if number == 40 else usual
            missed = {"queued": 5} if number == 40 else {}
            time = f"2026-11-22T03:{number // 6:02}:{number % 6 * 10 + 9:02}Z"
            file.write(line("worker_load", time, answered=50, latency_le_s=load, missed=missed, backlog_s=0.1))
    periods = slow_periods(digest(path).series)
    assert [(one.end_s - one.start_s, round(one.missed)) for one in periods] == [(20, 0), (10, 5)]
    assert periods[0].p95_s > 0.25
    assert slow_periods(Series()) == []


def test_the_series_holds_any_time_in_bounded_memory() -> None:
    series = Series()
    seconds = np.arange(0, 300_000, 2)
    for some in np.array_split(seconds, 100):
        series.add(polars.DataFrame({"time_s": 1_700_000_000.0 + some, "backlog_s": some}).with_columns(answered=1))
    assert series.width_s == 8
    assert series.totals()["answered"] == 150_000
    starts, columns = series.spans(3600)
    assert columns["answered"].sum() == 150_000
    assert {int(one - other) for other, one in pairwise(starts)} == {3600}


def test_the_buckets_and_names_are_the_workers() -> None:
    assert [f"{float(bound):g}" for bound in metrics.SliceHistogram("x", "y").counts()] == [
        f"{bound:g}" for bound in LATENCY_BOUNDS_S
    ]
    assert {str(one) for one in Trigger} == set(TRIGGERS[:-1])
    assert {str(one) for one in Cause} < set(MISSES)


def test_percentiles_of_buckets() -> None:
    counts = dict.fromkeys(LATENCIES, 0.0) | {"le_0.01": 50.0, "le_0.025": 50.0}
    assert latency_percentile_s(counts, 50) == pytest.approx(0.01)
    assert latency_percentile_s(counts, 75) == pytest.approx(0.02)
    assert np.isnan(latency_percentile_s(dict.fromkeys(LATENCIES, 0.0), 50))
    assert latency_percentile_s(dict.fromkeys(LATENCIES, 0.0) | {"le_inf": 1.0}, 50) == 30.0
    assert (latency_column("+Inf"), latency_column("0.003"), latency_column("soon")) == ("le_inf", "le_0.005", "le_inf")


def test_a_histogram_is_within_a_hundredth() -> None:
    numbers = np.random.default_rng(1).lognormal(0, 3, 20_000)
    histogram = Histogram()
    histogram.add(numbers[:5_000])
    histogram.add(numbers[5_000:])
    for percent in (1, 50, 95, 99.9):
        assert histogram.percentile(percent) == pytest.approx(np.quantile(numbers, percent / 100), rel=0.02)
    assert histogram.deviation(50) == pytest.approx(np.median(np.abs(numbers - 1)), rel=0.03)
    assert np.isnan(Histogram().percentile(50))
    constant = Histogram()
    constant.add(np.array([0.01] * 9 + [0.0, -1.0, np.nan]))
    assert constant.percentile(99) == pytest.approx(0.01)
    assert constant.percentile(10) == 0.0


def test_every_figure_has_one_name() -> None:
    """The summary finds one by its name alone."""
    found = facts(digest(SAMPLES)).values()
    assert len(found) == len({fact.name for fact in found}) > 50
    assert all(fact.text for fact in found)
