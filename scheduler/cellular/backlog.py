"""Predicted work of the online jobs of a scheduler, and whether one more job would be in time."""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from penstock.scheduler.cellular.arrays import ASKED, BULK, ID, NONE, NUMBER, ROW_S, STEP_S
from penstock.scheduler.cellular.choice import choose_quantum
from penstock.scheduler.cellular.cost import TaskCost, bucket_of, corrected
from penstock.scheduler.cellular.new_jobs import Forecast, JobRows, NewJobs, QueuedCellJob
from penstock.scheduler.cellular.settings import CellSettings
from penstock.scheduler.cellular.table import Ended, JobTable
from penstock.scheduler.cellular.types import CellRule, CellTask, Float64Array
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
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

    def __init__(
        self, rules: Sequence[CellRule], settings: CellSettings, cost: TaskCost, tables: Sequence[JobTable]
    ) -> None:
        self._rules, self._max_slots, self._cost, self._tables = rules, settings.max_slots, cost, tables
        self._waiting = JobQueue()  # admitted, and on no device yet
        # Those without a deadline, by id, while none with one waits: they enter the queue when the first one comes.
        self._undated: dict[int, tuple[NewJobs, int]] = {}  # and the place in its `add`
        self._joined_s: list[tuple[Float64Array, Float64Array]] = []  # of each device, for this `add`: due and left
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
        most_rows = (num_active + num_new - 1) // len(self._tables) + 1
        for cell, rule in enumerate(self._rules):
            num_rows = min(rule.max_rows, most_rows)
            quantum = choose_quantum(rule, num_rows, cost.step_s(cell, num_rows), host_s)
            prices[STEP_S, cell] = cost.surely_s(cell, num_rows, quantum) / quantum
            full_s = cost.surely_s(cell, rule.max_rows, rule.max_steps)
            prices[ROW_S, cell] = full_s / (rule.max_steps * rule.max_rows)
        return Forecast(prices, self._ran / self._asked, self._slowdown if num_active else 1.0)

    def surely_in_time(self, new: NewJobs, now: float) -> bool:
        """Whether the jobs of one `add` are in time in any order, if all join at once and no other waits."""
        if new.begin_by == math.inf:
            return True
        return now + sum([table.left_s().item(-1) for table in self._tables]) + new.work_s <= new.begin_by

    def admit(self, new: NewJobs, now: float, num_active: int) -> list[float]:
        """The jobs of one `add`. 0 for each that is admitted, which then waits; else the seconds by which one is late.

        That is the job itself, or one behind it. Jobs are looked at one by one only where they may not all be in time.
        """
        rows = new.rows()
        are_online = rows.columns[BULK] == 0
        if not np.any(are_online):
            return [0.0] * len(rows.due)
        if not len(self._waiting) and np.all(rows.deadlines[are_online] == math.inf):
            ids, places = rows.columns[ID, are_online].tolist(), np.flatnonzero(are_online).tolist()
            self._undated.update(zip(ids, zip(repeat(new), places), strict=False))
            return [0.0] * len(rows.due)
        if self._undated:
            adds = {id(jobs): jobs for jobs, _ in self._undated.values()}
            entries_of = {key: jobs.queued() for key, jobs in adds.items()}
            self._waiting.add([_queued(entries_of[id(jobs)][place]) for jobs, place in self._undated.values()])
            self._undated.clear()
        entries = new.queued()
        online = [_queued(entry) for entry in entries if not entry.bulk]
        self._joined_s = [(table.due(), table.left_s()) for table in self._tables]
        if self._waiting.surely_in_time(online, now + sum([float(left_s[-1]) for _, left_s in self._joined_s])):
            self._waiting.add(online)
            return [0.0] * len(entries)
        self._num_new = self._new_slots = 0
        self._new_ready[:] = 0
        found: list[float] = []
        for entry in entries:
            found.append(self._admit(entry, now, num_active))
            num_active += found[-1] == 0
        return found

    def _admit(self, entry: QueuedCellJob, now: float, num_active: int) -> float:
        """One job, after those before it.

        A job that would be late is a trial while none is active, or while it would begin at once in a task of more rows
        than have run lately.
        """
        if entry.bulk:
            return 0.0
        late_s = 0.0 if entry.job.deadline is None else self._late_s(entry, now)
        if late_s > 0:
            if not self._trials.are_due(now) or (num_active and not self._is_unknown(entry, num_active, now)):
                return late_s
            self._trials.begin(now)
            self._trial = entry.number
        self._waiting.add([_queued(entry)])
        graph = entry.job.graph
        is_ready = np.diff(graph.dependency_offsets) == 0
        self._new_ready += np.bincount(graph.cells[is_ready], minlength=len(self._rules))
        self._num_new, self._new_slots = self._num_new + 1, self._new_slots + entry.job.slots
        return 0.0

    def _late_s(self, entry: QueuedCellJob, now: float) -> float:
        """Seconds by which a new job, or one that waits behind it, would be late; 0 or less: none."""
        job = _queued(entry)
        if self._begins_at_once(entry):
            return now - job.latest_begin
        left_s = sum([float(left[np.searchsorted(due, entry.due, side="right")]) for due, left in self._joined_s])
        return self._waiting.lateness([job], now + left_s)[0]

    def too_late_s(self, jobs: JobRows, now: float) -> Float64Array:
        """[J] seconds by which jobs that wait would be late if they began now; 0 or less: none."""
        late_s: Float64Array = now - (jobs.deadlines - jobs.estimates[:, ASKED + 1])
        late_s[(jobs.columns[BULK] > 0) | (jobs.columns[NUMBER] == self._trial)] = 0.0
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

    def _num_rows(self, rule: CellRule, num_active: int) -> int:
        """Rows of a task that one more job is in."""
        return min(rule.max_rows, num_active // len(self._tables) + 1)

    def _is_unknown(self, entry: QueuedCellJob, num_active: int, now: float) -> bool:
        """Whether a job would begin at once, in tasks of so many rows that none like them has run lately."""
        if not self._begins_at_once(entry):
            return False
        buckets = [(cell, bucket_of(self._num_rows(rule, num_active))) for cell, rule in enumerate(self._rules)]
        return max([self._ran_at.get(key, -math.inf) for key in buckets]) <= now - TRIAL_EVERY_S

    def _begins_at_once(self, entry: QueuedCellJob) -> bool:
        """Whether a device has room for a job and its part of those that join with it, and no other waits."""
        if len(self._waiting) > self._num_new:
            return False
        new_ready, new_slots = self._new_ready / len(self._tables), self._new_slots / len(self._tables)
        return any(self._has_room(entry.job.slots + new_slots, new_ready, table) for table in self._tables)

    def _has_room(self, num_slots: float, num_ready: Float64Array, table: JobTable) -> bool:
        rows = zip(table.num_ready[0], num_ready.tolist(), self._rules, strict=True)
        has_rows = all(online + new < rule.max_rows for online, new, rule in rows)
        return has_rows and (self._max_slots is None or sum(table.slots) + num_slots <= self._max_slots)


def _queued(entry: QueuedCellJob) -> QueuedJob:
    job, estimate = entry.job, entry.estimate
    deadline = math.inf if job.deadline is None else job.deadline
    latest_begin = deadline - estimate.path_s
    one = (job.id,), (1,), 1, 1
    return QueuedJob(entry.due, entry.number, *one, job.arrival, deadline, estimate.work_s, latest_begin)
