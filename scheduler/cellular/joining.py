"""Compiled: jobs join `Arrays`, and leave them. Imported on first use, since numba takes half a second to load."""

import numpy as np

from penstock.scheduler.cellular.arrays import (
    BEGAN,
    BLOCKED,
    BULK,
    CELL,
    CHILD,
    DUE,
    EDGE,
    EDGES_LEFT,
    ENDED,
    FREE_EDGE,
    FREE_JOB,
    FREE_NODE,
    ID,
    INDEX,
    JOB,
    JOBS_LEFT,
    LEFT,
    NEXT,
    NEXT_EDGE,
    NODE,
    NODES_LEFT,
    NONE,
    NUM_JOBS,
    NUM_SLOTS,
    NUMBER,
    OPEN,
    OUTSTANDING,
    PATH_S,
    PLACE,
    RAN,
    READY,
    ROWS,
    SIBLING,
    SIZE,
    SLOTS,
    Arrays,
)
from penstock.scheduler.cellular.index import find, inlined
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array


def count_fitting(
    columns: Int64Array, first: int, may_join: BoolArray, held: Int64Array, max_slots: float, most_bulk: float
) -> int:
    """How many of the waiting jobs from `first` on find slots, or may not join, before the first that finds none.

    columns [5, J]: ID, NUMBER, BULK, SLOTS, SIZE. may_join [N]. held [2]: slots that online and bulk jobs hold; those
    of the jobs that join are added. A bulk job joins where bulk jobs then hold `most_bulk` slots at most, or as the
    only one.
    """
    for row in range(len(may_join)):
        if not may_join[row]:
            continue
        needed, group = columns[SLOTS, first + row], columns[BULK, first + row]
        is_over_share = group and held[1] > 0 and held[1] + needed > most_bulk
        if held[0] + held[1] > 0 and (held[0] + held[1] + needed > max_slots or is_over_share):
            return row
        held[group] += needed
    return len(may_join)


def join(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, work: Float64Array, lists: Int32Array, order: Int32Array,
    counts: Int64Array, sizes: Int64Array,
    active: Int64Array, columns: Int64Array, due: Float64Array, estimates: Float64Array, graphs: Int32Array,
) -> None:  # fmt: skip
    """Add active jobs with valid graphs, end to end, for which there is room.

    `columns` [5, J]: ID, NUMBER, BULK, SLOTS, SIZE of each. `estimates` [J, 5]: PATH_S to SLOWED_S.
    """
    arrays = Arrays(nodes, edges, jobs, work, lists, order, counts, sizes)
    at = 0
    node_rows = np.empty(len(graphs), np.int32)
    rows = np.empty(len(due), np.int64)
    for number in range(len(rows)):
        num_nodes = graphs[at]
        cells, steps, dependencies, end = parts(graphs, at)
        width = graphs[at + 3]
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
        active[find(active, columns[ID, number]), PLACE] = job
        for field in range(ID, SIZE + 1):
            jobs[job, field] = columns[field, number]
        jobs[job, OPEN] = num_nodes
        jobs[job, OUTSTANDING] = 0
        jobs[job, NODE] = NONE
        for field in range(PATH_S, RAN):
            work[job, field] = estimates[number, field]
        work[job, RAN], work[job, BEGAN], work[job, DUE] = 0.0, np.inf, due[number]
        for listed in range(lists.shape[1]):
            lists[job, listed, 0] = lists[job, listed, 1] = NONE
        counts[jobs[job, BULK], NUM_SLOTS] += jobs[job, SLOTS]
        for index in range(num_nodes):
            node = sizes[FREE_NODE]
            sizes[FREE_NODE] = nodes[node, NEXT]
            sizes[NODES_LEFT] -= 1
            node_rows[index] = node
            cell = graphs[cells + index]
            nodes[node, CELL] = cell
            nodes[node, JOB] = job
            nodes[node, INDEX] = index
            nodes[node, LEFT] = graphs[steps + index]
            nodes[node, BLOCKED] = 0
            nodes[node, ROWS] = 0
            nodes[node, EDGE] = NONE
            nodes[node, SIBLING] = jobs[job, NODE]
            nodes[node, ENDED] = 0
            jobs[job, NODE] = node
            for place in range(dependencies + index * width, dependencies + (index + 1) * width):
                other = graphs[place]
                if other == NONE:
                    continue
                parent, edge = node_rows[other], sizes[FREE_EDGE]
                sizes[FREE_EDGE] = edges[edge, NEXT_EDGE]
                sizes[EDGES_LEFT] -= 1
                edges[edge, CHILD] = node
                edges[edge, NEXT_EDGE] = nodes[parent, EDGE]
                nodes[parent, EDGE] = edge
                nodes[node, BLOCKED] += 1
            if nodes[node, BLOCKED] == 0:  # it is ready
                nodes[node, NEXT] = lists[job, cell, 0]
                lists[job, cell, 0] = node
                if lists[job, cell, 1] == NONE:
                    lists[job, cell, 1] = node
                counts[jobs[job, BULK], READY + cell] += 1
        at = end
    _insert(arrays, rows)


