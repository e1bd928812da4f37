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
    with `cost` as the whole batch's seconds.) The compiled recurrence reads the cost's table: TypeError if it has none.

    Contiguity loses nothing when the cost depends on (longest, count) alone and never falls with the longest, as in an
    engine that pads: deal the longest sequences to the batch with the largest maximum, the next to the next, and no
    batch's maximum, cost, or use of a cap grows. Under a packed cost the optimum may not be contiguous.
    """
    table, scale = _tabulated(cost)
    low = _first_fitting(ascending, max_sequences, max_tokens, padded=cost.padded)
    best, cut = np.zeros(len(ascending) + 1), np.zeros(len(ascending) + 1, dtype=np.int64)
    work = (table.base.beta_s + table.base.gamma_s * ascending) * ascending
    queue = ascending, np.append(0.0, np.cumsum(ascending)), np.append(0.0, np.cumsum(work))
    load_kernel().cut(queue, low, _for_kernel(table), max_seconds / scale, best, cut)
    best *= scale
    cuts = [len(ascending)]
    while cuts[-1] > 0:
        cuts.append(int(cut[cuts[-1]]))
    cuts.reverse()
    return cuts, [float(best[stop] - best[start]) for start, stop in pairwise(cuts)]


@cache
def load_kernel() -> ModuleType:
    """The compiled function, ready to run: at once where an earlier process left it, else within seconds."""
    from penstock.scheduler.policies import dp_kernel

    queue, low = (np.ones(1), np.arange(2.0), np.arange(2.0)), np.zeros(1, dtype=np.int64)
    table = _for_kernel(CostTable(PaddedCost(1.0, 0.0, 0.0, 0.0)))
    arguments = queue, low, table, math.inf, np.zeros(2), np.zeros(2, dtype=np.int64)
    try:
        dp_kernel.cut(*arguments)
    except Exception:  # of numba's cache: a full or read-only folder, or an error of unpickling a damaged file
        dp_kernel.cut = dp_kernel.without_cache(dp_kernel.cut)
        dp_kernel.cut(*arguments)
    return dp_kernel


def _tabulated(cost: CostFunction) -> tuple[CostTable, float]:
    """The cost as a table, and what to multiply it by."""
    if isinstance(cost, LearnedCost):
        return cost.table, cost.scale
    if isinstance(cost, CostTable):
        return cost, 1.0
    if isinstance(cost, PackedCost):
        return _flat(cost), 1.0
    raise TypeError(f"The dynamic program needs a cost with a table. Given: {type(cost).__name__}")


_flat = lru_cache(CostTable)


def _for_kernel(table: CostTable) -> tuple[FloatArray, bool, FloatArray, FloatArray, FloatArray]:
    base = table.base
    law = np.array([base.floor_s, base.alpha_s, base.beta_s, base.gamma_s], dtype=np.float64)
    return law, base.padded, *table.arrays


def _first_fitting(ascending: FloatArray, max_sequences: int, max_tokens: int, *, padded: bool) -> IntArray:
    """For each j in 1..n the least i for which the batch i..j keeps the caps on count and tokens, or j - 1."""
    stops = np.arange(1, len(ascending) + 1)
    if padded:
        by_tokens = stops - (max_tokens // ascending).astype(np.int64)
    else:
        before = np.concatenate([[0.0], np.cumsum(ascending)])
        by_tokens = np.searchsorted(before, before[1:] - max_tokens)
    return np.clip(np.maximum(by_tokens, stops - max_sequences), 0, stops - 1)
