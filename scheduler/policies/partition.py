"""Partition policies: which sequences run together. Each is chosen by name."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, count, pairwise, takewhile
from operator import mul
from sys import maxsize
from typing import NamedTuple

import numpy as np

from penstock.scheduler.costs.cost import CostFunction, predicted_s
from penstock.scheduler.policies.dp import cheapest_cuts, load_kernel
from penstock.scheduler.types import Caps

MIN_GAIN = 0.02  # sharing out must promise to end this much sooner; less is within a cost model's error
MIN_DP_GAIN = 0.01  # share of FIFO's predicted seconds that the DP must save for `auto` to take it
_MAX_REST = 64  # plans by FIFO between two questions to the DP, while it gains nothing


class Partition(NamedTuple):
    """Batches of indices into the given lengths. An order policy says which of them runs first."""

    batches: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]  # predicted, one a batch
    dp_gain: float = 0.0  # share of FIFO's predicted seconds that the DP saves here; 0: this is FIFO's, or not the DP's


class Policy(NamedTuple):
    """A function and what the planner must know of it. The function has the contract of `PartitionPolicy.partition`."""

    divide: Callable[[Sequence[int], CostFunction, Caps, int], Partition]  # the last argument is `most`
    reorders: bool = False  # it covers all that it is given and ignores `most`; else it covers a prefix
    caps_tokens: bool = True  # it keeps `max_tokens` and `max_seconds`
    max_sequences: int = maxsize  # of a batch, beside the cap


def fifo(lengths: Sequence[int], cost: CostFunction, caps: Caps, most: int) -> Partition:
    """Batches filled in the order given, each closed at any cap."""
    cuts, seconds = [0], list[float]()
    while cuts[-1] < len(lengths) and len(seconds) < most:
        batch = lengths[cuts[-1] : cuts[-1] + caps.max_sequences]
        used = map(mul, accumulate(batch, max), count(1)) if cost.padded else accumulate(batch)
        batch = batch[: max(1, len(list(takewhile(caps.max_tokens.__ge__, used))))]
        batch_s = _seconds_of(batch, cost)
        if batch_s > caps.max_seconds:
            batch = batch[: _num_in_time(batch, cost, caps.max_seconds)]
            batch_s = _seconds_of(batch, cost)
        cuts.append(cuts[-1] + len(batch))
        seconds.append(batch_s)
    return Partition(tuple([tuple(range(start, stop)) for start, stop in pairwise(cuts)]), tuple(seconds))


def _sorted(lengths: Sequence[int], cost: CostFunction, caps: Caps, most: int) -> Partition:
    """FIFO over the sequences in order of length: batches of like lengths, the bucketing baseline."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    filled = fifo([lengths[index] for index in order], cost, caps, len(lengths))
    return Partition(tuple(tuple(order[place] for place in batch) for batch in filled.batches), filled.seconds)


def _naive(lengths: Sequence[int], cost: CostFunction, caps: Caps, most: int) -> Partition:
    """As many as the count cap allows, whatever their lengths (TurboTransformers section 6.3, Naive-Batch)."""
    indices, size = range(len(lengths)), caps.max_sequences
    return _timed([indices[start : start + size] for start in indices[::size]][:most], lengths, cost)


def _dp(lengths: Sequence[int], cost: CostFunction, caps: Caps, most: int) -> Partition:
    in_order = fifo(lengths, cost, caps, len(lengths))
    return _by_dp(lengths, cost, caps, sum(in_order.seconds), 0.0) or in_order


_DP = Policy(_dp, reorders=True)
POLICIES: Mapping[str, Policy] = {
    "auto": _DP,
    "dp": _DP,
    "fifo": Policy(fifo),
    "sorted": Policy(_sorted, reorders=True),
    "naive": Policy(_naive, caps_tokens=False),
    "none": Policy(_naive, max_sequences=1),
}


