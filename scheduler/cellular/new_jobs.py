"""New jobs as arrays: they are checked, predicted and joined many at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular.arrays import ID, NONE, NUMBER, OF_SLOTS, OF_TIMES
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.deadlines import Deadline
from penstock.scheduler.cellular.types import (
    CellGraph,
    CellJob,
    Estimate,
    Float64Array,
    Int32Array,
    Int64Array,
    JobColumns,
)

_UNKNOWN = Estimate()


class QueuedCellJob(NamedTuple):
    """A job that waits for a device. It compares by its place in the queue."""

    bulk: bool
    due: float
    number: int  # unique: of two jobs due at once, the one that came first is first
    job: CellJob
    estimate: Estimate = _UNKNOWN  # without admission: none


class Joining(NamedTuple):
    """Jobs as a device's table takes them, at least one."""

    columns: Int64Array  # [5, J] ID, NUMBER, BULK, SLOTS, SIZE: fields of the table
    due: Float64Array  # [J]
    estimates: Float64Array  # [J, 5] fields of Estimate
    graphs: Int32Array  # packed, end to end

    @classmethod
    def of(cls, entries: Sequence[QueuedCellJob]) -> "Joining":
        """Jobs that have waited."""
        bulk, due, numbers, jobs, estimates = zip(*entries, strict=True)
        ids, graphs, _, _, _, slots, sizes = zip(*jobs, strict=True)
        columns = np.array((ids, numbers, bulk, slots, sizes), np.int64)
        return cls(columns, np.array(due, np.float64), np.array(estimates, np.float64), _packed(graphs))


class NewJobs(NamedTuple):
    """The jobs of one `add`, at least one."""

    jobs: JobColumns
    joining: Joining

    @classmethod
    def of(cls, jobs: JobColumns, patience_s: float, num_before: int) -> "NewJobs":
        """Jobs that come after so many others. See `CellSettings.patience_s`."""
        columns, (arrivals, deadlines), graphs = jobs
        num_jobs = len(graphs)
        columns[NUMBER] = np.arange(num_before + 1, num_before + 1 + num_jobs)
        due = np.minimum(arrivals + patience_s, deadlines)
        return cls(jobs, Joining(columns, due, np.empty((num_jobs, len(_UNKNOWN))), _packed(graphs)))

    def checked(
        self, active: Mapping[int, object], num_cells: int, max_slots: int | None
    ) -> tuple[tuple[int, int], float]:
        """State slots of all jobs and of bulk jobs, and the earliest deadline.

        ValueError: an id in use, no number as a time, an impossible graph, too many slots.
        """
        columns, _, _, graphs = self.joining
        ids = set(columns[ID].tolist())
        if len(ids) < columns.shape[1] or not active.keys().isdisjoint(ids):
            raise ValueError("Job ids must be unique among active jobs.")
        most = float(max_slots or math.inf)
        fault, place, num_slots, num_bulk_slots, earliest = load_kernels().check(
            graphs, columns, self.jobs.times, num_cells, most
        )
        if fault == NONE:
            return (num_slots, num_bulk_slots), earliest
        job = self.jobs.rows()[place]
        if fault == OF_TIMES:
            raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")
        if fault == OF_SLOTS:
            raise ValueError(f"A job holds 1 to {most:g} state slots. Job {job.id} needs: {job.slots}")
        raise ValueError(
            f"A graph has nodes of known cells, with 1 step or more, that depend on earlier nodes. Job {job.id} "
            f"has: {job.graph}"
        )

    def without_estimates(self) -> None:
        """Nothing is known of the jobs' times."""
        self.joining.estimates[:] = _UNKNOWN

    def deadlines(self) -> list[Deadline]:
        """Of those jobs that have one."""
        ids, numbers, *_ = self.jobs.fields.tolist()
        rows = zip(self.jobs.times[1].tolist(), numbers, ids, strict=True)
        return [Deadline(at, number, job_id) for at, number, job_id in rows if at < math.inf]

    def queued(self) -> list[QueuedCellJob]:
        """The jobs one by one."""
        columns, due, estimates, _ = self.joining
        rows = zip(self.jobs.rows(), columns[NUMBER].tolist(), due.tolist(), estimates.tolist(), strict=True)
        return [QueuedCellJob(job.bulk, at, number, job, Estimate(*row)) for job, number, at, row in rows]


def _packed(graphs: Iterable[CellGraph]) -> Int32Array:
    return np.frombuffer(bytearray().join([graph.packed for graph in graphs]), np.int32)
