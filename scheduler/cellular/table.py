"""The jobs that have joined a device."""

import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

from penstock.scheduler.cellular.arrays import JOB, NO_MAXIMUM, NONE, make_arrays, with_room
from penstock.scheduler.cellular.types import (
    BoolArray,
    CellGraph,
    CellJob,
    Estimate,
    Float64Array,
    Int32Array,
    Int64Array,
)


class QueuedCellJob(NamedTuple):
    """A job that waits for a device. It compares by its place in the queue."""

    bulk: bool
    due: float
    number: int  # unique: of two jobs due at once, the one that came first is first
    job: CellJob
    estimate: Estimate = Estimate()  # without admission: none


class PlannedRows(NamedTuple):
    """Rows of a task."""

    nodes: Int32Array  # [R] rows of the table
    steps: Int32Array  # [R]
    ids: Int64Array  # [R] of their jobs
    indices: Int32Array  # [R] in the jobs' graphs
    longest: int  # most steps of a row


class JobTable:
    """Nodes of the jobs of one device: which are ready, and in which order their jobs are due."""

    def __init__(self, num_cells: int) -> None:
        self._arrays = make_arrays(num_cells)
        self._kernels = load_kernels()

    @property
    def num_ready(self) -> tuple[list[int], list[int]]:
        """Ready nodes by cell: of online jobs, and of bulk jobs."""
        online, bulk = self._arrays.ready.tolist()
        return online, bulk

    @property
    def slots(self) -> tuple[int, int]:
        """State slots that are held: by online jobs, and by bulk jobs."""
        online, bulk = self._arrays.slots.tolist()
        return online, bulk

    @property
    def online(self) -> tuple[Int32Array, Float64Array]:
        """Rows of the online jobs, and the times at which they are due: in this order."""
        rows = self._arrays.order[0, : self._arrays.num_jobs[0]]
        return rows, self._arrays.due[rows]

    def rows_of(self, planned: PlannedRows) -> Int32Array:
        """The job's row of each row of a task, until others join."""
        rows: Int32Array = self._arrays.nodes[planned.nodes, JOB]
        return rows

    def join(self, entries: Sequence[QueuedCellJob], graphs: "Graphs | None" = None) -> list[int]:
        """Add jobs, at least one. Returns the row of each. `graphs`: theirs, if they lie end to end already."""
        columns = [[entry.job.id, entry.number, entry.bulk, entry.job.slots, entry.job.size] for entry in entries]
        graphs = graphs or end_to_end([entry.job.graph for entry in entries])
        self._arrays = with_room(self._arrays, len(graphs.cells), len(graphs.dependencies), len(entries))
        rows = np.empty(len(entries), np.int64)
        self._kernels.join(
            *self._arrays,
            np.array(columns, np.int64),
            np.array([entry.due for entry in entries]),
            graphs.sizes[0],
            graphs.cells,
            graphs.steps,
            graphs.offsets,
            graphs.dependencies,
            rows,
        )
        return rows.tolist()

    def plan(self, cell: int, num_rows: int, quantum: int, max_size: int) -> PlannedRows:
        """Take `num_rows` ready nodes of a cell into a task, or as many as `max_size` allows, by due order."""
        nodes, steps, indices = np.empty((3, num_rows), np.int32)
        ids = np.empty(num_rows, np.int64)
        count = self._kernels.plan(*self._arrays, cell, quantum, max_size, nodes, steps, ids, indices)
        if count == 0 or (count < num_rows and max_size == NO_MAXIMUM):
            raise RuntimeError(f"Cell {cell} has fewer than {num_rows} ready nodes. This is a bug.")
        return PlannedRows(nodes[:count], steps[:count], ids[:count], indices[:count], int(steps[:count].max()))

    def settle(self, planned: PlannedRows, ran: Int32Array, is_stopped: BoolArray) -> list[int]:
        """The rows' task has ended. Returns the ids of the jobs that ended with it. ValueError: impossible steps."""
        ended = np.empty(len(ran), np.int64)
        num_ended = self._kernels.settle(*self._arrays, planned.nodes, planned.steps, ran, is_stopped, ended)
        if num_ended == NONE:
            raise ValueError("A row runs as many steps as its task says, or fewer where it stops.")
        return cast(list[int], ended[:num_ended].tolist())

    def drop(self, rows: Sequence[int]) -> None:
        """Remove jobs by their rows."""
        self._kernels.drop(*self._arrays, np.array(rows, np.int64))


