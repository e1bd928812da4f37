"""Makes batches of the jobs due first: partition, order, and rejection of those that would be late."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from penstock.scheduler.costs.cost import CostFunction, predicted_s
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import ORDERS, Draft
from penstock.scheduler.policies.partition import PartitionPolicy, fifo, share_out
from penstock.scheduler.policies.trigger import Outlook
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from penstock.scheduler.queueing.work_estimator import WorkEstimator
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Caps, Cause, Plan, RejectedJob, Trigger


class Planner:
    """Makes plans of the jobs at the front of the queues, and leaves the queues as they are."""

    def __init__(self, settings: SchedulerSettings, cost: CostFunction) -> None:
        self._cost = cost
        self._partition = PartitionPolicy(settings.partition)
        max_sequences = min(settings.max_batch_sequences, self._partition.max_sequences)
        self._caps = Caps(max_sequences, settings.max_batch_tokens)  # of every batch
        self._in_order = PartitionPolicy("fifo")
        self._rank = ORDERS[settings.order].rank
        self._keeps_deadlines = settings.admission == "deadline"
        self._window = max(settings.window, max_sequences)
        self.estimator = WorkEstimator(cost, self._caps, math.inf if settings.slo_s is None else settings.slo_s)
        self.bulk_share = BulkShare(settings, self.estimator)

    def outlook(self, queue: JobQueue) -> Outlook:
        """The figures that a trigger decides by. `queue` is not empty."""
        if len(queue) >= self._caps.max_sequences or queue.tokens >= self._caps.max_tokens:
            return Outlook(is_full=True)
        bounds = queue.bounds()
        run_s = predicted_s(self._cost, queue.tokens, queue.squares, bounds.longest, len(queue))
        is_full = run_s >= self.estimator.longest_batch_s(bounds.tightest_slo_s)
        return Outlook(is_full, bounds.oldest_arrival, bounds.half_slo_at, run_s)

    def plan(self, online: JobQueue, bulk: JobQueue, trigger: Trigger, now: float, lanes: int) -> Plan:
        """Batches that run from `now` on, `lanes` at a time, or rejections only: ask again without those jobs.

        Not both queues are empty. Online jobs come first: bulk jobs fill their batches, or run if there are none.
        """
        queue, policy, max_seconds = online or bulk, self._partition, math.inf
        if not online and trigger is not Trigger.DRAIN and not self.bulk_share.is_quiet(now):
            # In order of arrival: a job that does not fit one slice is the first of the next.
            policy, max_seconds = self._in_order, max(self.bulk_share.alone_s, self.estimator.small_s)
        jobs, caps = self._due(queue, policy, lanes, max_seconds)
        lengths = [job.num_tokens for job in jobs]
        parts = share_out(policy.partition(lengths, self._cost, caps, most=lanes), lengths, self._cost, lanes)
        made = zip(parts.batches, parts.seconds, strict=True)
        drafts = [Draft([jobs[index] for index in batch], seconds) for batch, seconds in made]
        if len(drafts) > 1:
            drafts.sort(key=self._rank)
        drafts, late = self._in_time(drafts, now, lanes)
        if online and drafts:
            drafts = self._with_bulk(drafts, online, bulk, trigger, now, lanes)
        batches = tuple([Batch(tuple([job.id for job in draft.jobs]), draft.seconds) for draft in drafts])
        return Plan(batches, trigger, policy.name_of(parts), late, parts.dp_gain)

    def _due(self, queue: JobQueue, policy: PartitionPolicy, lanes: int, max_s: float) -> tuple[list[QueuedJob], Caps]:
        """The jobs to make batches of, and the caps for those. The window bounds the time that a plan takes.

        If the partition reorders, no more than run in the time of one batch: no job runs later than admission assumed.
        """
        most = self._window if policy.reorders else min(self._window, lanes * self._caps.max_sequences)
        jobs = list(islice(queue, most))
        tightest_slo_s = min([job.deadline - job.arrival for job in jobs])
        max_s = min(max_s, self.estimator.longest_batch_s(tightest_slo_s))
        if policy.reorders:
            jobs = jobs[: max(1, bisect_right(list(accumulate([job.work_s for job in jobs])), max_s))]
        elif policy.caps_tokens:
            tokens = list(accumulate([job.num_tokens for job in jobs]))
            jobs = jobs[: bisect_right(tokens, lanes * self._caps.max_tokens) + 1]
        return jobs, self._caps._replace(max_seconds=max_s)

    def _in_time(self, drafts: list[Draft], now: float, lanes: int) -> tuple[list[Draft], tuple[RejectedJob, ...]]:
        """The batches before the first that would make a job late; where that is the first of all, its late jobs."""
        ends = self._ends(drafts, now, lanes) if self._keeps_deadlines else [now] * len(drafts)
        for place, (draft, end) in enumerate(zip(drafts, ends, strict=True)):
            earliest = min([job.deadline for job in draft.jobs])
            if now < earliest and end <= earliest:
                continue
            if place:
                return drafts[:place], ()
            late = [job for job in draft.jobs if job.deadline <= now or job.deadline < end]
            return [], tuple([RejectedJob(job.id, Cause.QUEUED, end - job.deadline) for job in late])
        return drafts, ()

    def _with_bulk(
        self, drafts: list[Draft], online: JobQueue, bulk: JobQueue, trigger: Trigger, now: float, lanes: int
    ) -> list[Draft]:
        """Learn from a plan of online jobs. If none is left to wait for them, fill up the last batch of each lane."""
        jobs, batch_s = [job for draft in drafts for job in draft.jobs], [draft.seconds for draft in drafts]
        are_all = len(jobs) == len(online)
        self.bulk_share.online_planned(sum([job.work_s for job in jobs]), now)
        tokens = sum([job.num_tokens for job in jobs])
        self.estimator.planned(tokens, batch_s, are_full=not are_all or trigger is Trigger.MAX_BATCH)
        if not bulk or not are_all:
            return drafts
        growth_s, queued = self.bulk_share.growth_s(now), iter(bulk)
        ends, first = self._ends(drafts, now, lanes), max(0, len(drafts) - lanes)
        last = zip(drafts[first:], ends[first:], strict=True)
        filled = [*drafts[:first], *[self._fill(draft, end, queued, growth_s) for draft, end in last]]
        self.bulk_share.grown(sum([draft.seconds for draft in filled]) - sum(batch_s))
        return filled

    def _fill(self, draft: Draft, end: float, queued: Iterator[QueuedJob], growth_s: float) -> Draft:
        """The batch with as many of the first bulk jobs as make it at most `growth_s` longer, and no job late."""
        max_seconds = draft.seconds + min(growth_s, min([job.deadline for job in draft.jobs]) - end)
        # Enough candidates even if the batch itself took no time: a short batch has room that costs nothing.
        room_s, jobs = max_seconds, list(draft.jobs)
        for job in islice(queued, self._caps.max_sequences):
            room_s -= job.work_s
            if job.deadline >= end + growth_s:
                jobs.append(job)
            if room_s < 0:
                break
        caps = self._caps._replace(max_seconds=max_seconds)
        filled = fifo([job.num_tokens for job in jobs], self._cost, caps, 1)
        num = len(filled.batches[0])
        return Draft(jobs[:num], filled.seconds[0]) if num > len(draft.jobs) else draft

    def _ends(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[float]:
        """End of each batch if it goes to the first free lane, and all lanes are free now."""
        free = [now + self.estimator.usual_late_s] * lanes
        ends = []
        for draft in drafts:
            ends.append(free[0] + draft.seconds)
            heapq.heapreplace(free, ends[-1])
        return ends
