"""Equation 2 of TurboTransformers: the cheapest way to cut a length-sorted queue into batches."""

import math
from dataclasses import astuple
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.scheduler.compiling import compiled
from penstock.scheduler.costs.cost import CostFunction, FloatArray, PackedCost, PaddedCost
from penstock.scheduler.costs.table import CostTable, LearnedCost

IntArray = npt.NDArray[np.int64]
# Of n sequences in ascending order: lengths [n]; sums [n + 1] over the first ones of their tokens, and of
# beta * tokens + gamma * tokens^2.
_Queue = tuple[FloatArray, FloatArray, FloatArray]
# See CostTable: law [floor, alpha, beta, gamma], padded, sizes [S], lengths [L], cells [S + 1, L + 1, 4].
_Table = tuple[FloatArray, bool, FloatArray, FloatArray, FloatArray]

_flat = lru_cache(CostTable)


def cheapest_cuts(
    ascending: FloatArray, cost: CostFunction, *, max_sequences: int, max_tokens: int, max_seconds: float = math.inf
) -> tuple[list[int], list[float]]:
    """Cut sequences of these lengths, in ascending order, into batches with the least total of seconds.

    Returns ([0, ..., n], seconds of each batch). C[0] = 0 and C[j] = min over i < j of C[i] + cost(i..j), where a batch
    of two or more that breaks a cap costs infinity. (The paper's printed listing has index slips; this is its Eq. 2
    with `cost` as the whole batch's seconds.) The compiled recurrence reads the cost's table: TypeError if it has none.

    Contiguity loses nothing when the cost depends on (longest, count) alone and never falls with the longest, as in an
    engine that pads. Deal the longest sequences to the batch with the largest maximum, the next to the next: no
    batch's maximum, cost, or use of a cap grows. Under a packed cost the optimum may not be contiguous.
    """
    scale, table = (cost.scale, cost.table) if isinstance(cost, LearnedCost) else (1.0, cost)
    table = _flat(table) if isinstance(table, PackedCost) else table
    if not isinstance(table, CostTable):
        raise TypeError(f"The dynamic program needs a cost with a table. Given: {type(cost).__name__}")
    before = np.append(0.0, np.cumsum(ascending))
    stops = np.arange(1, len(before))
    if cost.padded:
        by_tokens = stops - (max_tokens // ascending).astype(np.int64)
    else:
        by_tokens = np.searchsorted(before, before[1:] - max_tokens)
    low = np.clip(np.maximum(by_tokens, stops - max_sequences), 0, stops - 1)
    work = (table.base.beta_s + table.base.gamma_s * ascending) * ascending
    queue = ascending, before, np.append(0.0, np.cumsum(work))
    best, cut = np.zeros(len(before)), np.zeros(len(before), dtype=np.int64)
    law = np.array(astuple(table.base), dtype=np.float64)
    load_kernel()(queue, low, (law, table.padded, *table.arrays), max_seconds / scale, best, cut)
    best *= scale
    cuts = [len(ascending)]
    while cuts[-1] > 0:
        cuts.append(int(cut[cuts[-1]]))
    cuts.reverse()
    return cuts, [float(best[stop] - best[start]) for start, stop in pairwise(cuts)]


@cache
def load_kernel() -> Any:
    """`_recurrence`, ready to run.

    For 1,000 sequences and batches of up to 512 it takes 0.7 to 1.1 ms, where numpy takes 50 (ABLATION.md).
    """
    queue, low = (np.ones(1), np.arange(2.0), np.arange(2.0)), np.zeros(1, dtype=np.int64)
    table = np.ones(4), True, *CostTable(PaddedCost(1.0, 1.0, 1.0, 1.0)).arrays
    arguments = queue, low, table, math.inf, np.zeros(2), np.zeros(2, dtype=np.int64)
    fast = frozenset({"nnan", "nsz"})  # no NaN comes in, and no zero's sign matters
    [kernel] = compiled([_recurrence], lambda kernel: kernel(*arguments), fast)
    return kernel


def _recurrence(
    queue: _Queue, low: IntArray, table: _Table, max_seconds: float, best: FloatArray, starts: IntArray
) -> None:
    """The recurrence in O(nB). `low` [n]: for each stop - 1 the first start that keeps the caps on count and tokens.

    Fills `best` [n + 1], given as zeros, with the least totals, and `starts` [n + 1] with the start of the last batch
    of each: of equal totals the first, so the largest batch. One sequence is always allowed.
    """
    ascending, tokens_before, work_before = queue
    law, padded, sizes, lengths, cells = table
    floor, alpha, beta, gamma = law[0], law[1], law[2], law[3]
    column = 0
    for stop in range(1, len(ascending) + 1):
        longest = ascending[stop - 1]
        while column < len(lengths) and lengths[column] <= longest:
            column += 1
        row_s = (beta + gamma * longest) * longest
        gap, start, least = 0, stop - 1, math.inf
        while start >= low[stop - 1]:
            # The batch grows within one cell of the table, where its factor is linear in its size.
            limit = sizes[gap] if gap < len(sizes) else math.inf
            constant = cells[gap, column, 0] + cells[gap, column, 1] * longest
            slope = cells[gap, column, 2] + cells[gap, column, 3] * longest
            while start >= low[stop - 1]:
                if padded:
                    size = float(stop - start)
                    work_s = row_s * size
                else:
                    size = tokens_before[stop] - tokens_before[start]
                    work_s = work_before[stop] - work_before[start]
                if size >= limit:
                    break
                seconds = max(alpha + work_s, floor) * (constant + slope * size)
                if (seconds <= max_seconds or start == stop - 1) and best[start] + seconds <= least:
                    least = best[start] + seconds
                    starts[stop] = start
                start -= 1
            gap += 1
        best[stop] = least
