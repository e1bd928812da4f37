"""Which sequences run together: policies chosen by name, each one object."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Protocol

import numpy as np

from penstock.scheduler.costs.cost import CostFunction, FloatArray
from penstock.scheduler.policies.dp import cheapest_cuts, load_kernels

MIN_GAIN = 0.02  # sharing out must promise to end this much sooner; less is within a cost model's error


@dataclass(frozen=True, slots=True)
class Caps:
    """What a batch may hold. A single sequence is always allowed."""

    max_sequences: int
    max_tokens: int  # for a padded cost: of longest * count, the slots that run; else of the sum of the lengths
    max_seconds: float = math.inf  # predicted

    def __post_init__(self) -> None:
        if self.max_sequences < 1 or self.max_tokens < 1 or not self.max_seconds > 0:
            raise ValueError(f"A batch must have room for one sequence, one token and some time. Given: {self}")


@dataclass(frozen=True, slots=True)
class Partition:
    """Batches of indices into the lengths that were given; which of them runs first is for an order policy to say."""

    batches: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]  # predicted, one a batch

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


class PartitionPolicy(Protocol):
    """Groups waiting sequences into batches. Asked once for every plan."""

    @property
    def name(self) -> str: ...

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        """Batches within `caps` of sequences with these lengths (>= 1), given in the order in which they are due.

        `most` (>= 1) is how many batches the caller will run now. A policy that keeps the order may stop there, and
        then covers a prefix of `lengths`; every other covers all of it. No index comes twice.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fifo:
    """Fill batches in the order given, closing each at any cap."""

    name: str = "fifo"

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        return _fill(lengths, cost, caps, most)


@dataclass(frozen=True, slots=True)
class Sorted:
    """FIFO over the sequences in order of length: batches of like lengths, the bucketing baseline."""

    name: str = "sorted"

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        filled = _fill([lengths[index] for index in order], cost, caps, len(lengths))
        return Partition(tuple(tuple(order[place] for place in batch) for batch in filled.batches), filled.seconds)


@dataclass(frozen=True, slots=True)
class Naive:
    """As many as the count cap allows, whatever their lengths (TurboTransformers section 6.3, Naive-Batch)."""

    name: str = "naive"

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        num = min(len(lengths), most * caps.max_sequences)
        return _priced(lengths, cost, [*range(0, num, caps.max_sequences), num])


@dataclass(frozen=True, slots=True)
class Alone:
    """No batching: every sequence is a batch of its own."""

    name: str = "none"

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        return _priced(lengths, cost, range(min(len(lengths), most) + 1))


@dataclass(frozen=True, slots=True)
class CheapestCuts:
    """The partition with the least predicted total: Eq. 2's over the length-sorted queue, or FIFO's where that is not
    dearer, since FIFO lets nobody be overtaken.

    Eq. 2's is optimal for padded costs (see `cheapest_cuts`). Under a packed cost with a cap on tokens the problem is
    bin packing, which FIFO solves within one longest sequence a batch: there either may be the cheaper.
    """

    name: str = "dp"

    def __post_init__(self) -> None:
        load_kernels()  # now, before anyone waits for a plan

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        fifo = _fill(lengths, cost, caps, len(lengths))
        unsorted = np.array(lengths, dtype=np.float64)
        if fifo.total_s <= _lower_bound(unsorted, cost, caps):
            return fifo
        order = np.argsort(unsorted, kind="stable")
        cuts, seconds = cheapest_cuts(
            unsorted[order],
            cost,
            max_sequences=caps.max_sequences,
            max_tokens=caps.max_tokens,
            max_seconds=caps.max_seconds,
        )
        if fifo.total_s <= sum(seconds):
            return fifo
        return Partition(tuple(tuple(order[start:stop].tolist()) for start, stop in pairwise(cuts)), tuple(seconds))


def partition_policy(name: str) -> PartitionPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[PartitionPolicy]] = {
        "dp": CheapestCuts,
        "fifo": Fifo,
        "sorted": Sorted,
        "naive": Naive,
        "none": Alone,
    }
    if name not in policies:
        raise ValueError(f"partition must be one of {', '.join(policies)}. Given: {name!r}")
    return policies[name]()


