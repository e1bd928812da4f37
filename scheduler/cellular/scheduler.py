"""The cellular scheduler: requests in, tasks of one cell type out (BatchMaker, EuroSys 2018, Algorithm 1)."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from penstock.scheduler.cellular.active import ActiveJobs
from penstock.scheduler.cellular.arrays import ID, NO_MAXIMUM, NONE
from penstock.scheduler.cellular.backlog import Backlog
from penstock.scheduler.cellular.choice import choose_cell, choose_quantum, least_quantum
from penstock.scheduler.cellular.cost import TaskCost, corrected
from penstock.scheduler.cellular.deadlines import Deadlines
from penstock.scheduler.cellular.device import Device, Outstanding
from penstock.scheduler.cellular.new_jobs import Forecast, Joining, NewJobs
from penstock.scheduler.cellular.settings import CellSettings
from penstock.scheduler.cellular.types import BoolArray, CellJob, CellRule, CellTask, Int32Array, JobColumns
from penstock.scheduler.cellular.waiting import WaitingJobs
from penstock.scheduler.types import Cause, RejectedJob, Wait


class CellScheduler:
    """Plans tasks of nodes of many requests, which join at their first step and leave at their last. Not thread-safe.

    A job is *due* at its deadline, and at most `patience_s` after its arrival. A task takes the ready nodes of its cell
    in the order in which their jobs are due, bulk jobs behind online ones. So no job is overtaken by one of its class
    that arrives `patience_s` later, and without deadlines the order is that of arrival.

    A node may be planned once all steps of its dependencies have ended or are in tasks planned before: tasks of a
    device run in the order in which they were planned. So that this holds, and no state is copied between devices, a
    job is pinned to a device from its first task to its end: to the one where the fewest slots are held.

    Under admission by deadline, an online job that would be late, or would make one that waits late, is rejected on
    arrival; and one that can no longer be in time, before it takes a slot. See `Backlog` for the prediction.

    Every job given to `add` leaves exactly once: rejected, by `cancel`, or as an id that `finished` returns.
    """

    def __init__(self, rules: Sequence[CellRule], settings: CellSettings) -> None:
        if not rules or any(rule.max_rows < 1 or rule.max_steps < 1 for rule in rules):
            raise ValueError(f"There must be cells, with max_rows and max_steps of 1 or more. Given: {list(rules)}")
        self.cost = TaskCost()
        self._host_s = settings.host_s
        self._rules, self._settings = tuple(rules), settings
        self._devices = [Device(len(rules)) for _ in range(settings.num_devices)]
        tables = [device.table for device in self._devices]
        is_admitting = settings.admission == "deadline"
        self._backlog = Backlog(self._rules, settings, self.cost, tables) if is_admitting else None
        self._doomed: list[RejectedJob] = []  # that were about to join; `poll` has not told yet
        self._forecast = Forecast(np.zeros((2, len(rules))))  # without admission
        self._active = ActiveJobs()
        self._waiting = WaitingJobs(settings.max_slots)
        self._deadlines = Deadlines(self._active.number)
        self._num_added = self._num_planned = 0
        self.num_joined = 0  # jobs on a device
        self._latest = -math.inf

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for state slots."""
        return self._active.num - self.num_joined

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Add jobs. Returns those rejected: they came after their deadline, or admission predicts that they end so.

        ValueError, and nothing added: an id in use, no number as a time, an impossible graph, more slots than a device.
        """
        self._steady(now)
        return self.add_columns(JobColumns.of(jobs), now) if jobs else []

    def add_columns(self, jobs: JobColumns, now: float) -> list[RejectedJob]:
        """As `add`: what costs least for many jobs."""
        now = self._steady(now)
        num_active, num_new, forecast = self._active.num, len(jobs.graphs), self._forecast
        if self._backlog is not None:
            forecast = self._backlog.forecast(num_new, num_active, self._host_s)
        new = NewJobs.of(jobs, self._active, self._num_added, self._settings, forecast)
        if new.earliest <= now:
            return self._add_in_time(jobs, now)
        self._num_added += num_new
        is_sure = self._backlog is None or self._backlog.surely_in_time(new, now)
        parts = self._waiting.fit_together(new, self._held()) if is_sure else []
        if not parts:
            return self._queue(new, num_active, now)
        if new.earliest < math.inf:
            self._deadlines.push(jobs.times[1], jobs.fields)
        for number, joining in parts:
            self._enter(number, joining)
        return []

    def _add_in_time(self, jobs: JobColumns, now: float) -> list[RejectedJob]:
        """Add active jobs anew, but for those that came after their deadline. Returns those rejected."""
        self._active.remove(jobs.fields[ID])
        late_s = now - jobs.times[1]
        found = zip(jobs.fields[ID].tolist(), late_s.tolist(), strict=True)
        rejected = [RejectedJob(job_id, Cause.ARRIVED_LATE, by_s) for job_id, by_s in found if by_s >= 0]
        in_time = [job for job, by_s in zip(jobs.rows(), late_s.tolist(), strict=True) if by_s < 0]
        return rejected + self.add(in_time, now)

    def _queue(self, new: NewJobs, num_active: int, now: float) -> list[RejectedJob]:
        """Admit jobs, which then wait beside so many active ones. Returns those rejected."""
        rows, rejected = new.rows(), list[RejectedJob]()
        if self._backlog is not None:
            late_s = np.array(self._backlog.admit(new, now, num_active))
            if np.any(late_s > 0):
                found = zip(rows.columns[ID].tolist(), late_s.tolist(), strict=True)
                rejected = [RejectedJob(job_id, Cause.OVERLOADED, by_s) for job_id, by_s in found if by_s > 0]
                self._active.remove(rows.columns[ID, late_s > 0])
                if len(rejected) == len(late_s):
                    return rejected
                rows = rows.where(late_s <= 0)
        self._deadlines.push(rows.deadlines, rows.columns)
        self._waiting.push(rows)
        self._join()
        return rejected

    def is_full(self, device: int) -> bool:
        """Whether as many tasks of a device are outstanding as may be."""
        return len(self._devices[device].tasks) >= self._settings.max_tasks

    def poll(self, now: float, device: int = 0) -> CellTask | Wait:
        """The next task of a device, to be queued behind those planned before; or when to ask again.

        Ask after `add`, `finished` and `cancel`, and at `Wait.wake_at`, until there is no task.
        """
        rejected = self._expire(self._steady(now))
        place = self._devices[device]
        if not self.is_full(device):
            online, bulk = place.table.num_ready
            cell = choose_cell(self._rules, online, bulk, place.num_running, place.num_passes)
            if cell is not None:
                if len(self._rules) > 1:
                    for other, passes in enumerate(place.num_passes):
                        is_passed = other != cell and online[other] + bulk[other]
                        place.num_passes[other] = passes + 1 if is_passed else 0
                return self._plan(device, cell, online, bulk, rejected)
        return Wait(self._deadlines.next(self._active.num), rejected)

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]:
        """A task has ended, the first of its device's outstanding ones. Returns the ids of the jobs that ended with it.

        `steps`: [R] that each row ran; `is_stopped`: [R] whether its node needs no more of them. Rows of jobs that have
        left, and rows that had stopped in a task before, are ignored. A row that failed is not finished: cancel its job
        first. ValueError, and nothing changed: a row ran other steps than asked, and did not stop.
        """
        self._steady(now)
        for place in self._devices:
            if place.tasks and place.tasks[0].task.id == task_id:
                break
        else:
            raise ValueError(f"Task {task_id} is not the first outstanding one of a device.")
        task, rows = place.tasks[0]
        ran, has_stopped = np.asarray(steps, np.int32), np.asarray(is_stopped, np.bool_)
        ended = place.table.settle(self._active.index, rows, ran, has_stopped, self._latest)
        place.tasks.popleft()
        place.num_running[task.cell] -= 1
        self.cost.observe(task.cell, len(task.jobs), task.quantum, measured_s)
        self._active.num -= len(ended.ids)
        if self._backlog is not None:
            self._backlog.end(task, ended, self._latest)
        self.num_joined -= len(ended.ids)
        self._join()
        return ended.ids

    def observe_host(self, measured_s: float) -> None:
        """Correct `CellSettings.host_s` by the caller's own seconds for a task, its share where devices are several."""
        if 0 < measured_s < math.inf:
            self._host_s = corrected(self._host_s, measured_s)

    def cancel(self, ids: Iterable[int]) -> int:
        """Remove jobs; returns how many were active. Other ids are skipped.

        Their rows in outstanding tasks run, and are ignored when those end; only then are their slots free.
        """
        gone = list(ids)
        _, numbers, places = self._active.remove(gone).T
        if self._backlog is not None:
            self._backlog.stop_waiting(gone)
            self._doomed = [one for one in self._doomed if one.id not in gone]
        self._waiting.leave(numbers[places == NONE].tolist())
        rows, devices = np.divmod(places[places >= 0], len(self._devices))
        for number, device in enumerate(self._devices):
            if len(dropped := rows[devices == number]):
                device.table.drop(dropped)
                self.num_joined -= len(dropped)
        self._join()
        return len(places)

    def _steady(self, now: float) -> float:
        """A clock that steps back counts as no time elapsed."""
        if not math.isfinite(now):
            raise ValueError(f"now must be a finite number of seconds. Given: {now}")
        if now > self._latest:
            self._latest = float(now)
        return self._latest

    def _join(self) -> None:
        """Pin waiting jobs to devices that have slots for them."""
        if self._active.num == self.num_joined:  # none waits
            self._waiting.clear()
            return
        too_late = None if self._backlog is None else partial(self._backlog.too_late_s, now=self._latest)
        joining, late = self._waiting.take(self._held(), too_late)
        for jobs, by_s in late:
            self._doom(jobs.columns[ID].tolist(), by_s.tolist())
        for number, parts in enumerate(joining):
            if parts:
                joined = Joining.of(parts)
                self._enter(number, joined)
                if self._backlog is not None:
                    self._backlog.stop_waiting(joined.columns[ID].tolist())

    def _held(self) -> list[tuple[int, int]]:
        """Slots of each device, by online jobs and by bulk jobs."""
        return [device.table.slots for device in self._devices]

    def _enter(self, device: int, joining: Joining) -> None:
        """Jobs join a device, which has room for them."""
        self._devices[device].table.join(joining, self._active.index, device, len(self._devices))
        self.num_joined += len(joining.due)

    def _plan(
        self, device: int, cell: int, online: Sequence[int], bulk: Sequence[int], rejected: tuple[RejectedJob, ...]
    ) -> CellTask:
        """A task of the cell. Bulk rows beside online work make no quantum longer."""
        rule, place = self._rules[cell], self._devices[device]
        num_rows = min(online[cell] + bulk[cell], rule.max_rows)
        num_counted = min(online[cell] if any(online) else bulk[cell], num_rows)
        quantum = choose_quantum(rule, num_counted, self.cost.step_s(cell, num_rows), self._host_s)
        max_size = NO_MAXIMUM if rule.max_size is None else rule.max_size
        rows = place.table.plan(cell, num_rows, quantum, max_size, self._latest)
        num_rows = len(rows.ids)
        quantum = min(quantum, least_quantum(rows.longest))
        self._num_planned += 1
        predicted_s = self.cost.seconds(cell, num_rows, quantum)
        number, begun = self._num_planned, rows.begun
        task = CellTask(number, cell, rows.ids, rows.indices, rows.steps, quantum, device, predicted_s, begun, rejected)
        place.tasks.append(Outstanding(task, rows))
        place.num_running[cell] += 1
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
        self._active.remove(ids)
        if self._backlog is not None:
            self._backlog.stop_waiting(ids)
        self._doomed += [RejectedJob(job, Cause.QUEUED, by_s) for job, by_s in zip(ids, late_s, strict=True)]
