"""The scheduler's inputs and outputs. Nothing here knows of Kafka, tensors or a clock."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple


class Trigger(StrEnum):
    """Which rule fired."""

    TIMEOUT = "timeout"  # the oldest job waited max_wait_s
    MAX_BATCH = "max_batch"  # a full batch, by count, by tokens or by predicted seconds, is waiting
    HALF_SLO = "half_slo"  # elapsed + predicted run >= SLO / 2 (TurboTransformers section 5, lazy strategy)
    HUNGRY = "hungry"  # a lane is idle, and the policy keeps every lane at work
    BULK = "bulk"  # bulk jobs fill an idle lane, and the queued online jobs run with them
    DRAIN = "drain"  # the caller is emptying the queue (shutdown, revocation, end of input)


class Cause(StrEnum):
    """Why a job was rejected."""

    ARRIVED_LATE = "arrived_late"  # its deadline had passed on arrival
    OVERLOADED = "overloaded"  # on arrival: the queue and its own batch would make it, or a job behind it, late
    QUEUED = "queued"  # admitted, but its deadline passed in the queue, or can no longer be met


class Job(NamedTuple):
    """Sequences with one deadline, of one request or of several. They may run in several batches.

    Those of a request are admitted together, or none is. 64 texts that are one job, of one request or of 64 that came
    together, cost little more than one text to queue, admit and plan.
    """

    ids: Sequence[int]  # one a sequence, at least one, unique among queued ones; the caller's handles
    lengths: Sequence[int]  # tokens of each, >= 1
    arrival: float  # seconds, on the caller's clock (the same clock as `now`)
    deadline: float | None = None  # on that clock. None: arrival + slo_s if that is set and the job is online
    bulk: bool = False  # bulk jobs run where online ones leave room
    sizes: Sequence[int] = ()  # sequences of each request, in the order of `ids`; empty: all are of one

    def by_request(self) -> list["Job"]:
        """A job for each of its requests."""
        ids, lengths, arrival, deadline, bulk, sizes = self
        if len(sizes) < 2:
            return [self]
        cuts = pairwise(accumulate(sizes, initial=0))
        return [Job(ids[begin:end], lengths[begin:end], arrival, deadline, bulk) for begin, end in cuts]


class RejectedJob(NamedTuple):
    """A sequence that will not run. It has left the queue, or never entered it."""

    id: int
    cause: Cause
    late_s: float  # seconds by which it is, or would be, late; OVERLOADED: its job, or one behind it


class Caps(NamedTuple):
    """Limits of a batch. A single sequence is always allowed."""

    max_sequences: int
    max_tokens: int  # for a padded cost: of longest * count, padding included; else of the sum of the lengths
    max_seconds: float = inf  # predicted


class Batch(NamedTuple):
    """Sequences that run together."""

    ids: tuple[int, ...]
    predicted_s: float


class Plan(NamedTuple):
    """Batches to run now, in this order. Every id, of a batch or rejected, was queued, appears once, and leaves."""

    batches: tuple[Batch, ...]
    trigger: Trigger
    partition: str  # name of the policy that made the batches
    rejected: tuple[RejectedJob, ...] = ()
    dp_gain: float = 0.0  # share of FIFO's predicted seconds that this partition saves; 0 where FIFO was taken


class Wait(NamedTuple):
    """Nothing to run yet."""

    wake_at: float | None  # ask again at this time if nothing arrives before; None: only an arrival can change it
    rejected: tuple[RejectedJob, ...] = ()
