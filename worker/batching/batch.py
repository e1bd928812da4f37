"""Sequences as the engine's flat arrays, and the statistics of a batch that ran."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from penstock.engine.types import Int32Array, PackedBatch
from penstock.worker.requests.sequence_block import SequenceBlock


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


def sums_of(blocks: Sequence[SequenceBlock]) -> Sums:
    """The sums over the sequences' lengths."""
    lengths = lengths_of(blocks)
    return Sums(sum(lengths), sum([length * length for length in lengths]), max(lengths), len(lengths))


def lengths_of(blocks: Sequence[SequenceBlock]) -> list[int]:
    """Tokens of each sequence."""
    return [length for block in blocks for length in block.lengths]


def pack(blocks: Sequence[SequenceBlock]) -> PackedBatch:
    """Lay sequences end to end, in their order, without padding."""
    lengths = lengths_of(blocks)
    cu_seqlens = np.fromiter(accumulate(lengths, initial=0), np.int32, len(lengths) + 1)
    types = None
    if any(block.token_type_ids is not None for block in blocks):
        types = np.concatenate([_types_of(block) for block in blocks])
    ids = np.concatenate([block.token_ids for block in blocks]).astype(np.int32, copy=False)
    options = [one for block in blocks for one in (block.options,) * len(block.lengths)]
    return PackedBatch(ids, cu_seqlens, max(lengths), types, options)


def _types_of(block: SequenceBlock) -> Int32Array:
    types = block.token_type_ids
    return np.zeros(len(block.token_ids), np.int32) if types is None else types
