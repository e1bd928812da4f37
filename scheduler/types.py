"""What crosses the scheduler's door: jobs in, plans out. Nothing here knows of Kafka, tensors or a clock."""

from dataclasses import dataclass
from enum import StrEnum


class Trigger(StrEnum):
    """Which rule fired."""

    TIMEOUT = "timeout"  # the oldest job waited max_wait_s
    MAX_BATCH = "max_batch"  # a full batch, by count or by tokens, is waiting
    HALF_SLO = "half_slo"  # oldest age + predicted run >= slo / 2 (TurboTransformers section 5, lazy strategy)
    HUNGRY = "hungry"  # the engine is idle and the policy never lets it wait
    DRAIN = "drain"  # the caller is emptying the queue (shutdown, revocation, end of input)


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence waiting for the engine."""

    id: int  # unique among queued jobs; the caller's handle
    num_tokens: int  # >= 1
    arrival: float  # seconds, on the caller's clock (the same clock as `now`)
    deadline: float | None = None  # seconds on that clock; None: the scheduler's SLO alone counts
    priority: int = 0  # higher runs first among equals


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run now, and why. Order of `batches` is the order to run them in."""

    batches: tuple[tuple[int, ...], ...]  # job ids; every id was queued, each appears once, all leave the queue
    trigger: Trigger
    predicted_s: float  # the cost function's estimate for all batches together
    partition: str  # which partition policy made the batches: "dp" or "fifo"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to run yet."""

    wake_at: float | None  # ask again at this time if nothing arrives before; None: only an arrival can change it
