"""The Prometheus metrics of one worker."""

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from penstock.engine import ModelInfo
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.stage import StageLoad
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.telemetry.metric_definitions import METRICS, MetricDefinition

# Most requests take some milliseconds, and most objectives are below a second.
_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30),
)
_BOUNDS = [*[str(float(bound)) for bound in _SECONDS], "+Inf"]
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SliceHistogram(Collector):
    """A histogram of seconds by class, which counts many requests at once, as prometheus_client's does not."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._counts = {bulk: [0] * (len(_SECONDS) + 1) for bulk in (False, True)}
        self._sums = {False: 0.0, True: 0.0}

    def observe(self, seconds: float, num_requests: int, *, bulk: bool) -> None:
        """Requests of one class that took equally long."""
        self._counts[bulk][bisect_left(_SECONDS, seconds)] += num_requests
        self._sums[bulk] += seconds * num_requests

    def counts(self) -> dict[str, int]:
        """Online requests so far, by the upper bound of their bucket."""
        return dict(zip(_BOUNDS, self._counts[False], strict=True))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Called at each scrape, from another thread."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=["class"])
        for bulk, counts in self._counts.items():
            buckets = list(zip(_BOUNDS, accumulate(counts), strict=True))
            family.add_metric(["bulk" if bulk else "online"], buckets, self._sums[bulk])
        yield family


class ReadValues(Collector):
    """The values of one metric by its labels, read at each scrape, from another thread."""

    def __init__(self, definition: MetricDefinition, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        self._definition = definition
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Called by the registry."""
        one = self._definition
        make = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        family = make(one.family, one.meaning, labels=one.labels)
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


class DefinedMetrics(CollectorRegistry):
    """A registry without the series `_created` that prometheus_client adds: nine more metrics, which nothing reads.

    `disable_created_metrics` is of the whole process, which may have metrics of its own.
    """

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, from another thread."""
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """One registry for each worker, so that several workers in one process stay apart."""

    def __init__(
        self,
        info: ModelInfo,
        load: StageLoad,
        backpressure: Backpressure,
        ledger: RecordLedger,
    ) -> None:
        """The last three arguments are read at each scrape, from another thread."""
        self.registry = DefinedMetrics()
        self._show_build(info)
        self._requests = self._counter("penstock_requests_total")
        self._outcomes = functools.cache(self._requests.labels)
        self._outcomes("ok")  # shown from the start
        self._route_records = self._counter("penstock_route_records_total")
        self._routes = functools.cache(self._route_records.labels)
        self._route_ages = functools.cache(self._gauge("penstock_route_age_seconds").labels)
        latency = METRICS["penstock_request_seconds"]
        self.latency = SliceHistogram(latency.name, latency.meaning)
        self.registry.register(self.latency)
        self.deadline_misses = self._counter("penstock_deadline_misses_total")
        self.overload_refusals = self._counter("penstock_overload_refusals_total")
        sequences = self._counter("penstock_sequences_total")
        self.from_cache, self._from_engine = sequences.labels("cache"), sequences.labels("engine")
        self._batches = functools.cache(self._counter("penstock_batches_total").labels)
        self._partition_gain = self._gauge("penstock_partition_gain_ratio")
        self._batch_tokens = self._histogram("penstock_batch_tokens", _TOKENS)
        self.event_loop_lag = self._histogram("penstock_event_loop_lag_seconds", _SECONDS)
        self._device_seconds = self._counter("penstock_device_seconds_total")
        self._padded_tokens = self._counter("penstock_padded_tokens_total")
        self._tokens = self._counter("penstock_tokens_total")
        self._backlog = self._gauge("penstock_backlog_seconds")
        self._prediction_error = self._gauge("penstock_prediction_error_ratio")
        self.show("penstock_skipped_records_total", lambda: {(): ledger.num_skipped})
        for name, read in (
            ("penstock_queued_sequences", lambda: load.num_queued),
            ("penstock_queued_tokens", lambda: load.queued_tokens),
            ("penstock_unfinished_records", lambda: backpressure.num_records),
            ("penstock_token_budget", lambda: load.token_budget),
        ):
            self._gauge(name).set_function(read)

    def show(self, name: str, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Serve a metric whose values are read at each scrape, from another thread, by its labels."""
        self.registry.register(ReadValues(METRICS[name], read))

    def count(self, outcome: str, records: int) -> None:
        """Count finished records: `ok`, or the code of their error."""
        self._outcomes(outcome).inc(records)

    def count_route(self, topic: str, outcome: str, records: int) -> None:
        """Count finished records of a route, beside `count`."""
        self._routes(topic, outcome).inc(records)

    def show_route_age(self, topic: str, seconds: float) -> None:
        """Set the age of the latest enriched record of a route."""
        self._route_ages(topic).set(seconds)

    def route_totals(self) -> dict[tuple[str, str], float]:
        """Finished records of routes so far, by input topic and outcome."""
        found = [one for one in _samples(self._route_records) if one.name.endswith("_total")]
        return {(one.labels["topic"], one.labels["outcome"]): one.value for one in found}

    def observe_batch(self, stats: BatchStats) -> None:
        """Count one batch that ran."""
        sums = stats.sums
        self._batches(stats.trigger, stats.partition).inc()
        self._partition_gain.set(stats.dp_gain)
        self._batch_tokens.observe(sums.tokens)
        self._device_seconds.inc(stats.device_s)
        self._tokens.inc(sums.tokens)
        self._padded_tokens.inc(sums.count * sums.longest)
        self._from_engine.inc(sums.count if stats.num_ended is None else stats.num_ended)

    def show_load(self, backlog_s: float, error_p50: float, error_p95: float) -> None:
        """Set the gauges of load and of the cost model's error. Called once a second."""
        self._backlog.set(backlog_s)
        self._prediction_error.labels("0.5").set(error_p50)
        self._prediction_error.labels("0.95").set(error_p95)

    def totals(self) -> dict[str, float]:
        """Counts so far, for the log. Outcomes of requests have their codes as names."""
        counted = {
            "sequences": self._from_engine,
            "cached": self.from_cache,
            "tokens": self._tokens,
            "padded_tokens": self._padded_tokens,
            "device_s": self._device_seconds,
        }
        totals = {name: _samples(counter)[0].value for name, counter in counted.items()}
        outcomes = [one for one in _samples(self._requests) if one.name.endswith("_total")]
        return totals | {one.labels["outcome"]: one.value for one in outcomes}

    def _show_build(self, info: ModelInfo) -> None:
        one = METRICS["penstock_build_info"]
        values = (version("penstock"), info.name, info.revision[:16], info.dtype, info.device)
        build = Info(one.family, one.meaning, registry=self.registry)
        build.info(dict(zip(one.labels, values, strict=True)))

    def _counter(self, name: str) -> Counter:
        one = METRICS[name]
        return Counter(one.family, one.meaning, one.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        one = METRICS[name]
        return Gauge(one.family, one.meaning, one.labels, registry=self.registry)

    def _histogram(self, name: str, bounds: Sequence[float]) -> Histogram:
        one = METRICS[name]
        return Histogram(one.family, one.meaning, one.labels, buckets=bounds, registry=self.registry)


def _samples(counter: Counter) -> list[Sample]:
    return [sample for family in counter.collect() for sample in family.samples]
