"""Equation 2 of TurboTransformers: the cheapest way to cut a length-sorted queue into batches."""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.scheduler.cost import CostFunction, FloatArray

_BLOCK_ROWS = 128  # rows of the band of prices made at once: few calls, and the block stays in cache


def cheapest_cuts(
    ascending: FloatArray,
    cost: CostFunction,
    *,
    max_sequences: int,
    max_tokens: int,
    max_seconds: float = math.inf,
) -> tuple[list[int], list[float]]:
    """Where to cut sequences of these lengths, in ascending order, into batches with the least total of seconds.

    Returns ([0, ..., n], seconds of each batch). C[0] = 0 and C[j] = min over i < j of C[i] + cost(i..j), where a batch
    of two or more that breaks a cap costs infinity. (The paper's printed listing has index slips; this is its Eq. 2
    with `cost` as the whole batch's seconds.)

    Contiguity loses nothing when the cost depends on (longest, count) alone and never falls with the longest, as in an
    engine that pads: deal the longest sequences to the batch with the largest maximum, the next to the next, and no
    batch's maximum, cost, or use of a cap grows. Under a packed cost the optimum may not be contiguous.
    """
    num = len(ascending)
    low = _first_fitting(ascending, max_sequences, max_tokens, padded=cost.padded)
    width = int((np.arange(1, num + 1) - low).max(initial=0))
    best = np.zeros(num + 1)
    first = np.zeros(num + 1, dtype=np.int64)
    for begin in range(0, num, _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, num)
        prices = _price_block(ascending, begin, end, width, cost)
        for j in range(begin + 1, end + 1):
            row = prices[j - begin - 1, width - (j - low[j - 1]) :]
            row[:-1][row[:-1] > max_seconds] = np.inf
            totals = best[low[j - 1] : j] + row
            i = int(totals.argmin())
            best[j], first[j] = totals[i], low[j - 1] + i
    cuts = [num]
    while cuts[-1] > 0:
        cuts.append(int(first[cuts[-1]]))
    cuts.reverse()
    return cuts, [float(best[stop] - best[start]) for start, stop in pairwise(cuts)]


def _first_fitting(
    ascending: FloatArray, max_sequences: int, max_tokens: int, *, padded: bool
) -> npt.NDArray[np.int64]:
    """For each j in 1..n the least i for which the batch i..j keeps the caps on count and tokens, or j - 1."""
    stops = np.arange(1, len(ascending) + 1)
    if padded:
        by_tokens = stops - (max_tokens // ascending).astype(np.int64)
    else:
        before = np.concatenate([[0.0], np.cumsum(ascending)])
        by_tokens = np.searchsorted(before, before[1:] - max_tokens)
    return np.clip(np.maximum(by_tokens, stops - max_sequences), 0, stops - 1)


def _price_block(ascending: FloatArray, begin: int, end: int, width: int, cost: CostFunction) -> FloatArray:
    """[end - begin, width]: seconds of the batch i..j of `ascending`, for j = row + begin + 1, i = j - width + column.

    Cells with i < 0 hold nonsense.
    """
    padded = np.concatenate([np.zeros(max(0, width - begin)), ascending[max(0, begin - width) : end]])
    tokens_before = np.concatenate([[0.0], np.cumsum(padded)])
    squares_before = np.concatenate([[0.0], np.cumsum(padded * padded)])
    rows = end - begin
    windows = np.lib.stride_tricks.sliding_window_view
    tokens = tokens_before[width + 1 :, None] - windows(tokens_before, width)[1 : rows + 1]
    squares = squares_before[width + 1 :, None] - windows(squares_before, width)[1 : rows + 1]
    count = np.arange(width, 0, -1, dtype=np.float64)
    prices = cost.seconds(tokens, squares, ascending[begin:end, None], count)
    return np.array(np.broadcast_to(prices, (rows, width)), dtype=np.float64)
