"""Jobs in, plans out. No clock, no thread, no input or output: the caller brings `now` and runs the plans."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.scheduler.cost import CostFunction
from penstock.scheduler.partition import Caps, partition_policy
from penstock.scheduler.queue import JobQueue
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.trigger import Hungry, Lazy, TriggerPolicy
from penstock.scheduler.types import Batch, Cause, Job, Plan, Refusal, Trigger, Wait


class Scheduler:
    """Holds jobs until a trigger fires, then plans batches for those due first. Not thread-safe.

    Every job handed to `add` leaves exactly once: refused, in a plan, or by `remove`. This is checked after each step.
    """

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self._settings = settings
        self._cost = cost
        self._trigger = _trigger_policy(settings)
        self._partition = partition_policy(settings.partition)
        self._queue = JobQueue()

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        return self._queue.tokens

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until the lanes have worked off the online jobs that wait."""
        return self._predicted_run_s() / self._settings.num_lanes if self._queue else 0.0

    @property
    def is_full(self) -> bool:
        """Whether a full batch waits: waiting longer could not make it any fuller."""
        settings = self._settings
        return len(self._queue) >= settings.max_batch_sequences or self._queue.tokens >= settings.max_batch_tokens

    @property
    def oldest_arrival(self) -> float | None:
        """Earliest arrival among queued jobs, on the caller's clock; None when none is queued."""
        return self._queue.summary().oldest_arrival if self._queue else None

    def add(self, jobs: Sequence[Job], now: float, *, busy_s: float = 0.0) -> list[Refusal]:
        """Queue jobs. Returns those refused, which are not queued.

        `busy_s`: predicted seconds until the lanes have worked off what was planned before (mean over lanes).
        ValueError (none is queued): id in use, num_tokens < 1, a time that is no number.
        """
        slo_s = self._settings.slo_s
        due = [
            job if job.bulk or job.deadline is not None or slo_s is None else replace(job, deadline=job.arrival + slo_s)
            for job in jobs
        ]
        late = {job.id: _refusal(job, Cause.ARRIVED_LATE, now) for job in due if _is_late(job, now)}
        self._queue.add([job for job in due if job.id not in late])
        return list(late.values())

    def remove(self, ids: Iterable[int]) -> int:
        """Take back jobs that were cancelled; returns how many were still queued. Other ids are skipped."""
        return self._queue.remove(ids)

    def poll(self, now: float, *, idle_lanes: int, busy_s: float = 0.0) -> Plan | Wait:
        """What to run now, or when to ask again. Ask after arrivals, at `Wait.wake_at`, when an engine lane falls idle.

        A plan's jobs leave the queue: the caller now answers for them. While no lane is idle nothing is planned, so
        that jobs keep gathering. A clock that steps back counts as no time elapsed.
        """
        if idle_lanes < 1 or not self._queue:
            return Wait(None)
        self._queue.clamp_arrivals(now)
        decision = self._trigger.decide(self._queue.summary(), now, self._predicted_run_s())
        return self._plan(decision, idle_lanes, now) if isinstance(decision, Trigger) else Wait(decision)

    def drain(self, now: float) -> Plan | None:
        """Plan the jobs due first whatever the trigger policy says; None when none is queued. Call until None."""
        return self._plan(Trigger.DRAIN, 1, now) if self._queue else None

    def check_integrity(self) -> None:
        """Recount everything, O(queued). RuntimeError when the books do not balance."""
        self._queue.check_integrity()

    def _predicted_run_s(self) -> float:
        queue = self._queue.summary()
        return float(self._cost.seconds(queue.tokens, queue.squares, queue.longest, queue.num_jobs))

    def _plan(self, trigger: Trigger, idle_lanes: int, now: float) -> Plan:
        settings = self._settings
        waiting = self._queue.oldest(max(settings.window, settings.max_batch_sequences))
        refused = tuple(_refusal(job, Cause.QUEUED, now) for job in waiting if _is_late(job, now))
        jobs = [job for job in waiting if not _is_late(job, now)]
        caps = Caps(settings.max_batch_sequences, settings.max_batch_tokens)
        partition = self._partition.partition([job.num_tokens for job in jobs], self._cost, caps, most=idle_lanes)
        if not 0 <= partition.total_s < math.inf:
            raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {partition.total_s}")
        batches = tuple(
            Batch(tuple(jobs[index].id for index in batch), seconds)
            for batch, seconds in zip(partition.batches, partition.seconds, strict=True)
        )
        self._queue.remove([refusal.id for refusal in refused])
        for batch in batches:
            self._queue.remove(batch.ids)
        return Plan(batches, trigger, self._partition.name, refused)


def _is_late(job: Job, now: float) -> bool:
    return job.deadline is not None and job.deadline <= now


def _refusal(job: Job, cause: Cause, now: float) -> Refusal:
    return Refusal(job.id, cause, now - job.deadline if job.deadline is not None else 0.0)


def _trigger_policy(settings: SchedulerSettings) -> TriggerPolicy:
    if settings.trigger == "hungry":
        return Hungry()
    if settings.trigger == "lazy":
        return Lazy(
            settings.max_wait_s, settings.max_batch_sequences, settings.max_batch_tokens, settings.slo_s or math.inf
        )
    raise RuntimeError(f"No policy for trigger {settings.trigger!r}. This is a bug.")
