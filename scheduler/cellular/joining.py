"""Compiled: jobs join `Arrays`. Imported on first use, since numba takes half a second to load."""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba.extending import register_jitable

from penstock.scheduler.cellular.arrays import (
    ASKED,
    BEGAN,
    BLOCKED,
    BULK,
    CELL,
    CHILD,
    EDGE,
    EDGES_LEFT,
    ENDED,
    EXPECTED,
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
    RAN,
    ROWS,
    SIBLING,
    SIZE,
    SLOTS,
    WORK_S,
    Arrays,
)
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array

_LEAST_LEFT = 0.05  # of the work of a job that runs more steps than were expected

_Function = TypeVar("_Function", bound=Callable[..., object])
_inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it


def find_invalid(
    sizes: Int64Array,
    cells: Int32Array,
    steps: Int32Array,
    offsets: Int32Array,
    dependencies: Int32Array,
    num_cells: int,
) -> int:
    """The first graph that breaks the contract of CellGraph, or NONE. Graphs lie end to end: see table.Graphs."""
    node = place = edge = 0
    for graph in range(sizes.shape[1]):
        nodes, num_steps, num_offsets, edges = sizes[0, graph], sizes[1, graph], sizes[2, graph], sizes[3, graph]
        if nodes < 1 or num_steps != nodes or num_offsets != nodes + 1:
            return graph
        if offsets[place] != 0 or offsets[place + nodes] != edges:
            return graph
        for index in range(nodes):
            first, last = offsets[place + index], offsets[place + index + 1]
            if not (0 <= cells[node + index] < num_cells and steps[node + index] >= 1 and 0 <= first <= last <= edges):
                return graph
            for at in range(edge + first, edge + last):
                if not 0 <= dependencies[at] < index:
                    return graph
        node += nodes
        place += nodes + 1
        edge += edges
    return NONE


def join(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, is_gone: BoolArray, due: Float64Array, work: Float64Array,
    lists: Int32Array, ready: Int64Array, order: Int32Array, num_jobs: Int64Array, slots: Int64Array, sizes: Int64Array,
    columns: Int64Array, due_at: Float64Array, estimates: Float64Array, num_nodes: Int64Array, cells: Int32Array,
    steps: Int32Array, offsets: Int32Array, dependencies: Int32Array, rows: Int64Array,
) -> None:  # fmt: skip
    """Add jobs with valid graphs, end to end, for which there is room. Writes the row of each to `rows`.

    `columns` [5, J]: ID, NUMBER, BULK, SLOTS, SIZE of each. `estimates` [J, 5]: fields of Estimate.
    """
    arrays = Arrays(nodes, edges, jobs, is_gone, due, work, lists, ready, order, num_jobs, slots, sizes)
    begin = place = edge_begin = 0
    node_rows = np.empty(num_nodes.max(), np.int32)
    for number in range(len(num_nodes)):
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
        jobs[job, ID : SIZE + 1] = columns[:, number]
        jobs[job, OPEN] = num_nodes[number]
        jobs[job, OUTSTANDING] = 0
        jobs[job, NODE] = NONE
        is_gone[job] = False
        due[job] = due_at[number]
        work[job, :RAN] = estimates[number, :RAN]
        work[job, RAN], work[job, BEGAN] = 0.0, np.inf
        lists[job] = NONE
        slots[jobs[job, BULK]] += jobs[job, SLOTS]
        for index in range(num_nodes[number]):
            node = sizes[FREE_NODE]
            sizes[FREE_NODE] = nodes[node, NEXT]
            sizes[NODES_LEFT] -= 1
            node_rows[index] = node
            first, last = offsets[place + index], offsets[place + index + 1]
            nodes[node, CELL] = cells[begin + index]
            nodes[node, JOB] = job
            nodes[node, INDEX] = index
            nodes[node, LEFT] = steps[begin + index]
            nodes[node, BLOCKED] = last - first
            nodes[node, ROWS] = 0
            nodes[node, EDGE] = NONE
            nodes[node, SIBLING] = jobs[job, NODE]
            nodes[node, ENDED] = 0
            jobs[job, NODE] = node
            for at in range(edge_begin + first, edge_begin + last):
                parent, edge = node_rows[dependencies[at]], sizes[FREE_EDGE]
                sizes[FREE_EDGE] = edges[edge, NEXT_EDGE]
                sizes[EDGES_LEFT] -= 1
                edges[edge, CHILD] = node
                edges[edge, NEXT_EDGE] = nodes[parent, EDGE]
                nodes[parent, EDGE] = edge
            if first == last:  # it is ready
                ready_list = lists[job, cells[begin + index]]
                nodes[node, NEXT] = ready_list[0]
                ready_list[0] = node
                if ready_list[1] == NONE:
                    ready_list[1] = node
                ready[jobs[job, BULK], cells[begin + index]] += 1
        begin += num_nodes[number]
        place += num_nodes[number] + 1
        edge_begin += offsets[place - 1]
        _insert(arrays, job)


