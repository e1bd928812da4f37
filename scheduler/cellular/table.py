"""The jobs that have joined a device."""

from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular.arrays import DUE, NO_MAXIMUM, NONE, NUM_JOBS, NUM_SLOTS, READY, make_arrays, with_room
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.new_jobs import Joining
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int32Array, Int64Array


class PlannedRows(NamedTuple):
    """Rows of a task."""

    nodes: Int32Array  # [R] rows of the table
    steps: Int32Array  # [R]
    ids: Int64Array  # [R] of their jobs
    indices: Int32Array  # [R] in the jobs' graphs
    longest: int  # most steps of a row
    begun: Int64Array  # ids of the jobs of which it is the first task


class Ended(NamedTuple):
    """Jobs that ended with a task, and sums over them. Bulk jobs count in the first two only: they give way to others.

    Times are 0 without admission.
    """

    ids: list[int]
    ran: float = 0.0  # steps
    asked: float = 0.0  # the same, at most: chains may stop before their last
    predicted_s: float = 0.0  # for the steps that ran
    took_s: float = 0.0  # from the first task of each to its end


class JobTable:
    """Nodes of the jobs of one device: which are ready, and in which order their jobs are due."""

    def __init__(self, num_cells: int) -> None:
        self._arrays = make_arrays(num_cells)
        self._kernels = load_kernels()

    @property
    def num_ready(self) -> tuple[list[int], list[int]]:
        """Ready nodes by cell: of online jobs, and of bulk jobs."""
        online, bulk = self._arrays.counts.tolist()
        return online[READY:], bulk[READY:]

    @property
    def slots(self) -> tuple[int, int]:
        """State slots that are held: by online jobs, and by bulk jobs."""
        online, bulk = self._arrays.counts.tolist()
        return online[NUM_SLOTS], bulk[NUM_SLOTS]

    def due(self) -> Float64Array:
        """When the online jobs are due, ascending."""
        arrays = self._arrays
        due: Float64Array = arrays.work[arrays.order[0, : arrays.counts[0, NUM_JOBS]], DUE]
        return due

    def left_s(self) -> Float64Array:
        """Predicted seconds of work that is left before each online job, as they are due, and of all [jobs + 1]."""
        arrays = self._arrays
        left_s = np.empty(int(arrays.counts[0, NUM_JOBS]) + 1)
        self._kernels.sum_left(arrays.order, arrays.counts, arrays.work, left_s)
        return left_s

    def join(self, joining: Joining, index: Int64Array, device: int, num_devices: int) -> None:
        """Add active jobs: this is the table of a device."""
        columns, due, estimates, graphs = joining
        self._arrays = with_room(self._arrays, len(due), len(graphs))
        self._kernels.join(*self._arrays, index, columns, due, estimates, graphs, device, num_devices)

    def plan(self, cell: int, num_rows: int, quantum: int, max_size: int, now: float) -> PlannedRows:
        """Take `num_rows` ready nodes of a cell into a task, or as many as `max_size` allows, by due order."""
        int32, int64 = np.int32, np.int64
        nodes, steps, indices = np.empty(num_rows, int32), np.empty(num_rows, int32), np.empty(num_rows, int32)
        ids, begun = np.empty(num_rows, int64), np.empty(num_rows, int64)  # each alone: numpy splits slowly
        count, longest, num_begun = self._kernels.plan(
            *self._arrays, cell, quantum, max_size, now, nodes, steps, ids, indices, begun
        )
        if count < num_rows:
            if count == 0 or max_size == NO_MAXIMUM:
                raise RuntimeError(f"Cell {cell} has fewer than {num_rows} ready nodes. This is a bug.")
            nodes, steps, ids, indices = nodes[:count], steps[:count], ids[:count], indices[:count]
        return PlannedRows(nodes, steps, ids, indices, longest, begun[:num_begun])

    def settle(
        self, index: Int64Array, planned: PlannedRows, ran: Int32Array, is_stopped: BoolArray, now: float
    ) -> Ended:
        """The rows' task has ended. The jobs that end with it leave the index. ValueError: impossible steps."""
        ended = np.empty(len(ran), np.int64)
        num_ended, *sums = self._kernels.settle(
            *self._arrays, index, planned.nodes, planned.steps, ran, is_stopped, now, ended
        )
        if num_ended == NONE:
            raise ValueError("A row runs as many steps as its task says, or fewer where it stops.")
        if num_ended == 0:
            return _NONE
        ids: list[int] = ended[:num_ended].tolist()
        return Ended(ids, *sums)

    def drop(self, rows: Int64Array) -> None:
        """Remove jobs by their rows."""
        self._kernels.drop(*self._arrays, rows)


_NONE = Ended([])
