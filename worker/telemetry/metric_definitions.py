"""Every metric that a worker or a supervisor serves. The manual's tables are made of these, and a test compares them.

Names follow Prometheus' conventions: base units (seconds, bytes) at the end, `_total` for what is counted, `_info` for
facts. Labels have few values: no request, client or reply topic is among them.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

MetricKind = Literal["counter", "gauge", "histogram", "info"]


class MetricDefinition(NamedTuple):
    """One metric, by the name under which Prometheus keeps it."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def family(self) -> str:
        """The name that prometheus_client wants: it adds the suffix of a counter or of an info itself."""
        return self.name.removesuffix("_total").removesuffix("_info")


WORKER_METRICS = (
    MetricDefinition(
        "penstock_build_info",
        "info",
        "",
        ("version", "model", "revision", "dtype", "device"),
        "The worker's version, and the model that it has loaded. The value is 1.",
    ),
    MetricDefinition(
        "penstock_requests_total", "counter", "records", ("outcome",), "Finished records, by error code or `ok`."
    ),
    MetricDefinition(
        "penstock_route_records_total",
        "counter",
        "records",
        ("topic", "outcome"),
        "Finished records of routes, by input topic: `ok`, `cached` (the cache had all results, and nothing was "
        "computed), `passed` as they were, or the code of their dead letter.",
    ),
    MetricDefinition(
        "penstock_route_age_seconds",
        "gauge",
        "seconds",
        ("topic",),
        "Age of the latest enriched records of a route, by input topic: from the time of a record until the broker "
        "had what came of it.",
    ),
    MetricDefinition(
        "penstock_held_outputs",
        "gauge",
        "records",
        ("topic",),
        "Enriched records that wait for an output topic that is gone or refuses the worker, while there is one.",
    ),
    MetricDefinition(
        "penstock_request_seconds",
        "histogram",
        "seconds",
        ("class",),
        "Time from validating a request to handing over its reply, for `online` and `bulk`.",
    ),
    MetricDefinition(
        "penstock_deadline_misses_total",
        "counter",
        "records",
        ("cause",),
        "Records that missed their deadline: `arrived_late`, `queued` (too long) or `predicted_wrong` (answered late).",
    ),
    MetricDefinition(
        "penstock_overload_refusals_total",
        "counter",
        "records",
        (),
        "Records rejected on arrival because they would have missed their deadline.",
    ),
    MetricDefinition(
        "penstock_skipped_records_total",
        "counter",
        "records",
        (),
        "Records that an earlier owner of their partition had answered.",
    ),
    MetricDefinition(
        "penstock_skipped_offsets_total",
        "counter",
        "offsets",
        ("topic", "cause"),
        "Offsets that no worker of the group reads, because Kafka has deleted their records: `deleted`, `no_commit` "
        "(so too, before the group had finished anything of the partition) or `recreated` (with their topic).",
    ),
    MetricDefinition(
        "penstock_dead_letters_total",
        "counter",
        "records",
        ("outcome",),
        "Records with a dead letter: `kept`, `kept_in_part` (too large for its topic) or `lost` (the topic took none).",
    ),
    MetricDefinition(
        "penstock_consumer_lag_records",
        "gauge",
        "records",
        ("topic", "partition"),
        "Records of an assigned partition that are not finished, up to its end as the last fetch saw it.",
    ),
    MetricDefinition(
        "penstock_unfinished_records",
        "gauge",
        "records",
        (),
        "Records read, whose answer the broker has not yet acknowledged.",
    ),
    MetricDefinition("penstock_queued_sequences", "gauge", "sequences", (), "Sequences in the queue."),
    MetricDefinition("penstock_queued_tokens", "gauge", "tokens", (), "Tokens in the queue."),
    MetricDefinition(
        "penstock_backlog_seconds", "gauge", "seconds", (), "Predicted time to finish queued and planned work."
    ),
    MetricDefinition(
        "penstock_sequences_total",
        "counter",
        "sequences",
        ("source",),
        "Sequences, by the source of their result: `engine` or `cache`.",
    ),
    MetricDefinition(
        "penstock_batches_total",
        "counter",
        "batches",
        ("trigger", "policy"),
        "Batches run, by the trigger that fired and the partition policy that made them.",
    ),
    MetricDefinition(
        "penstock_partition_gain_ratio",
        "gauge",
        "",
        (),
        "Share of FIFO's predicted time that the partition of the last batch saves. 0: made by FIFO.",
    ),
    MetricDefinition("penstock_batch_tokens", "histogram", "tokens", (), "Tokens of a batch."),
    MetricDefinition("penstock_tokens_total", "counter", "tokens", (), "Tokens computed."),
    MetricDefinition(
        "penstock_padded_tokens_total",
        "counter",
        "tokens",
        (),
        "Tokens, padding included, that padded batches would have had.",
    ),
    MetricDefinition(
        "penstock_token_budget",
        "gauge",
        "tokens",
        (),
        "Most tokens in a batch. Less than `--max-batch-tokens` after a lack of memory.",
    ),
    MetricDefinition("penstock_device_seconds_total", "counter", "seconds", (), "Time the engine worked."),
    MetricDefinition(
        "penstock_prediction_error_ratio",
        "gauge",
        "",
        ("quantile",),
        "Relative error of the predicted times of the last 1,000 batches, at the quantiles 0.5 and 0.95.",
    ),
    MetricDefinition(
        "penstock_event_loop_lag_seconds",
        "histogram",
        "seconds",
        (),
        "How much too late the event loop ran a timer, once a second.",
    ),
)

SUPERVISOR_METRICS = (
    MetricDefinition(
        "penstock_members",
        "gauge",
        "members",
        ("state",),
        "Members that are `starting`, `serving`, `restarting` (a pause), `stopping`, or `given_up` with their GPU; "
        "and further ones that have loaded and wait for a place (`standby`).",
    ),
    MetricDefinition(
        "penstock_worker_restarts_total",
        "counter",
        "members",
        ("worker", "reason"),
        "Members started again after an `exit`, a `signal`, a failed start (`not_started`), a hang (`unresponsive`) or "
        "a roll (`rolled`).",
    ),
)

METRICS = {one.name: one for one in (*WORKER_METRICS, *SUPERVISOR_METRICS)}


def table(metrics: Iterable[MetricDefinition]) -> str:
    """A table of the manual, in Markdown."""
    rows = ["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} |")
    return "\n".join(rows)
