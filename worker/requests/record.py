"""What the worker remembers of one record between its intake and its acknowledged answer."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, Int32Array, TaskOptions
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Request, Uint32Array


class KafkaRecord(Protocol):
    """The part of aiokafka's ConsumerRecord that this room uses."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Unix time, ms
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(slots=True, eq=False)
class InFlight:
    """One accepted record. The engine never sees it; reply code never sees a tensor."""

    record: KafkaRecord  # as it came: a dead letter must carry the original
    address: ReplyAddress
    request: Request
    deadline: float | None  # on the worker's monotonic clock, seconds; the request's own, else the worker's objective
    bulk: bool  # of class bulk: nobody waits for it at once
    arrived: float  # monotonic seconds when intake saw it
    rows: list[Float32Array | None]  # filled as results come, in the request's order
    missing: int  # rows still to come
    cached: int = 0
    failed: bool = False  # an error was answered; later rows are ignored
    job_ids: list[int] = field(default_factory=list)  # of its rows that the scheduler was given
    timing_ms: dict[str, float] = field(default_factory=dict)  # stage -> ms, as the reply shows it
    batch: dict[str, int | str] = field(default_factory=dict)  # the last batch it was in, as the reply shows it
    spans: list[Uint32Array] = field(default_factory=list)  # token_classify of texts: [n, 2] a row, as tokenized


@dataclass(slots=True, eq=False)
class Row:
    """One sequence of one record, waiting for its result."""

    owner: InFlight
    index: int  # its place in owner.rows
    token_ids: Int32Array | npt.NDArray[np.uint32]
    token_type_ids: Int32Array | None
    options: TaskOptions
    key: bytes  # cache and single-flight key
    queued_at: float = 0.0  # monotonic seconds when the dispatcher got it
    job_id: int = -1  # of the job that the scheduler was last given for it

    def settle(self, result: Float32Array) -> bool:
        """Put the result in its place; true when it was the record's last."""
        owner = self.owner
        if owner.rows[self.index] is not None:
            raise RuntimeError("A row was settled twice. This is a bug.")
        owner.rows[self.index] = result
        owner.missing -= 1
        return owner.missing == 0


def rows_of(owner: InFlight, sequences: Sequence[tuple[Int32Array, Int32Array | None]]) -> list[Row]:
    """The rows of a record, given its tokenized sequences; keys are set by intake."""
    request = owner.request
    options = _task_options(request.task, request.options.pooling, request.options.normalize)
    return [Row(owner, index, ids, types, options, b"") for index, (ids, types) in enumerate(sequences)]


@functools.lru_cache(maxsize=256)
def _task_options(task: str, pooling: str | None, normalize: bool | None) -> TaskOptions:
    return TaskOptions(task, pooling, normalize)
