"""Compiled: jobs leave `Arrays`. Imported on first use, as joining.py."""

import numpy as np

from penstock.scheduler.cellular.arrays import (
    BLOCKED,
    BULK,
    CELL,
    EDGE,
    EDGES_LEFT,
    FREE_EDGE,
    FREE_JOB,
    FREE_NODE,
    JOBS_LEFT,
    LEFT,
    NEXT,
    NEXT_EDGE,
    NODE,
    NODES_LEFT,
    NONE,
    NUM_JOBS,
    NUM_SLOTS,
    OPEN,
    OUTSTANDING,
    READY,
    SIBLING,
    SLOTS,
    Arrays,
)
from penstock.scheduler.cellular.inlining import inlined
from penstock.scheduler.cellular.types import Float64Array, Int32Array, Int64Array


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
