"""Compiled: nodes in `Arrays` are planned and end. Imported on first use, as joining.py.

In numpy, each of these would take several passes over all jobs. A kernel takes the arrays one by one, since numba takes
microseconds to unpack a tuple of them. A helper's call with all arrays costs as much as some ten rows of work, since
numba counts references; so most helpers take many rows.
"""

import numpy as np

from penstock.scheduler.cellular.arrays import (
    ASKED,
    BEGAN,
    BLOCKED,
    BULK,
    CELL,
    CHILD,
    EDGE,
    ENDED,
    EXPECTED,
    ID,
    INDEX,
    JOB,
    LEFT,
    NEXT,
    NEXT_EDGE,
    NONE,
    NUM_JOBS,
    OPEN,
    OUTSTANDING,
    PATH_S,
    RAN,
    READY,
    ROWS,
    SIZE,
    WORK_S,
    Arrays,
)
from penstock.scheduler.cellular.index import find, inlined, remove
from penstock.scheduler.cellular.joining import compact, free
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array


def plan(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, work: Float64Array, lists: Int32Array, order: Int32Array,
    counts: Int64Array, sizes: Int64Array,
    cell: int, quantum: int, max_size: int, now: float, rows: Int32Array, steps: Int32Array, ids: Int64Array,
    indices: Int32Array, begun: Int64Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Put the ready nodes of a cell that are due first into a task: `rows` to `indices`. `begun`: jobs new to tasks.

    Returns how many rows were filled, the most steps of one, and the number of these jobs. All are filled where as many
    nodes are ready and the sum of their jobs' sizes is `max_size` at most. The first node that would exceed it ends the
    task, so that no later one overtakes it; one that is larger alone runs alone.
    """
    arrays = Arrays(nodes, edges, jobs, work, lists, order, counts, sizes)
    count = size = longest = num_begun = 0
    most = len(rows)
    for group in range(2):
        for place in range(counts[group, NUM_JOBS]):
            if count == most:
                break
            job = order[group, place]
            before, node = NONE, lists[job, cell, 0]
            while node != NONE and count < most:
                if count > 0 and size + jobs[job, SIZE] > max_size:
                    most = count
                    break
                following = nodes[node, NEXT]
                taken = min(nodes[node, LEFT], quantum)
                longest = max(longest, taken)
                size += jobs[job, SIZE]
                rows[count], steps[count], ids[count], indices[count] = node, taken, jobs[job, ID], nodes[node, INDEX]
                count += 1
                nodes[node, LEFT] -= taken
                nodes[node, ROWS] += 1
                jobs[job, OUTSTANDING] += 1
                if work[job, BEGAN] == np.inf:
                    work[job, BEGAN] = now
                    begun[num_begun] = jobs[job, ID]
                    num_begun += 1
                if nodes[node, LEFT] > 0:
                    before = node
                else:
                    counts[group, READY + cell] -= 1
                    _unlink(nodes, lists, node, before)
                node = following
    _release(arrays, rows[:count])  # only now: a node and what depends on it must not run in one task
    return count, longest, num_begun


def settle(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, work: Float64Array, lists: Int32Array, order: Int32Array,
    counts: Int64Array, sizes: Int64Array,
    active: Int64Array, rows: Int32Array, asked: Int32Array, ran: Int32Array, is_stopped: BoolArray, now: float,
    ended: Int64Array,
) -> tuple[int, float, float, float, float]:  # fmt: skip
    """The task of these rows has ended. Writes the ids of the jobs that ended with it, which leave `active`.

    Returns how many they are, and sums over them: fields of Ended.

    NONE, and nothing changed: a row ran more steps than asked, or fewer and did not stop.
    """
    arrays = Arrays(nodes, edges, jobs, work, lists, order, counts, sizes)
    for row in range(len(rows)):
        node = rows[row]
        may_be_short = is_stopped[row] or nodes[node, ENDED] or jobs[nodes[node, JOB], OPEN] == 0
        if not (ran[row] == asked[row] or (may_be_short and 0 <= ran[row] < asked[row])):
            return NONE, 0.0, 0.0, 0.0, 0.0
    stopped, free_jobs = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    num_stopped = num_free = num_ended = 0
    total_ran = total_asked = predicted_s = took_s = 0.0
    for row in range(len(rows)):
        node = rows[row]
        job = nodes[node, JOB]
        nodes[node, ROWS] -= 1
        jobs[job, OUTSTANDING] -= 1
        work[job, RAN] += ran[row]
        is_done = is_stopped[row] or (nodes[node, LEFT] == 0 and nodes[node, ROWS] == 0)
        if is_done and not nodes[node, ENDED] and jobs[job, OPEN] > 0:
            if nodes[node, LEFT] > 0:
                _withdraw(nodes, lists, node)
                counts[jobs[job, BULK], READY + nodes[node, CELL]] -= 1
                nodes[node, LEFT] = 0
                stopped[num_stopped] = node
                num_stopped += 1
            nodes[node, ENDED] = 1
            jobs[job, OPEN] -= 1
            if jobs[job, OPEN] == 0:
                ended[num_ended] = job
                num_ended += 1
        if jobs[job, OPEN] == 0 and jobs[job, OUTSTANDING] == 0:
            free_jobs[num_free] = job
            num_free += 1
    for place in range(num_ended):
        job = ended[place]
        ended[place] = jobs[job, ID]
        remove(active, find(active, jobs[job, ID]))
        total_ran += work[job, RAN]
        total_asked += work[job, ASKED]
        if work[job, WORK_S] > 0:
            predicted_s += work[job, PATH_S] * work[job, RAN] / work[job, EXPECTED]
            took_s += now - work[job, BEGAN]
    _release(arrays, stopped[:num_stopped])
    free(arrays, free_jobs[:num_free])
    if num_ended:
        compact(arrays, num_ended)
    return num_ended, total_ran, total_asked, predicted_s, took_s


@inlined
def _release(arrays: Arrays, rows: Int32Array) -> None:
    """All steps of these nodes have run or are in tasks, so that their dependents may be in later tasks.

    Nodes with steps that are left are skipped.
    """
    nodes, edges = arrays.nodes, arrays.edges
    first = NONE
    for node in rows:
        edge = nodes[node, EDGE] if nodes[node, LEFT] == 0 else NONE
        while edge != NONE:
            child = edges[edge, CHILD]
            nodes[child, BLOCKED] -= 1
            if nodes[child, BLOCKED] == 0:
                nodes[child, NEXT] = first
                first = child
            edge = edges[edge, NEXT_EDGE]
    if first != NONE:
        _append(arrays, first)


@inlined
def _append(arrays: Arrays, first: int) -> None:
    """Make nodes ready, which are linked by NEXT: each becomes the last of its job's."""
    nodes, lists, jobs, counts = arrays.nodes, arrays.lists, arrays.jobs, arrays.counts
    node = first
    while node != NONE:
        following = nodes[node, NEXT]
        cell, job = nodes[node, CELL], nodes[node, JOB]
        nodes[node, NEXT] = NONE
        last = lists[job, cell, 1]
        if last == NONE:
            lists[job, cell, 0] = node
        else:
            nodes[last, NEXT] = node
        lists[job, cell, 1] = node
        counts[jobs[job, BULK], READY + cell] += 1
        node = following


@inlined
def _withdraw(nodes: Int32Array, lists: Int32Array, node: int) -> None:
    """Take a node out of its job's ready ones. The caller counts."""
    before, ready = NONE, lists[nodes[node, JOB], nodes[node, CELL], 0]
    while ready != node:
        before, ready = ready, nodes[ready, NEXT]
    _unlink(nodes, lists, node, before)


@inlined
def _unlink(nodes: Int32Array, lists: Int32Array, node: int, before: int) -> None:
    """As `_withdraw`, where the ready node before it is known; NONE: it is the first."""
    cell, job, following = nodes[node, CELL], nodes[node, JOB], nodes[node, NEXT]
    if before == NONE:
        lists[job, cell, 0] = following
    else:
        nodes[before, NEXT] = following
    if following == NONE:
        lists[job, cell, 1] = before
