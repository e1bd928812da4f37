"""Prometheus metrics of one worker. Names start with penstock_; units are in the names."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Count = Callable[[], int]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """One registry a worker, so that tests and several workers in one process do not meet."""

    def __init__(self, *, queued_sequences: Count, queued_tokens: Count, unfinished_records: Count) -> None:
        """The arguments are read whenever the metrics are scraped, from another thread."""
        self.registry = CollectorRegistry()
        add = self.registry
        self.requests = Counter("penstock_requests", "Finished records, by outcome code.", ["outcome"], registry=add)
        self.latency = Histogram(
            "penstock_request_seconds",
            "From intake to the reply's hand-over, by class: online or bulk.",
            ["class"],
            registry=add,
            buckets=_SECONDS,
        )
        self.deadline_misses = Counter(
            "penstock_deadline_misses",
            "Records that missed their deadline: arrived_late, queued (too long) or predicted_wrong (answered late).",
            ["cause"],
            registry=add,
        )
        self.overload_refusals = Counter(
            "penstock_overload_refusals", "Records refused on arrival, as they would have missed it.", registry=add
        )
        self.sequences = Counter(
            "penstock_sequences", "Sequences, by where the result came from.", ["source"], registry=add
        )
        self.batches = Counter("penstock_batches", "Batches run, by trigger.", ["trigger"], registry=add)
        self.batch_tokens = Histogram("penstock_batch_tokens", "Tokens a batch.", registry=add, buckets=_TOKENS)
        self.device_seconds = Counter("penstock_device_seconds", "Time the engine worked.", registry=add)
        self.padded_tokens = Counter(
            "penstock_padded_tokens", "Token slots that padded batches would have had.", registry=add
        )
        self.tokens = Counter("penstock_tokens", "Tokens computed.", registry=add)
        self._backlog = Gauge(
            "penstock_backlog_seconds",
            "Predicted time until what waits online, and all that is planned, would be done.",
            registry=add,
        )
        self._prediction_error = Gauge(
            "penstock_prediction_error",
            "|predicted / measured - 1| of the last 1,000 batches, by quantile.",
            ["quantile"],
            registry=add,
        )
        self._gauge("penstock_queued_sequences", "Sequences waiting for a batch.", queued_sequences)
        self._gauge("penstock_queued_tokens", "Tokens waiting for a batch.", queued_tokens)
        self._gauge("penstock_unfinished_records", "Records read and not yet answered.", unfinished_records)

    def observe_batch(self, trigger: str, sequences: int, tokens: int, max_seqlen: int, device_s: float) -> None:
        """One batch came back from the engine."""
        self.batches.labels(trigger).inc()
        self.batch_tokens.observe(tokens)
        self.device_seconds.inc(device_s)
        self.tokens.inc(tokens)
        self.padded_tokens.inc(sequences * max_seqlen)
        self.sequences.labels("engine").inc(sequences)

    def show_load(self, backlog_s: float, error_p50: float, error_p95: float) -> None:
        """What is told once a second."""
        self._backlog.set(backlog_s)
        self._prediction_error.labels("0.5").set(error_p50)
        self._prediction_error.labels("0.95").set(error_p95)

    def _gauge(self, name: str, meaning: str, read: Count) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(read)
