"""Compiled: jobs join `Arrays`. Imported on first use, since numba takes half a second to load."""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba.extending import register_jitable

from penstock.scheduler.cellular.arrays import (
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
    ROWS,
    SIBLING,
    SIZE,
    SLOTS,
    Arrays,
)
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array

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
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, is_gone: BoolArray, due: Float64Array, lists: Int32Array,
    ready: Int64Array, order: Int32Array, num_jobs: Int64Array, slots: Int64Array, sizes: Int64Array,
    columns: Int64Array, due_at: Float64Array, num_nodes: Int64Array, cells: Int32Array, steps: Int32Array,
    offsets: Int32Array, dependencies: Int32Array, rows: Int64Array,
) -> None:  # fmt: skip
    """Add jobs with valid graphs, end to end, for which there is room. Writes the row of each to `rows`.

    `columns`: ID, NUMBER, BULK, SLOTS, SIZE of each.
    """
    arrays = Arrays(nodes, edges, jobs, is_gone, due, lists, ready, order, num_jobs, slots, sizes)
    begin = place = edge_begin = 0
    node_rows = np.empty(num_nodes.max(), np.int32)
    for number in range(len(num_nodes)):
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
        jobs[job, ID : SIZE + 1] = columns[number]
        jobs[job, OPEN] = num_nodes[number]
        jobs[job, OUTSTANDING] = 0
        jobs[job, NODE] = NONE
        is_gone[job] = False
        due[job] = due_at[number]
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
    sizes: Int64Array,
    cells: Int32Array,
    steps: Int32Array,
    offsets: Int32Array,
    dependencies: Int32Array,
    step_s: Float64Array,
    row_s: Float64Array,
    share: float,
    found: Float64Array,
) -> None:
    """Times of valid graphs, end to end, of whose chains a share of the steps runs.

    `step_s`: seconds of a step of each cell; `row_s`: of one of its rows. Writes to `found` [G, 4]: seconds of the
    longest path, seconds of all rows, expected steps, steps.
    """
    node = place = edge = 0
    ends = np.zeros(max(1, sizes[0].max()))
    for graph in range(sizes.shape[1]):
        for index in range(sizes[0, graph]):
            cell, asked = cells[node + index], steps[node + index]
            expected = max(1.0, asked * share)
            begin = 0.0
            for at in range(edge + offsets[place + index], edge + offsets[place + index + 1]):
                begin = max(begin, ends[dependencies[at]])
            ends[index] = begin + expected * step_s[cell]
            found[graph, 0] = max(found[graph, 0], ends[index])
            found[graph, 1] += expected * row_s[cell]
            found[graph, 2] += expected
            found[graph, 3] += asked
        node += sizes[0, graph]
        place += sizes[2, graph]
        edge += sizes[3, graph]


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
