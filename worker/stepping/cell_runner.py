"""The step runner of a model made of cells."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.engine.cells.contract import CellOutput, CellSpec, RunningCells, StepEngine
from penstock.engine.cells.errors import CellFailed
from penstock.engine.cells.sessions import SessionBatch, Sessions
from penstock.engine.errors import DeviceFailed, EngineError
from penstock.engine.types import Float32Array
from penstock.scheduler.cellular import CellRule, CellScheduler, CellTask
from penstock.scheduler.cellular.arrays import ARRIVAL
from penstock.scheduler.cellular.types import Int64Array
from penstock.scheduler.settings import AdmissionName
from penstock.scheduler.types import RejectedJob
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.cell_jobs import CellJobs
from penstock.worker.stepping.contract import StepJob, stats_of
from penstock.worker.stepping.isolated_cells import IsolatedCells, lost_output
from penstock.worker.stepping.isolation import StepIsolation

_NOT_FINITE = CellFailed("the cells emitted NaN or infinity for this request; the other requests were not affected.")


class _Underway(NamedTuple):
    """A task that the engine works on."""

    task: CellTask
    batch: SessionBatch
    running: RunningCells


class HostTime:
    """The host's own seconds between two results, for quanta that hide them. Used by the runner's thread."""

    def __init__(self, clock: Callable[[], float], start_computes: bool) -> None:
        """start_computes: an engine's `start` is the device's work, as on a CPU. Else it is the host's."""
        self._clock = clock
        self._start_computes = start_computes
        self._result_at: float | None = None  # when the last result came; None: there was nothing to do since
        self._starting_s = 0.0  # of the engines' `start` since then, where it computes

    def now(self) -> float:
        """The clock's seconds."""
        return self._clock()

    def started(self, began: float) -> None:
        """An engine's `start` has run since then."""
        if self._start_computes:
            self._starting_s += self._clock() - began

    def take(self) -> float:
        """Seconds since the last result, without those of the device's work; 0 where there was nothing to do."""
        own_s = 0.0 if self._result_at is None else self._clock() - self._result_at - self._starting_s
        self._starting_s = 0.0
        return own_s

    def came(self) -> None:
        """A result has come."""
        self._result_at = self._clock()

    def rest(self) -> None:
        """There is nothing to do."""
        self._result_at = None


