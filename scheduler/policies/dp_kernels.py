"""The compiled half of dp.py, which imports it on first use: numba takes half a second to load.

A queue of n sequences in ascending order of length is (ascending [n], tokens_before [n + 1], work_before [n + 1]), the
latter two the sums over the first sequences of their tokens and of beta * tokens + gamma * tokens^2. A table is (law
[floor, alpha, beta, gamma], padded, sizes [S], lengths [L], cells [S + 1, L + 1, 4]), see CostTable. `low` [n] holds,
for each j - 1, the first i for which the batch i..j keeps the caps on count and tokens. Floats are float64, integers
int64, all arrays contiguous.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.dispatcher import Dispatcher

from penstock.scheduler.costs.cost import FloatArray

IntArray = npt.NDArray[np.int64]
Queue = tuple[FloatArray, FloatArray, FloatArray]
Table = tuple[FloatArray, bool, FloatArray, FloatArray, FloatArray]
Compiled = TypeVar("Compiled", bound=Callable[..., object])

_OVER = 1e300  # seconds of a batch over a cap; an infinity would be outside what "nnan" allows (inf - inf)
_ROUNDING = 1e-12  # relative
_WIDTH = 64  # numbers, some vectors' worth
# No NaN comes in, and no zero's sign matters: so the compiler may take minima eight at a time.
_FAST = {"nnan", "nsz"}


def _part(function: Compiled) -> Compiled:
    """A compiled function for others here to call."""
    return cast(Compiled, njit(fastmath=_FAST)(function))


def _entry(function: Compiled) -> Compiled:
    """A compiled function for dp.py to call, kept for the next process wherever there is a place to write."""
    try:
        return cast(Compiled, njit(fastmath=_FAST, cache=True)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache folder
        return _part(function)


def without_cache(entry: Dispatcher) -> Dispatcher:
    """The same function, compiled for this process alone: what is kept of it cannot be read, or not be written."""
    return cast(Dispatcher, njit(fastmath=_FAST)(entry.py_func))


@_part
def _gap(knots: FloatArray, value: float) -> int:
    """How many knots are at most `value`."""
    low, high = 0, len(knots)
    while low < high:
        middle = (low + high) // 2
        if knots[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@_part
def _price_padded(row: FloatArray, longest: float, table: Table) -> None:
    """row[k] = seconds of a batch of len(row) - k sequences padded to `longest`."""
    law, _, sizes, lengths, cells = table
    floor, alpha, beta, gamma = law[0], law[1], law[2], law[3]
    one = (beta + gamma * longest) * longest
    column = _gap(lengths, longest)
    gap = _gap(sizes, 1.0)
    stop = len(row)
    while stop > 0:
        start = 0
        if gap < len(sizes):
            start = max(0, int(np.floor(len(row) - sizes[gap])) + 1)
        p, q, r, s = cells[gap, column]
        constant, slope = p + q * longest, r + s * longest
        part, most = row[start:stop], float(len(row) - start)
        for k in range(len(part)):
            count = most - k
            part[k] = max(alpha + one * count, floor) * (constant + slope * count)
        stop = start
        gap += 1


@_part
def _price_packed(row: FloatArray, first: int, stop: int, queue: Queue, table: Table) -> None:
    """row[k] = seconds of the batch first + k..stop."""
    law, _, sizes, lengths, cells = table
    floor = law[0]
    ascending, tokens_before, work_before = queue
    longest, tokens_to, work_to = ascending[stop - 1], tokens_before[stop], law[1] + work_before[stop]
    column = _gap(lengths, longest)
    gap = _gap(sizes, longest)
    end = stop
    while end > first:
        start = first
        if gap < len(sizes):
            start = max(first, _gap(tokens_before, tokens_to - sizes[gap]))
        p, q, r, s = cells[gap, column]
        slope = r + s * longest
        constant = p + q * longest + slope * tokens_to
        part = row[start - first : end - first]
        tokens_from, work_from = tokens_before[start:end], work_before[start:end]
        for k in range(len(part)):
            part[k] = max(work_to - work_from[k], floor) * (constant - slope * tokens_from[k])
        end = start
        gap += 1


@_part
def _least(row: FloatArray, minima: FloatArray) -> float:
    """The least of a row of one or more. `minima` [few] is overwritten: a running minimum of single numbers is a chain
    that each must wait for, where one of vectors is not, so the row is first laid over itself in that width.
    """
    width = len(minima)
    minima[:] = row[0]
    for start in range(0, len(row), width):
        part = row[start : start + width]
        for k in range(len(part)):
            minima[k] = min(minima[k], part[k])
    least: float = minima[0]
    for k in range(1, width):
        least = min(least, minima[k])
    return least


@_part
def _add_before(row: FloatArray, before: FloatArray, max_seconds: float) -> None:
    """Seconds of last batches become totals with what is best before each. The shortest batch is always allowed."""
    alone = before[-1] + row[-1]
    for k in range(len(row)):
        row[k] = before[k] + (row[k] if row[k] <= max_seconds else _OVER)
    row[-1] = alone


@_part
def _first(row: FloatArray, value: float) -> int:
    """Where a value of the row comes first."""
    k = 0
    while k < len(row) - 1 and row[k] != value:
        k += 1
    return k


@_entry
def settle_block(
    prices: FloatArray, begin: int, low: IntArray, max_seconds: float, best: FloatArray, cut: IntArray
) -> None:
    """Take the recurrence through the rows of `prices` [rows, width], which end at begin + 1, begin + 2, ...

    Column c of the row that ends at j is the batch j - width + c..j. Overwrites `prices`.
    """
    minima = np.empty(_WIDTH)
    for index in range(len(prices)):
        stop = begin + index + 1
        first = low[stop - 1]
        row = prices[index, prices.shape[1] - (stop - first) :]
        _add_before(row, best[first:stop], max_seconds)
        best[stop] = _least(row, minima)
        cut[stop] = first + _first(row, best[stop])


@_part
def _price(row: FloatArray, first: int, stop: int, queue: Queue, table: Table) -> None:
    """row[k] = seconds of the batch first + k..stop, whatever the table's kind."""
    if table[1]:
        _price_padded(row, queue[0][stop - 1], table)
    else:
        _price_packed(row, first, stop, queue, table)


