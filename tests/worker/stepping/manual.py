"""A step runner without a model, and a thread that takes a turn when the test says so."""

from collections.abc import Sequence

from penstock.engine.errors import EngineError
from penstock.engine.types import Float32Array
from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.step_thread import StepThread
from tests.worker.batching.small_engine import POISON, answer


class CountingRunner:
    """Runs a job for as many steps as its first id says, at most `max_rows` jobs at once, and answers as `answer`.

    One that holds POISON fails at its first step.
    """

    def __init__(self, max_rows: int = 2) -> None:
        self.max_rows = max_rows
        self.waiting: dict[int, StepJob] = {}
        self.running: dict[int, tuple[StepJob, int]] = {}  # with the steps that are left
        self.cancelled: list[int] = []
        self.batches: list[list[int]] = []  # ids of the jobs of each turn
        self.started: list[list[int]] = []  # tokens of the jobs that have begun
        self.num_tasks = 0
        self.broken = False
        self.predicted_s = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, jobs: Sequence[StepJob]) -> None:
        self.waiting |= {job.id: job for job in jobs}

    def cancel(self, ids: Sequence[int]) -> None:
        self.cancelled += ids
        for job_id in ids:
            self.waiting.pop(job_id, None)
            self.running.pop(job_id, None)

    def idle(self) -> bool:
        return False

    def advance(self, now: float) -> JobEvents:
        if self.broken:
            raise ValueError("a bug of the runner")
        expired = [
            RejectedJob(job.id, Cause.QUEUED, now - job.deadline)
            for job in (*self.waiting.values(), *(job for job, _ in self.running.values()))
            if job.deadline is not None and job.deadline <= now
        ]
        for rejected in expired:
            self.waiting.pop(rejected.id, None)
            self.running.pop(rejected.id, None)
        started = list(self.waiting)[: max(0, self.max_rows - len(self.running))]
        self.started += [ids_of(self.waiting[job_id]) for job_id in started]
        self.running |= {job_id: (self.waiting[job_id], first(self.waiting.pop(job_id))) for job_id in started}
        self.batches.append(list(self.running))
        finished: list[tuple[int, Float32Array]] = []
        failed: dict[int, EngineError] = {}
        rows = len(self.running)
        for job_id, (job, left) in list(self.running.items()):
            self.running[job_id] = job, left - 1
            if is_bad := POISON in ids_of(job):
                failed[job_id] = EngineError("cannot compute this")
            elif left == 1:
                finished.append((job_id, answer(ids_of(job))))
            if is_bad or left == 1:
                del self.running[job_id]
        self.num_tasks += bool(rows)
        stats = (
            BatchStats("step", "count", 0.0, Sums(rows, rows, 1, rows), 0.5, 1.0, len(finished), self.num_tasks)
            if rows
            else None
        )
        return JobEvents(started, finished, failed, expired, (), stats)


def stats_of(rows: int, num_ended: int, number: int) -> BatchStats:
    """Of a task of one step of each row."""
    return BatchStats("step", "count", 0.0, Sums(rows, rows, 1, rows), 0.5, 1.0, num_ended, number)


def ids_of(job: StepJob) -> list[int]:
    assert isinstance(job.work, list)
    return job.work


def first(job: StepJob) -> int:
    return ids_of(job)[0]


class ManualThread(StepThread):
    """Hands jobs over at once, and takes turns when it is told to."""

    def __init__(self, runner: CountingRunner) -> None:
        super().__init__(runner, lambda sequence: sequence.token_ids.tolist())
        self.runner = runner

    def put(self, jobs: Sequence[StepJob]) -> None:
        self.runner.add(jobs)

    def cancel(self, ids: Sequence[int]) -> None:
        self.runner.cancel(ids)

    def turn(self, now: float) -> JobEvents:
        """One turn of the runner."""
        return self.runner.advance(now)
