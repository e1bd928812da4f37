"""Every setting of a worker, with its reason. The command line is made from these fields; there is no other list."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.producer.settings import KafkaSettings, RequestTopic
from penstock.producer.wire.topics import REPLY_TOPIC_PATTERN, check_served_name
from penstock.scheduler import SchedulerSettings


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return pattern


class WorkerSettings(KafkaSettings):
    """Settings of one worker process: one model, one consumer-group member."""

    model: str = Field(
        min_length=1,
        description="Checkpoint: a directory, or a Hugging Face id. 'null' is an engine that does no work, for "
        "measuring the pipeline.",
    )
    served_name: Annotated[str | None, AfterValidator(check_served_name)] = Field(
        None, description="Name that requests use. Default: the last part of the checkpoint's path."
    )
    head: Path | None = Field(
        None, description="A linear classification head (safetensors, labels in its metadata) on the embeddings."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Arithmetic. auto: float16 on a GPU; bfloat16 where the processor has instructions for it, else "
        "float32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs. auto: on a GPU where there is one with CuPy installed."
    )
    engine: Literal["auto", "packed", "padded"] = Field(
        "auto",
        description="What computes. packed: this project's runtime, without padding; padded: transformers, each batch "
        "padded to its longest; auto: packed, and padded for architectures that the runtime does not know.",
    )
    lanes: int | None = Field(
        None, ge=1, description="Engine threads, each one batch at a time. Default: one a CPU core, one for a GPU."
    )

    topic: RequestTopic = Field(
        None,
        description="Request topic; bulk requests come by the topic <topic>.bulk beside it. Default: "
        "penstock.requests.<served name>.",
    )
    group_id: str | None = Field(None, description="Consumer group. Default: penstock.<served name>.")
    reply_topics: Annotated[str, AfterValidator(_check_pattern)] = Field(
        REPLY_TOPIC_PATTERN, description="Allow-list: requests whose reply topic does not match this are dead-lettered."
    )

    trigger: Literal["lazy", "hungry"] = Field(
        "lazy",
        description="When to run a batch. lazy: after max-wait-ms, when a batch is full or half the time to the "
        "deadline is spent; hungry: as soon as the engine is idle.",
    )
    max_wait_ms: float = Field(
        2.0,
        ge=0,
        allow_inf_nan=False,
        description="lazy: longest wait for batch mates. More: larger batches; less: lower latency.",
    )
    partition: Literal["dp", "fifo", "sorted", "naive", "none"] | None = Field(
        None,
        description="How the queue becomes batches. fifo: fill in order, right where nothing is padded; dp: the "
        "cheapest by the cost model, right where batches are padded; sorted, naive, none (one each): to compare with. "
        "Default: what is right for the engine.",
    )
    order: Literal["edf", "cost-first", "arrival"] = Field(
        "edf",
        description="Which go first. edf: earliest deadline; cost-first: most sequences a second, least mean latency; "
        "arrival: oldest.",
    )
    admission: Literal["deadline", "accept"] = Field(
        "deadline",
        description="What becomes of requests that cannot meet their deadline. deadline: refused at once, as "
        "`overloaded`; accept: taken, and ended as `expired` if they do not meet it.",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Latency objective of requests that carry no deadline; half of it is the trigger, and with "
        "admission `deadline` what cannot meet it is refused. Default: none, they wait as long as it takes.",
    )
    bulk_slice_ms: float = Field(
        2.0,
        gt=0,
        allow_inf_nan=False,
        description="How much longer online requests may wait, at the 99th percentile, for the sake of bulk ones: half "
        "for a batch of bulk alone, or one sequence where that is longer; half for what fills up their own. More: "
        "faster bulk; less: lower online latency.",
    )
    max_batch_sequences: int = Field(256, ge=1, description="Most sequences in a batch. Default on a GPU: 1024.")
    max_batch_tokens: int = Field(
        1024,
        ge=1,
        description="Most tokens in a batch. More: fewer launches; less: shorter waits, warmer caches. Default on a "
        "GPU: 16384.",
    )

    max_in_flight: int = Field(
        8192,
        ge=1,
        description="Records held in memory before partitions are paused (back-pressure); at most half of them bulk.",
    )
    fetch_max_wait_ms: int = Field(
        100,
        ge=1,
        description="Longest a broker holds back an empty fetch, and the bulk topic when it may be read on. "
        "librdkafka's mock holds every one: 5 there.",
    )
    max_sequences: int = Field(1024, ge=1, le=4096, description="Most sequences accepted in one record.")
    max_reply_bytes: int = Field(
        1_000_000, ge=1024, description="Largest reply; keep it under the broker's message.max.bytes."
    )
    cache_path: Path | None = Field(None, description="Response cache file (SQLite). Default: no cache.")
    cache_max_bytes: int = Field(1 << 30, ge=1 << 16, description="Cache size; the least recently used leave first.")
    cache_ttl_s: float = Field(7 * 86400.0, gt=0, description="Age at which a cached answer is no longer used.")
    cost_path: Path | None = Field(
        None,
        description="File of measured cost tables (SQLite), which several workers may share. Default: "
        "penstock/costs.sqlite in the user's cache directory (XDG_CACHE_HOME, else ~/.cache).",
    )

    drain_s: float = Field(
        20.0, gt=0, description="Longest time to finish what is in flight on SIGTERM or when partitions are revoked."
    )
    once: bool = Field(
        False,
        description="Exit when both topics have been worked up to their ends and nothing new has come for 5 s.",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, JSON elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Serve Prometheus metrics here. Default: off.")


def scheduler_settings(settings: WorkerSettings, *, num_lanes: int, padded: bool) -> SchedulerSettings:
    """The scheduler's part of the worker's settings, for an engine that pads or does not."""
    return SchedulerSettings(
        max_wait_s=settings.max_wait_ms / 1e3,
        max_batch_sequences=settings.max_batch_sequences,
        max_batch_tokens=settings.max_batch_tokens,
        slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
        trigger=settings.trigger,
        partition=settings.partition or ("dp" if padded else "fifo"),
        order=settings.order,
        admission=settings.admission,
        num_lanes=num_lanes,
        bulk_slice_s=settings.bulk_slice_ms / 1e3,
    )
