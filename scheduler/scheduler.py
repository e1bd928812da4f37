"""Jobs in, plans out. No clock, no thread, no input or output: the caller brings `now` and runs the plans."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from penstock.scheduler.cost import CostFunction
from penstock.scheduler.partition import choose_partition, full_batches_end, share_out
from penstock.scheduler.queue import JobQueue
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.trigger import Hungry, Lazy, TriggerPolicy
from penstock.scheduler.types import Job, Plan, Trigger, Wait


class Scheduler:
    """Holds jobs until a trigger fires, then plans batches for the oldest of them. Not thread-safe.

    Every job that was added leaves exactly once: in a plan, or by `remove`. This is checked after each step.
    """

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self._settings = settings
        self._cost = cost
        self._trigger = _trigger_policy(settings)
        self._queue = JobQueue()
        self._num_received = 0
        self._num_planned = 0
        self._num_removed = 0

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        return self._queue.tokens

    @property
    def is_full(self) -> bool:
        """Whether a full batch waits, by count or by tokens: waiting longer could not make it any fuller."""
        settings = self._settings
        return len(self._queue) >= settings.max_batch_sequences or self._queue.tokens >= settings.max_batch_tokens

    @property
    def oldest_arrival(self) -> float | None:
        """Earliest arrival among queued jobs, on the caller's clock; None when none is queued."""
        return self._queue.summary().oldest_arrival if self._queue else None

    def add(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, behind those already there. ValueError (none is queued): id in use, or num_tokens < 1."""
        self._queue.add(jobs)
        self._num_received += len(jobs)
        self._check_conservation()

    def remove(self, ids: Iterable[int]) -> int:
        """Take back jobs that were cancelled or expired; returns how many were still queued. Other ids are skipped."""
        num_left = self._queue.remove(ids)
        self._num_removed += num_left
        self._check_conservation()
        return num_left

    def poll(self, now: float, *, idle_lanes: int) -> Plan | Wait:
        """What to run now, or when to ask again. Ask after arrivals, at `Wait.wake_at`, when an engine lane falls idle.

        A plan's jobs leave the queue: the caller now answers for them. While no lane is idle nothing is planned, so
        that jobs keep gathering; while several are, a short queue is shared out among them. Where a full batch waits,
        only full batches are planned: the newest jobs stay, under their own triggers, to meet mates. A clock that steps
        back counts as no time elapsed.
        """
        if idle_lanes < 1 or not self._queue:
            return Wait(None)
        self._queue.clamp_arrivals(now)
        queue = self._queue.summary()
        predicted_run_s = float(self._cost.seconds(queue.tokens, queue.squares, queue.longest, queue.num_jobs))
        decision = self._trigger.decide(queue, now, predicted_run_s)
        return self._plan(decision, idle_lanes) if isinstance(decision, Trigger) else Wait(decision)

    def drain(self) -> Plan | None:
        """Plan the oldest jobs whatever the trigger policy says; None when none is queued. Call until None."""
        return self._plan(Trigger.DRAIN, idle_lanes=1) if self._queue else None

    def check_integrity(self) -> None:
        """Recount everything, O(queued). RuntimeError when the books do not balance."""
        self._check_conservation()
        self._queue.check_integrity()

    def _plan(self, trigger: Trigger, idle_lanes: int) -> Plan:
        settings = self._settings
        caps = settings.max_batch_sequences, settings.max_batch_tokens
        jobs = self._queue.oldest(max(settings.window, settings.max_batch_sequences))
        if self.is_full:
            jobs = jobs[: full_batches_end([job.num_tokens for job in jobs], *caps)]
        prioritised = any(job.priority for job in jobs)
        if prioritised:
            jobs.sort(key=lambda job: -job.priority)
        lengths = [job.num_tokens for job in jobs]
        partition = choose_partition(lengths, self._cost, *caps)
        if len(partition.batches) < idle_lanes:
            partition = share_out(partition, lengths, self._cost, *caps, num_lanes=idle_lanes)
        if not 0 <= partition.total_s < math.inf:
            raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {partition.total_s}")
        batches = partition.batches
        if prioritised:
            batches = tuple(sorted(batches, key=lambda batch: -max([jobs[index].priority for index in batch])))
        return self._release(jobs, Plan(_to_ids(jobs, batches), trigger, partition.total_s, partition.policy))

    def _release(self, jobs: Sequence[Job], plan: Plan) -> Plan:
        """Let the plan's jobs go, and hold the plan to its contract: exactly `jobs`, each once."""
        num_left = self._queue.remove(chain.from_iterable(plan.batches))
        self._num_planned += num_left
        self._check_conservation()
        if not num_left == len(jobs) == sum(map(len, plan.batches)):
            raise RuntimeError(f"A plan for {len(jobs)} jobs let {num_left} go: {plan}. This is a bug.")
        return plan

    def _check_conservation(self) -> None:
        accounted = self._num_planned + self._num_removed + len(self._queue)
        if self._num_received != accounted:
            raise RuntimeError(
                f"{self._num_received} jobs received, but {self._num_planned} planned, {self._num_removed} removed "
                f"and {len(self._queue)} queued. This is a bug."
            )


def _to_ids(jobs: Sequence[Job], batches: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    ids = [job.id for job in jobs]
    return tuple([tuple([ids[index] for index in batch]) for batch in batches])


def _trigger_policy(settings: SchedulerSettings) -> TriggerPolicy:
    if settings.trigger == "hungry":
        return Hungry()
    if settings.trigger == "lazy":
        return Lazy(settings.max_wait_s, settings.max_batch_sequences, settings.max_batch_tokens, settings.slo_s)
    raise RuntimeError(f"No policy for trigger {settings.trigger!r}. This is a bug.")
