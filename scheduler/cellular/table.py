"""The active jobs: all of them by id, and the nodes of those that have joined, which have their state slots."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular.arrays import (
    DUE,
    DUE_AT,
    NO_JOB,
    NO_MAXIMUM,
    NONE,
    NUM_JOBS,
    NUM_SLOTS,
    OF_ID,
    OF_SLOTS,
    OF_TIMES,
    READY,
    make_arrays,
    with_room,
)
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.jobs import Forecast, JobRows, NewJobs
from penstock.scheduler.cellular.types import BoolArray, CellTask, Float64Array, Int32Array, Int64Array


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
    """A job arrives, joins when it finds slots, and leaves. Its ready nodes are planned, and their tasks settled."""

    def __init__(self, num_cells: int, max_slots: float) -> None:
        """max_slots: that a job may have; inf: no limit."""
        self._arrays = make_arrays(num_cells)
        self._index = _empty_index(64)
        self._max_slots = max_slots
        self._kernels = load_kernels()
        self.num_active = 0
        self.num_joined = 0

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
        """When the online jobs that have joined are due, ascending."""
        arrays = self._arrays
        due: Float64Array = arrays.work[arrays.order[0, : arrays.counts[0, NUM_JOBS]], DUE]
        return due

    def left_s(self) -> Float64Array:
        """Predicted seconds of work that is left before each of these, as they are due, and of all [jobs + 1]."""
        arrays = self._arrays
        left_s = np.empty(int(arrays.counts[0, NUM_JOBS]) + 1)
        self._kernels.sum_left(arrays.order, arrays.counts, arrays.work, left_s)
        return left_s

    def number(self, job_id: int) -> int:
        """The number of an active job; NONE: it is not active."""
        number: int = self._kernels.number_of(self._index, job_id)
        return number

    def arrive(self, rows: JobRows, num_before: int, patience_s: float, forecast: Forecast) -> NewJobs:
        """Jobs come after so many others: they are active from now on, and wait.

        ValueError, and none is active: an id in use, no number as a time, an impossible graph, too many slots.
        """
        graphs = rows.packed()
        self._make_room(len(rows.graphs))
        fault, place, num_slots, num_bulk_slots, *seconds = self._kernels.arrive(
            self._index, graphs, rows.columns, rows.times, forecast.prices, num_before, patience_s,
            forecast.share, forecast.slowdown, self._max_slots, rows.estimates,
        )  # fmt: skip
        if fault == NONE:
            self.num_active += len(rows.graphs)
            return NewJobs(rows, graphs, (num_slots, num_bulk_slots), *seconds)
        job = rows.job(place)
        if fault == OF_ID:
            raise ValueError(f"Job ids must be unique among active jobs. In use: {job.id}")
        if fault == OF_TIMES:
            raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")
        if fault == OF_SLOTS:
            raise ValueError(f"A job holds 1 to {self._max_slots:g} state slots. Job {job.id} needs: {job.slots}")
        raise ValueError(
            f"A graph has nodes of known cells, with 1 step or more, that depend on earlier nodes. Job {job.id} "
            f"has: {job.graph}"
        )

    def join(self, rows: JobRows, graphs: Int32Array | None = None) -> None:
        """Active jobs that find their slots free. graphs: packed, where the caller has them."""
        graphs = rows.packed() if graphs is None else graphs
        self._arrays = with_room(self._arrays, len(rows.graphs), len(graphs))
        # As the kernel was compiled for.
        columns, due, estimates = map(np.ascontiguousarray, (rows.columns, rows.times[DUE_AT], rows.estimates))
        self._kernels.join(*self._arrays, self._index, columns, due, estimates, graphs)
        self.num_joined += len(rows.graphs)

    def plan(self, cell: int, num_rows: int, quantum: int, max_size: int, now: float) -> tuple[CellTask, int]:
        """A task of `num_rows` ready nodes of a cell, or as many as `max_size` allows, by due order.

        With it, the most steps of a row. The caller fills in what it decides: the task's id and so on.
        """
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
        return CellTask(0, cell, ids, indices, steps, quantum, 0.0, begun[:num_begun], (), nodes), longest

    def settle(self, task: CellTask, ran: Int32Array, is_stopped: BoolArray, now: float) -> Ended:
        """A task has ended. The jobs that end with it leave. ValueError: impossible steps."""
        ended = np.empty(len(ran), np.int64)
        num_ended, *sums = self._kernels.settle(
            *self._arrays, self._index, task.rows, task.steps, ran, is_stopped, now, ended
        )
        if num_ended == NONE:
            raise ValueError("A row runs as many steps as its task says, or fewer where it stops.")
        if num_ended == 0:
            return _NONE
        self.num_active -= num_ended
        self.num_joined -= num_ended
        return Ended(ended[:num_ended].tolist(), *sums)

    def leave(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """Active jobs leave; other ids are skipped. Returns how many left, and the numbers of those that waited."""
        removed = np.empty((len(ids), 3), np.int64)
        num_removed = self._kernels.remove_all(self._index, np.array(ids, np.int64), removed)
        self.num_active -= num_removed
        _, numbers, places = removed[:num_removed].T
        joined = places[places >= 0]
        if len(joined):
            self._kernels.drop(*self._arrays, joined)
            self.num_joined -= len(joined)
        return num_removed, numbers[places == NONE].tolist()

    def _make_room(self, num_jobs: int) -> None:
        """In the index, for so many more jobs. Half of its rows stay free, so that a search is short."""
        least = 2 * (self.num_active + num_jobs)
        if len(self._index) < least:
            larger = _empty_index(1 << (2 * least - 1).bit_length())
            self._kernels.copy(self._index, larger)
            self._index = larger


def _empty_index(num_rows: int) -> Int64Array:
    return np.full((num_rows, 3), NO_JOB, np.int64)


_NONE = Ended([])
