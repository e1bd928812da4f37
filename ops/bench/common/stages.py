"""Stages of the pipeline by module, for the samples of the profiler."""

from collections import Counter
from collections.abc import Callable, Sequence

from penstock.ops.bench.common.sampler import Samples, Stack

# (module or package, stage); the first match of the innermost frame that matches any.
STAGES: Sequence[tuple[str, str]] = (
    ("penstock.producer.wire.codec", "encode and decode values"),
    ("penstock.producer.wire.envelope", "encode and decode values"),
    ("penstock.producer.wire.request_fields", "encode and decode values"),
    ("penstock.producer.wire.messages", "encode and decode values"),
    ("penstock.producer.wire.reply_rows", "encode and decode values"),
    ("msgpack", "encode and decode values"),
    ("penstock.producer.wire.headers", "headers, hashes, partitions"),
    ("penstock.producer.transport.outbox", "outbox"),
    ("penstock.producer.transport.inbox", "inbox"),
    ("penstock.producer.client", "client calls"),
    ("penstock.producer.caller", "client calls"),
    ("penstock.producer.request_preparation", "client calls"),
    ("penstock.producer.transport.exchange", "client calls"),
    ("penstock.producer.transport.permits", "client calls"),
    ("penstock.producer.transport.partitioner", "headers, hashes, partitions"),
    ("penstock.producer.transport.call_batcher", "batching of calls and rows"),
    ("penstock.producer.wire.sequences", "gathering and rows"),
    ("penstock.producer.aiokafka_internals.lenient_records", "aiokafka records"),
    ("penstock.producer", "other producer code"),
    ("penstock.worker.requests.preparation", "admission"),
    ("penstock.worker.requests.validation", "admission"),
    ("penstock.worker.batching.dispatcher", "dispatcher"),
    ("penstock.worker.batching.batch", "dispatcher"),
    ("penstock.worker.batching.single_flight", "single flight"),
    ("penstock.worker.requests.fetch_buffer", "polling"),
    ("penstock.worker.telemetry.load_monitor", "metrics"),
    ("penstock.worker.replies.reply", "replies and delivery"),
    ("penstock.worker.replies.delivery", "replies and delivery"),
    ("penstock.worker.requests.record", "rows and records"),
    ("penstock.worker.kafka.progress.offsets", "offsets"),
    ("penstock.worker.telemetry.metrics", "metrics"),
    ("prometheus_client", "metrics"),
    ("penstock.worker.kafka.fetching.consumer", "polling"),
    ("penstock.worker.kafka.backpressure", "rows and records"),
    ("penstock.worker.telemetry.logs", "logging"),
    ("structlog", "logging"),
    ("logging", "logging"),
    ("penstock.worker", "worker loop"),
    ("penstock.cache.key", "cache keys"),
    ("penstock.cache", "cache"),
    ("penstock.scheduler", "scheduler"),
    ("penstock.engine", "engine"),
    ("aiokafka.consumer", "aiokafka consumer"),
    ("aiokafka.record", "aiokafka records"),
    ("aiokafka.producer", "aiokafka producer"),
    ("aiokafka", "aiokafka connections, protocol"),
    ("penstock.ops.bench.common.sampler", "the sampling itself"),
    ("penstock.ops.bench", "load generator"),
    ("__main__", "load generator"),
    ("asyncio", "event loop"),
    ("uvloop", "event loop"),
)
OTHER = "other"
GARBAGE = "garbage collection"


def stage_of(stack: Stack) -> str:
    """The stage of one sample."""
    for frame in stack:
        module = frame.partition(":")[0] + "."
        for name, stage in STAGES:
            if module.startswith(f"{name}."):
                return stage
    return OTHER


def function_of(stack: Stack) -> str:
    """The innermost Python function, as `module:function`."""
    return stack[0] if stack else OTHER


def split_cost(
    samples: Samples, total_us: float, num_requests: int, name_of: Callable[[Stack], str] = stage_of
) -> list[tuple[str, float]]:
    """`total_us` processor microseconds a request, split in proportion to the samples; largest first."""
    gc_us = min(total_us, samples.gc_s / num_requests * 1e6)
    counts: Counter[str] = Counter()
    for stack, count in samples.stacks.items():
        counts[name_of(stack)] += count
    us_a_sample = (total_us - gc_us) / max(1, counts.total())
    costs = [(GARBAGE, gc_us), *[(name, us_a_sample * count) for name, count in counts.items()]]
    return sorted(costs, key=lambda cost: -cost[1])
