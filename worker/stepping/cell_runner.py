"""The step runner of a model made of cells: one scheduler over one or several devices."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.engine.cells.contract import CellOutput, CellSpec, RunningCells, StepEngine
from penstock.engine.cells.errors import CellFailed
from penstock.engine.cells.state.sessions import SessionBatch, Sessions
from penstock.engine.cells.state.state_pool import StatePool
from penstock.engine.errors import DeviceFailed, EngineError
from penstock.engine.types import Float32Array
from penstock.scheduler.cellular import CellRule, CellScheduler, CellSettings, CellTask
from penstock.scheduler.cellular.arrays import ID
from penstock.scheduler.cellular.types import Int64Array
from penstock.scheduler.settings import AdmissionName
from penstock.scheduler.types import RejectedJob
from penstock.worker.stepping.cell_jobs import CellJobs
from penstock.worker.stepping.contract import StepEvents, StepJob, StepStats
from penstock.worker.stepping.host_time import HostTime
from penstock.worker.stepping.isolated_cells import IsolatedCells, lost_output
from penstock.worker.stepping.isolation import StepIsolation

_NOT_FINITE = CellFailed("the cells emitted NaN or infinity for this request; the other requests were not affected.")


class _Device(NamedTuple):
    """A device: its engine, and the requests whose states lie there."""

    engine: StepEngine
    sessions: Sessions


class _Underway(NamedTuple):
    """A task that a device works on."""

    task: CellTask
    batch: SessionBatch
    running: RunningCells


class CellRunner:
    """Implements `StepRunner` for `SequenceWork`.

    The scheduler pins a job to a device and counts its state slots there, so that a job waits in the scheduler until
    the pool of a device has room. Its session opens with its first task. Two tasks of a device are underway: the next
    one is decided and started while one runs.

    The scheduler's jobs have the runner's handles for their ids. A result is the job's emissions as `emissions.split`
    takes them.
    """

    def __init__(
        self,
        specs: Sequence[CellSpec],
        engines: Sequence[StepEngine],
        admission: AdmissionName = "deadline",
        max_tasks: int = 2,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """specs: of the model. engines: one of each device, all with these cells and equally many slots.

        admission: see `CellSettings`. max_tasks: likewise; 1 where an engine's `start` computes, as on a CPU. pause:
        waits before a step is tried again.
        """
        num_slots = engines[0].num_slots
        if any(engine.num_slots != num_slots for engine in engines):
            raise ValueError("The devices of a runner have equally many slots.")
        rules = [CellRule(spec.name, spec.max_rows, spec.max_steps, spec.priority) for spec in specs]
        settings = CellSettings(len(engines), max_tasks, max_slots=num_slots - 1, admission=admission)
        self._scheduler = CellScheduler(rules, settings)
        self._specs = specs
        self._devices = [_Device(engine, Sessions(specs, StatePool(num_slots))) for engine in engines]
        self._jobs = CellJobs()
        self._underway: deque[_Underway] = deque()  # in the order of their start
        self._started: list[int] = []  # jobs whose sessions were opened; `advance` has not told yet
        self._rejected: list[RejectedJob] = []  # likewise
        self._host = HostTime(clock, start_computes=max_tasks == 1)
        self._isolating: set[int] = set()  # devices with a task that runs in parts; it ends before the next one starts
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
        """See `StepRunner.add`. The work of each is a SequenceWork that one device's slots can hold."""
        if jobs:
            columns = self._jobs.add(jobs)
            self._reject(self._scheduler.add_columns(columns, max(columns.times[0].tolist())))

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
        return any(engine.idle() for engine, _ in self._devices)

    def advance(self, now: float) -> StepEvents:
        """See `StepRunner.advance`. Raises the error of an engine that fails on any input, such as DeviceFailed."""
        for number in range(len(self._devices)):
            self._start_tasks(number, now)
        started, rejected = self._started, self._rejected
        self._started, self._rejected = [], []
        if self._underway:
            events = self._finish(self._underway.popleft(), started, rejected, now)
        else:
            events = StepEvents(started, expired=rejected)
        if self.is_idle:
            self._host.rest()
        return events

    def check_integrity(self) -> None:
        """Raise unless every slot belongs to an open job. Called by tests, and when idle."""
        for _, sessions in self._devices:
            sessions.check_integrity()
        num_open = sum([sessions.num_open for _, sessions in self._devices])
        if num_open != self._jobs.num_open:
            raise RuntimeError("A session is open without its job. This is a bug.")

    def _start_tasks(self, number: int, now: float) -> None:
        """Queue tasks on a device, up to as many as it may have."""
        while number not in self._isolating:
            plan = self._scheduler.poll(now, number)
            if plan.rejected:
                self._reject(plan.rejected)
            if not isinstance(plan, CellTask):
                return
            self._start(plan)
            if self._scheduler.is_full(number):
                return

    def _start(self, task: CellTask) -> None:
        engine, sessions = self._devices[task.device]
        if len(task.begun):
            self._open(task.begun, task.device)
        keys = self._jobs.sessions[task.jobs]
        batch = sessions.batch(task.cell, keys, task.nodes, task.steps, task.quantum)
        most_rows = self._jobs.most_together(task.jobs)
        running, failure = None, None
        if most_rows is None and len(keys) <= self._isolation.most_tokens:
            began = self._host.now()
            try:
                running = engine.start(batch.batch)
            except DeviceFailed:
                raise
            except Exception as error:  # of the engine, on some of the rows
                failure = error
            finally:
                self._host.started(began)
        if running is None:
            running = IsolatedCells(engine, batch.batch, self._isolation, most_rows or len(keys), failure)
            self._isolating.add(task.device)
        self._underway.append(_Underway(task, batch, running))

    def _open(self, handles: Int64Array, device: int) -> None:
        """Open the sessions of jobs."""
        keys = self._devices[device].sessions.open(self._jobs.graphs(handles))
        if keys is None:
            raise RuntimeError("The scheduler let jobs in, and the pool has no slots for them. This is a bug.")
        self._jobs.open(handles, keys, device)
        self._started += self._jobs.ids[handles].tolist()

    def _finish(self, underway: _Underway, started: list[int], rejected: list[RejectedJob], now: float) -> StepEvents:
        """Wait for a task, and end the jobs that end with it. started, rejected: jobs, since the last task."""
        task, batch, running = underway
        sessions = self._devices[task.device].sessions
        output = self._result(task, batch, running)
        applied = sessions.apply(batch, output)
        faults: dict[int, EngineError] = {}
        again: dict[int, int] = {}
        failed: dict[int, EngineError] = {}
        runs_of: dict[int, int] = {}
        is_isolated = isinstance(running, IsolatedCells)
        if is_isolated:
            self._isolating.discard(task.device)
        if is_isolated or applied.failed:
            runs = self._isolation.take_runs()
            faults, again = self._jobs.blame(task.jobs, batch.requests, task.device, applied.failed, runs)
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
        name = batch.batch.cell
        stats = StepStats(name, len(task.jobs), applied.num_steps, task.quantum, task.predicted_s, output.device_s)
        return StepEvents(started, finished, failed, rejected, (), stats, runs_of)

    def _restart(self, lost: Mapping[int, int], now: float) -> None:
        """Jobs of lost batches, with the rows that these had, begin again: fewer rows run with one of them."""
        for handle, num_rows in lost.items():
            (job,) = self._jobs.given(np.array([handle]))
            num_runs = self._jobs.num_runs[job.id]
            self._leave([handle])
            self._jobs.num_runs[job.id] = num_runs
            columns = self._jobs.add([job])
            self._jobs.most_rows[int(columns.fields[ID, 0])] = max(1, num_rows // 2)
            self._reject(self._scheduler.add_columns(columns, now))

    def _result(self, task: CellTask, batch: SessionBatch, running: RunningCells) -> CellOutput:
        self._scheduler.observe_host(self._host.take() * len(self._devices))
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
            for number, (_, sessions) in enumerate(self._devices):
                if len(keys := self._jobs.open_on(handles, number)):
                    sessions.close(keys)
            self._jobs.remove(np.array(handles))
