"""Jobs that are in no table yet, as arrays: they are checked, predicted, admitted and joined many at once."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular.arrays import ARRIVAL, BULK, DEADLINE, DUE_AT, ID, NUM_ESTIMATES, NUMBER
from penstock.scheduler.cellular.types import BoolArray, CellGraph, CellJob, Float64Array, Int32Array, Int64Array

_PACKED = attrgetter("packed")


class JobRows(NamedTuple):
    """Fields of jobs, at least one: see CellJob and arrays.py. The scheduler fills in what it works out on arrival."""

    columns: Int64Array  # [5, J] ID, NUMBER (by the scheduler), BULK, SLOTS, SIZE
    times: Float64Array  # [3, J] ARRIVAL, DEADLINE (inf: none), DUE_AT (by the scheduler)
    estimates: Float64Array  # [J, 5] PATH_S to SLOWED_S, by the scheduler
    graphs: Sequence[CellGraph]

    @classmethod
    def of(cls, jobs: Iterable[CellJob]) -> "JobRows":
        """The rows of jobs."""
        ids, graphs, arrivals, deadlines, bulk, slots, sizes = zip(*jobs, strict=True)
        known = [math.inf if deadline is None else deadline for deadline in deadlines]
        columns = np.array((ids, ids, bulk, slots, sizes), np.int64)
        return cls.before_arrival(columns, np.array((arrivals, known, known), np.float64), graphs)

    @classmethod
    def before_arrival(cls, columns: Int64Array, times: Float64Array, graphs: Sequence[CellGraph]) -> "JobRows":
        """Rows of which the scheduler has worked nothing out."""
        return cls(columns, times, np.empty((len(graphs), NUM_ESTIMATES)), graphs)

    @classmethod
    def joined(cls, parts: Sequence["JobRows"]) -> "JobRows":
        """The rows of several, one after another."""
        columns, times, estimates, graphs = zip(*parts, strict=True)
        arrays = np.concatenate(columns, axis=1), np.concatenate(times, axis=1), np.concatenate(estimates)
        return cls(*arrays, list(chain.from_iterable(graphs)))

    @property
    def ids(self) -> list[int]:
        """Of the jobs."""
        ids: list[int] = self.columns[ID].tolist()
        return ids

    def between(self, first: int, end: int) -> "JobRows":
        """The rows from `first` to before `end`."""
        span = slice(first, end)
        return JobRows(self.columns[:, span], self.times[:, span], self.estimates[span], self.graphs[span])

    def where(self, are_wanted: BoolArray) -> "JobRows":
        """Some of the rows, at least one."""
        if are_wanted.all():
            return self
        columns, times = np.compress(are_wanted, self.columns, axis=1), np.compress(are_wanted, self.times, axis=1)
        return JobRows(columns, times, self.estimates[are_wanted], list(compress(self.graphs, are_wanted.tolist())))

    def in_order(self) -> "JobRows":
        """The rows in the order in which they are due; of two due at once, the one that came first is first."""
        due, numbers = self.times[DUE_AT], self.columns[NUMBER]
        ascends = (due[:-1] < due[1:]) | ((due[:-1] == due[1:]) & (numbers[:-1] < numbers[1:]))
        if ascends.all():
            return self
        order = np.lexsort((numbers, due))
        graphs = [self.graphs[row] for row in order.tolist()]
        columns, times = np.take(self.columns, order, axis=1), np.take(self.times, order, axis=1)
        return JobRows(columns, times, self.estimates[order], graphs)

    def place(self, row: int) -> tuple[float, int]:
        """By which a row compares."""
        return float(self.times[DUE_AT, row]), int(self.columns[NUMBER, row])

    def packed(self) -> Int32Array:
        """The packed graphs, end to end."""
        return np.frombuffer(bytearray().join(map(_PACKED, self.graphs)), np.int32)

    def job(self, row: int) -> CellJob:
        """A job as it came."""
        job_id, _, bulk, slots, size = self.columns[:, row].tolist()
        arrival, deadline = self.times[[ARRIVAL, DEADLINE], row].tolist()
        known = None if deadline == math.inf else deadline
        return CellJob(job_id, self.graphs[row], arrival, known, bool(bulk), slots, size)

    def online(self) -> BoolArray:
        """[J] which jobs are not bulk."""
        are_online: BoolArray = self.columns[BULK] == 0
        return are_online


class Forecast(NamedTuple):
    """By which the times of jobs are predicted."""

    prices: Float64Array  # [2, C] STEP_S and ROW_S of each cell
    share: float = 1.0  # of the steps of chains that run
    slowdown: float = 1.0  # time of jobs, from their first task on, over their predicted path


class NewJobs(NamedTuple):
    """The jobs of one `add`: active, and in no table yet."""

    rows: JobRows
    graphs: Int32Array  # packed, end to end
    slots: tuple[int, int]  # state slots: of all, and of bulk jobs
    earliest: float  # deadline; inf: none
    begin_by: float  # when all online jobs must have begun to be in time
    work_s: float
