"""Equation 2 of TurboTransformers: the cheapest way to cut a length-sorted queue into batches."""

import math
from functools import cache, lru_cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import numpy.typing as npt

from penstock.scheduler.costs.cost import CostFunction, FloatArray, PackedCost, PaddedCost
from penstock.scheduler.costs.learned import LearnedCost
from penstock.scheduler.costs.table import CostTable

IntArray = npt.NDArray[np.int64]

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
    kernels = load_kernels()
    low = _first_fitting(ascending, max_sequences, max_tokens, padded=cost.padded)
    best, cut = np.zeros(len(ascending) + 1), np.zeros(len(ascending) + 1, dtype=np.int64)
    tabulated = _tabulated(cost)
    if tabulated is None:
        width = int((np.arange(1, len(ascending) + 1) - low).max(initial=0))
        for begin in range(0, len(ascending), _BLOCK_ROWS):
            prices = _price_block(ascending, begin, min(begin + _BLOCK_ROWS, len(ascending)), width, cost)
            kernels.settle_block(prices, begin, low, max_seconds, best, cut)
    else:
        table, scale = tabulated
        tokens_before = np.concatenate([[0.0], np.cumsum(ascending)])
        work_before = np.concatenate(
            [[0.0], np.cumsum((table.base.beta_s + table.base.gamma_s * ascending) * ascending)]
        )
        run = kernels.cut_by_takeover if _may_take_over(table, ascending, low) else kernels.cut_by_row
        run((ascending, tokens_before, work_before), low, _packed_up(table), max_seconds / scale, best, cut)
        best *= scale
    cuts = [len(ascending)]
    while cuts[-1] > 0:
        cuts.append(int(cut[cuts[-1]]))
    cuts.reverse()
    return cuts, [float(best[stop] - best[start]) for start, stop in pairwise(cuts)]


@cache
def load_kernels() -> ModuleType:
    """The compiled functions, ready to run: at once where an earlier process left them, else within seconds."""
    from penstock.scheduler.policies import dp_kernels

    queue = np.ones(1), np.arange(2.0), np.arange(2.0)
    table = _packed_up(CostTable(PaddedCost(1.0, 0.0, 0.0, 0.0)))
    low, best, cut = np.zeros(1, dtype=np.int64), np.zeros(2), np.zeros(2, dtype=np.int64)
    for name, arguments in (
        ("settle_block", (np.ones((1, 1)), 0, low, math.inf, best, cut)),
        ("cut_by_row", (queue, low, table, math.inf, best, cut)),
        ("cut_by_takeover", (queue, low, table, math.inf, best, cut)),
        ("obeys_quadrangle", (table, 1, 1)),
    ):
        try:
            getattr(dp_kernels, name)(*arguments)
        except Exception:  # of numba's cache: a full or read-only folder, or whatever unpickling a damaged file raises
            setattr(dp_kernels, name, dp_kernels.without_cache(getattr(dp_kernels, name)))
            getattr(dp_kernels, name)(*arguments)
    return dp_kernels


def _tabulated(cost: CostFunction) -> tuple[CostTable, float] | None:
    """The cost as (table, scale), where it is one."""
    if isinstance(cost, LearnedCost):
        return cost.table, cost.scale
    if isinstance(cost, CostTable):
        return cost, 1.0
    if isinstance(cost, PackedCost | PaddedCost):
        return _flat(cost), 1.0
    return None


_flat = lru_cache(CostTable)


def _packed_up(table: CostTable) -> tuple[FloatArray, bool, FloatArray, FloatArray, FloatArray]:
    """A table as dp_kernels takes it."""
    base = table.base
    law = np.array([base.floor_s, base.alpha_s, base.beta_s, base.gamma_s], dtype=np.float64)
    return law, base.padded, *table.arrays


def _may_take_over(table: CostTable, ascending: FloatArray, low: IntArray) -> bool:
    """Whether the faster recurrence may be used: cost(a..c) + cost(b..d) <= cost(a..d) + cost(b..c) for a < b < c < d,
    where a cap's infinity counts as a cost (for which no cost may fall as a batch grows).

    A packed cost without factors always obeys: it is a convex function, never falling, of sums over the batch, and
    the sums of a..d and b..c are as much as those of a..c and b..d, but further apart. With factors it is not asked.
    """
    if not table.padded:
        return len({factor for row in table.factors for factor in row}) == 1
    # Rounded up, so that a table is tested a few times in its life and not for every queue.
    longest = 1 << int(ascending.max(initial=1) - 1).bit_length()
    count = 1 << int((np.arange(1, len(low) + 1) - low).max(initial=1) - 1).bit_length()
    return obeys_quadrangle(table, longest, count)


@lru_cache(maxsize=64)
def obeys_quadrangle(table: CostTable, longest: int, count: int) -> bool:
    """The exact test of a padded table, for every queue of lengths and batches up to these; once a table."""
    return bool(load_kernels().obeys_quadrangle(_packed_up(table), longest, count))


def _first_fitting(ascending: FloatArray, max_sequences: int, max_tokens: int, *, padded: bool) -> IntArray:
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
    block = np.array(np.broadcast_to(prices, (rows, width)), dtype=np.float64)
    if not np.isfinite(block).all():
        raise ValueError("A cost function must give finite seconds, 0 or more. It gave others.")
    return block
