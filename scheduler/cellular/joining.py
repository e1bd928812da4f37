"""Compiled: jobs join `Arrays`. Imported on first use, since numba takes half a second to load."""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba.extending import register_jitable

from penstock.scheduler.cellular.arrays import (
    BEGAN,
    BLOCKED,
    BULK,
    CELL,
    CHILD,
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
    NUMBER,
    OPEN,
    OUTSTANDING,
    PATH_S,
    PLACE,
    RAN,
    ROWS,
    SIBLING,
    SIZE,
    SLOTS,
    Arrays,
)
from penstock.scheduler.cellular.index import find
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array

_Function = TypeVar("_Function", bound=Callable[..., object])
_inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it


def join(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, is_gone: BoolArray, due: Float64Array, work: Float64Array,
    lists: Int32Array, ready: Int64Array, order: Int32Array, num_jobs: Int64Array, slots: Int64Array, sizes: Int64Array,
    active: Int64Array, columns: Int64Array, due_at: Float64Array, estimates: Float64Array, graphs: Int32Array,
    device: int, num_devices: int,
) -> None:  # fmt: skip
    """Add active jobs with valid graphs, end to end, for which there is room, to the arrays of a device.

    `columns` [5, J]: ID, NUMBER, BULK, SLOTS, SIZE of each. `estimates` [J, 5]: fields of Estimate.
    """
    arrays = Arrays(nodes, edges, jobs, is_gone, due, work, lists, ready, order, num_jobs, slots, sizes)
    at = 0
    node_rows = np.empty(len(graphs), np.int32)
    rows = np.empty(len(due_at), np.int64)
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
        is_gone[job] = False
        due[job] = due_at[number]
        for field in range(PATH_S, RAN):
            work[job, field] = estimates[number, field]
        work[job, RAN], work[job, BEGAN] = 0.0, np.inf
        for listed in range(lists.shape[1]):
            lists[job, listed, 0] = lists[job, listed, 1] = NONE
        slots[jobs[job, BULK]] += jobs[job, SLOTS]
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
                ready[jobs[job, BULK], cell] += 1
        at = dependencies + graphs[at + 3]
    _insert(arrays, rows)


@_inlined
def parts(graphs: Int32Array, at: int) -> tuple[int, int, int, int]:
    """Where the cells, steps, offsets and dependencies of a packed graph begin."""
    cells = at + 4
    steps = cells + graphs[at]
    offsets = steps + graphs[at + 1]
    return cells, steps, offsets, offsets + graphs[at + 2]


@_inlined
def _insert(arrays: Arrays, rows: Int64Array) -> None:
    """Put jobs at their places in the order. Most are due last."""
    jobs, due, order, num_jobs = arrays.jobs, arrays.due, arrays.order, arrays.num_jobs
    for job in rows:
        group = jobs[job, BULK]
        place = num_jobs[group]
        while place > 0:
            other = order[group, place - 1]
            if due[other] < due[job] or (due[other] == due[job] and jobs[other, NUMBER] < jobs[job, NUMBER]):
                break
            order[group, place] = other
            place -= 1
        order[group, place] = job
        num_jobs[group] += 1
