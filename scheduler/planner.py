"""Makes batches of the jobs due first: partition, order, and rejection of those that would be late."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.admission import AdmissionPolicy
from penstock.scheduler.policies.bulk_share import fill
from penstock.scheduler.policies.order import Draft, OrderPolicy
from penstock.scheduler.policies.partition import Caps, Partition, PartitionPolicy, share_out
from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.lateness import LatenessTracker
from penstock.scheduler.queueing.queued_job import QueuedJob
from penstock.scheduler.queueing.work_estimator import WorkEstimator, predicted_s
from penstock.scheduler.types import Cause, Refusal


class Planner:
    """Makes batches of the jobs at the front of a queue, and leaves the queue as it is."""

    def __init__(
        self,
        cost: CostFunction,
        estimator: WorkEstimator,
        caps: Caps,
        order: OrderPolicy,
        admission: AdmissionPolicy,
        lateness: LatenessTracker,
        *,
        slo_s: float,
        window: int,
    ) -> None:
        """`caps`: of every batch. `slo_s`: of jobs without a deadline of their own; inf if they have none."""
        self._cost = cost
        self._estimator = estimator
        self._caps = caps
        self._order = order
        self._admission = admission
        self._lateness = lateness
        self._slo_s = slo_s
        self._window = max(window, caps.max_sequences)

    def max_seconds(self, tightest_slo_s: float) -> float:
        """Limit of a batch now: a request that arrives just after its start must be able to wait for it and run."""
        slo_s = min(self._slo_s, tightest_slo_s)
        return self._estimator.longest_batch_s(slo_s) if slo_s < math.inf else math.inf

    def is_filled(self, count: int, tokens: int) -> bool:
        """Whether so many jobs fill a batch by count or tokens."""
        return count >= self._caps.max_sequences or tokens >= self._caps.max_tokens

    def outlook(self, queue: JobQueue) -> "QueueOutlook":
        """The figures that a trigger decides by. `queue` is not empty."""
        return QueueOutlook(queue, self._cost, self)

    def compose(
        self,
        queue: JobQueue,
        partition: PartitionPolicy,
        now: float,
        *,
        lanes: int,
        max_seconds: float = math.inf,
    ) -> tuple[list[Draft], str, float, list[Refusal]]:
        """Batches in the order to run them, `lanes` at a time from `now` on, the partition that made them and its gain.

        Or no batch, and the jobs that would be late in them: ask again without those, as the batches have room for
        others. The window of jobs looked at bounds the time this takes.
        """
        jobs, caps = self._due(queue, partition, lanes, max_seconds)
        parts = self._partition(jobs, partition, caps, lanes)
        name = partition.name
        if name == "auto":
            name = "dp" if parts.dp_gain > 0 else "fifo"
        drafts = self._drafts(jobs, parts)
        late = self._late(drafts, now, lanes)
        return [] if late else drafts, name, parts.dp_gain, late

    def fill_up(
        self, drafts: Sequence[Draft], bulk: JobQueue, now: float, *, lanes: int, growth_s: float
    ) -> list[Draft]:
        """The batches, with bulk jobs in the last of each lane, which makes none longer by more than `growth_s`.

        No job becomes late by it. Only the last, since no other online job waits for those.
        """
        first = max(0, len(drafts) - lanes)
        ends = self.ends(drafts, now + self._lateness.usual_s, lanes)
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

    def ends(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[float]:
        """End of each batch if it goes to the first free lane, and all lanes are free now."""
        free = [now] * lanes
        ends = []
        for draft in drafts:
            ends.append(free[0] + draft.seconds)
            heapq.heapreplace(free, ends[-1])
        return ends

    def _due(
        self, queue: JobQueue, partition: PartitionPolicy, lanes: int, max_seconds: float
    ) -> tuple[list[QueuedJob], Caps]:
        """The jobs to make batches of, and the caps for those.

        A partition that reorders gets no more jobs than run in the time of one batch, so that no job runs later than
        admission assumed.
        """
        num = self._window if partition.reorders else min(self._window, lanes * self._caps.max_sequences)
        jobs = queue.first(num)
        if partition.name == "fifo" or (partition.name == "auto" and not partition.reorders):
            room = lanes * self._caps.max_tokens
            for place, job in enumerate(jobs):
                room -= min(job.num_tokens, self._caps.max_tokens)  # one sequence over the cap fills a batch
                if room < 0:
                    jobs = jobs[: place + 1]
                    break
        max_seconds = min(max_seconds, self.max_seconds(min([job.deadline - job.arrival for job in jobs])))
        caps = Caps(self._caps.max_sequences, self._caps.max_tokens, max_seconds)
        if partition.reorders and max_seconds < math.inf:
            work_s = list(accumulate([job.work_s for job in jobs]))
            jobs = jobs[: max(1, bisect_right(work_s, max_seconds))]
        return jobs, caps

    def _partition(self, jobs: Sequence[QueuedJob], partition: PartitionPolicy, caps: Caps, lanes: int) -> Partition:
        lengths = [job.num_tokens for job in jobs]
        parts = partition.partition(lengths, self._cost, caps, most=lanes)
        if len(parts.batches) < lanes:
            parts = share_out(parts, lengths, self._cost, caps, num_lanes=lanes)
        if not 0 <= parts.total_s < math.inf:
            raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {parts.total_s}")
        return parts

    def _drafts(self, jobs: Sequence[QueuedJob], parts: Partition) -> list[Draft]:
        drafts = [
            Draft([jobs[index] for index in batch], seconds)
            for batch, seconds in zip(parts.batches, parts.seconds, strict=True)
        ]
        if len(drafts) > 1:
            drafts.sort(key=self._order.rank)
        return drafts

    def _late(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[Refusal]:
        late = []
        for draft, end in zip(drafts, self.ends(drafts, now + self._lateness.usual_s, lanes), strict=True):
            if self._admission.is_late(min([job.deadline for job in draft.jobs]), now, end):
                late += [
                    Refusal(job.id, Cause.QUEUED, end - job.deadline)
                    for job in draft.jobs
                    if self._admission.is_late(job.deadline, now, end)
                ]
        return late


class QueueOutlook:
    """Figures of a queue for a trigger, each computed when it is asked for."""

    def __init__(self, queue: JobQueue, cost: CostFunction, planner: Planner) -> None:
        self._queue = queue
        self._cost = cost
        self._planner = planner

    @property
    def is_full(self) -> bool:
        if self._planner.is_filled(len(self._queue), self._queue.tokens):
            return True
        max_seconds = self._planner.max_seconds(self._queue.bounds().tightest_slo_s)
        return max_seconds < math.inf and self.run_s >= max_seconds

    @property
    def oldest_arrival(self) -> float:
        return self._queue.bounds().oldest_arrival

    @property
    def half_slo_at(self) -> float:
        return self._queue.bounds().half_slo_at

    @property
    def run_s(self) -> float:
        queue = self._queue
        return predicted_s(self._cost, queue.tokens, queue.squares, queue.bounds().longest, len(queue))
