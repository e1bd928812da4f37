"""A device in virtual time that runs the tasks of a cellular scheduler."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.cellular.policies import CellScheduling
from penstock.scheduler.cellular import CellJob, CellTask
from penstock.scheduler.cellular.types import BoolArray, Int32Array
from penstock.scheduler.types import RejectedJob

Seconds = Callable[[int, int, int], float]  # of a task, by cell, rows and quantum


@dataclass
class Life:
    """A job's times."""

    arrival: float
    begin: float = math.nan  # of its first task on the device
    end: float = math.nan  # NaN: rejected


@dataclass
class Outcome:
    """Counts and times of a simulated run."""

    lives: dict[int, Life] = field(default_factory=dict)
    rejected: list[RejectedJob] = field(default_factory=list)
    num_tasks: int = 0
    num_rows: int = 0
    steps: int = 0  # that rows have run
    busy_s: float = 0.0  # of the device
    end: float = 0.0

    @property
    def latencies(self) -> npt.NDArray[np.float64]:
        """From arrival to end, of the jobs that ended, ascending."""
        lives = [life.end - life.arrival for life in self.lives.values() if life.end == life.end]
        return np.sort(np.array(lives))

    @property
    def queueing(self) -> npt.NDArray[np.float64]:
        """From arrival to the first task, of the jobs that ended, ascending."""
        return np.sort(np.array([life.begin - life.arrival for life in self.lives.values() if life.end == life.end]))

    @property
    def jobs_per_s(self) -> float:
        """Ended jobs a second, from the first arrival to the last end."""
        return len(self.latencies) / (self.end - min(life.arrival for life in self.lives.values()))


class Simulation:
    """Runs jobs through a scheduler. The device runs its tasks in order; the host plans them."""

    def __init__(
        self,
        scheduler: CellScheduling,
        seconds: Seconds,
        *,
        host_s: float = 0.0,
        stops: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        """`host_s`: seconds that the host needs to plan and start a task.

        `stops`: steps after which a node stops, by job and node; other nodes run all their steps.
        """
        self._scheduler, self._seconds, self._host_s = scheduler, seconds, host_s
        self._stops = stops or {}
        self._ran: dict[tuple[int, int], int] = {}  # steps so far of the nodes that stop
        self._free_at = 0.0
        self._host_free_at = 0.0
        self._running: list[tuple[float, int, CellTask, float]] = []  # a heap: end, tie-breaker, task, seconds
        self._numbers = itertools.count()
        self._fresh: set[int] = set()  # jobs that have not begun
        self._outcome = Outcome()

    def run(self, jobs: Iterable[CellJob]) -> Outcome:
        """Until all have left. Jobs come at their arrival, in this order."""
        coming = iter(jobs)
        upcoming = next(coming, None)
        wake_at: float | None = None
        now = 0.0
        while upcoming is not None or self._running or wake_at is not None:
            moments = [upcoming.arrival] if upcoming is not None else []
            moments += [self._running[0][0]] if self._running else []
            moments += [wake_at] if wake_at is not None else []
            now = max(now, min(moments))
            while self._running and self._running[0][0] <= now:
                self._finish(now)
            arrived = []
            while upcoming is not None and upcoming.arrival <= now:
                arrived.append(upcoming)
                upcoming = next(coming, None)
            self._add(arrived, now)
            wake_at = self._start(now)
        self._outcome.end = now
        return self._outcome

    def _add(self, jobs: Sequence[CellJob], now: float) -> None:
        self._outcome.lives.update((job.id, Life(job.arrival)) for job in jobs)
        self._fresh.update(job.id for job in jobs)
        self._outcome.rejected += self._scheduler.add(jobs, now)

    def _start(self, now: float) -> float | None:
        """Plan tasks until the device takes none. Returns when to ask again."""
        while isinstance(plan := self._scheduler.poll(now), CellTask):
            self._outcome.rejected += plan.rejected
            self._begin(plan, now)
        self._outcome.rejected += plan.rejected
        return plan.wake_at

    def _begin(self, task: CellTask, now: float) -> None:
        self._host_free_at = max(now, self._host_free_at) + self._host_s
        begin = max(self._free_at, self._host_free_at)
        seconds = self._seconds(task.cell, len(task.jobs), task.quantum)
        self._free_at = begin + seconds
        heapq.heappush(self._running, (begin + seconds, next(self._numbers), task, seconds))
        for job_id in self._fresh.intersection(task.jobs.tolist()):
            self._outcome.lives[job_id].begin = begin
            self._fresh.remove(job_id)
        self._outcome.num_tasks += 1
        self._outcome.num_rows += len(task.jobs)
        self._outcome.busy_s += seconds

    def _finish(self, now: float) -> None:
        _, _, task, seconds = heapq.heappop(self._running)
        steps, is_stopped = self._run(task)
        self._outcome.steps += int(steps.sum())
        for job_id in self._scheduler.finished(task.id, now, steps, is_stopped, seconds):
            self._outcome.lives[job_id].end = now

    def _run(self, task: CellTask) -> tuple[Int32Array, BoolArray]:
        steps, is_stopped = task.steps.copy(), np.zeros(len(task.steps), np.bool_)
        if self._stops:
            for row, node in enumerate(zip(task.jobs.tolist(), task.nodes.tolist(), strict=True)):
                if node in self._stops:
                    ran = self._ran.get(node, 0)
                    steps[row] = min(steps[row], self._stops[node] - ran)
                    self._ran[node] = ran + int(steps[row])
                    is_stopped[row] = self._ran[node] >= self._stops[node]
        return steps, is_stopped
