"""From stacks to stages: which part of the pipeline each sample belongs to."""

from collections import Counter
from collections.abc import Callable, Sequence

from penstock.ops.bench.sampler import Samples, Stack

# (module or package, stage), first match; the innermost frame that matches anything decides.
STAGES: Sequence[tuple[str, str]] = (
    ("penstock.producer.wire", "encode and decode values"),
    ("penstock.producer.messages", "encode and decode values"),
    ("penstock.producer.reply_rows", "encode and decode values"),
    ("msgpack", "encode and decode values"),
    ("penstock.producer.headers", "headers, hashes, partitions"),
    ("penstock.producer.outbox", "outbox"),
    ("penstock.producer.inbox", "inbox"),
    ("penstock.producer.client", "client calls"),
    ("penstock.producer.exchange", "client calls"),
    ("penstock.producer.gather", "gathering and rows"),
    ("penstock.producer.sequences", "gathering and rows"),
    ("penstock.producer", "other producer code"),
    ("penstock.worker.admission", "admission"),
    ("penstock.worker.intake", "admission"),
    ("penstock.worker.dispatcher", "dispatcher"),
    ("penstock.worker.batch", "dispatcher"),
    ("penstock.worker.flights", "single flight"),
    ("penstock.worker.polled", "polling"),
    ("penstock.worker.load", "metrics"),
    ("penstock.worker.replies", "replies and delivery"),
    ("penstock.worker.delivery", "replies and delivery"),
    ("penstock.worker.inflight", "rows and records"),
    ("penstock.worker.offsets", "offsets"),
    ("penstock.worker.metrics", "metrics"),
    ("prometheus_client", "metrics"),
    ("penstock.worker.consumer", "polling"),
    ("penstock.worker.lenient", "aiokafka records"),
    ("penstock.worker.held", "rows and records"),
    ("penstock.worker.logs", "logging"),
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
    ("penstock.ops.bench.sampler", "the sampling itself"),
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
    """`total_us` processor microseconds a request, divided by samples: names with their share, largest first."""
    gc_us = min(total_us, samples.gc_s / num_requests * 1e6)
    counts: Counter[str] = Counter()
    for stack, count in samples.stacks.items():
        counts[name_of(stack)] += count
    us_a_sample = (total_us - gc_us) / max(1, counts.total())
    costs = [(GARBAGE, gc_us), *[(name, us_a_sample * count) for name, count in counts.items()]]
    return sorted(costs, key=lambda cost: -cost[1])
