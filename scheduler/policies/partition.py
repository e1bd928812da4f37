"""Partition policies: which sequences run together. Each is chosen by name."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Protocol

import numpy as np

from penstock.scheduler.costs.cost import CostFunction, FloatArray
from penstock.scheduler.policies.dp import cheapest_cuts, load_kernel

MIN_GAIN = 0.02  # sharing out must promise to end this much sooner; less is within a cost model's error
MIN_DP_GAIN = 0.01  # share of FIFO's predicted seconds that the DP must save for `auto` to take it
_MAX_REST = 64  # plans by FIFO between two questions to the DP, while it gains nothing


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a batch. A single sequence is always allowed."""

    max_sequences: int
    max_tokens: int  # for a padded cost: of longest * count, the slots that run; else of the sum of the lengths
    max_seconds: float = math.inf  # predicted

    def __post_init__(self) -> None:
        if self.max_sequences < 1 or self.max_tokens < 1 or not self.max_seconds > 0:
            raise ValueError(f"A batch must have room for one sequence, one token and some time. Given: {self}")


@dataclass(frozen=True, slots=True)
class Partition:
    """Batches of indices into the given lengths. An order policy says which of them runs first."""

    batches: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]  # predicted, one a batch
    dp_gain: float = 0.0  # share of FIFO's predicted seconds that the DP saves here; 0: this is FIFO's, or not the DP's

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


class PartitionPolicy(Protocol):
    """Groups queued sequences into batches. Asked once for every plan."""

    @property
    def name(self) -> str: ...

    @property
    def reorders(self) -> bool:
        """Whether the next partition may reorder: it then covers all it is given, and is given a whole window."""
        ...

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        """Batches within `caps` of sequences with these lengths (>= 1), given in the order in which they are due.

        `most` (>= 1) is how many batches the caller will run now. A policy that keeps the order may stop there, and
        then covers a prefix of `lengths`. No index comes twice.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fifo:
    """Fills batches in the order given, closing each at any cap."""

    name: str = "fifo"
    reorders: bool = False

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        return _fill(lengths, cost, caps, most)


@dataclass(frozen=True, slots=True)
class Sorted:
    """FIFO over the sequences in order of length: batches of like lengths, the bucketing baseline."""

    name: str = "sorted"
    reorders: bool = True

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        filled = _fill([lengths[index] for index in order], cost, caps, len(lengths))
        return Partition(tuple(tuple(order[place] for place in batch) for batch in filled.batches), filled.seconds)


@dataclass(frozen=True, slots=True)
class Naive:
    """As many as the count cap allows, whatever their lengths (TurboTransformers section 6.3, Naive-Batch)."""

    name: str = "naive"
    reorders: bool = False

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        num = min(len(lengths), most * caps.max_sequences)
        return _priced(lengths, cost, [*range(0, num, caps.max_sequences), num])


@dataclass(frozen=True, slots=True)
class Alone:
    """No batching: every sequence is a batch of its own."""

    name: str = "none"
    reorders: bool = False

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        return _priced(lengths, cost, range(min(len(lengths), most) + 1))


class CheapestCuts:
    """The partition with the least predicted total: Eq. 2's over the length-sorted queue, or FIFO's where that is as
    cheap, since FIFO keeps the order.

    Eq. 2's is optimal for padded costs (see `cheapest_cuts`). Under a packed cost with a cap on tokens the problem is
    bin packing, which FIFO solves within one longest sequence a batch: there either may be the cheaper.
    """

    name = "dp"
    reorders = True
    _min_gain = 0.0

    def __init__(self) -> None:
        load_kernel()  # now, before any request waits for a plan

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        fifo = _fill(lengths, cost, caps, len(lengths))
        unsorted = np.array(lengths, dtype=np.float64)
        fifo_s = self._seconds_by(fifo, lengths)
        enough_s = fifo_s * (1 - self._min_gain)
        if enough_s <= _lower_bound(unsorted, cost, caps):
            return fifo
        order = np.argsort(unsorted, kind="stable")
        limits = {"max_sequences": caps.max_sequences, "max_tokens": caps.max_tokens}
        cuts, seconds = cheapest_cuts(unsorted[order], cost, **limits, max_seconds=caps.max_seconds)
        if enough_s <= sum(seconds):
            return fifo
        batches = tuple(tuple(order[start:stop].tolist()) for start, stop in pairwise(cuts))
        return Partition(batches, tuple(seconds), 1 - sum(seconds) / fifo_s)

    def _seconds_by(self, fifo: Partition, lengths: Sequence[int]) -> float:
        """Seconds of these lengths by FIFO."""
        return fifo.total_s


class Auto(CheapestCuts):
    """The DP's partition where it is predicted to save at least `MIN_DP_GAIN` of FIFO's seconds, else FIFO's.

    The DP gains on engines that pad and on uneven cost tables. While it gains nothing it is asked ever more seldom, so
    that plans cost what FIFO's do.
    """

    name = "auto"
    _min_gain = MIN_DP_GAIN

    def __init__(self) -> None:
        super().__init__()
        self._rest = self._next_rest = 0  # plans by FIFO, until the DP is asked again

    @property
    def reorders(self) -> bool:  # type: ignore[override]  # depends on the plans before
        return self._rest == 0

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        if self._rest > 0:
            self._rest -= 1
            return _fill(lengths, cost, caps, most)
        found = super().partition(lengths, cost, caps, most=most)
        if found.dp_gain > 0:
            self._next_rest = 0
            return found
        self._rest = self._next_rest = min(_MAX_REST, 2 * self._next_rest + 1)
        return Partition(found.batches[:most], found.seconds[:most])

    def _seconds_by(self, fifo: Partition, lengths: Sequence[int]) -> float:
        """FIFO's predicted seconds, at the pace of its full batches: jobs behind the window fill up its last one."""
        if len(fifo.batches) < 2:
            return fifo.total_s
        tokens = sum([lengths[index] for batch in fifo.batches[:-1] for index in batch])
        return sum(fifo.seconds[:-1]) * sum(lengths) / tokens


def partition_policy(name: str) -> PartitionPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[PartitionPolicy]] = {
        "auto": Auto,
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
