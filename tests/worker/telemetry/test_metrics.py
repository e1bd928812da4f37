"""The port, the manual, the dashboard and the alerts have the same metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import exposition, generate_latest, parser
from prometheus_client.openmetrics import exposition as om_exposition
from prometheus_client.openmetrics import parser as om_parser

from penstock.engine.types import ModelInfo
from penstock.producer.errors import TooLong
from penstock.scheduler import Cause, CostTable, LaneDriver, LearnedCost, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.encoder_model import EncoderLoad
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.skipped_offsets import SkippedOffsets
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.supervision.members_port import MemberMetrics
from penstock.worker.telemetry.load_monitor import LoadMonitor
from penstock.worker.telemetry.metric_definitions import METRICS, SUPERVISOR_METRICS, WORKER_METRICS, table
from penstock.worker.telemetry.metrics import Metrics

OPS = Path(__file__).parents[3] / "ops"
DASHBOARD: dict[str, Any] = json.loads((OPS / "deploy" / "grafana" / "penstock.json").read_text(encoding="utf-8"))
RULES: dict[str, Any] = yaml.safe_load((OPS / "deploy" / "prometheus" / "penstock-alerts.yaml").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = RULES["groups"][0]["rules"]
SOURCE: Source = ("penstock.requests.tiny", 3)
SCRAPED = {"instance", "job", "worker", "le"}  # labels that Prometheus, a supervisor or a histogram adds


class Bench:
    """A worker's metrics, and the parts that feed them."""

    def __init__(self, info: ModelInfo) -> None:
        cost = LearnedCost(CostTable(PackedCost(0.0, 0.0, 1.0, 0.0)))
        scheduler = Scheduler(SchedulerSettings(1.0, 8, 1000, None), cost)
        held, self.offsets = Backpressure(8), OffsetTracker()
        self.ends: dict[Source, int] = {}
        self.dead_letters = {"kept": 0, "lost": 0}
        ledger = RecordLedger(held, self.offsets, {"bulk"})
        load = EncoderLoad(LaneDriver(scheduler, 1), cost, TokenBudget(1000, lambda: 0.0))
        self.metrics = Metrics(info, load, held, ledger)
        self.metrics.show("penstock_skipped_offsets_total", SkippedOffsets([SOURCE[0]]).counts.copy)
        self.metrics.show("penstock_held_outputs", lambda: {("out",): 1.0})
        lag = lambda: self.offsets.lag(self.ends)  # noqa: E731
        self.monitor = LoadMonitor(load, self.metrics, lag=lag, dead_letters=self.dead_letters)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def bench(info: ModelInfo) -> Bench:
    return Bench(info)


def test_a_worker_serves_what_is_defined_and_no_more(bench: Bench) -> None:
    served = {(family.name, family.type) for family in bench.metrics.registry.collect()}
    assert served == {(one.family, one.kind) for one in WORKER_METRICS}


@pytest.mark.parametrize("form", [(exposition, parser), (om_exposition, om_parser)])
def test_the_port_has_what_is_defined_and_no_more(bench: Bench, form: tuple[Any, Any]) -> None:
    """Once there are values: prometheus_client then adds series of its own, which no table has."""
    bench.metrics.observe_batch(BatchStats("full", "dp", 0.0, Sums(8, 32, 4, 2), 0.001, 0.001))
    bench.monitor.rejected([TooLong("x"), deadline_error(Cause.QUEUED, 1.0), deadline_error(Cause.OVERLOADED, 1.0)])
    shown = form[0].generate_latest(bench.metrics.registry).decode()
    families = list(form[1].text_string_to_metric_families(shown))
    names = sorted(family.name.removesuffix("_info") for family in families)
    assert names == sorted(one.family for one in WORKER_METRICS)
    assert {series(sample.name) for family in families for sample in family.samples} <= METRICS.keys()


def test_a_supervisor_serves_what_is_defined_and_no_more() -> None:
    served = {(family.name, family.type) for family in MemberMetrics(dict, dict).registry.collect()}
    assert served == {(one.family, one.kind) for one in SUPERVISOR_METRICS}