def share_out(
    partition: Partition, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, num_lanes: int
) -> Partition:
    """The same sequences in up to `num_lanes` batches of about equal tokens, where that ends sooner than `partition`.

    For an engine with several lanes, all idle, and too little work to fill a batch for each: `partition` covers all of
    `lengths`. Its order of sequences stays, so that what was sorted stays sorted.
    """
    order = list(chain.from_iterable(partition.batches))
    share = -(-sum(lengths) // num_lanes)
    shared = _fill([lengths[index] for index in order], cost, caps, num_lanes + 1, enough_tokens=share)
    ends_sooner = max(shared.seconds) < max(partition.seconds) * (1 - MIN_GAIN)
    if not ends_sooner or len(shared.batches) > num_lanes:
        return partition
    return Partition(tuple(tuple(order[place] for place in batch) for batch in shared.batches), shared.seconds)


def full_batches_end(lengths: Sequence[int], caps: Caps, *, padded: bool) -> int:
    """How many of the first sequences FIFO puts into batches that can take no more: all but an underfull last batch.

    Full by count or tokens, whatever the seconds.
    """
    before = list(accumulate(lengths, initial=0))
    start = stop = 0
    while stop < len(lengths):
        start, stop = stop, _full_at(lengths, before, stop, caps, padded=padded)
    last = lengths[start:stop]
    used = max(last, default=0) * len(last) if padded else sum(last)
    return stop if len(last) >= caps.max_sequences or used >= caps.max_tokens else start


def _fill(
    lengths: Sequence[int], cost: CostFunction, caps: Caps, most: int, enough_tokens: float = math.inf
) -> Partition:
    """Up to `most` batches in the order given, each closed at any cap, or once it holds `enough_tokens`."""
    lengths = lengths[: most * caps.max_sequences]
    before = list(accumulate(lengths, initial=0))
    batches: list[tuple[int, ...]] = []
    seconds: list[float] = []
    start = 0
    while start < len(lengths) and len(batches) < most:
        stop = _full_at(lengths, before, start, caps, padded=cost.padded)
        stop = min(stop, bisect_left(before, before[start] + enough_tokens, start + 1, stop))
        batch_s = _price(lengths[start:stop], cost)
        if batch_s > caps.max_seconds:
            stop = start + _num_in_time(lengths[start:stop], cost, caps.max_seconds)
            batch_s = _price(lengths[start:stop], cost)
        batches.append(tuple(range(start, stop)))
        seconds.append(batch_s)
        start = stop
    return Partition(tuple(batches), tuple(seconds))


def _full_at(lengths: Sequence[int], before: Sequence[int], start: int, caps: Caps, *, padded: bool) -> int:
    """Where the batch that begins at `start` ends, by count and tokens. `before`: sums of the first lengths."""
    limit = min(len(lengths), start + caps.max_sequences)
    if not padded:
        return max(start + 1, bisect_right(before, before[start] + caps.max_tokens, start, limit + 1) - 1)
    longest = 0
    for stop in range(start, limit):
        if lengths[stop] > longest:  # spelt out: this loop sees every sequence of every plan
            longest = lengths[stop]
        if longest * (stop + 1 - start) > caps.max_tokens:
            return max(start + 1, stop)
    return limit


def _num_in_time(lengths: Sequence[int], cost: CostFunction, max_seconds: float) -> int:
    """How many of the first sequences still run within `max_seconds`, where one more would not; at least one."""
    tokens, longest = list(accumulate(lengths)), list(accumulate(lengths, max))
    squares = list(accumulate([length * length for length in lengths]))

    def seconds(last: int) -> float:
        return float(cost.seconds(tokens[last], squares[last], longest[last], last + 1))

    return max(1, bisect_right(range(len(lengths)), max_seconds, key=seconds))


def _price(batch: Sequence[int], cost: CostFunction) -> float:
    squares = sum([length * length for length in batch])
    return float(cost.seconds(sum(batch), squares, max(batch), len(batch)))


def _priced(lengths: Sequence[int], cost: CostFunction, cuts: Sequence[int]) -> Partition:
    bounds = [(start, stop) for start, stop in pairwise(cuts) if start < stop]
    return Partition(
        tuple(tuple(range(start, stop)) for start, stop in bounds),
        tuple(_price(lengths[start:stop], cost) for start, stop in bounds),
    )


def _lower_bound(lengths: FloatArray, cost: CostFunction, caps: Caps) -> float:
    """The cost's lower bound, with at least as many batches as the caps force. A sequence over the cap fills one."""
    capped = float(np.minimum(lengths, caps.max_tokens).sum())
    num_batches = max(math.ceil(len(lengths) / caps.max_sequences), math.ceil(capped / caps.max_tokens))
    return cost.lower_bound(float(lengths.sum()), float(np.dot(lengths, lengths)), num_batches)
