"""New jobs as arrays: they are checked, predicted and joined many at once."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular.active import ActiveJobs
from penstock.scheduler.cellular.arrays import NONE, NUMBER, OF_ID, OF_SLOTS, OF_TIMES
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.settings import CellSettings
from penstock.scheduler.cellular.types import (
    BoolArray,
    CellGraph,
    CellJob,
    Estimate,
    Float64Array,
    Int32Array,
    Int64Array,
    JobColumns,
)

_PACKED = attrgetter("packed")


class QueuedCellJob(NamedTuple):
    """A job that may have to wait for a device, for its admission."""

    bulk: bool
    due: float
    number: int  # unique: of two jobs due at once, the one that came first is first
    job: CellJob
    estimate: Estimate


class JobRows(NamedTuple):
    """Jobs that wait, as arrays with a row of each, at least one."""

    columns: Int64Array  # [5, J] ID, NUMBER, BULK, SLOTS, SIZE: fields of the table
    due: Float64Array  # [J]
    deadlines: Float64Array  # [J] inf: none
    estimates: Float64Array  # [J, 5] fields of Estimate
    graphs: Sequence[CellGraph]

    @classmethod
    def joined(cls, parts: Sequence["JobRows"]) -> "JobRows":
        """The rows of several, one after another."""
        columns, due, deadlines, estimates, graphs = zip(*parts, strict=True)
        arrays = np.concatenate(due), np.concatenate(deadlines), np.concatenate(estimates)
        return cls(np.concatenate(columns, axis=1), *arrays, list(chain.from_iterable(graphs)))

    def between(self, first: int, end: int) -> "JobRows":
        """The rows from `first` to before `end`."""
        columns, due, deadlines, estimates, graphs = self
        span = slice(first, end)
        return JobRows(columns[:, span], due[span], deadlines[span], estimates[span], graphs[span])

    def after(self, first: int) -> "JobRows":
        """The rows from `first` on."""
        return self.between(first, len(self.due))

    def where(self, are_wanted: BoolArray) -> "JobRows":
        """Some of the rows, at least one."""
        if are_wanted.all():
            return self
        columns, due, deadlines, estimates, graphs = self
        arrays = due[are_wanted], deadlines[are_wanted], estimates[are_wanted]
        return JobRows(columns[:, are_wanted], *arrays, list(compress(graphs, are_wanted.tolist())))

    def in_order(self) -> "JobRows":
        """The rows in the order in which they are due; of two due at once, the one that came first is first."""
        due, numbers = self.due, self.columns[NUMBER]
        ascends = (due[:-1] < due[1:]) | ((due[:-1] == due[1:]) & (numbers[:-1] < numbers[1:]))
        if ascends.all():
            return self
        order = np.lexsort((numbers, due))
        arrays = due[order], self.deadlines[order], self.estimates[order]
        return JobRows(self.columns[:, order], *arrays, [self.graphs[row] for row in order.tolist()])

    def place(self, row: int) -> tuple[float, int]:
        """By which a row compares."""
        return float(self.due[row]), int(self.columns[NUMBER, row])


class Joining(NamedTuple):
    """Jobs as a device's table takes them, at least one."""

    columns: Int64Array  # [5, J] as in JobRows
    due: Float64Array  # [J]
    estimates: Float64Array  # [J, 5] fields of Estimate
    graphs: Int32Array  # packed, end to end

    @classmethod
    def of(cls, parts: Sequence[JobRows]) -> "Joining":
        """Jobs that have waited."""
        columns, due, _, estimates, graphs = zip(*parts, strict=True)
        arrays = np.concatenate(due), np.concatenate(estimates)
        return cls(np.ascontiguousarray(np.concatenate(columns, axis=1)), *arrays, _packed(chain.from_iterable(graphs)))


class Forecast(NamedTuple):
    """Predicted times of jobs."""

    prices: Float64Array  # [2, C] STEP_S and ROW_S of each cell
    share: float = 1.0  # of the steps of chains that run
    slowdown: float = 1.0  # time of jobs, from their first task on, over their predicted path


class NewJobs(NamedTuple):
    """The jobs of one `add`, at least one: active, and on no device yet."""

    jobs: JobColumns
    joining: Joining
    slots: tuple[int, int]  # state slots: of all, and of bulk jobs
    earliest: float  # deadline; inf: none
    begin_by: float  # when all online jobs must have begun to be in time
    work_s: float

    @classmethod
    def of(
        cls, jobs: JobColumns, active: ActiveJobs, num_before: int, settings: CellSettings, forecast: Forecast
    ) -> "NewJobs":
        """Jobs that come after so many others.

        ValueError, and none is active: an id in use, no number as a time, an impossible graph, too many slots.
        """
        columns, times, graphs = jobs
        joining = Joining(columns, np.empty(len(graphs)), np.empty((len(graphs), 5)), _packed(graphs))
        active.make_room(len(graphs))
        patience_s, num_devices = float(settings.patience_s), float(settings.num_devices)
        most = float(settings.max_slots or math.inf)
        fault, place, num_slots, num_bulk_slots, *seconds = load_kernels().arrive(
            active.index, joining.graphs, columns, times, forecast.prices, num_before, patience_s,
            forecast.share, forecast.slowdown, most, num_devices, joining.due, joining.estimates,
        )  # fmt: skip
        if fault == NONE:
            active.num += len(graphs)
            return cls(jobs, joining, (num_slots, num_bulk_slots), *seconds)
        job = jobs.rows()[place]
        if fault == OF_ID:
            raise ValueError(f"Job ids must be unique among active jobs. In use: {job.id}")
        if fault == OF_TIMES:
            raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")
        if fault == OF_SLOTS:
            raise ValueError(f"A job holds 1 to {most:g} state slots. Job {job.id} needs: {job.slots}")
        raise ValueError(
            f"A graph has nodes of known cells, with 1 step or more, that depend on earlier nodes. Job {job.id} "
            f"has: {job.graph}"
        )

    def rows(self) -> JobRows:
        """The jobs as they wait."""
        columns, due, estimates, _ = self.joining
        return JobRows(columns, due, self.jobs.times[1], estimates, self.jobs.graphs)

    def queued(self) -> list[QueuedCellJob]:
        """The jobs one by one."""
        columns, due, estimates, _ = self.joining
        rows = zip(self.jobs.rows(), columns[NUMBER].tolist(), due.tolist(), estimates.tolist(), strict=True)
        return [QueuedCellJob(job.bulk, at, number, job, Estimate(*row)) for job, number, at, row in rows]


def _packed(graphs: Iterable[CellGraph]) -> Int32Array:
    return np.frombuffer(bytearray().join(map(_PACKED, graphs)), np.int32)
