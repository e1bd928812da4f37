"""The step runner of a model made of cells: one scheduler over one or several devices."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.engine.cells.contract import CellOutput, CellSpec, RunningCells, StepEngine
from penstock.engine.cells.emissions import emissions_of, has_nan, join
from penstock.engine.cells.errors import CellFailed
from penstock.engine.cells.graph import Unfolded
from penstock.engine.cells.sessions import SessionBatch, Sessions
from penstock.engine.cells.state_pool import StatePool
from penstock.engine.errors import DeviceFailed
from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellSettings, CellTask
from penstock.scheduler.types import RejectedJob
from penstock.worker.stepping.contract import StepEvents, StepJob, StepStats
from penstock.worker.stepping.isolation import IsolatedCells, failed_output
from penstock.worker.stepping.sequence_work import SequenceWork

_NOT_NUMBERS = CellFailed("the cells emitted NaN for this request; the other requests were not affected.")


class _Device(NamedTuple):
    """A device: its engine, and the requests whose states lie there."""

    engine: StepEngine
    sessions: Sessions


class _Underway(NamedTuple):
    """A task that a device works on."""

    task: CellTask
    batch: SessionBatch
    running: RunningCells


class _Job:
    """A job that has not ended."""

    __slots__ = ("device", "work")

    def __init__(self, work: SequenceWork) -> None:
        self.work = work
        self.device: int | None = None  # where its session is open; None: it waits for slots


class CellRunner:
    """Implements `StepRunner` for `SequenceWork`.

    The scheduler pins a job to a device and counts its state slots there, so that a job waits in the scheduler until
    the pool of a device has room. Its session opens with its first task. Two tasks of a device are underway: the next
    one is decided and started while one runs.

    A result is the job's emissions as `emissions.join` gives them.
    """

    def __init__(self, specs: Sequence[CellSpec], engines: Sequence[StepEngine]) -> None:
        """specs: of the model. engines: one of each device, all with these cells and equally many slots."""
        num_slots = engines[0].num_slots
        if any(engine.num_slots != num_slots for engine in engines):
            raise ValueError("The devices of a runner have equally many slots.")
        rules = [CellRule(spec.name, spec.max_rows, spec.max_steps, spec.priority) for spec in specs]
        settings = CellSettings(num_devices=len(engines), max_slots=num_slots - 1)
        self._scheduler = CellScheduler(rules, settings)
        self._specs = specs
        self._emissions = emissions_of(specs)
        self._devices = [_Device(engine, Sessions(specs, StatePool(num_slots))) for engine in engines]
        self._jobs: dict[int, _Job] = {}
        self._underway: deque[_Underway] = deque()  # in the order of their start
        self._started: list[int] = []  # jobs whose sessions were opened; `advance` has not told yet
        self._rejected: list[RejectedJob] = []  # likewise
        self._isolating: set[int] = set()  # devices with a task that did not start; it ends before the next one starts

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not (self._jobs or self._underway or self._rejected)

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`. The work of each is a SequenceWork that one device's slots can hold."""
        if not jobs:
            return
        cell_jobs = []
        for job in jobs:
            if not isinstance(job.work, SequenceWork):
                raise TypeError(f"The cell runner got work of type {type(job.work).__name__}. This is a bug.")
            self._jobs[job.id] = _Job(job.work)
            num_slots = job.work.graph.slot_plan.num_slots
            cell_jobs.append(
                CellJob(job.id, _cell_graph(job.work.graph), job.arrival, job.deadline, job.bulk, num_slots)
            )
        self._reject(self._scheduler.add(cell_jobs, max([job.arrival for job in jobs])))

    def cancel(self, ids: Sequence[int]) -> None:
        """See `StepRunner.cancel`. Slots are free once what is underway has ended."""
        self._leave(ids)
        self._scheduler.cancel(ids)
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
        started, self._started = self._started, []
        expired, self._rejected = self._rejected, []
        done = self._finish(self._underway.popleft(), now) if self._underway else StepEvents()
        return done._replace(started=started, expired=expired)

    def check_integrity(self) -> None:
        """Raise unless every slot belongs to an open job. Called by tests, and when idle."""
        for _, sessions in self._devices:
            sessions.check_integrity()
        num_open = sum([sessions.num_open for _, sessions in self._devices])
        if num_open != len([job for job in self._jobs.values() if job.device is not None]):
            raise RuntimeError("A session is open without its job. This is a bug.")

    def _start_tasks(self, number: int, now: float) -> None:
        """Queue tasks on a device, up to as many as it may have."""
        while number not in self._isolating:
            plan = self._scheduler.poll(now, number)
            self._reject(plan.rejected)
            if not isinstance(plan, CellTask):
                return
            self._start(plan)

    def _start(self, task: CellTask) -> None:
        engine, sessions = self._devices[task.device]
        ids = task.jobs.tolist()
        for job_id in ids:
            job = self._jobs[job_id]
            if job.device is None:
                self._open(job_id, job, task.device)
        batch = sessions.batch(task.cell, ids, task.nodes, task.steps, task.quantum)
        try:
            running = engine.start(batch.batch)
        except DeviceFailed:
            raise
        except Exception as error:  # of the engine, on some of the rows
            running = IsolatedCells(engine, batch.batch, error)
            self._isolating.add(task.device)
        self._underway.append(_Underway(task, batch, running))

    def _open(self, job_id: int, job: _Job, device: int) -> None:
        if not self._devices[device].sessions.open(job_id, job.work.graph):
            raise RuntimeError("The scheduler let a job in, and the pool has no slots for it. This is a bug.")
        job.device = device
        self._started.append(job_id)

    def _finish(self, underway: _Underway, now: float) -> StepEvents:
        """Wait for a task, and end the jobs that end with it."""
        task, batch, running = underway
        sessions = self._devices[task.device].sessions
        output = self._result(task, batch, running)
        if isinstance(running, IsolatedCells):
            self._isolating.discard(task.device)
        applied = sessions.apply(batch, output)
        outputs = {job_id: sessions.emitted(job_id) for job_id in applied.finished}
        failed = applied.failed | {job_id: _NOT_NUMBERS for job_id, found in outputs.items() if has_nan(found)}
        finished = [(job_id, join(found, self._emissions)) for job_id, found in outputs.items() if job_id not in failed]
        self._leave([*applied.finished, *applied.failed])
        self._scheduler.cancel(applied.failed)
        ended = self._scheduler.finished(task.id, now, output.steps, output.is_stopped, output.device_s)
        if sorted(ended) != sorted(applied.finished):
            raise RuntimeError(f"The scheduler ended {ended}, and the sessions {applied.finished}. This is a bug.")
        name, num_steps = batch.batch.cell, int(output.steps.sum())
        stats = StepStats(name, len(task.jobs), num_steps, task.quantum, task.predicted_s, output.device_s)
        return StepEvents(finished=finished, failed=failed, stats=stats)

    def _result(self, task: CellTask, batch: SessionBatch, running: RunningCells) -> CellOutput:
        try:
            return running.result()
        except DeviceFailed:
            raise
        except Exception as error:  # the states of the rows are undefined: nothing of them may run again
            if isinstance(running, IsolatedCells):
                raise  # the engine failed on a probe too
            return failed_output(self._specs[task.cell], batch.batch, error)

    def _reject(self, rejected: Iterable[RejectedJob]) -> None:
        """Jobs that the scheduler has removed, as their deadlines have passed."""
        rejected = list(rejected)
        self._leave([job.id for job in rejected])
        self._rejected += rejected

    def _leave(self, ids: Iterable[int]) -> None:
        """Forget jobs and close their sessions. Unknown ids are ignored."""
        for job_id in ids:
            job = self._jobs.pop(job_id, None)
            if job is not None and job.device is not None:
                self._devices[job.device].sessions.close(job_id)


def _cell_graph(graph: Unfolded) -> CellGraph:
    return CellGraph(graph.cells, graph.steps, *graph.dependencies())
