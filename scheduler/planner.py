"""From jobs that are due to batches that will be in time: partition, order, and refusal of what would be late."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.admission import AdmissionPolicy
from penstock.scheduler.policies.bulk_share import fill
from penstock.scheduler.policies.order import Draft, OrderPolicy
from penstock.scheduler.policies.partition import Caps, PartitionPolicy, full_batches_end, share_out
from penstock.scheduler.queueing.block import Waiting
from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.lateness import Lag
from penstock.scheduler.queueing.work_estimator import Prices, price
from penstock.scheduler.types import Cause, Refusal, Trigger

_WHOLE = ("dp", "sorted")  # partitions that cover all they are given, and not only the batches that run now


class Planner:
    """Makes batches of the jobs at the front of a queue, and leaves the queue as it is."""

    def __init__(
        self,
        cost: CostFunction,
        prices: Prices,
        caps: Caps,
        order: OrderPolicy,
        admission: AdmissionPolicy,
        lag: Lag,
        *,
        slo_s: float,
        window: int,
    ) -> None:
        """`caps`: of every batch. `slo_s`: of jobs without a deadline of their own; inf if they have none."""
        self._cost = cost
        self._prices = prices
        self._caps = caps
        self._order = order
        self._admission = admission
        self._lag = lag
        self._slo_s = slo_s
        self._window = max(window, caps.max_sequences)

    def max_seconds(self, tightest_slo_s: float) -> float:
        """Of a batch now: a request that comes just after it started must be able to wait for it and run."""
        slo_s = min(self._slo_s, tightest_slo_s)
        return self._prices.longest_batch_s(slo_s) if slo_s < math.inf else math.inf

    def is_filled(self, count: int, tokens: int) -> bool:
        """Whether so much fills a batch, whatever it takes to run."""
        return count >= self._caps.max_sequences or tokens >= self._caps.max_tokens

    def outlook(self, queue: JobQueue) -> "QueueOutlook":
        """What a trigger may know of `queue`, which is not empty."""
        return QueueOutlook(queue, self._cost, self)

    def compose(
        self,
        queue: JobQueue,
        partition: PartitionPolicy,
        trigger: Trigger,
        now: float,
        *,
        lanes: int,
        max_seconds: float = math.inf,
    ) -> tuple[list[Draft], list[Refusal]]:
        """Batches in the order to run them, `lanes` at a time from `now` on; else the jobs that would be late in them.

        Ask again without those: what is left of the batches is short of jobs, and others may wait to take their place.
        The window of jobs looked at bounds the time this takes. A partition that reorders the window gets no more of it
        than runs in the time of a batch, so that nobody's turn comes later than admission thought.
        """
        jobs, caps = self._due(queue, partition, lanes, max_seconds)
        if trigger is Trigger.MAX_BATCH and len(jobs) == len(queue):
            # The newest jobs stay, under their own triggers, to meet mates.
            lengths = [job.num_tokens for job in jobs]
            jobs = jobs[: full_batches_end(lengths, caps, padded=self._cost.padded) or None]
        drafts = self._drafts(jobs, partition, caps, lanes)
        late = self._late(drafts, now, lanes)
        return ([], late) if late else (drafts, [])

    def fill_up(
        self, drafts: Sequence[Draft], bulk: JobQueue, now: float, *, lanes: int, growth_s: float
    ) -> list[Draft]:
        """The batches, with bulk jobs in the last of each lane, which makes none longer by more than `growth_s`.

        No job becomes late by it. Only the last, for no other online job waits for those.
        """
        waiting = iter(bulk)
        first = max(0, len(drafts) - lanes)
        filled = list(drafts[:first])
        for draft, end in list(zip(drafts, self.ends(drafts, now + self._lag.usual_s, lanes), strict=True))[first:]:
            longer_s = min(growth_s, min([job.deadline for job in draft.jobs]) - end)
            guests: list[Waiting] = []
            # No more than could fit even if the batch itself took no time: a short batch has room that costs nothing.
            room_s = draft.seconds + longer_s
            for job in islice(waiting, self._caps.max_sequences):
                room_s -= job.work_s
                if job.deadline >= end + growth_s:
                    guests.append(job)
                if room_s < 0:
                    break
            filled.append(fill(draft, guests, self._cost, self._caps, draft.seconds + longer_s))
        return filled

    def ends(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[float]:
        """When each batch ends if each goes to the first lane that is free, and the lanes are free now."""
        free = [now] * lanes
        ends = []
        for draft in drafts:
            ends.append(free[0] + draft.seconds)
            heapq.heapreplace(free, ends[-1])
        return ends

    def _due(
        self, queue: JobQueue, partition: PartitionPolicy, lanes: int, max_seconds: float
    ) -> tuple[list[Waiting], Caps]:
        """The jobs to make batches of, and the caps for those."""
        whole = partition.name in _WHOLE
        if partition.name == "fifo":
            jobs = self._for_fifo(queue, lanes)
        else:
            jobs = queue.first(self._window if whole else min(self._window, lanes * self._caps.max_sequences))
        tightest_s = min([job.deadline - job.arrival for job in jobs])
        max_seconds = min(max_seconds, self.max_seconds(tightest_s))
        caps = Caps(self._caps.max_sequences, self._caps.max_tokens, max_seconds)
        if whole and caps.max_seconds < math.inf:
            work_s = list(accumulate([job.work_s for job in jobs]))
            jobs = jobs[: max(1, bisect_right(work_s, caps.max_seconds))]
        return jobs, caps

    def _for_fifo(self, queue: JobQueue, lanes: int) -> list[Waiting]:
        """The jobs that FIFO could put into `lanes` batches, if these took no time, and one more where there is."""
        max_tokens = self._caps.max_tokens
        jobs: list[Waiting] = []
        room = lanes * max_tokens
        for job in islice(queue, min(self._window, lanes * self._caps.max_sequences)):
            jobs.append(job)
            room -= min(job.num_tokens, max_tokens)  # one over the cap fills a batch
            if room < 0:
                break
        return jobs

    def _drafts(self, jobs: Sequence[Waiting], partition: PartitionPolicy, caps: Caps, lanes: int) -> list[Draft]:
        lengths = [job.num_tokens for job in jobs]
        parts = partition.partition(lengths, self._cost, caps, most=lanes)
        if len(parts.batches) < lanes:
            parts = share_out(parts, lengths, self._cost, caps, num_lanes=lanes)
        if not 0 <= parts.total_s < math.inf:
            raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {parts.total_s}")
        drafts = [
            Draft([jobs[index] for index in batch], seconds)
            for batch, seconds in zip(parts.batches, parts.seconds, strict=True)
        ]
        if len(drafts) > 1:
            drafts.sort(key=self._order.rank)
        return drafts

    def _late(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[Refusal]:
        late = []
        for draft, end in zip(drafts, self.ends(drafts, now + self._lag.usual_s, lanes), strict=True):
            if self._admission.is_late(min([job.deadline for job in draft.jobs]), now, end):
                late += [
                    Refusal(job.id, Cause.QUEUED, end - job.deadline)
                    for job in draft.jobs
                    if self._admission.is_late(job.deadline, now, end)
                ]
        return late


class QueueOutlook:
    """What a trigger may know of a queue, each thing worked out when it is asked for."""

    def __init__(self, queue: JobQueue, cost: CostFunction, planner: Planner) -> None:
        self._queue = queue
        self._cost = cost
        self._planner = planner
        self._run_s: float | None = None

    @property
    def is_full(self) -> bool:
        if self._planner.is_filled(len(self._queue), self._queue.tokens):
            return True
        max_seconds = self._planner.max_seconds(self._queue.extremes().tightest_slo_s)
        return max_seconds < math.inf and self.run_s >= max_seconds

    @property
    def oldest_arrival(self) -> float:
        return self._queue.extremes().oldest_arrival

    @property
    def half_slo_at(self) -> float:
        return self._queue.extremes().half_slo_at

    @property
    def run_s(self) -> float:
        if self._run_s is None:
            queue = self._queue
            self._run_s = price(self._cost, queue.tokens, queue.squares, queue.extremes().longest, len(queue))
        return self._run_s