class Graphs(NamedTuple):
    """Graphs end to end, each with indices of its own."""

    sizes: Int64Array  # [4, G] entries of each in the four arrays
    cells: Int32Array
    steps: Int32Array
    offsets: Int32Array
    dependencies: Int32Array


def end_to_end(graphs: Sequence[CellGraph]) -> Graphs:
    """Join graphs, at least one."""
    parts = list(zip(*graphs, strict=True))
    sizes = np.array([list(map(len, part)) for part in parts], np.int64)
    return Graphs(sizes, *[np.concatenate(part, dtype=np.int32, casting="same_kind") for part in parts])


def find_invalid(graphs: Graphs, num_cells: int) -> int | None:
    """The first graph that breaks the contract of CellGraph."""
    found = int(load_kernels().find_invalid(*graphs, num_cells))
    return None if found == NONE else found


def checked_graphs(jobs: Sequence[CellJob], active: Collection[int], num_cells: int, max_slots: int | None) -> Graphs:
    """The graphs of new jobs. ValueError: an id in use, no number as a time, an impossible graph, too many slots."""
    ids = {job.id for job in jobs}
    if len(ids) < len(jobs) or any(job_id in active for job_id in ids):
        raise ValueError("Job ids must be unique among active jobs.")
    most = max_slots or math.inf
    for job in jobs:
        if not -math.inf < job.arrival < math.inf or job.deadline != job.deadline:
            raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")
        if not 1 <= job.slots <= most:
            raise ValueError(f"A job holds 1 to {most} state slots. Job {job.id} needs: {job.slots}")
    graphs = end_to_end([job.graph for job in jobs])
    invalid = find_invalid(graphs, num_cells)
    if invalid is not None:
        raise ValueError(
            f"A graph has nodes of known cells, with 1 step or more, that depend on earlier nodes. Job "
            f"{jobs[invalid].id} has: {jobs[invalid].graph}"
        )
    return graphs


class Kernels(NamedTuple):
    """The compiled functions of joining.py and running.py."""

    find_invalid: Any
    measure: Any
    join: Any
    plan: Any
    settle: Any
    drop: Any


@cache
def load_kernels() -> Kernels:
    """The kernels, compiled and ready to run: at once where an earlier process kept them, else within seconds."""
    from numba import njit  # takes half a second to load

    from penstock.scheduler.cellular.joining import find_invalid, join, measure
    from penstock.scheduler.cellular.running import drop, plan, settle

    functions = find_invalid, measure, join, plan, settle, drop
    try:
        kernels = Kernels(*[njit(function, cache=True) for function in functions])
        _exercise(kernels)
    except Exception:  # of numba's cache: no folder, one that is full or read-only, or files that are damaged or old
        kernels = Kernels(*[njit(function) for function in functions])
        _exercise(kernels)
    return kernels


def _exercise(kernels: Kernels) -> None:
    """Call each kernel with arrays of the types that come later: two nodes, one after the other.

    RuntimeError where they do not run. numba keeps a function by the date of its own file, whatever else has changed.
    """
    graphs = end_to_end([CellGraph.of_stages((0, 1), (0, 1))])
    arrays = with_room(make_arrays(1), 2, 1, 1)
    columns = np.array([[7, 0, 0, 1, 1]], np.int64)
    row, ids, is_stopped = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    nodes, steps, indices = np.zeros((3, 1), np.int32)
    results = [kernels.find_invalid(*graphs, 1)]
    kernels.measure(*graphs, np.zeros(1), np.zeros(1), 1.0, np.zeros((1, 4)))
    kernels.join(*arrays, columns, np.zeros(1), graphs.sizes[0], *graphs[1:], row)
    for _ in range(2):
        results.append(kernels.plan(*arrays, 0, 1, NO_MAXIMUM, nodes, steps, ids, indices))
        results += [int(ids[0]), int(indices[0])]
        results.append(kernels.settle(*arrays, nodes, steps, steps, is_stopped, ids))
    kernels.drop(*arrays, row[:0])
    if results != [NONE, 1, 7, 0, 0, 1, 7, 1, 1] or arrays.ready.any():
        raise RuntimeError(f"The compiled scheduler gives {results}. This is a bug.")
