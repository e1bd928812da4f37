"""The scheduler: jobs in, plans out. No clock, no thread, no input or output: the caller brings `now`."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.planner import Planner
from penstock.scheduler.policies.admission import admission_policy
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import Draft, order_policy
from penstock.scheduler.policies.partition import Caps, Fifo, partition_policy
from penstock.scheduler.policies.trigger import trigger_policy
from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.lateness import LatenessTracker
from penstock.scheduler.queueing.queued_job import QueuedJob
from penstock.scheduler.queueing.steady_clock import SteadyClock
from penstock.scheduler.queueing.work_estimator import BATCH_SHARE, LATENESS_SHARE, WorkEstimator
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Cause, Job, Plan, Refusal, Trigger, Wait


class Scheduler:
    """Queues jobs until a trigger fires, then plans batches of those due first. Not thread-safe.

    Every job given to `add` leaves exactly once: rejected, in a plan, or by `remove`. This is checked after each step.
    """

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self._settings = settings
        self._cost = cost
        self._caps = Caps(
            1 if settings.partition == "none" else settings.max_batch_sequences,
            settings.max_batch_tokens,
        )
        slo_s = math.inf if settings.slo_s is None else settings.slo_s
        self._trigger = trigger_policy(settings.trigger, settings.max_wait_s)
        self._partition = partition_policy(settings.partition)
        self._order = order_policy(settings.order)
        self._admission = admission_policy(settings.admission)
        self._estimator = WorkEstimator(cost, self._caps, slo_s=slo_s)
        self._lateness = LatenessTracker(slo_s)
        self._planner = Planner(
            cost,
            self._estimator,
            self._caps,
            self._order,
            self._admission,
            self._lateness,
            slo_s=slo_s,
            window=settings.window,
        )
        self._bulk_share = BulkShare(settings, self._lateness)
        self._clock = SteadyClock()
        self._online = JobQueue()
        self._bulk = JobQueue()
        self._num_received = 0
        self._num_gone = 0

    @property
    def num_queued(self) -> int:
        """Queued jobs of both classes."""
        return len(self._online) + len(self._bulk)

    @property
    def queued_tokens(self) -> int:
        """Queued tokens of both classes."""
        return self._online.tokens + self._bulk.tokens

    @property
    def backlog_s(self) -> float:
        """Predicted seconds of the queued online jobs, with all lanes at work."""
        return self._online.work_s

    @property
    def is_full(self) -> bool:
        """Whether a full batch is queued, which may be prepared ahead since waiting cannot make it fuller.

        Bulk jobs count only after a quiet time, when they have the lanes to themselves.
        """
        if self._online:
            return self._planner.outlook(self._online).is_full
        is_quiet = self._bulk_share.is_quiet(self._clock.latest)
        return is_quiet and bool(self._bulk) and self._planner.outlook(self._bulk).is_full

    def add(self, jobs: Sequence[Job], now: float, *, busy_s: float = 0.0) -> list[Refusal]:
        """Queue jobs. Returns the rejections, whose jobs are not queued.

        `busy_s`: predicted seconds of the batches planned before, mean over lanes. ValueError (nothing is queued): id
        in use, num_tokens < 1, a time that is no number.
        """
        self._check(jobs)
        _check_busy(busy_s)
        now = self._clock.read(now)
        if not jobs:
            return []
        self._estimator.observe(jobs)
        work_s = self._online.work_s
        begin = now + busy_s * (1 + self._lateness.share(self._estimator.full_s))
        refused = [refusal for job in self._queueable(jobs, now) if (refusal := self._admit(job, now, begin))]
        if not all(job.bulk for job in jobs):
            self._bulk_share.online_came(self._online.work_s - work_s, now)
        self._num_received += len(jobs)
        self._num_gone += len(refused)
        self._check_conservation()
        return refused

    def remove(self, ids: Iterable[int]) -> int:
        """Remove cancelled jobs; returns how many were still queued. Other ids are skipped."""
        return self._remove(list(ids))

    def poll(self, now: float, *, idle_lanes: int, busy_s: float = 0.0) -> Plan | Wait:
        """Plan batches, or say when to ask again. Ask after arrivals, at `Wait.wake_at`, and when a lane falls idle.

        A plan's jobs leave the queue, and are the caller's now. While no lane is idle nothing is planned, so that
        batches grow; a short queue is shared out among several idle lanes. `busy_s`: seconds that the plan's first
        batch will wait for a lane; above 0 only if it is prepared ahead. A clock that steps back counts as no time
        elapsed.
        """
        _check_busy(busy_s)
        now = self._clock.read(now)
        refused = self._expired(now)
        decision = self._decide(now) if idle_lanes >= 1 else None
        while isinstance(decision, Trigger):
            plan = self._plan(decision, now + busy_s, idle_lanes)
            refused += plan.refused
            if plan.batches:
                return replace(plan, refused=tuple(refused))
            decision = self._decide(now)
        return Wait(None if decision is None else self._clock.to_caller(decision), tuple(refused))

    def ended(self, predicted_s: float, late_s: float, now: float) -> None:
        """A batch predicted to take `predicted_s` ended `late_s` later than that; below 0: sooner.

        Admission and planning leave room for it. Times that are no numbers are ignored.
        """
        self._clock.read(now)
        self._lateness.observe(predicted_s, late_s)

    def drain(self, now: float) -> Plan | None:
        """Plan the jobs due first without asking the trigger; None when none is queued. Call until None.

        A plan may hold rejections only.
        """
        now = self._clock.read(now)
        if not self.num_queued:
            return None
        refused = self._expired(now)
        if not self.num_queued:
            return Plan((), Trigger.DRAIN, self._partition.name, tuple(refused))
        plan = self._plan(Trigger.DRAIN, now, 1)
        return replace(plan, refused=(*refused, *plan.refused))

    def check_integrity(self) -> None:
        """Recount all sums, O(queued). RuntimeError when a kept sum differs."""
        self._check_conservation()
        self._online.check_integrity()
        self._bulk.check_integrity()

    def _check(self, jobs: Sequence[Job]) -> None:
        incoming: set[int] = set()
        online, bulk = self._online.ids, self._bulk.ids
        for job in jobs:
            if job.id in incoming or job.id in online or job.id in bulk:
                raise ValueError(f"Job ids must be unique among queued jobs. Already queued: {job.id}")
            incoming.add(job.id)
            if job.num_tokens < 1:
                raise ValueError(f"A job must have at least 1 token. Job {job.id} has: {job.num_tokens}")
            if not -math.inf < job.arrival < math.inf or job.deadline != job.deadline:
                raise ValueError(f"A job's times must be numbers. Job {job.id}: {job.arrival}, {job.deadline}")

    def _queueable(self, jobs: Sequence[Job], now: float) -> Iterator[QueuedJob]:
        """The jobs in steady time. One from the future (the clock stepped back) came now, and keeps its SLO."""
        slo_s = math.inf if self._settings.slo_s is None else self._settings.slo_s
        estimator, order_key = self._estimator, self._order.key
        slower = 1 + self._lateness.share(estimator.full_s)
        num_lanes = self._settings.num_lanes / slower
        ahead_s, late_s = self._clock.ahead_s, self._lateness.batch_s
        for number, job in enumerate(jobs, self._num_received):
            arrival = job.arrival + ahead_s
            deadline = arrival + (math.inf if job.bulk else slo_s)
            if job.deadline is not None:
                deadline = job.deadline + ahead_s
            if arrival > now:
                arrival, deadline = now, now + (deadline - arrival)
            own_slo_s = deadline - arrival
            lane_s = job.num_tokens * estimator.token_s
            # Its own batch may be the longest that its SLO allows, or the job alone where that is longer.
            batch_s = max(estimator.launch_s + lane_s, own_slo_s * BATCH_SHARE, estimator.small_s)
            batch_s += min(late_s, own_slo_s * LATENESS_SHARE)
            latest_begin = deadline - batch_s if deadline < math.inf else math.inf
            key = order_key(deadline, arrival, number)
            yield QueuedJob(job.id, job.num_tokens, job.bulk, arrival, deadline, key, lane_s / num_lanes, latest_begin)

    def _admit(self, job: QueuedJob, now: float, begin: float) -> Refusal | None:
        """Queue the job, or reject it."""
        if job.deadline <= now:
            return Refusal(job.id, Cause.ARRIVED_LATE, now - job.deadline)
        if job.bulk:
            self._bulk.add(job)
            return None
        late_s = self._admission.lateness(self._online, job, begin)
        if late_s > 0:
            return Refusal(job.id, Cause.OVERLOADED, late_s)
        self._online.add(job)
        return None

    def _decide(self, now: float) -> Trigger | float | None:
        """The rule that fires now, or when one will; None: not before an arrival."""
        if not self._online:
            return Trigger.BULK if self._bulk else None
        decision = self._trigger.decide(self._planner.outlook(self._online), now)
        # Waiting for a fuller batch gains nothing while bulk jobs can fill it.
        return Trigger.BULK if self._bulk and not isinstance(decision, Trigger) else decision

    def _plan(self, trigger: Trigger, now: float, lanes: int) -> Plan:
        """Batches that start at `now`, or rejections only: at least one."""
        if not self._online:
            return self._plan_bulk(trigger, now, lanes)
        drafts, name, dp_gain, refused = self._planner.compose(self._online, self._partition, now, lanes=lanes)
        if refused:
            return self._release(Plan((), trigger, name, tuple(refused)))
        are_all = sum([len(draft.jobs) for draft in drafts]) == len(self._online)
        self._bulk_share.online_planned(sum([job.work_s for draft in drafts for job in draft.jobs]), now)
        self._estimator.learn(drafts, are_full=not are_all or trigger is Trigger.MAX_BATCH)
        if self._bulk and are_all:
            own_s = sum([draft.seconds for draft in drafts])
            growth_s = self._bulk_share.growth_s(now)
            drafts = self._planner.fill_up(drafts, self._bulk, now, lanes=lanes, growth_s=growth_s)
            self._bulk_share.grown(sum([draft.seconds for draft in drafts]) - own_s)
        return self._release(Plan(_batches(drafts), trigger, name, (), dp_gain))

    def _plan_bulk(self, trigger: Trigger, now: float, lanes: int) -> Plan:
        partition, max_seconds = self._partition, math.inf
        if trigger is not Trigger.DRAIN and not self._bulk_share.is_quiet(now):
            # In order of arrival: a job that does not fit one slice is the first of the next.
            partition, max_seconds = Fifo(), max(self._bulk_share.alone_s, self._estimator.small_s)
        drafts, name, dp_gain, refused = self._planner.compose(
            self._bulk, partition, now, lanes=lanes, max_seconds=max_seconds
        )
        return self._release(Plan(_batches(drafts), trigger, name, tuple(refused), dp_gain))

    def _release(self, plan: Plan) -> Plan:
        """Remove the plan's jobs, and check its contract: each was queued, and appears once."""
        leaving = [*chain.from_iterable(batch.ids for batch in plan.batches), *(refusal.id for refusal in plan.refused)]
        num_left = self._remove(leaving)
        if not num_left == len(leaving) > 0:
            raise RuntimeError(f"A plan for {len(leaving)} jobs removed {num_left}: {plan}. This is a bug.")
        return plan

    def _expired(self, now: float) -> list[Refusal]:
        """Remove the jobs at the front whose deadline has passed. Others are found when they are due."""
        refused = [
            Refusal(job.id, Cause.QUEUED, now - job.deadline)
            for queue in (self._online, self._bulk)
            for job in takewhile(lambda job: job.deadline <= now, queue)
        ]
        if refused:
            self._remove([refusal.id for refusal in refused])
        return refused

    def _remove(self, ids: Sequence[int]) -> int:
        num_left = self._online.remove(ids)
        if self._bulk:
            num_left += self._bulk.remove(ids)
        self._num_gone += num_left
        self._check_conservation()
        return num_left

    def _check_conservation(self) -> None:
        if self._num_received != self._num_gone + self.num_queued:
            raise RuntimeError(
                f"{self._num_received} jobs received, but {self._num_gone} gone and {self.num_queued} queued. "
                "This is a bug."
            )


def _batches(drafts: Sequence[Draft]) -> tuple[Batch, ...]:
    return tuple([Batch(tuple([job.id for job in draft.jobs]), draft.seconds) for draft in drafts])


def _check_busy(busy_s: float) -> None:
    if not 0 <= busy_s < math.inf:
        raise ValueError(f"busy_s must be a finite number of seconds, 0 or more. Given: {busy_s}")
