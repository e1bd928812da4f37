"""The jobs of a cell runner that have not ended, by small numbers, so that the rows of a task index arrays of them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import Int32Array
from penstock.engine.errors import EngineError
from penstock.scheduler.cellular import JobRows
from penstock.scheduler.cellular.arrays import ARRIVAL, BULK, DEADLINE, ID, SIZE, SLOTS
from penstock.scheduler.cellular.types import Int64Array
from penstock.worker.requests.sequence_work import SequenceWork
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.isolated_cells import LostRow

if TYPE_CHECKING:
    from penstock.engine.cells.graph import Unfolded

NOT_OPEN = -1


class CellJobs:
    """Jobs by handle. A handle belongs to one job from `add` to `remove`, and then to a later one."""

    def __init__(self) -> None:
        self.sessions = np.zeros(0, np.int32)  # [H] key of the job's session, or NOT_OPEN: it waits for slots
        self.ids = np.zeros(0, np.int64)  # [H]
        self._given: npt.NDArray[Any] = np.zeros(0, object)  # [H] each a StepJob; None: the handle is free
        self.num_runs: Counter[int] = Counter()  # failed ones, by id
        self.most_rows: dict[int, int] = {}  # by handle, of jobs that begin again: how many rows run with one of them
        self._free = np.zeros(0, np.int64)  # a stack of handles: `_num_free` of them
        self._num_free = 0
        self._handles: dict[int, int] = {}  # by id

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def num_open(self) -> int:
        """Jobs whose sessions are open. Looks at all handles."""
        return int(np.count_nonzero(self.sessions != NOT_OPEN))

    def add(self, jobs: Sequence[StepJob]) -> JobRows:
        """New jobs as the scheduler takes them: their ids are handles. ValueError: an id is in use."""
        ids, works, arrivals, deadlines, bulk = zip(*jobs, strict=True)
        num_jobs = len(ids)
        if set(map(type, works)) != {SequenceWork}:
            raise TypeError(f"The cell runner got other work than SequenceWork: {jobs[:3]}. This is a bug.")
        if self._num_free < num_jobs:
            self._grow(num_jobs)
        self._num_free -= num_jobs
        handles = self._free[self._num_free : self._num_free + num_jobs]
        num_others = len(self._handles)
        self._handles.update(zip(ids, handles.tolist(), strict=True))
        if len(self._handles) < num_others + num_jobs:
            raise ValueError(
                f"A job's id is unique among the runner's jobs. Some of these are not: {ids}. This is a bug."
            )
        self.ids[handles], self._given[handles] = ids, np.fromiter(jobs, object, num_jobs)
        fields, times = np.empty((5, num_jobs), np.int64), np.empty((3, num_jobs))
        fields[ID], fields[BULK], fields[SIZE] = handles, bulk if any(bulk) else 0, 1
        fields[SLOTS] = [work.num_slots for work in works]
        times[ARRIVAL], times[DEADLINE] = arrivals, _known(deadlines)
        return JobRows.before_arrival(fields, times, [work.cell_graph for work in works])

    def remove(self, handles: Int64Array) -> list[int]:
        """Jobs have ended, and their sessions, if they had any, were closed. Returns their ids."""
        ids: list[int] = self.ids[handles].tolist()
        for job_id in ids:
            del self._handles[job_id]
        if self.num_runs or self.most_rows:
            for job_id, handle in zip(ids, handles.tolist(), strict=True):
                self.most_rows.pop(handle, None)
                self.num_runs.pop(job_id, None)
        self._free[self._num_free : self._num_free + len(ids)] = handles
        self._num_free += len(ids)
        self._given[handles], self.sessions[handles] = None, NOT_OPEN
        return ids

    def find(self, ids: Iterable[int]) -> list[int]:
        """Handles of the jobs with these ids. Unknown ids are left out."""
        return [self._handles[job_id] for job_id in dict.fromkeys(ids) if job_id in self._handles]

    def given(self, handles: Int64Array) -> list[StepJob]:
        """Jobs as they were added."""
        found: list[StepJob] = self._given[handles].tolist()
        return found

    def graphs(self, handles: Int64Array) -> "list[Unfolded]":
        """The graphs of jobs, as sessions take them."""
        jobs: list[Any] = self._given[handles].tolist()  # the work of each is a SequenceWork: `add` has looked
        return [job.work.graph for job in jobs]

    def most_together(self, handles: Int64Array) -> int | None:
        """How many of these rows run together, where some of them are of jobs that begin again; None: all."""
        if not self.most_rows:
            return None
        return min([self.most_rows[handle] for handle in handles.tolist() if handle in self.most_rows], default=None)

    def blame(
        self,
        handles: Int64Array,
        sessions: Int32Array,
        failed: Mapping[int, EngineError],
        runs: Mapping[int, int],
    ) -> tuple[dict[int, EngineError], dict[int, int]]:
        """The jobs that fail with a task, and those that begin again, with the rows of the batches that were lost.

        handles, sessions: of the task's rows. failed, runs: by row; failed runs are counted.
        """
        faults = {int(handles[row]): error for row, error in failed.items()}
        again = {handle: error.num_rows for handle, error in faults.items() if isinstance(error, LostRow)}
        by_job: dict[int, int] = dict.fromkeys(again, 1)
        for row, count in runs.items():
            handle = int(handles[row])
            if self.sessions[handle] == sessions[row]:  # else the job has left
                by_job[handle] = max(by_job.get(handle, 0), count)
        for handle, count in by_job.items():
            self.num_runs[int(self.ids[handle])] += count
        return {handle: error for handle, error in faults.items() if handle not in again}, again

    def open_sessions(self, handles: Sequence[int]) -> Int32Array:
        """Keys of the sessions that these jobs have."""
        sessions = self.sessions[list(handles)]
        found: Int32Array = sessions[sessions != NOT_OPEN]
        return found

    def _grow(self, num_jobs: int) -> None:
        size = len(self.ids)
        more = max(64, size, num_jobs)
        free, no_handles = self._free[: self._num_free], np.zeros(size - self._num_free, np.int64)
        self._free = np.concatenate([np.arange(size + more - 1, size - 1, -1), free, no_handles])
        self._num_free += more
        self.sessions = np.concatenate([self.sessions, np.full(more, NOT_OPEN, np.int32)])
        for name in ("ids", "_given"):
            known = getattr(self, name)
            setattr(self, name, np.concatenate([known, np.zeros((more, *known.shape[1:]), known.dtype)]))


def _known(deadlines: Sequence[float | None]) -> Sequence[float] | float:
    """Deadlines, of which inf is none."""
    if deadlines.count(None) == len(deadlines):
        return math.inf
    return [math.inf if deadline is None else deadline for deadline in deadlines]
