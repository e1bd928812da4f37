"""The settings of a worker. Each field is a command-line option and an environment variable."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.producer.settings import KafkaSettings
from penstock.producer.settings_sources import FileSettings
from penstock.producer.wire.topics import NUM_PARTITIONS, REPLY_TOPIC_PATTERN
from penstock.scheduler.settings import AdmissionName, OrderName, PartitionName, TriggerName
from penstock.worker.model_settings import ModelSettings
from penstock.worker.topic_settings import TopicSettings

_MAX_DIGITS = 6  # of the number of a GPU
_MAX_PATTERN_CHARS = 10_000


def _check_pattern(pattern: str) -> str:
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError(f"must have at most {_MAX_PATTERN_CHARS:,} characters")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return pattern


def _open_if_auto(value: object) -> object:
    return None if value == "auto" else value


def _check_gpus(gpus: str) -> str:
    numbers = gpus.split(",")
    is_list = all(number.isdecimal() and len(number) < _MAX_DIGITS for number in numbers)
    if gpus != "all" and not (is_list and len(set(map(int, numbers))) == len(numbers)):
        raise ValueError("must be all, or different numbers separated by commas")
    return gpus


class RequestSettings(FileSettings):
    """Which requests are rejected, beside those that the model cannot answer."""

    table: ClassVar[str] = "worker"

    reply_topics: Annotated[str, AfterValidator(_check_pattern)] = Field(
        REPLY_TOPIC_PATTERN,
        description="Regular expression of allowed reply topics. Requests with another reply topic are rejected.",
    )
    max_sequences: int = Field(1024, ge=1, le=4096, description="Most sequences accepted in one record.")
    any_dimensions: bool = Field(
        False,
        description="Whether a request may cut vectors to any length, for models that are trained to be cut and state "
        "no lengths. Default: lengths that the checkpoint states.",
    )
    max_reply_bytes: int = Field(
        1_000_000, ge=1024, description="Largest reply. Keep it below the broker's message.max.bytes."
    )


class WorkerSettings(ModelSettings, RequestSettings, TopicSettings, KafkaSettings):
    """Settings of one worker process: one model, one consumer-group member. None and "auto" leave the value open.

    `resolved_settings.resolve` decides the open values when the engine is known.
    """

    table: ClassVar[str] = "worker"

    connect_timeout_s: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Longest wait for Kafka to answer when the worker starts, which then ends. Default: it goes on "
        "trying, and logs that it does.",
    )
    processes: Annotated[int | None, BeforeValidator(_open_if_auto)] = Field(
        None,
        ge=1,
        json_schema_extra={"metavar": "N|auto"},
        description="Worker processes, each a member of the consumer group: on each GPU, or on the CPU. auto: on each "
        "GPU three, but no more than one for two cores; one on a CPU.",
    )
    gpus: Annotated[str, AfterValidator(_check_gpus)] = Field(
        "all", description="GPUs that run members: all visible ones, or their numbers, such as 0,1."
    )
    mps: Literal["off", "on", "auto"] = Field(
        "auto",
        description="Whether members of one GPU run their kernels at the same moment, by CUDA's Multi-Process Service, "
        "which the worker starts. auto: where it starts, until a fault of one member has ended all of its GPU.",
    )
    standby: Literal["off", "on", "auto"] = Field(
        "auto",
        description="Whether a further member on each device loads the model and waits for the place of one that dies. "
        "It takes the memory of a member. auto: where several members run on GPUs.",
    )
    lanes: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Engine threads; each runs one batch at a time. Default: one per CPU core. A GPU runs one.",
    )

    partitions: int = Field(
        NUM_PARTITIONS,
        ge=1,
        le=10_000,
        description="Partitions of each topic that the worker creates. No more members than that share a topic.",
    )
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once",
        description="exactly_once: replies, dead letters and offsets are committed together in Kafka transactions, for "
        "pipelines and bulk whose readers use read_committed. Adds transaction-window-ms to the latency.",
    )
    transaction_window_ms: float = Field(
        100.0,
        ge=1,
        le=10_000,
        allow_inf_nan=False,
        description="exactly_once: longest time for which replies are gathered for a partition's transaction. More: "
        "higher throughput. Less: lower latency.",
    )
    transaction_timeout_ms: int = Field(
        10_000,
        ge=1000,
        le=900_000,
        description="exactly_once: when the broker aborts the transaction of a worker that has died without a "
        "successor. Until then readers with read_committed wait. At most the broker's transaction.max.timeout.ms.",
    )

    trigger: TriggerName = Field(
        "lazy",
        description="When to run a batch. lazy: after max-wait-ms, when a batch is full, or when half the time to the "
        "deadline is spent. hungry: as soon as the engine is idle.",
    )
    max_wait_ms: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Longest wait of a lazy trigger for a fuller batch. More: larger batches. Less: lower latency. "
        "Default: 0, as batches grow while others run.",
    )
    partition: PartitionName = Field(
        "auto",
        description="How the queue is cut into batches. fifo: filled in order. dp: cheapest by the cost model. auto: "
        "dp where it is predicted to save at least 1 % of fifo's time, else fifo. sorted, naive, none (one request per "
        "batch): for comparison.",
    )
    order: OrderName = Field(
        "edf",
        description="Which requests run first. edf: earliest deadline. cost-first: most sequences per second, least "
        "mean latency. arrival: oldest.",
    )
    admission: AdmissionName = Field(
        "deadline",
        description="What happens to requests that would miss their deadline. deadline: rejected at once as "
        "`overloaded`, except one a second while the worker is idle, which tests the prediction. accept: queued, and "
        "answered with `expired` if they miss it.",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Latency objective, used as the deadline of requests that carry none. Default: no objective, and "
        "such requests wait as long as necessary.",
    )
    bulk_slice_ms: float = Field(
        2.0,
        gt=0,
        allow_inf_nan=False,
        description="Time that bulk requests may add to the 99th percentile of online latency, or a tenth of that "
        "percentile if it is more. Half is for batches of bulk alone (or one sequence, where that takes longer), half "
        "for bulk that fills up online batches. More: faster bulk. Less: lower online latency.",
    )

    max_in_flight: int = Field(
        8192,
        ge=1,
        description="Records in memory before partitions are paused (backpressure). At most half of them are bulk.",
    )
    fetch_max_wait_ms: int = Field(
        100,
        ge=1,
        le=60_000,
        description="Longest time for which a broker holds an empty fetch, and for which resumed bulk partitions wait. "
        "librdkafka's mock holds every fetch: use 5 there.",
    )
    cache_path: Path | None = Field(None, description="Response cache file (SQLite). Default: no cache.")
    cache_max_bytes: int = Field(
        1 << 30, ge=1 << 16, description="Cache size. The least recently used entries are evicted first."
    )
    cache_ttl_s: float = Field(7 * 86400.0, gt=0, description="Age at which a cached result expires.")

    drain_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Longest time to finish requests in flight on SIGTERM or when partitions are revoked.",
    )
    once: bool = Field(
        False, description="Exit when both topics are read to their ends and no record has arrived for 5 s."
    )
    log_format: Literal["auto", "json", "ecs", "console"] = Field(
        "auto", description="auto: console on a terminal, JSON elsewhere. ecs: JSON in the Elastic Common Schema."
    )
    log_file: Path | None = Field(
        None,
        description="File to log to, which all members share. It is opened again once it was moved. Default: stderr.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port that serves /metrics for Prometheus, /readyz, /livez and /config. Default: none.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address that serves the metrics. 0.0.0.0: all of this machine's; the metrics have no password.",
    )

    @classmethod
    def handed_over(cls, values: Mapping[str, Any], origins: Mapping[str, str]) -> Self:
        """Settings that another process of this machine has read. The configuration file is not read again."""
        unread = {"config": None} if "config" in values else {}
        settings = cls(**{**values, **unread})
        settings._origins |= origins
        return settings
