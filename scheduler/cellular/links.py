"""The lists in `Arrays`: ready nodes of a job, dependents of a node, jobs in due order, free rows. For kernels.py.

A call with all arrays costs as much as some ten rows of work, since numba counts references. So most take many rows.
"""

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
    LEFT,
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
from penstock.scheduler.cellular.types import Int32Array, Int64Array

_Function = TypeVar("_Function", bound=Callable[..., object])
inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it


@inlined
def release(arrays: Arrays, rows: Int32Array) -> None:
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
        append(arrays, first)


@inlined
def append(arrays: Arrays, first: int) -> None:
    """Make nodes ready, which are linked by NEXT: each becomes the last of its job's."""
    nodes, lists, jobs, ready = arrays.nodes, arrays.lists, arrays.jobs, arrays.ready
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
        ready[jobs[job, BULK], cell] += 1
        node = following


@inlined
def withdraw(nodes: Int32Array, lists: Int32Array, node: int) -> None:
    """Take a node out of its job's ready ones. The caller counts."""
    cell, job = nodes[node, CELL], nodes[node, JOB]
    before, ready = NONE, lists[job, cell, 0]
    while ready != node:
        before, ready = ready, nodes[ready, NEXT]
    following = nodes[node, NEXT]
    if before == NONE:
        lists[job, cell, 0] = following
    else:
        nodes[before, NEXT] = following
    if following == NONE:
        lists[job, cell, 1] = before


@inlined
def insert(arrays: Arrays, job: int) -> None:
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


@inlined
def compact(arrays: Arrays) -> None:
    """Remove from the order the jobs that are gone."""
    for group in range(2):
        kept = 0
        for place in range(arrays.num_jobs[group]):
            job = arrays.order[group, place]
            if not arrays.jobs[job, GONE]:
                arrays.order[group, kept] = job
                kept += 1
        arrays.num_jobs[group] = kept


@inlined
def free(arrays: Arrays, rows: Int64Array) -> None:
    """Give back the rows of jobs, their nodes and their edges."""
    nodes, edges, jobs, sizes = arrays.nodes, arrays.edges, arrays.jobs, arrays.sizes
    for job in rows:
        arrays.slots[jobs[job, BULK]] -= jobs[job, SLOTS]
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
