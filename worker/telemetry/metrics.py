"""Prometheus metrics of one worker. Names start with penstock_; units are in the names."""

import functools
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from penstock.scheduler import Scheduler
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.requests.ledger import RecordLedger

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BOUNDS = [*[str(float(bound)) for bound in _SECONDS], "+Inf"]
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SliceHistogram(Collector):
    """A histogram of seconds by class, which counts a slice of requests at once, as prometheus_client's does not."""

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


class SkippedRecords(Collector):
    """Records of which the ledger knew that the last owner of their partition had answered them."""

    def __init__(self, ledger: RecordLedger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Called at each scrape, from another thread."""
        meaning = "Records that an earlier owner of their partition had answered."
        yield CounterMetricFamily("penstock_skipped_records", meaning, value=self._ledger.num_skipped)


class Metrics:
    """One registry for each worker, so that several workers in one process stay apart."""

    def __init__(
        self, scheduler: Scheduler, backpressure: Backpressure, token_budget: TokenBudget, ledger: RecordLedger
    ) -> None:
        """The arguments are read at each scrape, from another thread."""
        self.registry = CollectorRegistry()
        self.registry.register(SkippedRecords(ledger))
        self.requests = self._counter("penstock_requests", "Finished records, by outcome code.", "outcome")
        self.latency = SliceHistogram(
            "penstock_request_seconds", "From validation to the reply's hand-over, by class: online or bulk."
        )
        self.registry.register(self.latency)
        self.deadline_misses = self._counter(
            "penstock_deadline_misses",
            "Records that missed their deadline: arrived_late, queued (too long) or predicted_wrong (answered late).",
            "cause",
        )
        self.overload_refusals = self._counter(
            "penstock_overload_refusals", "Records rejected on arrival because they would have missed their deadline."
        )
        sequences = self._counter("penstock_sequences", "Sequences, by the source of their result.", "source")
        self.from_cache, self._from_engine = sequences.labels("cache"), sequences.labels("engine")
        by_trigger = self._counter("penstock_batches", "Batches run, by trigger.", "trigger")
        by_partition = self._counter(
            "penstock_partitions", "Batches run, by the partition policy that made them.", "partition"
        )
        self._by_trigger, self._by_partition = functools.cache(by_trigger.labels), functools.cache(by_partition.labels)
        self._batch_tokens = Histogram(
            "penstock_batch_tokens", "Tokens of a batch.", registry=self.registry, buckets=_TOKENS
        )
        self._device_seconds = self._counter("penstock_device_seconds", "Time the engine worked.")
        self._padded_tokens = self._counter("penstock_padded_tokens", "Token slots that padded batches would have had.")
        self._tokens = self._counter("penstock_tokens", "Tokens computed.")
        self._backlog = self._gauge("penstock_backlog_seconds", "Predicted time to finish queued and planned work.")
        self._prediction_error = self._gauge(
            "penstock_prediction_error",
            "|predicted / measured - 1| of the last 1,000 batches, by quantile.",
            "quantile",
        )
        for name, meaning, read in (
            ("penstock_queued_sequences", "Sequences in the queue.", lambda: scheduler.num_queued),
            ("penstock_queued_tokens", "Tokens in the queue.", lambda: scheduler.queued_tokens),
            ("penstock_unfinished_records", "Records read and not yet answered.", lambda: backpressure.num_records),
            (
                "penstock_token_budget",
                "Most tokens in a batch: less after a lack of memory.",
                lambda: token_budget.tokens,
            ),
        ):
            self._gauge(name, meaning).set_function(read)

    def observe_batch(self, stats: BatchStats) -> None:
        """Count one batch that ran."""
        sums = stats.sums
        self._by_trigger(stats.trigger).inc()
        self._by_partition(stats.partition).inc()
        self._batch_tokens.observe(sums.tokens)
        self._device_seconds.inc(stats.device_s)
        self._tokens.inc(sums.tokens)
        self._padded_tokens.inc(sums.count * sums.longest)
        self._from_engine.inc(sums.count)

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
            "slots": self._padded_tokens,
            "device_s": self._device_seconds,
        }
        totals = {name: _samples(counter)[0].value for name, counter in counted.items()}
        outcomes = [one for one in _samples(self.requests) if one.name.endswith("_total")]
        return totals | {one.labels["outcome"]: one.value for one in outcomes}

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)


def _samples(counter: Counter) -> list[Sample]:
    return [sample for family in counter.collect() for sample in family.samples]
