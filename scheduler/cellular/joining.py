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
    OF_GRAPH,
    OF_SLOTS,
    OF_TIMES,
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


def check(
    graphs: Int32Array, columns: Int64Array, times: Float64Array, num_cells: int, max_slots: float
) -> tuple[int, int, int, int, float]:
    """Look for a job that breaks the contract of CellJob. Packed graphs lie end to end; `columns`: as in `join`.

    times [2, J]: arrival and deadline. Returns what is wrong, of the first job that has it: OF_TIMES, OF_SLOTS,
    OF_GRAPH, or NONE; that job; the slots of all jobs, and of bulk jobs; and the earliest deadline.
    """
    at = num_slots = num_bulk_slots = 0
    earliest = np.inf
    for job in range(columns.shape[1]):
        needed = columns[SLOTS, job]
        if not np.isfinite(times[0, job]) or np.isnan(times[1, job]):
            return OF_TIMES, job, 0, 0, earliest
        if not 1 <= needed <= max_slots:
            return OF_SLOTS, job, 0, 0, earliest
        at = _end_of_valid(graphs, at, num_cells)
        if at == NONE:
            return OF_GRAPH, job, 0, 0, earliest
        num_slots += needed
        num_bulk_slots += needed * columns[BULK, job]
        earliest = min(earliest, times[1, job])
    return NONE, 0, num_slots, num_bulk_slots, earliest


def count(graphs: Int32Array, num_jobs: int) -> tuple[int, int]:
    """Nodes and edges of valid graphs, end to end."""
    at = num_nodes = num_edges = 0
    for _ in range(num_jobs):
        nodes, edges = graphs[at], graphs[at + 3]
        num_nodes += nodes
        num_edges += edges
        at += 5 + 3 * nodes + edges
    return num_nodes, num_edges


def join(
    nodes: Int32Array, edges: Int32Array, jobs: Int64Array, is_gone: BoolArray, due: Float64Array, work: Float64Array,
    lists: Int32Array, ready: Int64Array, order: Int32Array, num_jobs: Int64Array, slots: Int64Array, sizes: Int64Array,
    columns: Int64Array, due_at: Float64Array, estimates: Float64Array, graphs: Int32Array,
    rows: Int64Array,
) -> None:  # fmt: skip
    """Add jobs with valid graphs, end to end, for which there is room. Writes the row of each to `rows`.

    `columns` [5, J]: ID, NUMBER, BULK, SLOTS, SIZE of each. `estimates` [J, 5]: fields of Estimate.
    """
    arrays = Arrays(nodes, edges, jobs, is_gone, due, work, lists, ready, order, num_jobs, slots, sizes)
    at = 0
    node_rows = np.empty(len(graphs), np.int32)
    for number in range(len(rows)):
        num_nodes = graphs[at]
        cells, steps, offsets, dependencies = _parts(graphs, at)
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
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


def measure(
    graphs: Int32Array, columns: Int64Array, times: Float64Array, step_s: Float64Array, row_s: Float64Array,
    share: float, slowdown: float, max_slots: float, num_devices: float, found: Float64Array,
) -> tuple[float, float]:  # fmt: skip
    """Predict the times of jobs with valid graphs, end to end, of whose chains a share of the steps runs.

    `columns`, `times`: as in `check`; `step_s`: seconds of a step of each cell; `row_s`: of one of its rows. Writes the
    fields of Estimate to `found` [G, 5]. Bulk jobs have no work: they give way to others. Returns the earliest moment
    at which an online job must begin to be in time, and the work of all.
    """
    at = 0
    earliest, total_s = np.inf, 0.0
    ends = np.zeros(len(graphs))
    for graph in range(len(found)):
        cells, steps, offsets, dependencies = _parts(graphs, at)
        path_s = work_s = expected_steps = asked_steps = 0.0
        for index in range(graphs[at]):
            cell, asked = graphs[cells + index], graphs[steps + index]
            expected = max(1.0, asked * share)
            begin = 0.0
            for place in range(dependencies + graphs[offsets + index], dependencies + graphs[offsets + index + 1]):
                begin = max(begin, ends[graphs[place]])
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
        total_s += work_s
        if not columns[BULK, graph]:
            earliest = min(earliest, times[1, graph] - slowdown * path_s)
        at = dependencies + graphs[at + 3]
    return earliest, total_s


def sum_left(order: Int32Array, num_jobs: Int64Array, work: Float64Array, left_s: Float64Array) -> None:
    """Write the work that is left before each online job, in the order in which they are due, and of all [J + 1]."""
    total = left_s[0] = 0.0
    for place in range(num_jobs[0]):
        job = order[0, place]
        total += work[job, WORK_S] * max(1.0 - work[job, RAN] / work[job, EXPECTED], _LEAST_LEFT)
        left_s[place + 1] = total


@_inlined
def _end_of_valid(graphs: Int32Array, at: int, num_cells: int) -> int:
    """Where the packed graph after this one begins; NONE: this one breaks the contract of CellGraph."""
    nodes, edges = graphs[at], graphs[at + 3]
    if nodes < 1 or graphs[at + 1] != nodes or graphs[at + 2] != nodes + 1:
        return NONE
    cells, steps, offsets, dependencies = _parts(graphs, at)
    if graphs[offsets] != 0 or graphs[offsets + nodes] != edges:
        return NONE
    for index in range(nodes):
        first, last = graphs[offsets + index], graphs[offsets + index + 1]
        is_cell = 0 <= graphs[cells + index] < num_cells and graphs[steps + index] >= 1
        if not (is_cell and 0 <= first <= last <= edges):
            return NONE
        for place in range(dependencies + first, dependencies + last):
            if not 0 <= graphs[place] < index:
                return NONE
    return dependencies + edges  # type: ignore[no-any-return]  # numpy's


@_inlined
def _parts(graphs: Int32Array, at: int) -> tuple[int, int, int, int]:
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
