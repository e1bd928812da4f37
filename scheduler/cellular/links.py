"""The lists in `Arrays`: ready nodes of a job, dependents of a node, jobs in due order, free rows. For kernels.py."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba.extending import register_jitable

from penstock.scheduler.cellular.arrays import (
    BLOCKED,
    BULK,
    CELL,
    CHILD,
    EDGE,
    EDGES_LEFT,
    FREE_EDGE,
    FREE_JOB,
    FREE_NODE,
    GONE,
    JOB,
    JOBS_LEFT,
    NEXT,
    NEXT_EDGE,
    NODE,
    NODES_LEFT,
    NONE,
    NUMBER,
    SIBLING,
    SLOTS,
    Arrays,
)

_Function = TypeVar("_Function", bound=Callable[..., object])
inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it


@inlined
def connect(arrays: Arrays, parent: int, child: int) -> None:
    """Make `child` wait for `parent`."""
    edges, sizes = arrays.edges, arrays.sizes
    edge = sizes[FREE_EDGE]
    sizes[FREE_EDGE] = edges[NEXT_EDGE, edge]
    sizes[EDGES_LEFT] -= 1
    edges[CHILD, edge] = child
    edges[NEXT_EDGE, edge] = arrays.nodes[EDGE, parent]
    arrays.nodes[EDGE, parent] = edge


@inlined
def release(arrays: Arrays, node: int) -> None:
    """All steps of the node have run or are in tasks, so that its dependents may be in later tasks."""
    nodes, edges = arrays.nodes, arrays.edges
    edge = nodes[EDGE, node]
    while edge != NONE:
        child = edges[CHILD, edge]
        nodes[BLOCKED, child] -= 1
        if nodes[BLOCKED, child] == 0:
            append(arrays, child)
        edge = edges[NEXT_EDGE, edge]


@inlined
def append(arrays: Arrays, node: int) -> None:
    """Make a node ready: the last of its job's."""
    nodes, lists = arrays.nodes, arrays.lists
    cell, job = nodes[CELL, node], nodes[JOB, node]
    nodes[NEXT, node] = NONE
    if lists[0, cell, job] == NONE:
        lists[0, cell, job] = node
    else:
        nodes[NEXT, lists[1, cell, job]] = node
    lists[1, cell, job] = node
    arrays.ready[arrays.jobs[BULK, job], cell] += 1


@inlined
def unlink(arrays: Arrays, before: int, node: int) -> None:
    """Take a node out of its job's ready ones. `before`: the one before it in the list, or NONE."""
    nodes, lists = arrays.nodes, arrays.lists
    cell, job = nodes[CELL, node], nodes[JOB, node]
    following = nodes[NEXT, node]
    if before == NONE:
        lists[0, cell, job] = following
    else:
        nodes[NEXT, before] = following
    if following == NONE:
        lists[1, cell, job] = before
    arrays.ready[arrays.jobs[BULK, job], cell] -= 1


@inlined
def insert(arrays: Arrays, job: int) -> None:
    """Put a job at its place in the order. Most are due last."""
    jobs, due = arrays.jobs, arrays.due
    group = jobs[BULK, job]
    order, place = arrays.order[group], arrays.num_jobs[group]
    while place > 0:
        other = order[place - 1]
        if due[other] < due[job] or (due[other] == due[job] and jobs[NUMBER, other] < jobs[NUMBER, job]):
            break
        order[place] = other
        place -= 1
    order[place] = job
    arrays.num_jobs[group] += 1


@inlined
def compact(arrays: Arrays) -> None:
    """Remove from the order the jobs that are gone."""
    for group in range(2):
        kept = 0
        for place in range(arrays.num_jobs[group]):
            job = arrays.order[group, place]
            if not arrays.jobs[GONE, job]:
                arrays.order[group, kept] = job
                kept += 1
        arrays.num_jobs[group] = kept


@inlined
def free(arrays: Arrays, job: int) -> None:
    """Give back the rows of a job, its nodes and their edges."""
    nodes, edges, jobs, sizes = arrays.nodes, arrays.edges, arrays.jobs, arrays.sizes
    arrays.slots[jobs[BULK, job]] -= jobs[SLOTS, job]
    node = jobs[NODE, job]
    while node != NONE:
        edge = nodes[EDGE, node]
        while edge != NONE:
            following = edges[NEXT_EDGE, edge]
            edges[NEXT_EDGE, edge] = sizes[FREE_EDGE]
            sizes[FREE_EDGE] = edge
            sizes[EDGES_LEFT] += 1
            edge = following
        nodes[NEXT, node] = sizes[FREE_NODE]
        sizes[FREE_NODE] = node
        sizes[NODES_LEFT] += 1
        node = nodes[SIBLING, node]
    jobs[NODE, job] = sizes[FREE_JOB]
    sizes[FREE_JOB] = job
    sizes[JOBS_LEFT] += 1
