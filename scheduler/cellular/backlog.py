"""Predicted work of the online jobs of a scheduler, and whether one more job would be in time."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.scheduler.cellular.arrays import (
    DEADLINE,
    ID,
    NONE,
    NUMBER,
    ROW_S,
    SLOTS,
    SLOWED_S,
    STEP_S,
    WORK_S,
)
from penstock.scheduler.cellular.choice import choose_quantum
from penstock.scheduler.cellular.cost import TaskCost, bucket_of, corrected
from penstock.scheduler.cellular.jobs import Forecast, JobRows, NewJobs
from penstock.scheduler.cellular.table import Ended, JobTable
from penstock.scheduler.cellular.types import CellRule, CellTask, Float64Array
from penstock.scheduler.queueing.job_queue import JobQueue, Pace, QueuedJob
from penstock.scheduler.trials import TRIAL_EVERY_S, Trials

_DECAY = 0.98  # of what was learned before, at each job that ends
_LEAST, _MOST = 0.5, 4.0  # of `_slowdown`


class Backlog:
    """Predicts when a job would end, for admission as in `Scheduler`: in due order, by what runs and what waits.

    A job needs its path, from its first step to its last, and keeps the device busy for a share of that: as long as
    its rows take in full tasks, or its part of the state slots where these are scarcer. It begins at once where slots
    and rows are free, else when the work that is due before it is done. A chain may stop before its last step: the
    share of their steps that ended jobs have run is expected. Bulk jobs do not count: they are behind online ones, and
    leave their slots to them as they end. Nor does what a job costs those that run already and are due later.
    """

    def __init__(self, rules: Sequence[CellRule], max_slots: float, cost: TaskCost, table: JobTable) -> None:
        self._rules, self._max_slots, self._cost, self._table = rules, max_slots, cost, table
        self._waiting = JobQueue()  # admitted, and not joined yet
        # Those without a deadline, by id, while none with one waits: they enter the queue when the first one comes.
        self._undated: dict[int, tuple[JobRows, int]] = {}  # and the place in these
        self._joined_s = np.zeros(0), np.zeros(1)  # of jobs that have joined, for this `add`: when due, and work left
        self._ran = self._asked = 1.0  # decayed sums of the steps of ended jobs
        self._slowdown = 1.0  # time of jobs, from their first task on, over their predicted path
        self._num_new = self._new_slots = 0  # online jobs of this `add` that were admitted: they join when it ends
        self._new_ready = np.zeros(len(rules), np.int64)  # their nodes that may run at once
        self._trials = Trials()
        self._trial = NONE  # number of the last job that ran though it was predicted to be late
        self._ran_at: dict[tuple[int, int], float] = {}  # when a task of a cell and a bucket of rows has ended

    def forecast(self, num_new: int, num_active: int, host_s: float) -> Forecast:
        """For so many new jobs, while so many are active."""
        prices, cost = np.empty((2, len(self._rules))), self._cost
        for cell, rule in enumerate(self._rules):
            num_rows = min(rule.max_rows, num_active + num_new)
            quantum = choose_quantum(rule, num_rows, cost.step_s(cell, num_rows), host_s)
            prices[STEP_S, cell] = cost.surely_s(cell, num_rows, quantum) / quantum
            full_s = cost.surely_s(cell, rule.max_rows, rule.max_steps)
            prices[ROW_S, cell] = full_s / (rule.max_steps * rule.max_rows)
        return Forecast(prices, self._ran / self._asked, self._slowdown if num_active else 1.0)

    def surely_in_time(self, new: NewJobs, now: float) -> bool:
        """Whether the jobs of one `add` are in time in any order, if all join at once and no other waits."""
        if new.begin_by == math.inf:
            return True
        return now + self._table.left_s().item(-1) + new.work_s <= new.begin_by

    def admit(self, rows: JobRows, now: float, num_active: int) -> list[float]:
        """The jobs of one `add`. 0 for each that is admitted, which then waits; else the seconds by which one is late.

        That is the job itself, or one behind it. Jobs are looked at one by one only where they may not all be in time.
        """
        found = [0.0] * len(rows.graphs)
        online = np.flatnonzero(rows.online()).tolist()
        if not online:
            return found
        if not len(self._waiting) and np.all(rows.times[DEADLINE, online] == math.inf):
            ids = rows.ids
            self._undated.update({ids[place]: (rows, place) for place in online})
            return found
        if self._undated:
            places_of: dict[int, tuple[JobRows, list[int]]] = {}
            for undated, place in self._undated.values():
                places_of.setdefault(id(undated), (undated, []))[1].append(place)
            self._waiting.add([job for known in places_of.values() for job in _queued(*known)])
            self._undated.clear()
        queued = _queued(rows, online)
        self._joined_s = self._table.due(), self._table.left_s()
        if self._waiting.surely_in_time(queued, now + float(self._joined_s[1][-1])):
            self._waiting.add(queued)
            return found
        self._num_new = self._new_slots = 0
        self._new_ready[:] = 0
        num_late = 0
        for place, job in zip(online, queued, strict=True):
            # Those before it are active, bulk jobs too.
            found[place] = self._admit(job, rows, place, now, num_active + place - num_late)
            num_late += found[place] > 0
        return found

    def _admit(self, job: QueuedJob, rows: JobRows, place: int, now: float, num_active: int) -> float:
        """One job, after those before it.

        A job that would be late is a trial while none is active, or while it would begin at once in a task of more rows
        than have run lately.
        """
        num_slots = int(rows.columns[SLOTS, place])
        at_once = job.deadline < math.inf and self._begins_at_once(num_slots)
        late_s = 0.0 if job.deadline == math.inf else self._late_s(job, now, at_once)
        if late_s > 0:
            if not self._trials.are_due(now) or (num_active and not (at_once and self._is_unknown(num_active, now))):
                return late_s
            self._trials.begin(now)
            self._trial = job.number
        self._waiting.add([job])
        graph = rows.graphs[place]
        is_ready = (graph.dependencies < 0).all(axis=1)
        self._new_ready += np.bincount(graph.cells[is_ready], minlength=len(self._rules))
        self._num_new, self._new_slots = self._num_new + 1, self._new_slots + num_slots
        return 0.0

    def _late_s(self, job: QueuedJob, now: float, at_once: bool) -> float:
        """Seconds by which a new job, or one that waits behind it, would be late; 0 or less: none."""
        if at_once:
            return now - job.latest_begin
        due, left_s = self._joined_s
        return self._waiting.lateness([job], now + float(left_s[np.searchsorted(due, job.due, side="right")]))[0]

    def too_late_s(self, jobs: JobRows, now: float) -> Float64Array:
        """[J] seconds by which jobs that wait would be late if they began now; 0 or less: none."""
        late_s: Float64Array = now - (jobs.times[DEADLINE] - jobs.estimates[:, SLOWED_S])
        late_s[~jobs.online() | (jobs.columns[NUMBER] == self._trial)] = 0.0
        return late_s

    def stop_waiting(self, ids: Iterable[int]) -> None:
        """Jobs have left. Ids of jobs that do not wait are skipped."""
        if self._undated:
            for job_id in ids:
                self._undated.pop(job_id, None)
        if len(self._waiting):
            self._waiting.remove(ids)

    def end(self, task: CellTask, ended: Ended, now: float) -> None:
        """A task has been settled, with which jobs have ended."""
        self._ran_at[task.cell, bucket_of(len(task.jobs))] = now
        if not ended.ids:
            return
        decay = _DECAY ** len(ended.ids)
        self._ran, self._asked = decay * self._ran + ended.ran, decay * self._asked + ended.asked
        if ended.predicted_s > 0 and 0 < ended.took_s < math.inf:
            self._slowdown = min(max(corrected(self._slowdown, ended.took_s / ended.predicted_s), _LEAST), _MOST)

    def _is_unknown(self, num_active: int, now: float) -> bool:
        """Whether no tasks of as many rows have run lately as one more job would be in."""
        buckets = [(cell, bucket_of(min(rule.max_rows, num_active + 1))) for cell, rule in enumerate(self._rules)]
        return max([self._ran_at.get(key, -math.inf) for key in buckets]) <= now - TRIAL_EVERY_S

    def _begins_at_once(self, num_slots: int) -> bool:
        """Whether there is room for a job of so many slots and for those that join with it, and no other waits."""
        if len(self._waiting) > self._num_new:
            return False
        rows = zip(self._table.num_ready[0], self._new_ready.tolist(), self._rules, strict=True)
        has_rows = all(online + new < rule.max_rows for online, new, rule in rows)
        return has_rows and sum(self._table.slots) + self._new_slots + num_slots <= self._max_slots


def _queued(rows: JobRows, places: list[int]) -> list[QueuedJob]:
    """Some of the jobs, one by one."""
    columns, times, estimates = rows.columns[:, places], rows.times[:, places], rows.estimates[places]
    fields = zip(*times.tolist(), columns[ID].tolist(), columns[NUMBER].tolist(), strict=True)
    seconds = estimates[:, [WORK_S, SLOWED_S]].tolist()
    return [
        QueuedJob.of(due, number, (job_id,), (1,), (arrival, deadline), Pace(work_s, 0.0, slowed_s, deadline))
        for (arrival, deadline, due, job_id, number), (work_s, slowed_s) in zip(fields, seconds, strict=True)
    ]