class CellRunner:
    """Implements `StepRunner` for `SequenceWork`.

    The scheduler counts the state slots of jobs, so that a job waits in the scheduler until the pool has room. Its
    session opens with its first task. Two tasks are underway: the next one is decided and started while one runs.

    The scheduler's jobs have the runner's handles for their ids. A result is the job's emissions as `emissions.split`
    takes them.
    """

    def __init__(
        self,
        specs: Sequence[CellSpec],
        engine: StepEngine,
        admission: AdmissionName = "deadline",
        max_tasks: int = 2,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """specs: of the model. engine: with these cells.

        admission: see `CellScheduler`. max_tasks: likewise; 1 where the engine's `start` computes, as on a CPU. pause:
        waits before a step is tried again.
        """
        num_slots = engine.num_slots
        rules = [CellRule(spec.name, spec.max_rows, spec.max_steps, spec.priority) for spec in specs]
        self._scheduler = CellScheduler(rules, max_tasks, num_slots - 1, admission)
        self._specs = specs
        self._engine = engine
        self._sessions = Sessions(specs, num_slots)
        self._jobs = CellJobs()
        self._underway: deque[_Underway] = deque()  # in the order of their start
        self._started: list[int] = []  # jobs whose sessions were opened; `advance` has not told yet
        self._rejected: list[RejectedJob] = []  # likewise
        self._host = HostTime(clock, start_computes=max_tasks == 1)
        self._is_isolating = False  # a task runs in parts; it ends before the next one starts
        self._isolation = StepIsolation(max([spec.max_rows for spec in specs]), pause=pause)

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not (len(self._jobs) or self._underway or self._rejected)

    @property
    def predicted_s(self) -> float:
        """See `StepRunner.predicted_s`: of the tasks underway."""
        return sum([underway.task.predicted_s for underway in tuple(self._underway)])

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`. The work of each is a SequenceWork that the slots can hold."""
        if jobs:
            rows = self._jobs.add(jobs)
            self._reject(self._scheduler.add_rows(rows, max(rows.times[ARRIVAL].tolist())))

    def cancel(self, ids: Sequence[int]) -> None:
        """See `StepRunner.cancel`. Slots are free once what is underway has ended."""
        handles = self._jobs.find(ids)
        self._scheduler.cancel(handles)
        self._leave(handles)
        if self._rejected:
            cancelled = set(ids)
            self._rejected = [job for job in self._rejected if job.id not in cancelled]

    def idle(self) -> bool:
        """See `StepRunner.idle`."""
        return self._engine.idle()

    def advance(self, now: float) -> JobEvents:
        """See `StepRunner.advance`. Raises the error of an engine that fails on any input, such as DeviceFailed."""
        self._start_tasks(now)
        started, rejected = self._started, self._rejected
        self._started, self._rejected = [], []
        if self._underway:
            events = self._finish(self._underway.popleft(), started, rejected, now)
        else:
            events = JobEvents(started, expired=rejected)
        if self.is_idle:
            self._host.rest()
        return events

    def check_integrity(self) -> None:
        """Raise unless every slot belongs to an open job. Called by tests, and when idle."""
        self._sessions.check_integrity()
        if self._sessions.num_open != self._jobs.num_open:
            raise RuntimeError("A session is open without its job. This is a bug.")

    def _start_tasks(self, now: float) -> None:
        """Queue tasks, up to as many as may be underway."""
        while not self._is_isolating:
            plan = self._scheduler.poll(now)
            if plan.rejected:
                self._reject(plan.rejected)
            if not isinstance(plan, CellTask):
                return
            self._start(plan)
            if self._scheduler.is_full:
                return

    def _start(self, task: CellTask) -> None:
        if len(task.begun):
            self._open(task.begun)
        keys = self._jobs.sessions[task.jobs]
        batch = self._sessions.batch(task.cell, keys, task.nodes, task.steps, task.quantum)
        most_rows = self._jobs.most_together(task.jobs)
        running, failure = None, None
        if most_rows is None and len(keys) <= self._isolation.most_tokens:
            began = self._host.now()
            try:
                running = self._engine.start(batch.batch)
            except DeviceFailed:
                raise
            except Exception as error:  # of the engine, on some of the rows
                failure = error
            finally:
                self._host.started(began)
        if running is None:
            running = IsolatedCells(self._engine, batch.batch, self._isolation, most_rows or len(keys), failure)
            self._is_isolating = True
        self._underway.append(_Underway(task, batch, running))

    def _open(self, handles: Int64Array) -> None:
        """Open the sessions of jobs."""
        keys = self._sessions.open(self._jobs.graphs(handles))
        if keys is None:
            raise RuntimeError("The scheduler let jobs in, and the pool has no slots for them. This is a bug.")
        self._jobs.sessions[handles] = keys
        self._started += self._jobs.ids[handles].tolist()

    def _finish(self, underway: _Underway, started: list[int], rejected: list[RejectedJob], now: float) -> JobEvents:
        """Wait for a task, and end the jobs that end with it. started, rejected: jobs, since the last task."""
        task, batch, running = underway
        sessions = self._sessions
        output = self._result(task, batch, running)
        applied = sessions.apply(batch, output)
        faults: dict[int, EngineError] = {}
        again: dict[int, int] = {}
        failed: dict[int, EngineError] = {}
        runs_of: dict[int, int] = {}
        is_isolated = isinstance(running, IsolatedCells)
        if is_isolated:
            self._is_isolating = False
        if is_isolated or applied.failed:
            runs = self._isolation.take_runs()
            faults, again = self._jobs.blame(task.jobs, batch.requests, applied.failed, runs)
            failed = {int(self._jobs.ids[handle]): error for handle, error in faults.items()}
            runs_of = {job_id: self._jobs.num_runs.get(job_id, 1) for job_id in failed}
        finished: list[tuple[int, Float32Array]] = []
        handles = task.jobs[applied.finished]
        ending: list[int] = handles.tolist()
        if ending:
            keys = batch.requests[applied.finished]
            results = sessions.results(keys)
            sessions.close(keys)
            finished = list(zip(self._jobs.remove(handles), results.rows, strict=True))
            if np.count_nonzero(results.is_not_finite):
                failed |= {finished[place][0]: _NOT_FINITE for place in np.flatnonzero(results.is_not_finite).tolist()}
                finished = [result for result in finished if result[0] not in failed]
        if faults or again:
            self._scheduler.cancel([*faults, *again])
        ended = self._scheduler.finished(task.id, now, output.steps, output.is_stopped, output.device_s)
        if ended != ending and sorted(ended) != sorted(ending):
            raise RuntimeError(f"The scheduler ended {ended}, and the sessions {ending}. This is a bug.")
        if faults or again:
            self._restart(again, now)
            self._leave([*faults])
        stats = stats_of(task, batch.batch.cell, applied.num_steps, output.device_s, len(finished))
        return JobEvents(started, finished, failed, rejected, (), stats, runs_of)

    def _restart(self, lost: Mapping[int, int], now: float) -> None:
        """Jobs of lost batches, with the rows that these had, begin again: fewer rows run with one of them."""
        for handle, num_rows in lost.items():
            (job,) = self._jobs.given(np.array([handle]))
            num_runs = self._jobs.num_runs[job.id]
            self._leave([handle])
            self._jobs.num_runs[job.id] = num_runs
            rows = self._jobs.add([job])
            self._jobs.most_rows[rows.ids[0]] = max(1, num_rows // 2)
            self._reject(self._scheduler.add_rows(rows, now))

    def _result(self, task: CellTask, batch: SessionBatch, running: RunningCells) -> CellOutput:
        self._scheduler.observe_host(self._host.take())
        try:
            return running.result()
        except DeviceFailed:
            raise
        except Exception as error:
            if isinstance(running, IsolatedCells):
                raise  # the engine failed on a probe too
            return lost_output(self._specs[task.cell], batch.batch, error)
        finally:
            self._host.came()

    def _reject(self, rejected: Sequence[RejectedJob]) -> None:
        """Jobs that the scheduler has removed, as their deadlines have passed."""
        if rejected:
            handles = [job.id for job in rejected]
            ids = self._jobs.ids[handles].tolist()
            self._rejected += [job._replace(id=job_id) for job, job_id in zip(rejected, ids, strict=True)]
            self._leave(handles)

    def _leave(self, handles: Sequence[int]) -> None:
        """Forget jobs, which the scheduler does not have any more, and close their sessions."""
        if handles:
            if len(keys := self._jobs.open_sessions(handles)):
                self._sessions.close(keys)
            self._jobs.remove(np.array(handles))