@_entry
def cut_by_row(queue: Queue, low: IntArray, table: Table, max_seconds: float, best: FloatArray, cut: IntArray) -> None:
    """The recurrence in O(nB), for any table. `best` [n + 1] must come as zeros; of `cut`, what leads from the last to
    the first is filled in: where a minimum lies is looked for on that way alone, of equals the first, which is the
    largest batch.
    """
    num = len(queue[0])
    buffer, minima = np.empty(num), np.empty(_WIDTH)
    for stop in range(1, num + 1):
        first = low[stop - 1]
        row = buffer[: stop - first]
        _price(row, first, stop, queue, table)
        _add_before(row, best[first:stop], max_seconds)
        best[stop] = _least(row, minima)
    stop = num
    while stop > 0:
        first = low[stop - 1]
        row = buffer[: stop - first]
        _price(row, first, stop, queue, table)
        _add_before(row, best[first:stop], max_seconds)
        cut[stop] = first + _first(row, best[stop])
        stop = cut[stop]


@_entry
def cut_by_takeover(
    queue: Queue, low: IntArray, table: Table, max_seconds: float, best: FloatArray, cut: IntArray
) -> None:
    """The recurrence in O(n log n), for tables that pass the quadrangle test (Hirschberg and Larmore, 1987).

    There a later start that is once as good as an earlier one stays so for every later stop. So the starts in play form
    a line in which each takes over from the one before at a known stop, found by bisection.
    """
    law, padded, sizes, lengths, cells = table
    floor, alpha, beta, gamma = law[0], law[1], law[2], law[3]
    ascending, _, work_before = queue
    num = len(ascending)
    columns = np.zeros(num + 1, dtype=np.int64)
    gaps = np.zeros(num + 1, dtype=np.int64)  # by count; for a packed cost all factors are equal, and any gap will do
    for k in range(1, num + 1):
        columns[k] = _gap(lengths, ascending[k - 1])
        gaps[k] = _gap(sizes, float(k))

    def total(start: int, stop: int) -> float:
        longest, count = ascending[stop - 1], float(stop - start)
        padded_work = (beta + gamma * longest) * longest * count
        work = padded_work if padded else work_before[stop] - work_before[start]
        cell = cells[gaps[stop - start], columns[stop]]
        factor = cell[0] + cell[1] * longest + (cell[2] + cell[3] * longest) * count
        seconds = max(alpha + work, floor) * factor
        fits = start == stop - 1 or (start >= low[stop - 1] and seconds <= max_seconds)
        at_best: float = best[start] + (seconds if fits else _OVER)
        return at_best

    starts, since = np.zeros(num + 1, dtype=np.int64), np.zeros(num + 1, dtype=np.int64)
    head, tail = 0, 0  # in play: starts[head..tail]
    for stop in range(1, num + 1):
        while head < tail and since[head + 1] <= stop:
            head += 1
        best[stop] = total(starts[head], stop)
        cut[stop] = starts[head]
        # `stop` is a start from now on: it drives out those that it beats from the moment they would have taken over.
        while tail > head and total(stop, since[tail]) <= total(starts[tail], since[tail]):
            tail -= 1
        early, late = max(since[tail], stop) + 1, num + 1
        while early < late:
            middle = (early + late) // 2
            if total(stop, middle) <= total(starts[tail], middle):
                late = middle
            else:
                early = middle + 1
        if early <= num:
            tail += 1
            starts[tail], since[tail] = stop, early


@_entry
def obeys_quadrangle(table: Table, max_longest: int, max_count: int) -> bool:
    """Whether a padded table never falls, and w(a, c) + w(b, d) <= w(a, d) + w(b, c) for all a < b < c < d, in every
    queue of lengths up to `max_longest` and batches up to `max_count`.

    Both follow from, and need, f(l', m + 2) - f(l', m + 1) >= f(l, m + 1) - f(l, m) >= 0 for all l <= l'. Exact, but
    for rounding: every length and count is looked at.
    """
    row, shorter = np.zeros(max_count), np.zeros(max_count)
    steepest = np.zeros(max_count)  # [m]: greatest f(l, m + 1) - f(l, m) so far
    for longest in range(1, max_longest + 1):
        _price_padded(row, float(longest), table)
        slack = _ROUNDING * row[0]
        for k in range(max_count):
            if row[k] < shorter[k] - slack:
                return False
            shorter[k] = row[k]
        for count in range(1, max_count):
            step = row[max_count - count - 1] - row[max_count - count]
            steepest[count] = max(steepest[count], step)
            if step < steepest[count - 1] - slack:
                return False
    return True
