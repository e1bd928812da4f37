"""A runner of steps with any policy in the scheduler's place: the baselines use the same engine and sessions.

It does what the worker's `CellRunner` does, but for cancelled and failed rows.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.engine.cells.contract import CellSpec, RunningCells, StepEngine
from penstock.engine.cells.sessions import SessionBatch, Sessions
from penstock.ops.bench.cellular.policies import CellScheduling
from penstock.scheduler.cellular import CellJob, CellTask
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.requests.sequence_work import SequenceWork
from penstock.worker.stepping.contract import StepJob


class _Underway(NamedTuple):
    """A task that the engine runs."""

    task: CellTask
    batch: SessionBatch
    running: RunningCells


class PolicyRunner:
    """Takes `SequenceWork`. A request's slots are acquired with its first task; the policy says when it has ended."""

    def __init__(self, specs: Sequence[CellSpec], engine: StepEngine, policy: CellScheduling) -> None:
        self._engine, self._policy = engine, policy
        self._sessions = Sessions(specs, engine.num_slots)
        self._works: dict[int, SequenceWork] = {}
        self._keys: dict[int, int] = {}  # of the sessions of requests that have slots
        self._underway: deque[_Underway] = deque()

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not self._works

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`."""
        made = []
        for job in jobs:
            work = job.work
            if not isinstance(work, SequenceWork):
                raise TypeError(f"A job's work is a SequenceWork, not {type(work).__name__}. This is a bug.")
            self._works[job.id] = work
            made.append(CellJob(job.id, work.cell_graph, job.arrival, job.deadline, job.bulk, work.num_slots))
        self._policy.add(made, 0.0)  # these policies know no time

    def advance(self, now: float) -> JobEvents:
        """See `StepRunner.advance`."""
        while isinstance(plan := self._policy.poll(now), CellTask):
            self._start(plan)
        task, batch, running = self._underway.popleft()
        output = running.result()
        self._sessions.apply(batch, output)
        ended = self._policy.finished(task.id, now, output.steps, output.is_stopped, output.device_s)
        for job_id in ended:
            del self._works[job_id]
        keys = np.array([self._keys.pop(job_id) for job_id in ended], np.int32)
        results = self._sessions.results(keys)
        self._sessions.close(keys)
        return JobEvents(finished=list(zip(ended, results.rows, strict=True)), failed=output.failed)

    def _start(self, task: CellTask) -> None:
        ids = task.jobs.tolist()
        fresh = [job_id for job_id in dict.fromkeys(ids) if job_id not in self._keys]
        if fresh:
            opened = self._sessions.open([self._works[job_id].graph for job_id in fresh])
            if opened is None:
                raise RuntimeError("The pool has too few slots for the policy's batch. This is a bug.")
            self._keys.update(zip(fresh, opened.tolist(), strict=True))
        keys = np.array([self._keys[job_id] for job_id in ids], np.int32)
        batch = self._sessions.batch(task.cell, keys, task.nodes, task.steps, task.quantum)
        self._underway.append(_Underway(task, batch, self._engine.start(batch.batch)))
