"""The scheduler: jobs in, plans out. No clock, no thread, no input or output: the caller brings `now`."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.planner import Composition, Planner
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import ORDERS
from penstock.scheduler.policies.partition import Caps, PartitionPolicy
from penstock.scheduler.policies.trigger import TRIGGERS
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from penstock.scheduler.queueing.lateness import LatenessTracker
from penstock.scheduler.queueing.steady_clock import SteadyClock
from penstock.scheduler.queueing.work_estimator import BATCH_SHARE, WorkEstimator
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Cause, Job, Plan, Refusal, Trigger, Wait


class Scheduler:
    """Queues jobs until a trigger fires, then plans batches of those due first. Not thread-safe.

    Every job given to `add` leaves exactly once: rejected, in a plan, or by `remove`. This is checked after each step.
    """

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self._settings = settings
        caps = Caps(1 if settings.partition == "none" else settings.max_batch_sequences, settings.max_batch_tokens)
        self._slo_s = math.inf if settings.slo_s is None else settings.slo_s
        self._decide_trigger = TRIGGERS[settings.trigger]
        self._by_deadline = ORDERS[settings.order].by_deadline
        self._partition = PartitionPolicy(settings.partition)
        self._in_order = PartitionPolicy("fifo")
        self._estimator = WorkEstimator(cost, caps, slo_s=self._slo_s)
        self._lateness = LatenessTracker()
        self._planner = Planner(settings, cost, caps, self._estimator, self._lateness)
        self._bulk_share = BulkShare(settings, self._lateness)
        self._clock = SteadyClock()
        self._online = JobQueue()
        self._bulk = JobQueue()
        self._num_received = 0
        self._num_gone = 0

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of a batch of several jobs."""
        return self._settings.max_batch_tokens

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
        refused: list[Refusal] = []
        bulk = self._in_time([job for job in jobs if job.bulk], now, refused)
        online = self._in_time([job for job in jobs if not job.bulk], now, refused)
        if bulk:
            self._bulk.add(bulk)
        if online:
            work_s = self._online.work_s
            refused += self._admit(online, now + busy_s * (1 + self._lateness.share(self._estimator.full_s)))
            self._bulk_share.online_came(self._online.work_s - work_s, now)
        self._num_received += len(jobs)
        self._num_gone += len(refused)
        self._check_conservation()
        return refused

    def remove(self, ids: Iterable[int]) -> int:
        """Remove cancelled jobs; returns how many were still queued. Other ids are skipped."""
        return self._remove(list(ids))

    def poll(self, now: float, *, idle_lanes: int, busy_s: float = 0.0, draining: bool = False) -> Plan | Wait:
        """Plan batches, or say when to ask again. Ask after arrivals, at `Wait.wake_at`, and when a lane falls idle.

        A plan's jobs leave the queue, and are the caller's now. While no lane is idle nothing is planned, so that
        batches grow; a short queue is shared out among several idle lanes. `busy_s`: seconds that the plan's first
        batch will wait for a lane; above 0 only if it is prepared ahead. `draining`: run the queued jobs without asking
        the trigger. A clock that steps back counts as no time elapsed.
        """
        _check_busy(busy_s)
        now = self._clock.read(now)
        refused = self._expired(now)
        decision = self._decide(now, draining) if idle_lanes >= 1 else None
        while isinstance(decision, Trigger):
            plan = self._plan(decision, now + busy_s, idle_lanes)
            refused += plan.refused
            if plan.batches:
                return plan._replace(refused=tuple(refused))
            decision = self._decide(now, draining)
        return Wait(None if decision is None else self._clock.to_caller(decision), tuple(refused))

    def ended(self, predicted_s: float, late_s: float, now: float) -> None:
        """A batch predicted to take `predicted_s` ended `late_s` later than that; below 0: sooner.

        Admission and planning leave room for it. Times that are no numbers are ignored.
        """
        self._clock.read(now)
        self._lateness.observe(predicted_s, late_s)

    def replied(self, seconds: float) -> None:
        """The broker acknowledged replies so long after the end of their batch. Deadlines leave room for it."""
        self._lateness.observe_reply(seconds)

    def check_integrity(self) -> None:
        """Recount all sums, O(queued). RuntimeError when a kept sum differs."""
        self._check_conservation()
        self._online.check_integrity()
        self._bulk.check_integrity()

    def _check(self, jobs: Sequence[Job]) -> None:
        incoming: set[int] = set()
        online, bulk = self._online.ids, self._bulk.ids
        for job_id, num_tokens, arrival, deadline, _ in jobs:
            if job_id in incoming or job_id in online or job_id in bulk:
                raise ValueError(f"Job ids must be unique among queued jobs. Already queued: {job_id}")
            incoming.add(job_id)
            if num_tokens < 1:
                raise ValueError(f"A job must have at least 1 token. Job {job_id} has: {num_tokens}")
            if not -math.inf < arrival < math.inf or deadline != deadline:
                raise ValueError(f"A job's times must be numbers. Job {job_id}: {arrival}, {deadline}")

    def _in_time(self, jobs: Sequence[Job], now: float, refused: list[Refusal]) -> list[QueuedJob]:
        """The jobs of one class in steady time. Those whose deadline has passed are added to `refused` instead.

        Deadlines become earlier by the time that a reply takes to the broker, and by a quarter of the SLO at most. A
        job from the future (the clock stepped back) came now, and keeps its SLO.
        """
        by_deadline, ahead_s, estimator = self._by_deadline, self._clock.ahead_s, self._estimator
        token_s, small_s, late_s = estimator.token_s, estimator.small_s, self._lateness.batch_s
        reply_s = self._lateness.reply_s
        work_share = (1 + self._lateness.share(estimator.full_s)) / self._settings.num_lanes
        queued = []
        for number, (job_id, num_tokens, came_at, due_at, is_bulk) in enumerate(jobs, self._num_received):
            slo_s = (math.inf if is_bulk else self._slo_s) if due_at is None else due_at - came_at
            arrival = came_at + ahead_s if came_at + ahead_s < now else now
            deadline = arrival + slo_s
            if deadline <= now:
                refused.append(Refusal(job_id, Cause.ARRIVED_LATE, now - deadline))
                continue
            lane_s = num_tokens * token_s
            latest_begin = math.inf
            if slo_s < math.inf:
                # Its own batch may be the longest that its SLO allows, or the job alone where that is longer.
                share_s = slo_s * BATCH_SHARE
                deadline -= reply_s if reply_s < share_s else share_s
                margin_s = late_s if late_s < share_s else share_s
                latest_begin = deadline - margin_s - max(share_s, lane_s, small_s)
            due, work_s = deadline if by_deadline else arrival, lane_s * work_share
            queued.append(QueuedJob(due, number, job_id, num_tokens, arrival, deadline, work_s, latest_begin))
        return queued

    def _admit(self, jobs: Sequence[QueuedJob], begin: float) -> list[Refusal]:
        """Queue online jobs. Returns the rejections of those that would be late, or would make others late.

        Admission is the schedulability test of earliest deadline first: a job is admitted only if it and all admitted
        jobs meet their deadlines. An admitted job counts at once, so no delay in the loop can make it oscillate.
        """
        if self._settings.admission == "accept" or self._online.surely_in_time(jobs, begin):
            self._online.add(jobs)
            return []
        refused = []
        for job in jobs:
            late_s = self._online.lateness(job, begin)
            if late_s > 0:
                refused.append(Refusal(job.id, Cause.OVERLOADED, late_s))
            else:
                self._online.add((job,))
        return refused

    def _decide(self, now: float, draining: bool) -> Trigger | float | None:
        """The rule that fires now, or when one will; None: not before an arrival."""
        if draining:
            return Trigger.DRAIN if self.num_queued else None
        if not self._online:
            return Trigger.BULK if self._bulk else None
        decision = self._decide_trigger(self._planner.outlook(self._online), now, self._settings.max_wait_s)
        # Waiting for a fuller batch gains nothing while bulk jobs can fill it.
        return Trigger.BULK if self._bulk and not isinstance(decision, Trigger) else decision

    def _plan(self, trigger: Trigger, now: float, lanes: int) -> Plan:
        """Batches that start at `now`, or rejections only: at least one."""
        if not self._online:
            return self._release(self._compose_bulk(trigger, now, lanes), trigger)
        made = self._planner.compose(self._online, self._partition, now, lanes=lanes)
        if not made.refused:
            made = self._fill_up(made, trigger, now, lanes)
        return self._release(made, trigger)

    def _fill_up(self, made: Composition, trigger: Trigger, now: float, lanes: int) -> Composition:
        """Learn from a plan of online jobs, and add bulk jobs if no online job is left for the next."""
        jobs = [job for draft in made.drafts for job in draft.jobs]
        batch_s = [draft.seconds for draft in made.drafts]
        are_all = len(jobs) == len(self._online)
        self._bulk_share.online_planned(sum([job.work_s for job in jobs]), now)
        tokens = sum([job.num_tokens for job in jobs])
        self._estimator.learn(tokens, batch_s, are_full=not are_all or trigger is Trigger.MAX_BATCH)
        if not self._bulk or not are_all:
            return made
        growth_s = self._bulk_share.growth_s(now)
        drafts = self._planner.fill_up(made.drafts, self._bulk, now, lanes=lanes, growth_s=growth_s)
        self._bulk_share.grown(sum([draft.seconds for draft in drafts]) - sum(batch_s))
        return made._replace(drafts=drafts)

    def _compose_bulk(self, trigger: Trigger, now: float, lanes: int) -> Composition:
        partition, max_seconds = self._partition, math.inf
        if trigger is not Trigger.DRAIN and not self._bulk_share.is_quiet(now):
            # In order of arrival: a job that does not fit one slice is the first of the next.
            partition, max_seconds = self._in_order, max(self._bulk_share.alone_s, self._estimator.small_s)
        return self._planner.compose(self._bulk, partition, now, lanes=lanes, max_seconds=max_seconds)

    def _release(self, made: Composition, trigger: Trigger) -> Plan:
        """Remove the jobs of a plan from the queues, and check its contract: each was queued, and appears once."""
        batches = tuple([Batch(tuple([job.id for job in draft.jobs]), draft.seconds) for draft in made.drafts])
        leaving = [*chain.from_iterable(batch.ids for batch in batches), *(refusal.id for refusal in made.refused)]
        num_left = self._remove(leaving)
        if not num_left == len(leaving) > 0:
            raise RuntimeError(f"A plan for {len(leaving)} jobs removed {num_left}: {made}. This is a bug.")
        return Plan(batches, trigger, made.partition, made.refused, made.dp_gain)

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


def _check_busy(busy_s: float) -> None:
    if not 0 <= busy_s < math.inf:
        raise ValueError(f"busy_s must be a finite number of seconds, 0 or more. Given: {busy_s}")
