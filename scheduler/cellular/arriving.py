"""Compiled: new jobs are checked, numbered and predicted. Imported on first use, as joining.py.

Packed graphs lie end to end. `columns`, `times` and `estimates` are those of JobRows.
"""

import numpy as np

from penstock.scheduler.cellular.arrays import (
    ARRIVAL,
    ASKED,
    BULK,
    DEADLINE,
    DUE_AT,
    EXPECTED,
    ID,
    JOB_ID,
    JOB_NUMBER,
    NO_JOB,
    NONE,
    NUM_JOBS,
    NUMBER,
    OF_GRAPH,
    OF_ID,
    OF_SLOTS,
    OF_TIMES,
    PATH_S,
    PLACE,
    RAN,
    ROW_S,
    SLOTS,
    SLOWED_S,
    STEP_S,
    WORK_S,
)
from penstock.scheduler.cellular.index import find, inlined, remove
from penstock.scheduler.cellular.joining import parts
from penstock.scheduler.cellular.types import Float64Array, Int32Array, Int64Array

_LEAST_LEFT = 0.05  # of the work of a job that runs more steps than were expected


def arrive(
    active: Int64Array, graphs: Int32Array, columns: Int64Array, times: Float64Array, prices: Float64Array,
    num_before: int, patience_s: float, share: float, slowdown: float, max_slots: float, estimates: Float64Array,
) -> tuple[int, int, int, int, float, float, float]:  # fmt: skip
    """Add jobs to the index of active ones, where they wait, unless one breaks the contract of CellJob.

    Writes NUMBER of each, after so many jobs before, DUE_AT, and the estimates: of the steps of chains a share runs.
    `prices` [2, C]: STEP_S and ROW_S of each cell. Bulk jobs have no work: they give way to others.

    Returns what is wrong, of the first job that has it: OF_TIMES, OF_SLOTS, OF_GRAPH, OF_ID, or NONE; that job; the
    slots of all jobs, and of bulk jobs; the earliest deadline; the earliest moment at which an online job must begin to
    be in time; and the work of all.
    """
    earliest, begin_by, total_s = np.inf, np.inf, 0.0
    at = num_slots = num_bulk_slots = 0
    for job in range(len(estimates)):
        needed = columns[SLOTS, job]
        if not np.isfinite(times[ARRIVAL, job]) or np.isnan(times[DEADLINE, job]):
            return OF_TIMES, job, 0, 0, earliest, begin_by, total_s
        if not 1 <= needed <= max_slots:
            return OF_SLOTS, job, 0, 0, earliest, begin_by, total_s
        at = _end_of_valid(graphs, at, prices.shape[1])
        if at == NONE:
            return OF_GRAPH, job, 0, 0, earliest, begin_by, total_s
        num_slots += needed
        num_bulk_slots += needed * columns[BULK, job]
        earliest = min(earliest, times[DEADLINE, job])
        columns[NUMBER, job] = num_before + 1 + job
        times[DUE_AT, job] = min(times[ARRIVAL, job] + patience_s, times[DEADLINE, job])
    twice = _register(active, columns)
    if twice != NONE:
        return OF_ID, twice, 0, 0, earliest, begin_by, total_s
    _predict(graphs, prices, share, estimates)
    for job in range(len(estimates)):
        estimate = estimates[job]
        estimate[SLOWED_S] = slowdown * estimate[PATH_S]
        if columns[BULK, job]:
            estimate[WORK_S] = 0.0
        else:
            slots_s = estimate[PATH_S] * min(1.0, columns[SLOTS, job] / max_slots)
            estimate[WORK_S] = slowdown * max(estimate[WORK_S], slots_s)
            begin_by = min(begin_by, times[DEADLINE, job] - estimate[SLOWED_S])
        total_s += estimate[WORK_S]
    return NONE, 0, num_slots, num_bulk_slots, earliest, begin_by, total_s


def sum_left(order: Int32Array, counts: Int64Array, work: Float64Array, left_s: Float64Array) -> None:
    """Write the work that is left before each online job, in the order in which they are due, and of all [J + 1]."""
    total = left_s[0] = 0.0
    for place in range(counts[0, NUM_JOBS]):
        job = order[0, place]
        total += work[job, WORK_S] * max(1.0 - work[job, RAN] / work[job, EXPECTED], _LEAST_LEFT)
        left_s[place + 1] = total


@inlined
def _register(active: Int64Array, columns: Int64Array) -> int:
    """Add jobs that wait to the index. NONE; or, and nothing added: a job of which the id is in use."""
    for job in range(columns.shape[1]):
        row = find(active, columns[ID, job])
        if active[row, PLACE] != NO_JOB:
            for before in range(job):
                remove(active, find(active, columns[ID, before]))
            return job
        active[row, JOB_ID], active[row, JOB_NUMBER], active[row, PLACE] = columns[ID, job], columns[NUMBER, job], NONE
    return NONE


@inlined
def _predict(graphs: Int32Array, prices: Float64Array, share: float, estimates: Float64Array) -> None:
    """Write the path and the steps of graphs, and the time for which their rows keep a device busy."""
    at = 0
    ends = np.empty(len(graphs))  # of nodes
    for graph in range(len(estimates)):
        cells, steps, dependencies, end = parts(graphs, at)
        width = graphs[at + 3]
        path_s = work_s = expected_steps = asked_steps = 0.0
        for node in range(graphs[at]):
            cell, asked = graphs[cells + node], graphs[steps + node]
            expected = max(1.0, asked * share)
            begin = 0.0
            for place in range(dependencies + node * width, dependencies + (node + 1) * width):
                other = graphs[place]
                if other != NONE:
                    begin = max(begin, ends[other])
            ends[node] = begin + expected * prices[STEP_S, cell]
            path_s = max(path_s, ends[node])
            work_s += expected * prices[ROW_S, cell]
            expected_steps += expected
            asked_steps += asked
        estimates[graph, PATH_S], estimates[graph, WORK_S] = path_s, work_s
        estimates[graph, EXPECTED], estimates[graph, ASKED] = expected_steps, asked_steps
        at = end


@inlined
def _end_of_valid(graphs: Int32Array, at: int, num_cells: int) -> int:
    """Where the packed graph after this one begins; NONE: this one breaks the contract of CellGraph."""
    nodes, width = graphs[at], graphs[at + 3]
    if nodes < 1 or graphs[at + 1] != nodes or graphs[at + 2] != nodes or width < 1:
        return NONE
    cells, steps, dependencies, end = parts(graphs, at)
    for node in range(nodes):
        if not (0 <= graphs[cells + node] < num_cells and graphs[steps + node] >= 1):
            return NONE
        for place in range(dependencies + node * width, dependencies + (node + 1) * width):
            other = graphs[place]
            if not NONE <= other < node:
                return NONE
    return end
