"""The jobs of a cell runner that have not ended, by small numbers, so that the rows of a task index arrays of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.engine.cells.contract import Int32Array
from penstock.engine.errors import EngineError
from penstock.scheduler.cellular.types import Int64Array
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.isolated_cells import LostRow

NOT_OPEN = -1
_NO_JOB = StepJob(NOT_OPEN, None, 0.0, None, False)


class CellJobs:
    """Jobs by handle. A handle belongs to one job from `add` to `remove`, and then to a later one."""

    def __init__(self) -> None:
        self.sessions = np.zeros(0, np.int32)  # [H] key of the job's session, or NOT_OPEN: it waits for slots
        self.devices = np.zeros(0, np.int32)  # [H] where its session is open
        self.num_open = 0
        self._given: list[StepJob] = []  # [H] `_NO_JOB`: the handle is free
        self.num_runs: Counter[int] = Counter()  # failed ones, by id
        self.most_rows: dict[int, int] = {}  # by handle, of jobs that begin again: how many rows run with one of them
        self._free: list[int] = []
        self._handles: dict[int, int] = {}  # by id

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, jobs: Sequence[StepJob]) -> list[int]:
        """The handles of new jobs. ValueError: an id is in use."""
        ids, num_jobs = [job.id for job in jobs], len(jobs)
        if len(set(ids)) < num_jobs or not self._handles.keys().isdisjoint(ids):
            twice = next(job_id for place, job_id in enumerate(ids) if job_id in self._handles or job_id in ids[:place])
            raise ValueError(f"A job's id is unique among the runner's jobs. Given twice: {twice}. This is a bug.")
        if len(self._free) < num_jobs:
            self._grow(num_jobs)
        handles = self._free[-num_jobs:]
        del self._free[-num_jobs:]
        self._handles.update(zip(ids, handles, strict=True))
        for handle, job in zip(handles, jobs, strict=True):
            self._given[handle] = job
        return handles

    def open(self, handles: Int64Array, keys: Int32Array, device: int) -> None:
        """The sessions of jobs were opened on a device."""
        self.sessions[handles], self.devices[handles] = keys, device
        self.num_open += len(handles)

    def remove(self, handles: Sequence[int]) -> None:
        """Jobs have ended, and their sessions, if they had any, were closed."""
        known, ids = self._given, self.ids(handles)
        for job_id, handle in zip(ids, handles, strict=True):
            del self._handles[job_id]
            known[handle] = _NO_JOB
        if self.num_runs or self.most_rows:
            for job_id, handle in zip(ids, handles, strict=True):
                self.most_rows.pop(handle, None)
                self.num_runs.pop(job_id, None)
        self._free += handles
        index = np.array(handles)
        self.num_open -= int(np.count_nonzero(self.sessions[index] != NOT_OPEN))
        self.sessions[index] = NOT_OPEN

    def find(self, ids: Iterable[int]) -> list[int]:
        """Handles of the jobs with these ids. Unknown ids are left out."""
        return [self._handles[job_id] for job_id in dict.fromkeys(ids) if job_id in self._handles]

    def ids(self, handles: Iterable[int]) -> list[int]:
        """The ids of jobs."""
        known = self._given
        return [known[handle].id for handle in handles]

    def given(self, handles: Iterable[int]) -> list[StepJob]:
        """Jobs as they were added."""
        known = self._given
        return [known[handle] for handle in handles]

    def most_together(self, handles: Int64Array) -> int | None:
        """How many of these rows run together, where some of them are of jobs that begin again; None: all."""
        if not self.most_rows:
            return None
        return min([self.most_rows[handle] for handle in handles.tolist() if handle in self.most_rows], default=None)

    def blame(
        self, handles: Int64Array, sessions: Int32Array, failed: Mapping[int, EngineError], runs: Mapping[int, int]
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
            self.num_runs[self._given[handle].id] += count
        return {handle: error for handle, error in faults.items() if handle not in again}, again

    def open_on(self, handles: Sequence[int], device: int) -> Int32Array:
        """Keys of the sessions on a device that these jobs have."""
        index = list(handles)
        sessions = self.sessions[index]
        found: Int32Array = sessions[(self.devices[index] == device) & (sessions != NOT_OPEN)]
        return found

    def _grow(self, num_jobs: int) -> None:
        size = len(self._given)
        more = max(64, size, num_jobs)
        self._given += [_NO_JOB] * more
        self._free[:0] = range(size + more - 1, size - 1, -1)
        self.sessions = np.concatenate([self.sessions, np.full(more, NOT_OPEN, np.int32)])
        self.devices = np.concatenate([self.devices, np.zeros(more, np.int32)])
