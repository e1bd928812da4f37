"""Compiled: jobs join `Arrays`. Imported on first use, since numba takes half a second to load."""

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
from penstock.scheduler.cellular.index import find
from penstock.scheduler.cellular.inlining import inlined
from penstock.scheduler.cellular.types import Float64Array, Int32Array, Int64Array


def join(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, work: Float64Array, lists: Int32Array, order: Int32Array,
    counts: Int64Array, sizes: Int64Array,
    active: Int64Array, columns: Int64Array, due: Float64Array, estimates: Float64Array, graphs: Int32Array,
    device: int, num_devices: int,
) -> None:  # fmt: skip
    """Add active jobs with valid graphs, end to end, for which there is room, to the arrays of a device.

    `columns` [5, J]: ID, NUMBER, BULK, SLOTS, SIZE of each. `estimates` [J, 5]: fields of Estimate.
    """
    arrays = Arrays(nodes, edges, jobs, work, lists, order, counts, sizes)
    at = 0
    node_rows = np.empty(len(graphs), np.int32)
    rows = np.empty(len(due), np.int64)
    for number in range(len(rows)):
        num_nodes = graphs[at]
        cells, steps, offsets, dependencies = parts(graphs, at)
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
        active[find(active, columns[ID, number]), PLACE] = job * num_devices + device
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
            first, last = graphs[offsets + index], graphs[offsets + index + 1]
            cell = graphs[cells + index]
            nodes[node, CELL] = cell
            nodes[node, JOB] = job
            nodes[node, INDEX] = index
            nodes[node, LEFT] = graphs[steps + index]
            nodes[node, BLOCKED] = last - first
            nodes[node, ROWS] = 0
            nodes[node, EDGE] = NONE
            nodes[node, SIBLING] = jobs[job, NODE]
            nodes[node, ENDED] = 0
            jobs[job, NODE] = node
            for place in range(dependencies + first, dependencies + last):
                parent, edge = node_rows[graphs[place]], sizes[FREE_EDGE]
                sizes[FREE_EDGE] = edges[edge, NEXT_EDGE]
                sizes[EDGES_LEFT] -= 1
                edges[edge, CHILD] = node
                edges[edge, NEXT_EDGE] = nodes[parent, EDGE]
                nodes[parent, EDGE] = edge
            if first == last:  # it is ready
                nodes[node, NEXT] = lists[job, cell, 0]
                lists[job, cell, 0] = node
                if lists[job, cell, 1] == NONE:
                    lists[job, cell, 1] = node
                counts[jobs[job, BULK], READY + cell] += 1
        at = dependencies + graphs[at + 3]
    _insert(arrays, rows)


@inlined
def parts(graphs: Int32Array, at: int) -> tuple[int, int, int, int]:
    """Where the cells, steps, offsets and dependencies of a packed graph begin."""
    cells = at + 4
    steps = cells + graphs[at]
    offsets = steps + graphs[at + 1]
    return cells, steps, offsets, offsets + graphs[at + 2]


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
