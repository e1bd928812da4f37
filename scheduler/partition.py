"""Which sequences run together: FIFO with a token budget, the DP over lengths, and the choice between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.scheduler.cost import CostFunction, FloatArray

MIN_GAIN = 0.02  # the DP must promise to save this share of FIFO's time; less is within a cost model's error
_BLOCK_ROWS = 128  # rows of the DP's cost band priced at once: few numpy calls, and the block stays in cache


@dataclass(frozen=True, slots=True)
class Partition:
    """Batches in the order to run them, each a sequence of indices into the lengths that were given."""

    batches: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]  # predicted, one a batch
    policy: str  # "fifo" or "dp"

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


def choose_partition(
    lengths: Sequence[int], cost: CostFunction, max_batch_sequences: int, max_batch_tokens: int
) -> Partition:
    """The DP's partition where it promises to be at least MIN_GAIN cheaper than FIFO's, else FIFO's.

    Ties go to FIFO: it keeps the order of arrival, so no sequence is overtaken for the sake of a gain that the cost
    model cannot resolve. For packed costs FIFO is near the optimum anyway (each batch wastes less than one longest
    sequence of its budget), and the DP is not even tried when FIFO is within MIN_GAIN of the cost's lower bound.
    """
    fifo = partition_fifo(lengths, cost, max_batch_sequences, max_batch_tokens)
    worth_s = fifo.total_s * (1 - MIN_GAIN)
    if _lower_bound(lengths, cost, max_batch_sequences, max_batch_tokens) >= worth_s:
        return fifo
    dp = partition_dp(lengths, cost, max_batch_sequences, max_batch_tokens)
    return dp if dp.total_s < worth_s else fifo


def partition_fifo(
    lengths: Sequence[int], cost: CostFunction, max_batch_sequences: int, max_batch_tokens: int
) -> Partition:
    """Fill batches in the order given, closing each at either cap. A sequence over the token cap runs alone."""
    starts = _fifo_starts(lengths, max_batch_sequences, max_batch_tokens)
    batches, seconds = [], []
    for start, stop in pairwise([*starts, len(lengths)]):
        batch = lengths[start:stop]
        squares = sum([length * length for length in batch])
        batches.append(tuple(range(start, stop)))
        seconds.append(float(cost.seconds(sum(batch), squares, max(batch), stop - start)))
    return Partition(tuple(batches), tuple(seconds), "fifo")


def share_out(
    partition: Partition,
    lengths: Sequence[int],
    cost: CostFunction,
    max_batch_sequences: int,
    max_batch_tokens: int,
    *,
    num_lanes: int,
) -> Partition:
    """The same sequences in up to `num_lanes` batches of about equal tokens, where that ends sooner than `partition`.

    For an engine with several lanes, all idle, and too little work to fill a batch for each. A batch closes only once
    it holds its share, so there are never more batches than lanes.
    """
    share = -(-sum(lengths) // num_lanes)
    cap = min(max_batch_tokens, share + max(lengths) - 1)
    shared = partition_fifo(lengths, cost, max_batch_sequences, cap)
    ends_sooner = max(shared.seconds) < max(partition.seconds) * (1 - MIN_GAIN)
    return shared if ends_sooner and len(shared.batches) <= num_lanes else partition


def full_batches_end(lengths: Sequence[int], max_batch_sequences: int, max_batch_tokens: int) -> int:
    """How many of the first sequences FIFO puts into batches that can take no more: all but an underfull last batch."""
    starts = _fifo_starts(lengths, max_batch_sequences, max_batch_tokens)
    last = lengths[starts[-1] :] if starts else []
    is_full = len(last) >= max_batch_sequences or sum(last) >= max_batch_tokens
    return len(lengths) if is_full else len(lengths) - len(last)


def _fifo_starts(lengths: Sequence[int], max_batch_sequences: int, max_batch_tokens: int) -> list[int]:
    """Index of the first sequence of each FIFO batch."""
    _check_limits(max_batch_sequences, max_batch_tokens)
    starts: list[int] = []
    room_tokens = room_sequences = 0
    for index, length in enumerate(lengths):
        room_tokens -= length
        room_sequences -= 1
        if room_tokens < 0 or room_sequences < 0:
            starts.append(index)
            room_tokens = max_batch_tokens - length
            room_sequences = max_batch_sequences - 1
    return starts


def partition_dp(
    lengths: Sequence[int], cost: CostFunction, max_batch_sequences: int, max_batch_tokens: int
) -> Partition:
    """The cheapest partition into batches that are contiguous in length order (TurboTransformers, Eq. 2).

    With the lengths sorted, C[0] = 0 and C[j] = min over j-B <= i < j of C[i] + cost(i..j), where a batch of two or
    more sequences over the token cap costs infinity. O(nB), one vectorised minimum for each j.

    Contiguity loses nothing when the cost depends on (longest, count) alone, is non-decreasing in the longest, and the
    cap is one of count: deal the longest sequences to the batch with the largest maximum, the next to the next, and no
    batch's maximum grows. Under a packed cost with a token cap the problem is bin packing, and this is a heuristic.

    Batches run by ascending seconds per sequence (Smith's rule), the order with the least mean completion time.
    """
    _check_limits(max_batch_sequences, max_batch_tokens)
    num = len(lengths)
    if num == 0:
        return Partition((), (), "dp")
    unsorted = np.asarray(lengths, dtype=np.float64)
    order = np.argsort(unsorted, kind="stable")
    ascending = unsorted[order]
    # The shortest sequences give the most numerous batch that the token cap allows.
    fitting = int(np.searchsorted(np.cumsum(ascending), max_batch_tokens, side="right"))
    width = max(1, min(max_batch_sequences, fitting, num))

    # best[width + j] is C[j]; the infinities in front stand for the batches that would start before the queue does.
    best = np.full(width + num + 1, np.inf)
    best[width] = 0.0
    first = np.empty(num + 1, dtype=np.int64)
    band_row = np.empty(width)
    for block in range(0, num, _BLOCK_ROWS):
        band = _band(ascending, block, min(block + _BLOCK_ROWS, num), width, cost, max_batch_tokens)
        for j, row in enumerate(band, start=block + 1):
            np.add(row, best[j : j + width], out=band_row)
            column = int(band_row.argmin())  # the first of equals, which is the largest batch
            best[width + j] = band_row[column]
            first[j] = j - width + column
    return _in_smith_order(order, first, best[width:])


def _band(
    ascending: FloatArray, begin: int, end: int, width: int, cost: CostFunction, max_batch_tokens: int
) -> FloatArray:
    """[end - begin, width]: seconds of the batch i..j of `ascending`, for j = row + begin + 1, i = j - width + column.

    Cells with i < 0 hold nonsense; C is infinite there.
    """
    padded = np.concatenate([np.zeros(max(0, width - begin)), ascending[max(0, begin - width) : end]])
    tokens_before = np.concatenate([[0.0], np.cumsum(padded)])
    squares_before = np.concatenate([[0.0], np.cumsum(padded * padded)])
    rows = end - begin
    windows = np.lib.stride_tricks.sliding_window_view
    tokens = tokens_before[width + 1 :, None] - windows(tokens_before, width)[1 : rows + 1]
    squares = squares_before[width + 1 :, None] - windows(squares_before, width)[1 : rows + 1]
    count = np.arange(width, 0, -1, dtype=np.float64)
    seconds = cost.seconds(tokens, squares, ascending[begin:end, None], count)
    return np.where((tokens > max_batch_tokens) & (count > 1), np.inf, seconds)


def _in_smith_order(order: npt.NDArray[np.intp], first: npt.NDArray[np.int64], best: FloatArray) -> Partition:
    """Follow `first` (each batch's beginning, by its end) back from the longest; cheapest per sequence to the front."""
    batches: list[tuple[float, tuple[int, ...]]] = []
    stop = len(order)
    while stop > 0:
        start = int(first[stop])
        seconds = float(best[stop] - best[start])
        batches.append((seconds, tuple(order[start:stop].tolist())))
        stop = start
    batches.sort(key=lambda batch: batch[0] / len(batch[1]))
    return Partition(tuple(batch for _, batch in batches), tuple(seconds for seconds, _ in batches), "dp")


def _lower_bound(lengths: Sequence[int], cost: CostFunction, max_batch_sequences: int, max_batch_tokens: int) -> float:
    """The cost's lower bound, with at least as many batches as the caps force. A sequence over the cap fills one."""
    tokens = sum(lengths)
    capped = tokens if max(lengths, default=0) <= max_batch_tokens else sum(min(n, max_batch_tokens) for n in lengths)
    num_batches = max(math.ceil(len(lengths) / max_batch_sequences), math.ceil(capped / max_batch_tokens))
    return cost.lower_bound(tokens, sum([length * length for length in lengths]), num_batches)


def _check_limits(max_batch_sequences: int, max_batch_tokens: int) -> None:
    if max_batch_sequences < 1 or max_batch_tokens < 1:
        raise ValueError(
            "A batch must have room for one sequence and one token. "
            f"Given: max_batch_sequences={max_batch_sequences}, max_batch_tokens={max_batch_tokens}"
        )
