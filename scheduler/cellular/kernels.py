"""Compiled operations on `Arrays`. Imported on first use: numba takes half a second to load.

Each visits a row a few times at most. In numpy, the same would take several passes over all jobs.
"""

import numpy as np
import numpy.typing as npt

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
    GONE,
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
    OPEN,
    OUTSTANDING,
    ROWS,
    SIBLING,
    SLOTS,
    Arrays,
)
from penstock.scheduler.cellular.links import append, compact, free, insert, release, withdraw
from penstock.scheduler.cellular.types import Float64Array, Int32Array, Int64Array


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
    arrays: Arrays,
    columns: Int64Array,
    due: Float64Array,
    num_nodes: Int64Array,
    cells: Int32Array,
    steps: Int32Array,
    offsets: Int32Array,
    dependencies: Int32Array,
    rows: Int64Array,
) -> None:
    """Add jobs with valid graphs, end to end, for which there is room. `columns`: ID, NUMBER, BULK, SLOTS of each.

    Writes the row of each job to `rows`.
    """
    nodes, edges, jobs, sizes = arrays.nodes, arrays.edges, arrays.jobs, arrays.sizes
    first_ready = NONE
    begin = place = edge_begin = 0
    node_rows = np.empty(num_nodes.max(), np.int32)
    for number in range(len(num_nodes)):
        job = sizes[FREE_JOB]
        sizes[FREE_JOB] = jobs[job, NODE]
        sizes[JOBS_LEFT] -= 1
        rows[number] = job
        jobs[job, ID : SLOTS + 1] = columns[number]
        jobs[job, OPEN] = num_nodes[number]
        jobs[job, OUTSTANDING] = 0
        jobs[job, NODE] = NONE
        jobs[job, GONE] = 0
        arrays.due[job] = due[number]
        arrays.lists[job] = NONE
        arrays.slots[jobs[job, BULK]] += jobs[job, SLOTS]
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
            if first == last:
                nodes[node, NEXT] = first_ready
                first_ready = node
        begin += num_nodes[number]
        place += num_nodes[number] + 1
        edge_begin += offsets[place - 1]
        insert(arrays, job)
    append(arrays, first_ready)


def plan(
    arrays: Arrays,
    cell: int,
    quantum: int,
    rows: Int32Array,
    steps: Int32Array,
    ids: Int64Array,
    indices: Int32Array,
) -> int:
    """Put the ready nodes of a cell that are due first into a task. The last four are its rows, all to be filled.

    Returns the most steps of a row; NONE where fewer nodes are ready.
    """
    nodes, jobs, lists = arrays.nodes, arrays.jobs, arrays.lists
    count = longest = 0
    for group in range(2):
        for place in range(arrays.num_jobs[group]):
            if count == len(rows):
                break
            job = arrays.order[group, place]
            before, node = NONE, lists[job, cell, 0]
            while node != NONE and count < len(rows):
                following = nodes[node, NEXT]
                taken = min(nodes[node, LEFT], quantum)
                longest = max(longest, taken)
                rows[count], steps[count], ids[count], indices[count] = node, taken, jobs[job, ID], nodes[node, INDEX]
                count += 1
                nodes[node, LEFT] -= taken
                nodes[node, ROWS] += 1
                jobs[job, OUTSTANDING] += 1
                if nodes[node, LEFT] > 0:
                    before = node
                else:
                    arrays.ready[group, cell] -= 1
                    if before == NONE:
                        lists[job, cell, 0] = following
                    else:
                        nodes[before, NEXT] = following
                    if following == NONE:
                        lists[job, cell, 1] = before
                node = following
    release(arrays, rows[:count])  # only now: a node and what depends on it must not run in one task
    return longest if count == len(rows) else NONE


def settle(
    arrays: Arrays,
    rows: Int32Array,
    asked: Int32Array,
    ran: Int32Array,
    is_stopped: npt.NDArray[np.bool_],
    ended: Int64Array,
) -> int:
    """The task of these rows has ended. Writes the ids of the jobs that ended with it, and returns how many.

    NONE, and nothing changed: a row ran more steps than asked, or fewer and did not stop.
    """
    nodes, jobs = arrays.nodes, arrays.jobs
    for row in range(len(rows)):
        node = rows[row]
        may_be_short = is_stopped[row] or nodes[node, ENDED] or jobs[nodes[node, JOB], GONE]
        if not (ran[row] == asked[row] or (may_be_short and 0 <= ran[row] < asked[row])):
            return NONE
    stopped, free_jobs = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    num_stopped = num_free = num_ended = 0
    for row in range(len(rows)):
        node = rows[row]
        job = nodes[node, JOB]
        nodes[node, ROWS] -= 1
        jobs[job, OUTSTANDING] -= 1
        is_done = is_stopped[row] or (nodes[node, LEFT] == 0 and nodes[node, ROWS] == 0)
        if is_done and not nodes[node, ENDED] and not jobs[job, GONE]:
            if nodes[node, LEFT] > 0:
                withdraw(nodes, arrays.lists, node)
                arrays.ready[jobs[job, BULK], nodes[node, CELL]] -= 1
                nodes[node, LEFT] = 0
                stopped[num_stopped] = node
                num_stopped += 1
            nodes[node, ENDED] = 1
            jobs[job, OPEN] -= 1
            if jobs[job, OPEN] == 0:
                jobs[job, GONE] = 1
                ended[num_ended] = jobs[job, ID]
                num_ended += 1
        if jobs[job, GONE] and jobs[job, OUTSTANDING] == 0:
            free_jobs[num_free] = job
            num_free += 1
    release(arrays, stopped[:num_stopped])
    free(arrays, free_jobs[:num_free])
    if num_ended:
        compact(arrays)
    return num_ended


def drop(arrays: Arrays, rows: Int64Array) -> None:
    """Remove jobs. The row of one with outstanding rows becomes free when those have ended."""
    nodes, jobs = arrays.nodes, arrays.jobs
    free_jobs, num_free = np.empty(len(rows), np.int64), 0
    for job in rows:
        node = jobs[job, NODE]
        while node != NONE:
            if nodes[node, LEFT] > 0 and nodes[node, BLOCKED] == 0:
                arrays.ready[jobs[job, BULK], nodes[node, CELL]] -= 1
            node = nodes[node, SIBLING]
        jobs[job, GONE] = 1
        if jobs[job, OUTSTANDING] == 0:
            free_jobs[num_free] = job
            num_free += 1
    free(arrays, free_jobs[:num_free])
    compact(arrays)
