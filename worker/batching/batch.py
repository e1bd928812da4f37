"""A batch on its way through the engine: its rows as flat arrays, and what is told of it afterwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine.types import PackedBatch, TaskOptions
from penstock.worker.batching.single_flight import deadline_of
from penstock.worker.requests.record import Row


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that run together."""

    rows: list[Row]
    trigger: str
    partition: str
    predicted_s: float
    started: float | None = None  # monotonic seconds when a lane took it up; None: it waits for one

    def left_s(self, now: float) -> float:
        """Predicted seconds until it is done, once a lane has it."""
        return self.predicted_s if self.started is None else max(0.0, self.started + self.predicted_s - now)

    def late_end_s(self, now: float) -> float:
        """By how much later than predicted it ends, if it ends now; nan for one that no lane took up."""
        return math.nan if self.started is None else now - self.started - self.predicted_s

    def late_s(self, row: Row) -> float:
        """By how much the row's deadline had passed when a lane took the batch up; not above 0: it had not."""
        return -math.inf if self.started is None else self.started - deadline_of(row)


@dataclass(frozen=True, slots=True)
class Sums:
    """What a batch's time depends on."""

    tokens: int
    squares: int  # sum of squared lengths
    longest: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What one batch was, for replies, logs, metrics and the cost model."""

    trigger: str
    partition: str
    sums: Sums
    predicted_s: float
    device_s: float

    @property
    def padding_avoided(self) -> float:
        """Share of the slots of a padded batch that would have been padding."""
        return 1.0 - self.sums.tokens / (self.sums.count * self.sums.longest)


def sums_of(rows: Sequence[Row]) -> Sums:
    """The sums over the rows' lengths."""
    lengths = [len(row.token_ids) for row in rows]
    return Sums(sum(lengths), sum([length * length for length in lengths]), max(lengths), len(lengths))


def pack(rows: Sequence[Row]) -> PackedBatch:
    """The engine's view of rows: flat arrays, nothing else."""
    options = [row.options for row in rows]
    return PackedBatch.of([row.token_ids for row in rows], options, [row.token_type_ids for row in rows])


def health_probe(options: TaskOptions) -> PackedBatch:
    """The smallest clean batch: one sequence of one token."""
    return PackedBatch(np.zeros(1, np.int32), np.array([0, 1], np.int32), 1, None, [options])
