"""Jobs in, plans out. No clock, no thread, no input or output: the caller brings `now` and runs the plans."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.planner import Planner
from penstock.scheduler.policies.admission import admission_policy
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import Draft, order_policy
from penstock.scheduler.policies.partition import Caps, partition_policy
from penstock.scheduler.policies.trigger import trigger_policy
from penstock.scheduler.queueing.block import Waiting
from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.lateness import Lag
from penstock.scheduler.queueing.steady_clock import SteadyClock
from penstock.scheduler.queueing.work_estimator import BATCH_SHARE, LAG_SHARE, Prices
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Cause, Job, Plan, Refusal, Trigger, Wait


class Scheduler:
    """Holds jobs until a trigger fires, then plans batches for those due first. Not thread-safe.

    Every job handed to `add` leaves exactly once: refused, in a plan, or by `remove`. This is checked after each step.
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
        self._prices = Prices(cost, self._caps, slo_s=slo_s)
        self._lag = Lag(slo_s)
        self._planner = Planner(
            cost, self._prices, self._caps, self._order, self._admission, self._lag, slo_s=slo_s, window=settings.window
        )
        self._bulk_share = BulkShare(settings, self._lag)
        self._clock = SteadyClock()
        self._online = JobQueue()
        self._bulk = JobQueue()
        self._num_received = 0
        self._num_gone = 0

    @property
    def num_queued(self) -> int:
        """Jobs that wait, of both classes."""
        return len(self._online) + len(self._bulk)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait, of both classes."""
        return self._online.tokens + self._bulk.tokens

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until the lanes have worked off the online jobs that wait here. Bulk jobs can wait."""
        return self._online.work_s

    @property
    def is_full(self) -> bool:
        """Whether a full batch waits: waiting longer could not make it any fuller, so it may be prepared ahead.

        Bulk jobs count only after a quiet time, when they have the lanes to themselves.
        """
        if self._online:
            return self._planner.outlook(self._online).is_full
        is_quiet = self._bulk_share.is_quiet(self._clock.latest)
        return is_quiet and bool(self._bulk) and self._planner.outlook(self._bulk).is_full

    @property
    def oldest_arrival(self) -> float | None:
        """Earliest arrival among queued jobs, on the caller's clock; None when none is queued."""
        oldest = min(queue.extremes().oldest_arrival for queue in (self._online, self._bulk))
        return None if oldest == math.inf else self._clock.to_caller(oldest)

    def add(self, jobs: Sequence[Job], now: float, *, busy_s: float = 0.0) -> list[Refusal]:
        """Queue jobs. Returns those refused, which are not queued.

        `busy_s`: predicted seconds until the lanes have worked off what was planned before (mean over lanes).
        ValueError (none is queued): id in use, num_tokens < 1, a time that is no number.
        """
        self._check(jobs)
        _check_busy(busy_s)
        now = self._clock.read(now)
        if not jobs:
            return []
        self._prices.observe(jobs)
        work_s = self._online.work_s
        begin = now + busy_s * (1 + self._lag.share(self._prices.full_s))
        refused = [refusal for job in self._waiting(jobs, now) if (refusal := self._admit(job, now, begin))]
        if not all(job.bulk for job in jobs):
            self._bulk_share.online_came(self._online.work_s - work_s, now)
        self._num_received += len(jobs)
        self._num_gone += len(refused)
        self._check_conservation()
        return refused

    def remove(self, ids: Iterable[int]) -> int:
        """Take back jobs that were cancelled; returns how many were still queued. Other ids are skipped."""
        return self._let_go(list(ids))

    def poll(self, now: float, *, idle_lanes: int, busy_s: float = 0.0) -> Plan | Wait:
        """What to run now, or when to ask again. Ask after arrivals, at `Wait.wake_at`, when an engine lane falls idle.

        A plan's jobs leave the queue: the caller now answers for them. While no lane is idle nothing is planned, so
        that jobs keep gathering; while several are, a short queue is shared out among them. `busy_s`: how long the
        plan's first batch will wait for a lane; more than 0 only if it is prepared ahead. A clock that steps back
        counts as no time elapsed.
        """
        _check_busy(busy_s)
        now = self._clock.read(now)
        refused = self._expired(now)
        decision = self._decide(now) if idle_lanes >= 1 else None
        while isinstance(decision, Trigger):
            plan = self._plan(decision, now + busy_s, idle_lanes)
            refused += plan.refused
            if plan.batches:
                return Plan(plan.batches, plan.trigger, plan.partition, tuple(refused))
            decision = self._decide(now)
        return Wait(None if decision is None else self._clock.to_caller(decision), tuple(refused))

    def ended(self, predicted_s: float, late_s: float, now: float) -> None:
        """A batch ended that was to take `predicted_s`, so much later (below 0: sooner) than predicted when a lane took
        it up. What is promised then leaves room for that. Times that are no numbers are ignored.
        """
        self._lag.observe(predicted_s, late_s, self._clock.read(now))

    def drain(self, now: float) -> Plan | None:
        """Plan the jobs due first whatever the trigger policy says; None when none is queued. Call until None.

        A plan may hold refusals only.
        """
        now = self._clock.read(now)
        if not self.num_queued:
            return None
        refused = self._expired(now)
        if not self.num_queued:
            return Plan((), Trigger.DRAIN, self._partition.name, tuple(refused))
        plan = self._plan(Trigger.DRAIN, now, 1)
        return Plan(plan.batches, plan.trigger, plan.partition, (*refused, *plan.refused))

    def check_integrity(self) -> None:
        """Recount everything, O(queued). RuntimeError when the books do not balance."""
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

    def _waiting(self, jobs: Sequence[Job], now: float) -> Iterator[Waiting]:
        """The jobs in steady time. One from the future (the clock stepped back) came now, and keeps its allowance."""
        slo_s = math.inf if self._settings.slo_s is None else self._settings.slo_s
        slower = 1 + self._lag.share(self._prices.full_s)
        num_lanes, token_s = self._settings.num_lanes / slower, self._prices.token_s
        lag_s = self._lag.batch_s
        launch_s, small_s = self._prices.launch_s, self._prices.small_s
        order_key, ahead_s = self._order.key, self._clock.ahead_s
        for number, job in enumerate(jobs, self._num_received):
            own_slo_s = math.inf if job.bulk else slo_s
            if job.deadline is not None:
                own_slo_s = job.deadline - job.arrival
            arrival = min(job.arrival + ahead_s, now)
            deadline = arrival + own_slo_s
            lane_s = job.num_tokens * token_s
            # Who comes later may join its batch, up to what a batch may take.
            batch_s = max(launch_s + lane_s, own_slo_s * BATCH_SHARE, small_s) + min(lag_s, own_slo_s * LAG_SHARE)
            latest_begin = deadline - batch_s if deadline < math.inf else math.inf
            key = order_key(deadline, arrival, number)
            yield Waiting(job.id, job.num_tokens, job.bulk, arrival, deadline, key, lane_s / num_lanes, latest_begin)

    def _admit(self, job: Waiting, now: float, begin: float) -> Refusal | None:
        """Queue the job, or say why not."""
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
        """The rule that fires now, or when one will; None: not before a job comes."""
        if not self._online:
            return Trigger.BULK if self._bulk else None
        decision = self._trigger.decide(self._planner.outlook(self._online), now)
        # Waiting for mates gains nothing while bulk jobs can take the room that is left.
        return Trigger.BULK if self._bulk and not isinstance(decision, Trigger) else decision

    def _plan(self, trigger: Trigger, now: float, lanes: int) -> Plan:
        """Batches that start at `now`, or refusals only: at least one."""
        if not self._online:
            return self._plan_bulk(trigger, now, lanes)
        drafts, refused = self._planner.compose(self._online, self._partition, trigger, now, lanes=lanes)
        if refused:
            return self._release([], trigger, self._partition.name, refused)
        are_all = sum([len(draft.jobs) for draft in drafts]) == len(self._online)
        self._prices.learn(drafts, are_full=not are_all or trigger is Trigger.MAX_BATCH)
        self._bulk_share.online_planned(sum([job.work_s for draft in drafts for job in draft.jobs]), now)
        if self._bulk and are_all:
            own_s = sum([draft.seconds for draft in drafts])
            growth_s = self._bulk_share.growth_s(now)
            drafts = self._planner.fill_up(drafts, self._bulk, now, lanes=lanes, growth_s=growth_s)
            self._bulk_share.grown(sum([draft.seconds for draft in drafts]) - own_s)
        return self._release(drafts, trigger, self._partition.name, [])

    def _plan_bulk(self, trigger: Trigger, now: float, lanes: int) -> Plan:
        if trigger is Trigger.DRAIN or self._bulk_share.is_quiet(now):
            partition, max_seconds = self._partition, math.inf
        else:
            # In the order they came: who is passed over in one slice must not be in the next.
            partition, max_seconds = partition_policy("fifo"), max(self._bulk_share.alone_s, self._prices.small_s)
        drafts, refused = self._planner.compose(
            self._bulk, partition, trigger, now, lanes=lanes, max_seconds=max_seconds
        )
        return self._release(drafts, trigger, partition.name, refused)

    def _release(self, drafts: Sequence[Draft], trigger: Trigger, partition: str, refused: Sequence[Refusal]) -> Plan:
        """Let the plan's jobs go, and hold the plan to its contract: each was queued, and comes once."""
        batches = tuple([Batch(tuple([job.id for job in draft.jobs]), draft.seconds) for draft in drafts])
        leaving = [*chain.from_iterable(batch.ids for batch in batches), *(refusal.id for refusal in refused)]
        num_left = self._let_go(leaving)
        if not num_left == len(leaving) > 0:
            raise RuntimeError(
                f"A plan for {len(leaving)} jobs let {num_left} go: {batches}, {refused}. This is a bug."
            )
        return Plan(batches, trigger, partition, tuple(refused))

    def _expired(self, now: float) -> list[Refusal]:
        """Let go those at the front whose deadline has passed. Others are met when their turn comes."""
        refused = [
            Refusal(job.id, Cause.QUEUED, now - job.deadline)
            for queue in (self._online, self._bulk)
            for job in takewhile(lambda job: job.deadline <= now, queue)
        ]
        if refused:
            self._let_go([refusal.id for refusal in refused])
        return refused

    def _let_go(self, ids: Sequence[int]) -> int:
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