def measure(
    sizes: Int64Array, cells: Int32Array, steps: Int32Array, offsets: Int32Array, dependencies: Int32Array,
    columns: Int64Array, step_s: Float64Array, row_s: Float64Array, share: float, slowdown: float, max_slots: float,
    num_devices: float, found: Float64Array,
) -> None:  # fmt: skip
    """Predict the times of jobs with valid graphs, end to end, of whose chains a share of the steps runs.

    `columns`: as in `join`; `step_s`: seconds of a step of each cell; `row_s`: of one of its rows. Writes the fields of
    Estimate to `found` [G, 5]. Bulk jobs have no work: they give way to others.
    """
    node = place = edge = 0
    ends = np.zeros(max(1, sizes[0].max()))
    for graph in range(sizes.shape[1]):
        path_s = work_s = expected_steps = asked_steps = 0.0
        for index in range(sizes[0, graph]):
            cell, asked = cells[node + index], steps[node + index]
            expected = max(1.0, asked * share)
            begin = 0.0
            for at in range(edge + offsets[place + index], edge + offsets[place + index + 1]):
                begin = max(begin, ends[dependencies[at]])
            ends[index] = begin + expected * step_s[cell]
            path_s = max(path_s, ends[index])
            work_s += expected * row_s[cell]
            expected_steps += expected
            asked_steps += asked
        slots_s = path_s * min(1.0, columns[SLOTS, graph] / max_slots)
        work_s = 0.0 if columns[BULK, graph] else slowdown * max(work_s, slots_s) / num_devices
        found[graph, PATH_S], found[graph, WORK_S] = path_s, work_s
        found[graph, EXPECTED], found[graph, ASKED] = expected_steps, asked_steps
        found[graph, ASKED + 1] = slowdown * path_s
        node += sizes[0, graph]
        place += sizes[2, graph]
        edge += sizes[3, graph]


def sum_left(order: Int32Array, num_jobs: Int64Array, work: Float64Array, left_s: Float64Array) -> None:
    """Write the work that is left before each online job, in the order in which they are due, and of all [J + 1]."""
    total = left_s[0] = 0.0
    for place in range(num_jobs[0]):
        job = order[0, place]
        total += work[job, WORK_S] * max(1.0 - work[job, RAN] / work[job, EXPECTED], _LEAST_LEFT)
        left_s[place + 1] = total


@_inlined
def _insert(arrays: Arrays, job: int) -> None:
    """Put a job at its place in the order. Most are due last."""
    jobs, due = arrays.jobs, arrays.due
    group = jobs[job, BULK]
    place = arrays.num_jobs[group]
    while place > 0:
        other = arrays.order[group, place - 1]
        if due[other] < due[job] or (due[other] == due[job] and jobs[other, NUMBER] < jobs[job, NUMBER]):
            break
        arrays.order[group, place] = other
        place -= 1
    arrays.order[group, place] = job
    arrays.num_jobs[group] += 1
