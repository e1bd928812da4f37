"""Sequences as the engine's flat arrays, and the statistics of a batch that ran."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.types import PackedBatch
from penstock.worker.requests.request import PendingSequence


@dataclass(frozen=True, slots=True)
class Sums:
    """The quantities that a batch's time depends on."""

    tokens: int
    squares: int  # sum of squared lengths
    longest: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One batch that ran, for replies, logs, metrics and the cost model."""

    trigger: str
    partition: str
    dp_gain: float  # share of FIFO's predicted seconds that the partition saved; 0 where FIFO was taken
    sums: Sums
    predicted_s: float
    device_s: float
    num_ended: int | None = None  # sequences that have their results with it; None: all of `sums`
    number: int = 0  # of this process's batches, from 1; the parts of a failed batch have it too

    @property
    def padding_avoided(self) -> float:
        """Share of a padded batch's tokens that would have been padding."""
        return 1.0 - self.sums.tokens / (self.sums.count * self.sums.longest)


def sums_of(sequences: Sequence[PendingSequence]) -> Sums:
    """The sums over the sequences' lengths."""
    lengths = [len(sequence.token_ids) for sequence in sequences]
    return Sums(sum(lengths), sum([length * length for length in lengths]), max(lengths), len(lengths))


def pack(sequences: Sequence[PendingSequence]) -> PackedBatch:
    """Lay sequences end to end, in their order, without padding."""
    options = [sequence.options for sequence in sequences]
    return PackedBatch.of(
        [sequence.token_ids for sequence in sequences], options, [sequence.token_type_ids for sequence in sequences]
    )
