"""The jobs of a cell runner that have not ended, by small numbers, so that the rows of a task index arrays of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.engine.cells.contract import Int32Array
from penstock.engine.cells.graph import Unfolded
from penstock.scheduler.cellular.types import Int64Array
from penstock.worker.stepping.contract import StepJob

NOT_OPEN = -1


class CellJobs:
    """Jobs by handle. A handle belongs to one job from `add` to `remove`, and then to a later one."""

    def __init__(self) -> None:
        self.sessions = np.zeros(0, np.int32)  # [H] key of the job's session, or NOT_OPEN: it waits for slots
        self.devices = np.zeros(0, np.int32)  # [H] where its session is open
        self.num_open = 0
        self._ids: list[int] = []  # [H]
        self._graphs: list[Unfolded | None] = []  # [H] None: the handle is free
        self._given: dict[int, StepJob] = {}  # by handle
        self.num_runs: Counter[int] = Counter()  # failed ones, by id
        self.most_rows: dict[int, int] = {}  # by handle, of jobs that begin again: how many rows run with one of them
        self._free: list[int] = []
        self._handles: dict[int, int] = {}  # by id

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, job: StepJob, graph: Unfolded) -> int:
        """The handle of a new job. ValueError: the id is in use."""
        job_id = job.id
        if job_id in self._handles:
            raise ValueError(f"A job's id is unique among the runner's jobs. Given twice: {job_id}. This is a bug.")
        if not self._free:
            self._grow()
        handle = self._handles[job_id] = self._free.pop()
        self._ids[handle], self._graphs[handle], self._given[handle] = job_id, graph, job
        return handle

    def open(self, handles: Sequence[int], keys: Int32Array, device: int) -> None:
        """The sessions of jobs were opened on a device."""
        index = list(handles)
        self.sessions[index], self.devices[index] = keys, device
        self.num_open += len(index)

    def remove(self, handles: Sequence[int]) -> None:
        """Jobs have ended, and their sessions, if they had any, were closed."""
        for handle in handles:
            del self._handles[self._ids[handle]], self._given[handle]
            self.most_rows.pop(handle, None)
            self.num_runs.pop(self._ids[handle], None)
            self._graphs[handle] = None
        self._free += handles
        index = list(handles)
        self.num_open -= int((self.sessions[index] != NOT_OPEN).sum())
        self.sessions[index] = NOT_OPEN

    def find(self, ids: Iterable[int]) -> list[int]:
        """Handles of the jobs with these ids. Unknown ids are left out."""
        return [self._handles[job_id] for job_id in dict.fromkeys(ids) if job_id in self._handles]

    def ids(self, handles: Iterable[int]) -> list[int]:
        """The ids of jobs."""
        known = self._ids
        return [known[handle] for handle in handles]

    def graphs(self, handles: Iterable[int]) -> list[Unfolded]:
        """The graphs of jobs."""
        return [graph for graph in map(self._graphs.__getitem__, handles) if graph is not None]

    def given(self, handle: int) -> StepJob:
        """A job as it was added."""
        return self._given[handle]

    def most_together(self, handles: Int64Array) -> int | None:
        """How many of these rows run together, where some of them are of jobs that begin again; None: all."""
        if not self.most_rows:
            return None
        return min([self.most_rows[handle] for handle in handles.tolist() if handle in self.most_rows], default=None)

    def count_runs(
        self, handles: Int64Array, sessions: Int32Array, runs: Mapping[int, int], lost: Iterable[int]
    ) -> None:
        """Count failed runs of the rows of a task, whose jobs and sessions these are, and of jobs that are lost."""
        by_job: dict[int, int] = dict.fromkeys(lost, 1)
        for row, count in runs.items():
            handle = int(handles[row])
            if self.sessions[handle] == sessions[row]:  # else the job has left
                by_job[handle] = max(by_job.get(handle, 0), count)
        for handle, count in by_job.items():
            self.num_runs[self._ids[handle]] += count

    def open_on(self, handles: Sequence[int], device: int) -> Int32Array:
        """Keys of the sessions on a device that these jobs have."""
        index = list(handles)
        sessions = self.sessions[index]
        found: Int32Array = sessions[(self.devices[index] == device) & (sessions != NOT_OPEN)]
        return found

    def _grow(self) -> None:
        size = len(self._ids)
        more = max(64, size)
        self._ids += [0] * more
        self._graphs += [None] * more
        self._free += range(size + more - 1, size - 1, -1)
        self.sessions = np.concatenate([self.sessions, np.full(more, NOT_OPEN, np.int32)])
        self.devices = np.concatenate([self.devices, np.zeros(more, np.int32)])
