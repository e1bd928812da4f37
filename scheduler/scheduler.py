"""The scheduler: jobs in, plans out. No clock, no thread, no input or output: the caller brings `now`."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.planner import Planner
from penstock.scheduler.policies.order import ORDERS
from penstock.scheduler.policies.trigger import TRIGGERS
from penstock.scheduler.queueing.job_queue import JobQueue, Pace, QueuedJob
from penstock.scheduler.queueing.work_estimator import BATCH_SHARE
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Cause, Job, Plan, RejectedJob, Trigger, Wait

_HOLD_S = 0.03  # longest wait for a busy lane beside an idle one: a few small batches of a CPU


class Scheduler:
    """Queues jobs until a trigger fires, then plans batches of those due first. Not thread-safe.

    Every sequence given to `add` leaves exactly once: rejected, in a plan, or by `remove`. This is checked after each
    step.
    """

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self.settings = settings
        self._decide_trigger = TRIGGERS[settings.trigger]
        self._by_deadline = ORDERS[settings.order].by_deadline
        self._planner = Planner(settings, cost)
        self._estimator, self._bulk_share = self._planner.estimator, self._planner.bulk_share
        self._latest = -math.inf  # moment of the last call, in steady time: see `_steady`
        self._ahead_s = 0.0  # of the caller's clock: the sum of all its steps back
        self._online, self._bulk = JobQueue(), JobQueue()
        self._next_number = 0  # of a job
        self._num_received = self._num_gone = 0  # sequences

    @property
    def num_queued(self) -> int:
        """Queued sequences of both classes."""
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
        """Whether a full batch is queued, which may be prepared ahead since waiting cannot make it fuller."""
        if self._online:
            return self._planner.outlook(self._online).is_full
        # Bulk jobs count only when they have the lanes to themselves.
        is_quiet = self._bulk_share.is_quiet(self._latest)
        return is_quiet and bool(self._bulk) and self._planner.outlook(self._bulk).is_full

    def waits_until(self, begin: float) -> float | None:
        """How long the queue may wait for a lane that is free at `begin`, on the caller's clock; None: it may not.

        It may if it is short, less than a full batch and no bulk job, and if no job waits for `_HOLD_S`, or will have
        used half of its SLO at the end of the batch.
        """
        if not self._online or self._bulk:
            return None
        outlook = self._planner.outlook(self._online)
        if outlook.is_full:
            return None
        latest = min(outlook.half_slo_at - outlook.run_s, outlook.oldest_arrival + _HOLD_S) - self._ahead_s
        return latest if begin < latest else None

    def add(self, jobs: Sequence[Job], now: float, *, busy_s: float = 0.0) -> list[RejectedJob]:
        """Queue jobs, of each request all sequences or none. Returns the sequences of those rejected.

        ValueError, and nothing queued, for a used id, a sequence without a token or a time of NaN. `busy_s`: predicted
        seconds of the batches planned before, mean over lanes.
        """
        num_sequences = self._check(jobs)
        now = self._steady(now, busy_s)
        if not jobs:
            return []
        self._estimator.jobs_came(jobs)
        rejected: list[RejectedJob] = []
        bulk = self._in_time([job for job in jobs if job.bulk], now, rejected)
        if bulk:
            self._bulk.add(bulk)
        online = [job for job in jobs if not job.bulk]
        if in_time := self._in_time(online, now, rejected):
            work_s = self._online.work_s
            begin = now + busy_s * (1 + self._estimator.late_share)
            rejected += self._admit(online, in_time, now, begin)
            self._bulk_share.online_came(self._online.work_s - work_s, now)
        self._next_number += num_sequences
        self._num_received += num_sequences
        self._num_gone += len(rejected)
        self._check_conservation()
        return rejected

    def remove(self, ids: Iterable[int]) -> int:
        """Remove cancelled sequences; returns how many were still queued. Other ids are skipped."""
        gone = list(ids)
        num_left = self._online.remove(gone) + (self._bulk.remove(gone) if self._bulk else 0)
        self._num_gone += num_left
        self._check_conservation()
        return num_left

    def poll(self, now: float, *, idle_lanes: int, busy_s: float = 0.0, draining: bool = False) -> Plan | Wait:
        """Plan batches, or say when to ask again. Ask after arrivals, at `Wait.wake_at`, and when a lane falls idle.

        What is planned leaves the queue. Nothing is planned while no lane is idle, so that batches grow. `busy_s`:
        seconds that the plan's first batch will wait for a lane; above 0 only if it is prepared ahead. `draining`: run
        the queued jobs without asking the trigger. A clock that steps back counts as no time elapsed.
        """
        now = self._steady(now, busy_s)
        rejected = self._expired(now)
        decision = self._decide(now, draining) if idle_lanes >= 1 else None
        while isinstance(decision, Trigger):
            plan = self._planner.plan(self._online, self._bulk, decision, now + busy_s, idle_lanes)
            self._release(plan)
            rejected += plan.rejected
            if plan.batches:
                return plan._replace(rejected=tuple(rejected))
            decision = self._decide(now, draining)
        return Wait(None if decision is None else self._to_caller(decision), tuple(rejected))

    def ended(self, predicted_s: float, late_s: float, now: float) -> None:
        """Record that a batch predicted to take `predicted_s` ended `late_s` later, for admission and planning."""
        self._steady(now)
        self._estimator.ended(predicted_s, late_s)

    def replied(self, seconds: float) -> None:
        """Record how long after the end of their batch the broker acknowledged replies, for deadlines."""
        self._estimator.replied(seconds)

    def _steady(self, now: float, busy_s: float = 0.0) -> float:
        """The caller's `now` in steady time, in which a step back of the caller's clock counts as no time elapsed."""
        if not -math.inf < now < math.inf:
            raise ValueError(f"now must be a finite number of seconds. Given: {now}")
        if not 0 <= busy_s < math.inf:
            raise ValueError(f"busy_s must be a finite number of seconds, 0 or more. Given: {busy_s}")
        self._ahead_s = max(self._ahead_s, self._latest - now)
        self._latest = max(self._latest, now + self._ahead_s)
        return self._latest

    def _to_caller(self, moment: float) -> float:
        """A steady moment on the caller's clock: the first at which `_steady` gives it, so that no wake-up is early."""
        given = moment - self._ahead_s
        return given if given + self._ahead_s >= moment else given + math.ulp(given) + math.ulp(moment)

    def _check(self, jobs: Sequence[Job]) -> int:
        """The number of sequences."""
        num_sequences, incoming = 0, set[int]()
        for ids, lengths, arrival, deadline, _, sizes in jobs:
            num_sequences += len(ids)
            incoming.update(ids)
            if len(incoming) != num_sequences:
                raise ValueError(f"Ids must be unique among queued sequences. Some of these came twice: {ids}")
            if not lengths or len(lengths) != len(ids) or min(lengths) < 1:
                raise ValueError(f"A job must have sequences of at least 1 token. Job {ids} has: {lengths}")
            if sizes and (sum(sizes) != len(ids) or min(sizes) < 1):
                raise ValueError(f"The requests of a job must have its {len(ids)} sequences. Given: {sizes}")
            if not -math.inf < arrival < math.inf or deadline != deadline:
                raise ValueError(f"A job's times must be numbers. Job {ids}: {arrival}, {deadline}")
        if self._online.has_any(incoming) or self._bulk.has_any(incoming):
            raise ValueError(f"Ids must be unique among queued sequences. Some of these are queued: {incoming}")
        return num_sequences

    def _in_time(self, jobs: Sequence[Job], now: float, rejected: list[RejectedJob]) -> list[QueuedJob]:
        """The jobs of one class in steady time. Those whose deadline has passed are added to `rejected` instead.

        Deadlines become earlier by the time that a reply takes to the broker, and by a quarter of the SLO at most. The
        margin for a late batch counts as far as it is longer than that: both are near their worst cases, which seldom
        meet. A job from the future (the clock stepped back) came now, and keeps its SLO.
        """
        by_deadline, ahead_s, estimator = self._by_deadline, self._ahead_s, self._estimator
        late_s, reply_s = estimator.high_late_s, estimator.reply_s
        token_s = estimator.token_s * (1 + estimator.late_share) / self.settings.num_lanes
        queued = []
        for number, (ids, lengths, came_at, due_at, is_bulk, _) in enumerate(jobs, self._next_number):
            slo_s = (math.inf if is_bulk else estimator.slo_s) if due_at is None else due_at - came_at
            arrival = came_at + ahead_s if came_at + ahead_s < now else now
            deadline = arrival + slo_s
            if deadline <= now:
                rejected += [RejectedJob(one, Cause.ARRIVED_LATE, now - deadline) for one in ids]
                continue
            end, least_s = math.inf, 0.0
            if slo_s < math.inf:
                # Its batch may be the longest that the SLO allows, or one sequence alone where that is longer.
                share_s = slo_s * BATCH_SHARE
                reply_share_s = reply_s if reply_s < share_s else share_s
                deadline -= reply_share_s
                margin_s = (late_s if late_s < share_s else share_s) - reply_share_s
                end, least_s = deadline - max(0.0, margin_s), max(share_s, estimator.small_s)
            due = deadline if by_deadline else arrival
            pace = Pace(token_s, estimator.token_s, least_s, end)
            queued.append(QueuedJob.of(due, number, ids, lengths, (arrival, deadline), pace))
        return queued

    def _admit(self, online: list[Job], jobs: list[QueuedJob], now: float, begin: float) -> list[RejectedJob]:
        """Queue the requests of `online`, of which `jobs` have not come late. Returns the rejections of the others.

        Admission is the schedulability test of earliest deadline first: a request is admitted only if it and all
        admitted ones meet their deadlines. Admitted ones count at once, so no delay in the loop can make it oscillate.
        """
        if self.settings.admission == "accept" or self._online.surely_in_time(jobs, begin):
            self._online.add(jobs)
            return []
        requests = [one for job in online for one in job.by_request()]
        if len(requests) > len(online):
            jobs = self._in_time(requests, now, [])  # what came late is rejected already
        jobs.sort()
        found = list(zip(jobs, self._online.lateness(jobs, begin), strict=True))
        if in_time := [job for job, late_s in found if late_s <= 0]:
            self._online.add(in_time)
        return [RejectedJob(one, Cause.OVERLOADED, by_s) for job, by_s in found if by_s > 0 for one in job.ids]

    def _decide(self, now: float, draining: bool) -> Trigger | float | None:
        """The rule that fires now, or when one will; None: not before an arrival."""
        if draining:
            return Trigger.DRAIN if self.num_queued else None
        if not self._online:
            return Trigger.BULK if self._bulk else None
        decision = self._decide_trigger(self._planner.outlook(self._online), now, self.settings.max_wait_s)
        # Waiting for a fuller batch gains nothing while bulk jobs can fill it.
        return Trigger.BULK if self._bulk and not isinstance(decision, Trigger) else decision

    def _release(self, plan: Plan) -> None:
        """Remove the jobs of a plan from the queues, and check its contract: each was queued, and appears once."""
        leaving = [*chain(*[batch.ids for batch in plan.batches]), *[job.id for job in plan.rejected]]
        num_left = self.remove(leaving)
        if not num_left == len(leaving) > 0:
            raise RuntimeError(f"A plan for {len(leaving)} sequences removed {num_left}: {plan}. This is a bug.")

    def _expired(self, now: float) -> list[RejectedJob]:
        """Remove the jobs at the front of the queues whose deadline has passed."""
        expired = chain(*[takewhile(lambda job: job.deadline <= now, queue) for queue in (self._online, self._bulk)])
        late = [RejectedJob(one, Cause.QUEUED, now - job.deadline) for job in expired for one in job.ids]
        if late:
            self.remove([job.id for job in late])
        return late

    def _check_conservation(self) -> None:
        received, gone, queued = self._num_received, self._num_gone, self.num_queued
        if received != gone + queued:
            raise RuntimeError(f"{received} sequences received, but {gone} gone and {queued} queued. This is a bug.")
