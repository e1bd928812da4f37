"""The arrays that hold jobs and their nodes, and their fields. Links between rows are indices; NONE ends a list."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.scheduler.cellular.types import Float64Array, Int32Array, Int64Array

NONE = -1
NO_MAXIMUM = 2**62  # of the sizes of a task's rows

# Fields of a node. LEFT: steps that are in no task yet. BLOCKED: dependencies with steps that are in no task yet.
# ROWS: outstanding tasks that hold it. NEXT: in its job's list of ready nodes; of a free row, the next free one.
# SIBLING: the next node of its job. A node is ready while LEFT > 0, BLOCKED == 0 and its job is not gone.
CELL, JOB, INDEX, LEFT, BLOCKED, ROWS, EDGE, NEXT, SIBLING, ENDED = range(10)
# Fields of an edge, which is in the list of the node that its child waits for.
CHILD, NEXT_EDGE = range(2)
# Fields of a job. OPEN: nodes that have not ended; 0: it has ended or left, and its row is free once no row is
# outstanding. OUTSTANDING: rows of outstanding tasks. NODE: its first node; of a free row, the next free one.
ID, NUMBER, BULK, SLOTS, SIZE, OPEN, OUTSTANDING, NODE = range(8)
# Fields of a job's work. The first five are estimates on its arrival. PATH_S: from its first step to its last, by the
# table of costs. WORK_S: for which it keeps the device busy. EXPECTED: steps, as chains may stop before their last;
# ASKED: of all nodes. SLOWED_S: as PATH_S, as jobs have been slower or faster than the table says.
# Then RAN: steps. BEGAN: when its first task was planned.
PATH_S, WORK_S, EXPECTED, ASKED, SLOWED_S, RAN, BEGAN, DUE = range(8)
NUM_ESTIMATES = 5
# Times of a job that is in no table yet.
ARRIVAL, DEADLINE, DUE_AT = range(3)
# Counts of a class: jobs in `order`, state slots of jobs until their rows are free, and from READY on ready nodes by
# cell.
NUM_JOBS, NUM_SLOTS, READY = range(3)
# What may be wrong with a job.
OF_TIMES, OF_SLOTS, OF_GRAPH, OF_ID = range(4)
# Fields of the index of active jobs. PLACE of one that has joined: its row; of one that waits: NONE; of none: NO_JOB.
JOB_ID, JOB_NUMBER, PLACE = range(3)
NO_JOB = -2
# Seconds of each cell: of a step, and of one of its rows.
STEP_S, ROW_S = range(2)
# Fields of `sizes`: the first free row and the number of free rows, of nodes, edges and jobs.
FREE_NODE, FREE_EDGE, FREE_JOB, NODES_LEFT, EDGES_LEFT, JOBS_LEFT = range(6)


class Arrays(NamedTuple):
    """Rows of nodes, edges and jobs: the fields of a row lie together. Classes are 0 (online) and 1 (bulk)."""

    nodes: Int32Array  # [N, 10]
    edges: Int32Array  # [E, 2]
    jobs: Int64Array  # [J, 8]
    work: Float64Array  # [J, 8]
    lists: Int32Array  # [J, C, 2] first and last ready node of each job, by cell
    order: Int32Array  # [2, J] rows of jobs by class, in the order in which they are due
    counts: Int64Array  # [2, 2 + C] by class
    sizes: Int64Array  # [6]


def make_arrays(num_cells: int) -> Arrays:
    """Arrays without a row."""
    int32, int64 = np.int32, np.int64
    sizes = np.array([NONE, NONE, NONE, 0, 0, 0], int64)
    return Arrays(
        nodes=np.empty((0, 10), int32),
        edges=np.empty((0, 2), int32),
        jobs=np.empty((0, 8), int64),
        work=np.empty((0, 8)),
        lists=np.empty((0, num_cells, 2), int32),
        order=np.empty((2, 0), int32),
        counts=np.zeros((2, READY + num_cells), int64),
        sizes=sizes,
    )


def with_room(arrays: Arrays, num_jobs: int, size: int) -> Arrays:
    """The arrays with free rows for more jobs, with packed graphs of this size. Arrays that lack them double at least.

    A packed graph is 4 numbers, and 3 of each node or more, of which all but 2 may be edges; it has a node.
    """
    num_nodes, num_edges = (size - 4 * num_jobs) // 3, size - 6 * num_jobs  # or fewer
    _, _, _, nodes_left, edges_left, jobs_left = arrays.sizes.tolist()
    if nodes_left < num_nodes:
        more = max(num_nodes, len(arrays.nodes))
        arrays = arrays._replace(nodes=_grown(arrays.nodes, more))
        _link(arrays.nodes[:, NEXT], more, arrays.sizes, FREE_NODE)
    if edges_left < num_edges:
        more = max(num_edges, len(arrays.edges))
        arrays = arrays._replace(edges=_grown(arrays.edges, more))
        _link(arrays.edges[:, NEXT_EDGE], more, arrays.sizes, FREE_EDGE)
    if jobs_left < num_jobs:
        more = max(num_jobs, len(arrays.jobs))
        grown = {name: _grown(getattr(arrays, name), more) for name in ("jobs", "work", "lists")}
        arrays = arrays._replace(order=_grown(arrays.order.T, more).T.copy(), **grown)
        _link(arrays.jobs[:, NODE], more, arrays.sizes, FREE_JOB)
    return arrays


def _grown(array: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


def _link(links: Int32Array | Int64Array, more: int, sizes: Int64Array, free: int) -> None:
    """Put the last `more` rows before the free ones."""
    size = len(links)
    links[size - more :] = np.arange(size - more + 1, size + 1)
    links[-1] = sizes[free]
    sizes[free] = size - more
    sizes[free + NODES_LEFT] += more
