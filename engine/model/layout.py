"""Layout of a packed batch on a CPU: sequences sorted by length, so that equal lengths are adjacent."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Int32Array

Int64Array = npt.NDArray[np.int64]

_BOUNDS_OF_ONE = 2  # values of cu_seqlens in a batch of one sequence
_KEPT_TOKENS = 512  # longest single sequence whose layout is kept


@dataclass(frozen=True, slots=True)
class Group:
    """`count` sequences of `length` tokens each, contiguous from token `start` of the sorted batch."""

    start: int
    count: int
    length: int
    keys: int | None = None  # tokens at the start of each sequence that are attended to; None: all

    @property
    def stop(self) -> int:
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True)
class Layout:
    """The sorted order of N sequences with T tokens in R = `rounded(T)` rows; the R - T spare rows repeat a token."""

    order: Int64Array  # [N]: order[i] is the batch's index of the i-th sorted sequence
    tokens: Int64Array  # [R]: the batch's index of each sorted token
    positions: Int64Array  # [R]: each sorted token's position in its own sequence, from 0
    groups: tuple[Group, ...]  # they tile [0, T)

    @property
    def num_tokens(self) -> int:
        return self.groups[-1].stop

    @property
    def lengths(self) -> list[int]:
        """[N]: tokens of each sorted sequence."""
        return [group.length for group in self.groups for _ in range(group.count)]


def sort_by_length(cu_seqlens: Int32Array, attended: Int32Array | None = None) -> Layout:
    """The layout of a batch, not to be written to. The sort is stable, so equal batches give equal layouts.

    attended: [N] tokens at the start of each sequence that are attended to, where not all are.
    """
    if attended is not None:
        return _sorted_by_length(cu_seqlens, attended)
    num_bounds, num_tokens = len(cu_seqlens), int(cu_seqlens[-1])
    if num_bounds == _BOUNDS_OF_ONE and num_tokens <= _KEPT_TOKENS:
        return _layout_of_one(num_tokens)
    return _sorted_by_length(cu_seqlens)


@lru_cache(maxsize=_KEPT_TOKENS)
def _layout_of_one(num_tokens: int) -> Layout:
    """A single text waits for its layout, which takes longer to make than a layer's attention."""
    return _sorted_by_length(np.array((0, num_tokens), np.int32))


def _sorted_by_length(cu_seqlens: Int32Array, attended: Int32Array | None = None) -> Layout:
    starts, lengths = cu_seqlens[:-1].astype(np.int64), np.diff(cu_seqlens).astype(np.int64)
    order = np.argsort(lengths, kind="stable") if attended is None else np.lexsort((attended, lengths))
    sorted_lengths = lengths[order]
    sorted_starts = np.cumsum(sorted_lengths) - sorted_lengths
    num_tokens = int(cu_seqlens[-1])
    spare = np.zeros(rounded(num_tokens) - num_tokens, np.int64)
    positions = np.arange(num_tokens, dtype=np.int64) - np.repeat(sorted_starts, sorted_lengths)
    return Layout(
        order=order,
        tokens=np.concatenate([np.repeat(starts[order], sorted_lengths) + positions, spare]),
        positions=np.concatenate([positions, spare]),
        groups=_groups(sorted_lengths, None if attended is None else attended[order]),
    )


def rounded(count: int) -> int:
    """`count` rounded up to one of a few sizes, at most an eighth more, and at most 1/16 from 128 on.

    oneDNN prepares a matrix product for every new size and keeps the preparation, measured at 4 ms and 3 MiB a batch.
    """
    step = max(8, 1 << max(0, count.bit_length() - 5))
    return -(-count // step) * step


def _groups(sorted_lengths: Int64Array, sorted_keys: Int32Array | None) -> tuple[Group, ...]:
    if sorted_keys is None:
        values, counts = np.unique(sorted_lengths, return_counts=True)
        kinds = [(length, None, count) for length, count in zip(values.tolist(), counts.tolist(), strict=True)]
    else:
        pairs = Counter(zip(sorted_lengths.tolist(), sorted_keys.tolist(), strict=True))  # in the order of the batch
        kinds = [(length, None if keys == length else keys, count) for (length, keys), count in pairs.items()]
    groups, start = [], 0
    for length, keys, count in kinds:
        groups.append(Group(start, count, length, keys))
        start += length * count
    return tuple(groups)