def test_the_manual_has_the_tables_of_what_is_defined() -> None:
    page = (OPS / "docs" / "metrics.md").read_text(encoding="utf-8")
    tables = [block for block in page.split("\n\n") if block.startswith("| metric |")]
    assert tables == [table(WORKER_METRICS), table(SUPERVISOR_METRICS)]


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(METRICS) == len(WORKER_METRICS) + len(SUPERVISOR_METRICS)
    for one in METRICS.values():
        assert re.fullmatch(r"penstock_[a-z]+(_[a-z]+)*", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert one.name.endswith("_info") == (one.kind == "info"), one.name
        if one.unit == "seconds":
            assert one.name.removesuffix("_total").endswith("_seconds"), one.name
        assert not re.search(r"_(ms|kb|percent|count|sum|bucket)\b", one.name), one.name
        assert one.meaning.endswith("."), one.name


def test_the_build_has_the_version_and_the_model(bench: Bench) -> None:
    shown = generate_latest(bench.metrics.registry).decode()
    assert "# TYPE penstock_build_info gauge" in shown
    assert re.search(r'penstock_build_info\{.*model="tiny",revision="r1",version="\d.*"\} 1.0', shown)


def test_the_gain_of_the_partition_is_that_of_the_last_batch(bench: Bench) -> None:
    for policy, gain in (("dp", 0.125), ("fifo", 0.0)):
        bench.metrics.observe_batch(BatchStats("full", policy, gain, Sums(8, 32, 4, 2), 0.001, 0.001))
        assert bench.value("penstock_partition_gain_ratio") == gain


def test_the_lag_is_what_is_not_finished_up_to_the_end(bench: Bench) -> None:
    assert bench.value("penstock_consumer_lag_records", topic=SOURCE[0], partition="3") is None
    bench.offsets.restore({SOURCE: PartitionProgress(100)})
    bench.offsets.start(SOURCE, [100, 101, 102])
    bench.offsets.finish(SOURCE, [100, 102])
    bench.ends = {SOURCE: 110, ("another", 0): 7}
    bench.monitor.tick(0.0)
    assert bench.value("penstock_consumer_lag_records", topic=SOURCE[0], partition="3") == 9
    assert bench.value("penstock_consumer_lag_records", topic="another", partition="0") is None
    bench.offsets.forget({SOURCE})
    bench.monitor.tick(1.0)
    assert bench.value("penstock_consumer_lag_records", topic=SOURCE[0], partition="3") is None


def test_dead_letters_are_counted_by_outcome_and_from_0_on(bench: Bench) -> None:
    assert bench.value("penstock_dead_letters_total", outcome="lost") == 0
    bench.dead_letters["kept"] = 2
    assert bench.value("penstock_dead_letters_total", outcome="kept") == 2


def test_the_bounds_tell_milliseconds_apart(bench: Bench) -> None:
    for seconds in (0.0007, 0.004, 0.006, 0.012, 0.08):
        bench.metrics.latency.observe(seconds, 1, bulk=False)
    bounds = ("0.0005", "0.001", "0.005", "0.0075", "0.015", "0.1")
    counts = [bench.value("penstock_request_seconds_bucket", le=bound, **{"class": "online"}) for bound in bounds]
    assert counts == [0, 1, 2, 3, 4, 5]


def queries() -> list[str]:
    """Every PromQL expression of the dashboard and of the alerts."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*panels, *(rule["expr"] for rule in ALERTS)]


def series(name: str) -> str:
    """The metric of a sample's name."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if METRICS.get(base, None) and METRICS[base].kind == "histogram" else name


def test_every_query_asks_for_metrics_and_labels_that_exist() -> None:
    assert len(queries()) > 40
    for query in queries():
        assert query.count("(") == query.count(")"), query
        names = re.findall(r"penstock_\w+", query)
        assert names, query
        allowed = set(SCRAPED)
        for name in names:
            assert series(name) in METRICS, query
            allowed |= set(METRICS[series(name)].labels)
        for name, matchers in re.findall(r"(penstock_\w+)\{([^}]*)\}", query):
            matched = set(re.findall(r'(\w+)\s*[=!]~?\s*"', matchers))
            assert matched <= SCRAPED | set(METRICS[series(name)].labels), query
        grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(",")}
        assert grouped <= allowed, query


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {series(name) for query in queries() for name in re.findall(r"penstock_\w+", query)}
    assert METRICS.keys() - shown == set()


def test_panels_do_not_overlap_and_alerts_are_complete() -> None:
    cells = [
        (x, y)
        for place in [panel["gridPos"] for panel in DASHBOARD["panels"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    for rule in ALERTS:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
