"""Makes batches of the jobs due first: partition, order, and rejection of those that would be late."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.bulk_share import fill
from penstock.scheduler.policies.order import ORDERS, Draft
from penstock.scheduler.policies.partition import Caps, PartitionPolicy, share_out
from penstock.scheduler.policies.trigger import Outlook
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from penstock.scheduler.queueing.lateness import LatenessTracker
from penstock.scheduler.queueing.work_estimator import WorkEstimator, predicted_s
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Cause, Refusal


class Composition(NamedTuple):
    """Batches in the order to run them, or rejections: ask again without the rejected jobs."""

    drafts: list[Draft]
    partition: str  # the policy that made them
    dp_gain: float = 0.0
    refused: tuple[Refusal, ...] = ()


class Planner:
    """Makes batches of the jobs at the front of a queue, and leaves the queue as it is."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cost: CostFunction,
        caps: Caps,
        estimator: WorkEstimator,
        lateness: LatenessTracker,
    ) -> None:
        """`caps`: of every batch."""
        self._cost = cost
        self._caps = caps
        self._estimator = estimator
        self._lateness = lateness
        self._rank = ORDERS[settings.order].rank
        self._keeps_deadlines = settings.admission == "deadline"
        self._slo_s = math.inf if settings.slo_s is None else settings.slo_s
        self._window = max(settings.window, caps.max_sequences)

    def outlook(self, queue: JobQueue) -> Outlook:
        """The figures that a trigger decides by. `queue` is not empty."""
        if len(queue) >= self._caps.max_sequences or queue.tokens >= self._caps.max_tokens:
            return Outlook(is_full=True)
        bounds = queue.bounds()
        run_s = predicted_s(self._cost, queue.tokens, queue.squares, bounds.longest, len(queue))
        max_seconds = self._max_seconds(bounds.tightest_slo_s)
        is_full = run_s >= max_seconds and max_seconds < math.inf
        return Outlook(is_full, bounds.oldest_arrival, bounds.half_slo_at, run_s)

    def compose(
        self,
        queue: JobQueue,
        partition: PartitionPolicy,
        now: float,
        *,
        lanes: int,
        max_seconds: float = math.inf,
    ) -> Composition:
        """Batches that run from `now` on, `lanes` at a time. The window of jobs bounds the time this takes."""
        jobs, caps = self._due(queue, partition, lanes, max_seconds)
        lengths = [job.num_tokens for job in jobs]
        parts = partition.partition(lengths, self._cost, caps, most=lanes)
        parts = share_out(parts, lengths, self._cost, lanes)
        if not 0 <= parts.total_s < math.inf:
            raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {parts.total_s}")
        drafts = [
            Draft([jobs[index] for index in batch], seconds)
            for batch, seconds in zip(parts.batches, parts.seconds, strict=True)
        ]
        if len(drafts) > 1:
            drafts.sort(key=self._rank)
        return self._in_time(Composition(drafts, partition.name_of(parts), parts.dp_gain), now, lanes)

    def fill_up(
        self, drafts: Sequence[Draft], bulk: JobQueue, now: float, *, lanes: int, growth_s: float
    ) -> list[Draft]:
        """The batches, with bulk jobs in the last of each lane, which makes none longer by more than `growth_s`.

        No job becomes late by it. Only the last, since no other online job waits for those.
        """
        first = max(0, len(drafts) - lanes)
        ends = self._ends(drafts, now, lanes)
        filled, queued = list(drafts[:first]), iter(bulk)
        for draft, end in zip(drafts[first:], ends[first:], strict=True):
            longer_s = min(growth_s, min([job.deadline for job in draft.jobs]) - end)
            # Enough candidates even if the batch itself took no time: a short batch has room that costs nothing.
            room_s = draft.seconds + longer_s
            fillers: list[QueuedJob] = []
            for job in islice(queued, self._caps.max_sequences):
                room_s -= job.work_s
                if job.deadline >= end + growth_s:
                    fillers.append(job)
                if room_s < 0:
                    break
            filled.append(fill(draft, fillers, self._cost, self._caps, draft.seconds + longer_s))
        return filled

    def _max_seconds(self, tightest_slo_s: float) -> float:
        """Limit of a batch now: a request that arrives just after its start must be able to wait for it and run."""
        slo_s = min(self._slo_s, tightest_slo_s)
        return self._estimator.longest_batch_s(slo_s) if slo_s < math.inf else math.inf

    def _due(
        self, queue: JobQueue, partition: PartitionPolicy, lanes: int, max_seconds: float
    ) -> tuple[list[QueuedJob], Caps]:
        """The jobs to make batches of, and the caps for those.

        A partition that reorders gets no more jobs than run in the time of one batch, so that no job runs later than
        admission assumed.
        """
        jobs = queue.first(self._window if partition.reorders else min(self._window, lanes * self._caps.max_sequences))
        if not partition.reorders and partition.name != "naive":
            tokens = list(accumulate([job.num_tokens for job in jobs]))
            jobs = jobs[: bisect_right(tokens, lanes * self._caps.max_tokens) + 1]
        max_seconds = min(max_seconds, self._max_seconds(min([job.deadline - job.arrival for job in jobs])))
        if partition.reorders and max_seconds < math.inf:
            work_s = list(accumulate([job.work_s for job in jobs]))
            jobs = jobs[: max(1, bisect_right(work_s, max_seconds))]
        return jobs, Caps(self._caps.max_sequences, self._caps.max_tokens, max_seconds)

    def _in_time(self, made: Composition, now: float, lanes: int) -> Composition:
        """The batches before the first that would make a job late; where that is the first of all, its late jobs.

        Jobs that are left out stay queued, and are due first in the next plan.
        """
        ends = self._ends(made.drafts, now, lanes) if self._keeps_deadlines else [now] * len(made.drafts)
        for place, (draft, end) in enumerate(zip(made.drafts, ends, strict=True)):
            earliest = min([job.deadline for job in draft.jobs])
            if now < earliest and end <= earliest:
                continue
            if place:
                return made._replace(drafts=made.drafts[:place])
            late = [job for job in draft.jobs if job.deadline <= now or job.deadline < end]
            refused = tuple([Refusal(job.id, Cause.QUEUED, end - job.deadline) for job in late])
            return made._replace(drafts=[], refused=refused)
        return made

    def _ends(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[float]:
        """End of each batch if it goes to the first free lane, and all lanes are free now."""
        free = [now + self._lateness.usual_s] * lanes
        ends = []
        for draft in drafts:
            ends.append(free[0] + draft.seconds)
            heapq.heapreplace(free, ends[-1])
        return ends