def drop(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, work: Float64Array, lists: Int32Array, order: Int32Array,
    counts: Int64Array, sizes: Int64Array,
    rows: Int64Array,
) -> None:  # fmt: skip
    """Remove jobs. The row of one with outstanding rows becomes free when those have ended."""
    arrays = Arrays(nodes, edges, jobs, work, lists, order, counts, sizes)
    free_jobs, num_free = np.empty(len(rows), np.int64), 0
    for job in rows:
        node = jobs[job, NODE]
        while node != NONE:
            if nodes[node, LEFT] > 0 and nodes[node, BLOCKED] == 0:
                counts[jobs[job, BULK], READY + nodes[node, CELL]] -= 1
            node = nodes[node, SIBLING]
        jobs[job, OPEN] = 0
        if jobs[job, OUTSTANDING] == 0:
            free_jobs[num_free] = job
            num_free += 1
    free(arrays, free_jobs[:num_free])
    compact(arrays, len(rows))


@inlined
def compact(arrays: Arrays, num_gone: int) -> None:
    """Remove so many jobs, which are gone, from the order. Those behind the last of them are not looked at."""
    for group in range(2):
        kept = 0
        for place in range(arrays.counts[group, NUM_JOBS]):
            job = arrays.order[group, place]
            if num_gone and arrays.jobs[job, OPEN] == 0:
                num_gone -= 1
            else:
                arrays.order[group, kept] = job
                kept += 1
        arrays.counts[group, NUM_JOBS] = kept


@inlined
def free(arrays: Arrays, rows: Int64Array) -> None:
    """Give back the rows of jobs, their nodes and their edges."""
    nodes, edges, jobs, sizes = arrays.nodes, arrays.edges, arrays.jobs, arrays.sizes
    for job in rows:
        arrays.counts[jobs[job, BULK], NUM_SLOTS] -= jobs[job, SLOTS]
        node = jobs[job, NODE]
        while node != NONE:
            edge = nodes[node, EDGE]
            while edge != NONE:
                following = edges[edge, NEXT_EDGE]
                edges[edge, NEXT_EDGE] = sizes[FREE_EDGE]
                sizes[FREE_EDGE] = edge
                sizes[EDGES_LEFT] += 1
                edge = following
            nodes[node, NEXT] = sizes[FREE_NODE]
            sizes[FREE_NODE] = node
            sizes[NODES_LEFT] += 1
            node = nodes[node, SIBLING]
        jobs[job, NODE] = sizes[FREE_JOB]
        sizes[FREE_JOB] = job
        sizes[JOBS_LEFT] += 1


@inlined
def parts(graphs: Int32Array, at: int) -> tuple[int, int, int, int]:
    """Where the cells, steps and dependencies of a packed graph begin, and where it ends."""
    cells = at + 4
    steps = cells + graphs[at]
    dependencies = steps + graphs[at + 1]
    return cells, steps, dependencies, dependencies + graphs[at + 2] * graphs[at + 3]


@inlined
def _insert(arrays: Arrays, rows: Int64Array) -> None:
    """Put jobs at their places in the order. Most are due last."""
    jobs, work, order, counts = arrays.jobs, arrays.work, arrays.order, arrays.counts
    for job in rows:
        group = jobs[job, BULK]
        place = counts[group, NUM_JOBS]
        while place > 0:
            other = order[group, place - 1]
            later = work[job, DUE] - work[other, DUE]
            if later > 0 or (later == 0 and jobs[other, NUMBER] < jobs[job, NUMBER]):
                break
            order[group, place] = other
            place -= 1
        order[group, place] = job
        counts[group, NUM_JOBS] += 1
