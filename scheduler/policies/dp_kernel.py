"""The compiled recurrence of dp.py, which imports it on first use: numba takes half a second to load.

For 1,000 sequences and batches of up to 512 it takes 0.7 to 1.1 ms, where numpy takes 50 (ABLATION.md).
"""

import math
from typing import cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.dispatcher import Dispatcher

from penstock.scheduler.costs.cost import FloatArray

IntArray = npt.NDArray[np.int64]
# Of n sequences in ascending order: lengths [n]; sums [n + 1] over the first ones of their tokens, and of
# beta * tokens + gamma * tokens^2.
Queue = tuple[FloatArray, FloatArray, FloatArray]
# See CostTable: law [floor, alpha, beta, gamma], padded, sizes [S], lengths [L], cells [S + 1, L + 1, 4].
Table = tuple[FloatArray, bool, FloatArray, FloatArray, FloatArray]

_FAST = {"nnan", "nsz"}  # no NaN comes in, and no zero's sign matters


def _compiled(function: object) -> Dispatcher:
    """Compile a function, and keep it for the next process where there is a place to write."""
    try:
        return cast(Dispatcher, njit(fastmath=_FAST, cache=True)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache folder
        return cast(Dispatcher, njit(fastmath=_FAST)(function))


def without_cache(compiled: Dispatcher) -> Dispatcher:
    """The same function, compiled for this process alone, where a kept one cannot be read or written."""
    return cast(Dispatcher, njit(fastmath=_FAST)(compiled.py_func))


@_compiled
def cut(queue: Queue, low: IntArray, table: Table, max_seconds: float, best: FloatArray, starts: IntArray) -> None:
    """The recurrence in O(nB). `low` [n]: for each stop - 1 the first start that keeps the caps on count and tokens.

    `best` [n + 1] comes as zeros and leaves as least totals, `starts` [n + 1] as the start of the last batch of each,
    of equal totals the first, which is the largest batch. One sequence is always allowed.
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