class PartitionPolicy:
    """Groups queued sequences into batches, by the policy of a name. Asked once for every plan.

    `dp` takes Eq. 2's partition of the length-sorted queue, or FIFO's where that is as cheap, since FIFO keeps the
    order. Eq. 2's is optimal for padded costs (see `cheapest_cuts`). Under a packed cost with a cap on tokens the
    problem is bin packing, which FIFO solves within one longest sequence a batch: there either may be the cheaper.

    `auto` takes Eq. 2's where it saves more than `MIN_DP_GAIN` of FIFO's predicted seconds. It asks less and less often
    while that gains nothing.
    """

    def __init__(self, name: str) -> None:
        if name not in POLICIES:
            raise ValueError(f"partition must be one of {', '.join(POLICIES)}. Given: {name!r}")
        self.name = name
        self._divide, self._reorders, self.caps_tokens, self.max_sequences = POLICIES[name]
        self._rest = self._next_rest = 0  # plans of `auto` by FIFO, until the DP is asked again
        if POLICIES[name] is _DP:
            load_kernel()  # now, before any request waits for a plan

    @property
    def reorders(self) -> bool:
        """Whether the next partition may reorder: it then covers all it is given, and is given a whole window."""
        return self._reorders and self._rest == 0

    def name_of(self, partition: Partition) -> str:
        """The policy that made it."""
        return self.name if self.name != "auto" else "dp" if partition.dp_gain > 0 else "fifo"

    def partition(self, lengths: Sequence[int], cost: CostFunction, caps: Caps, *, most: int) -> Partition:
        """Batches within `caps` of sequences with these lengths (>= 1), given in the order in which they are due.

        `most` (>= 1) is how many batches the caller will run now. A policy that keeps the order stops there, and then
        covers a prefix of `lengths`. No index comes twice.
        """
        if self.name != "auto":
            caps = caps._replace(max_sequences=min(caps.max_sequences, self.max_sequences))
            return self._divide(lengths, cost, caps, most)
        if self._rest > 0:
            self._rest -= 1
            return fifo(lengths, cost, caps, most)
        in_order = fifo(lengths, cost, caps, len(lengths))
        found = _by_dp(lengths, cost, caps, _pace(in_order, lengths), MIN_DP_GAIN)
        self._rest = self._next_rest = 0 if found else min(_MAX_REST, 2 * self._next_rest + 1)
        return found or Partition(in_order.batches[:most], in_order.seconds[:most])


def share_out(partition: Partition, lengths: Sequence[int], cost: CostFunction, num_lanes: int) -> Partition:
    """Each batch in several of about equal tokens, one for each idle lane, where that ends sooner than `partition`."""
    parts = num_lanes // max(1, len(partition.batches))
    if parts < 2 or not partition.batches:
        return partition
    shared = _timed([part for batch in partition.batches for part in _split(batch, lengths, parts)], lengths, cost)
    if max(shared.seconds) >= max(partition.seconds) * (1 - MIN_GAIN):
        return partition
    return shared._replace(dp_gain=partition.dp_gain)


def _split(batch: Sequence[int], lengths: Sequence[int], parts: int) -> list[Sequence[int]]:
    """The batch in up to `parts` runs, each closed once it holds its share of the tokens."""
    after = list(accumulate([lengths[index] for index in batch]))
    cuts = [0]
    while cuts[-1] < len(batch):
        before = after[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(bisect_left(after, before + after[-1] / parts, hi=len(batch) - 1) + 1)
    return [batch[start:stop] for start, stop in pairwise(cuts)]


def _by_dp(lengths: Sequence[int], cost: CostFunction, caps: Caps, fifo_s: float, min_gain: float) -> Partition | None:
    """Eq. 2's partition where it takes less than `fifo_s` by more than `min_gain` of it."""
    unsorted = np.array(lengths, dtype=np.float64)
    order = np.argsort(unsorted, kind="stable")
    cuts, seconds = cheapest_cuts(unsorted[order], cost, **caps._asdict())
    if fifo_s * (1 - min_gain) <= sum(seconds):
        return None
    batches = tuple(tuple(order[start:stop].tolist()) for start, stop in pairwise(cuts))
    return Partition(batches, tuple(seconds), 1 - sum(seconds) / fifo_s)


def _pace(in_order: Partition, lengths: Sequence[int]) -> float:
    """FIFO's predicted seconds, at the pace of its full batches: jobs behind the window fill up its last one."""
    if len(in_order.batches) < 2:
        return sum(in_order.seconds)
    tokens = sum([lengths[index] for batch in in_order.batches[:-1] for index in batch])
    return sum(in_order.seconds[:-1]) * sum(lengths) / tokens


def _num_in_time(lengths: Sequence[int], cost: CostFunction, max_seconds: float) -> int:
    """Number of the first sequences that run within `max_seconds`, where one more would not; at least one."""
    return max(1, bisect_right(range(1, len(lengths)), max_seconds, key=lambda num: _seconds_of(lengths[:num], cost)))


def _seconds_of(batch: Sequence[int], cost: CostFunction) -> float:
    return predicted_s(cost, sum(batch), sum([length * length for length in batch]), max(batch), len(batch))


def _timed(batches: Sequence[Sequence[int]], lengths: Sequence[int], cost: CostFunction) -> Partition:
    return Partition(
        tuple(tuple(batch) for batch in batches),
        tuple(_seconds_of([lengths[index] for index in batch], cost) for batch in batches),
    )
