"""The cellular scheduler: requests in, tasks of one cell type out (BatchMaker, EuroSys 2018, Algorithm 1)."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from penstock.scheduler.cellular.arrays import DEADLINE, NO_MAXIMUM
from penstock.scheduler.cellular.backlog import Backlog
from penstock.scheduler.cellular.choice import choose_cell, choose_quantum, least_quantum
from penstock.scheduler.cellular.cost import TaskCost, corrected
from penstock.scheduler.cellular.deadlines import Deadlines
from penstock.scheduler.cellular.jobs import Forecast, JobRows, NewJobs
from penstock.scheduler.cellular.table import JobTable
from penstock.scheduler.cellular.types import BoolArray, CellJob, CellRule, CellTask, Int32Array
from penstock.scheduler.cellular.waiting import WaitingJobs
from penstock.scheduler.settings import AdmissionName
from penstock.scheduler.types import Cause, RejectedJob, Wait

PATIENCE_S = 1.0  # a job is not overtaken by jobs of its class that arrive so much later, however urgent


class CellScheduler:
    """Plans tasks of nodes of many requests, which join at their first step and leave at their last. Not thread-safe.

    A job is *due* at its deadline, and at most `PATIENCE_S` after its arrival. A task takes the ready nodes of its cell
    in the order in which their jobs are due, bulk jobs behind online ones. So no job is overtaken by one of its class
    that arrives `PATIENCE_S` later, and without deadlines the order is that of arrival.

    A node may be planned once all steps of its dependencies have ended or are in tasks planned before: tasks run in the
    order in which they were planned.

    Under admission by deadline, an online job that would be late, or would make one that waits late, is rejected on
    arrival; and one that can no longer be in time, before it takes a slot. See `Backlog` for the prediction.

    Every job given to `add` leaves exactly once: rejected, by `cancel`, or as an id that `finished` returns.
    """

    def __init__(
        self,
        rules: Sequence[CellRule],
        max_tasks: int = 2,
        max_slots: int | None = None,
        admission: AdmissionName = "accept",
    ) -> None:
        """ValueError names a bad argument.

        Args:
            rules: of the cells.
            max_tasks: outstanding ones: one runs, the others are prepared (BatchMaker's MaxTasksToSubmit).
            max_slots: state slots of the device; None: no limit.
            admission: deadline: what is predicted to be late is rejected on arrival.
        """
        if not rules or any(rule.max_rows < 1 or rule.max_steps < 1 for rule in rules):
            raise ValueError(f"There must be cells, with max_rows and max_steps of 1 or more. Given: {list(rules)}")
        for name, value in (("max_tasks", max_tasks), ("max_slots", max_slots)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more. Given: {value}")
        self.cost = TaskCost()
        self._rules, self._max_tasks = tuple(rules), max_tasks
        self._host_s = 0.0  # the caller's own seconds for a task; a quantum that takes as long hides them
        most_slots = math.inf if max_slots is None else float(max_slots)
        self._table = JobTable(len(rules), most_slots)
        self._waiting = WaitingJobs(most_slots)
        is_admitting = admission == "deadline"
        self._backlog = Backlog(self._rules, most_slots, self.cost, self._table) if is_admitting else None
        self._doomed: list[RejectedJob] = []  # that were about to join; `poll` has not told yet
        self._forecast = Forecast(np.zeros((2, len(rules))))  # without admission
        self._deadlines = Deadlines(self._table.number)
        self._tasks: deque[CellTask] = deque()  # outstanding
        self._num_running = [0] * len(rules)  # of these, by cell
        self._num_passes = [0] * len(rules)  # tasks of other cells since a node of this one was ready
        self._num_added = self._num_planned = 0
        self._latest = -math.inf

    @property
    def num_joined(self) -> int:
        """Jobs that have state slots."""
        return self._table.num_joined

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for state slots."""
        return self._table.num_active - self._table.num_joined

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Add jobs. Returns those rejected: they came after their deadline, or admission predicts that they end so.

        ValueError, and nothing added: an id in use, no number as a time, an impossible graph, more slots than a device.
        """
        self._steady(now)
        return self.add_rows(JobRows.of(jobs), now) if jobs else []

    def add_rows(self, rows: JobRows, now: float) -> list[RejectedJob]:
        """As `add`: what costs least for many jobs."""
        now = self._steady(now)
        table, num_active, num_new, forecast = self._table, self._table.num_active, len(rows.graphs), self._forecast
        if self._backlog is not None:
            forecast = self._backlog.forecast(num_new, num_active, self._host_s)
        new = table.arrive(rows, self._num_added, PATIENCE_S, forecast)
        if new.earliest <= now:
            return self._add_in_time(rows, now)
        self._num_added += num_new
        is_sure = self._backlog is None or self._backlog.surely_in_time(new, now)
        if not (is_sure and self._waiting.fit_together(new.slots, table.slots)):
            return self._queue(new, num_active, now)
        if new.earliest < math.inf:
            self._deadlines.push(rows)
        table.join(rows, new.graphs)
        return []

    def _add_in_time(self, rows: JobRows, now: float) -> list[RejectedJob]:
        """Add active jobs anew, but for those that came after their deadline. Returns those rejected."""
        self._table.leave(rows.ids)
        late_s = now - rows.times[DEADLINE]
        found = zip(rows.ids, late_s.tolist(), strict=True)
        rejected = [RejectedJob(job_id, Cause.ARRIVED_LATE, by_s) for job_id, by_s in found if by_s >= 0]
        are_in_time = late_s < 0
        return rejected + (self.add_rows(rows.where(are_in_time), now) if are_in_time.any() else [])

    def _queue(self, new: NewJobs, num_active: int, now: float) -> list[RejectedJob]:
        """Admit jobs, which then wait beside so many active ones. Returns those rejected."""
        rows, rejected = new.rows, list[RejectedJob]()
        if self._backlog is not None:
            late_s = np.array(self._backlog.admit(rows, now, num_active))
            if np.any(late_s > 0):
                found = zip(rows.ids, late_s.tolist(), strict=True)
                rejected = [RejectedJob(job_id, Cause.OVERLOADED, by_s) for job_id, by_s in found if by_s > 0]
                self._table.leave([job.id for job in rejected])
                if len(rejected) == len(late_s):
                    return rejected
                rows = rows.where(late_s <= 0)
        self._deadlines.push(rows)
        self._waiting.push(rows)
        self._join()
        return rejected

    @property
    def is_full(self) -> bool:
        """Whether as many tasks are outstanding as may be."""
        return len(self._tasks) >= self._max_tasks

    def poll(self, now: float) -> CellTask | Wait:
        """The next task, to be queued behind those planned before; or when to ask again.

        Ask after `add`, `finished` and `cancel`, and at `Wait.wake_at`, until there is no task.
        """
        rejected = self._expire(self._steady(now))
        if not self.is_full:
            online, bulk = self._table.num_ready
            cell = choose_cell(self._rules, online, bulk, self._num_running, self._num_passes)
            if cell is not None:
                if len(self._rules) > 1:
                    self._count_passes(cell, online, bulk)
                return self._plan(cell, online, bulk, rejected)
        return Wait(self._deadlines.next(self._table.num_active), rejected)

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]:
        """A task has ended, the first of the outstanding ones. Returns the ids of the jobs that ended with it.

        `steps`: [R] that each row ran; `is_stopped`: [R] whether its node needs no more of them. Rows of jobs that have
        left, and rows that had stopped in a task before, are ignored. A row that failed is not finished: cancel its job
        first. ValueError, and nothing changed: a row ran other steps than asked, and did not stop.
        """
        self._steady(now)
        if not self._tasks or self._tasks[0].id != task_id:
            raise ValueError(f"Task {task_id} is not the first outstanding one.")
        task = self._tasks[0]
        ran, has_stopped = np.asarray(steps, np.int32), np.asarray(is_stopped, np.bool_)
        ended = self._table.settle(task, ran, has_stopped, self._latest)
        self._tasks.popleft()
        self._num_running[task.cell] -= 1
        self.cost.observe(task.cell, len(task.jobs), task.quantum, measured_s)
        if self._backlog is not None:
            self._backlog.end(task, ended, self._latest)
        self._join()
        return ended.ids

    def observe_host(self, measured_s: float) -> None:
        """The caller's own seconds for a task: quanta are long enough to hide their mean."""
        if 0 < measured_s < math.inf:
            self._host_s = corrected(self._host_s, measured_s)

    def cancel(self, ids: Iterable[int]) -> int:
        """Remove jobs; returns how many were active. Other ids are skipped.

        Their rows in outstanding tasks run, and are ignored when those end; only then are their slots free.
        """
        gone = list(ids)
        num_gone, waited = self._table.leave(gone)
        if self._backlog is not None:
            self._backlog.stop_waiting(gone)
            self._doomed = [one for one in self._doomed if one.id not in gone]
        self._waiting.leave(waited)
        self._join()
        return num_gone

    def _steady(self, now: float) -> float:
        """A clock that steps back counts as no time elapsed."""
        if not math.isfinite(now):
            raise ValueError(f"now must be a finite number of seconds. Given: {now}")
        if now > self._latest:
            self._latest = float(now)
        return self._latest

    def _join(self) -> None:
        """Let those jobs join that wait and find slots."""
        if not self.num_waiting:
            self._waiting.clear()
            return
        too_late = None if self._backlog is None else partial(self._backlog.too_late_s, now=self._latest)
        joining, late = self._waiting.take(self._table.slots, too_late)
        for rows, late_s in late:
            self._doom(rows.ids, late_s.tolist())
        if joining:
            rows = JobRows.joined(joining)
            self._table.join(rows)
            if self._backlog is not None:
                self._backlog.stop_waiting(rows.ids)

    def _count_passes(self, chosen: int, online: Sequence[int], bulk: Sequence[int]) -> None:
        """The next task is of a cell, and passes over the others that have ready nodes."""
        for cell, passes in enumerate(self._num_passes):
            is_passed = cell != chosen and online[cell] + bulk[cell]
            self._num_passes[cell] = passes + 1 if is_passed else 0

    def _plan(
        self, cell: int, online: Sequence[int], bulk: Sequence[int], rejected: tuple[RejectedJob, ...]
    ) -> CellTask:
        """A task of the cell. Bulk rows beside online work make no quantum longer."""
        rule = self._rules[cell]
        num_rows = min(online[cell] + bulk[cell], rule.max_rows)
        num_counted = min(online[cell] if any(online) else bulk[cell], num_rows)
        quantum = choose_quantum(rule, num_counted, self.cost.step_s(cell, num_rows), self._host_s)
        max_size = NO_MAXIMUM if rule.max_size is None else rule.max_size
        planned, longest = self._table.plan(cell, num_rows, quantum, max_size, self._latest)
        quantum = min(quantum, least_quantum(longest))
        self._num_planned += 1
        predicted_s = self.cost.seconds(cell, len(planned.jobs), quantum)
        task = planned._replace(id=self._num_planned, quantum=quantum, predicted_s=predicted_s, rejected=rejected)
        self._tasks.append(task)
        self._num_running[cell] += 1
        return task

    def _expire(self, now: float) -> tuple[RejectedJob, ...]:
        """Remove the jobs whose deadline has passed, also those that have begun."""
        passed = self._deadlines.pop(now)
        if passed:
            self.cancel([job_id for _, _, job_id in passed])
        if not passed and not self._doomed:
            return ()
        doomed, self._doomed = self._doomed, []
        return (*[RejectedJob(job_id, Cause.QUEUED, now - at) for at, _, job_id in passed], *doomed)

    def _doom(self, ids: Sequence[int], late_s: Sequence[float]) -> None:
        """Jobs that waited leave, as they cannot be in time any more."""
        self._table.leave(ids)
        if self._backlog is not None:
            self._backlog.stop_waiting(ids)
        self._doomed += [RejectedJob(job, Cause.QUEUED, by_s) for job, by_s in zip(ids, late_s, strict=True)]
