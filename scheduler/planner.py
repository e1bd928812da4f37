"""Makes batches of the sequences due first: partition, order, and rejection of those that would be late."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from penstock.scheduler.costs.cost import CostFunction, predicted_s
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import ORDERS, Draft
from penstock.scheduler.policies.partition import PartitionPolicy, fifo, share_out
from penstock.scheduler.policies.trigger import Outlook
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from penstock.scheduler.queueing.work_estimator import WorkEstimator
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Caps, Cause, Plan, RejectedJob, Trigger


class _Front(NamedTuple):
    """Sequences at the front of a queue, in due order, by columns."""

    ids: list[int]
    lengths: list[int]
    deadlines: list[float]
    work_s: list[float]  # seconds for which each keeps the lanes busy

    @classmethod
    def of(cls, jobs: Sequence[QueuedJob]) -> "_Front":
        return cls(
            [one for job in jobs for one in job.ids],
            [length for job in jobs for length in job.lengths],
            [job.deadline for job in jobs for _ in job.ids],
            [length * job.work_s / job.tokens for job in jobs for length in job.lengths],
        )

    def first(self, count: int) -> "_Front":
        ids, lengths, deadlines, work_s = self
        if count >= len(ids):
            return self
        return _Front(ids[:count], lengths[:count], deadlines[:count], work_s[:count])

    def draft(self, places: Sequence[int], seconds: float) -> Draft:
        ids, lengths = self.ids, self.lengths
        deadlines, work_s = self.deadlines, self.work_s
        return Draft(
            min(places),
            [ids[place] for place in places],
            [lengths[place] for place in places],
            [deadlines[place] for place in places],
            sum([work_s[place] for place in places]),
            seconds,
        )


_Candidate = tuple[int, int, float, float]  # a sequence: id, tokens, deadline, work_s


def _candidates(queue: JobQueue) -> Iterator[_Candidate]:
    """Its sequences in due order."""
    for job in queue:
        token_s = job.work_s / job.tokens
        for one, length in zip(job.ids, job.lengths, strict=True):
            yield one, length, job.deadline, length * token_s


class Planner:
    """Makes plans of the sequences at the front of the queues, and leaves the queues as they are."""

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
        """Batches that run from `now` on, `lanes` at a time, or rejections only: ask again without those sequences.

        Not both queues are empty. Online jobs come first: bulk jobs fill their batches, or run if there are none.
        """
        queue, policy, max_seconds = online or bulk, self._partition, math.inf
        if not online and trigger is not Trigger.DRAIN and not self.bulk_share.is_quiet(now):
            # In order of arrival: a sequence that does not fit one slice is the first of the next.
            policy, max_seconds = self._in_order, max(self.bulk_share.alone_s, self.estimator.small_s)
        front, caps = self._due(queue, policy, lanes, max_seconds)
        parts = policy.partition(front.lengths, self._cost, caps, most=lanes)
        parts = share_out(parts, front.lengths, self._cost, lanes)
        made = zip(parts.batches, parts.seconds, strict=True)
        drafts = [front.draft(batch, seconds) for batch, seconds in made]
        if len(drafts) > 1:
            drafts.sort(key=self._rank)
        drafts, late = self._in_time(drafts, now, lanes)
        if online and drafts:
            drafts = self._with_bulk(drafts, online, bulk, trigger, now, lanes)
        batches = tuple([Batch(tuple(draft.ids), draft.seconds) for draft in drafts])
        return Plan(batches, trigger, policy.name_of(parts), late, parts.dp_gain)

    def _due(self, queue: JobQueue, policy: PartitionPolicy, lanes: int, max_s: float) -> tuple[_Front, Caps]:
        """The sequences to make batches of, and the caps for those. The window bounds the time that a plan takes.

        If the partition reorders, no more than run in the time of one batch: none runs later than admission assumed.
        """
        most = self._window if policy.reorders else min(self._window, lanes * self._caps.max_sequences)
        jobs = queue.front(most)
        tightest_slo_s = min([job.deadline - job.arrival for job in jobs])
        max_s = min(max_s, self.estimator.longest_batch_s(tightest_slo_s))
        front = _Front.of(jobs)
        if policy.reorders:
            front = front.first(max(1, bisect_right(list(accumulate(front.work_s)), max_s)))
        elif policy.caps_tokens:
            front = front.first(bisect_right(list(accumulate(front.lengths)), lanes * self._caps.max_tokens) + 1)
        return front, self._caps._replace(max_seconds=max_s)

    def _in_time(self, drafts: list[Draft], now: float, lanes: int) -> tuple[list[Draft], tuple[RejectedJob, ...]]:
        """The batches before the first with a late sequence; where that is the first of all, its late sequences."""
        ends = self._ends(drafts, now, lanes) if self._keeps_deadlines else [now] * len(drafts)
        for place, (draft, end) in enumerate(zip(drafts, ends, strict=True)):
            earliest = min(draft.deadlines)
            if now < earliest and end <= earliest:
                continue
            if place:
                return drafts[:place], ()
            by_s = [(one, end - due) for one, due in zip(draft.ids, draft.deadlines, strict=True)]
            late = [(one, late_s) for one, late_s in by_s if late_s > 0 or end - late_s <= now]
            return [], tuple([RejectedJob(one, Cause.QUEUED, late_s) for one, late_s in late])
        return drafts, ()

    def _with_bulk(
        self, drafts: list[Draft], online: JobQueue, bulk: JobQueue, trigger: Trigger, now: float, lanes: int
    ) -> list[Draft]:
        """Learn from a plan of online jobs. If none is left to wait for them, fill up the last batch of each lane."""
        batch_s = [draft.seconds for draft in drafts]
        are_all = sum([len(draft.ids) for draft in drafts]) == len(online)
        self.bulk_share.online_planned(sum([draft.work_s for draft in drafts]), now)
        tokens = sum([sum(draft.lengths) for draft in drafts])
        self.estimator.planned(tokens, batch_s, are_full=not are_all or trigger is Trigger.MAX_BATCH)
        if not bulk or not are_all:
            return drafts
        growth_s = self.bulk_share.growth_s(now)
        queued = _candidates(bulk)
        ends, first = self._ends(drafts, now, lanes), max(0, len(drafts) - lanes)
        last = zip(drafts[first:], ends[first:], strict=True)
        filled = [*drafts[:first], *[self._fill(draft, end, queued, growth_s) for draft, end in last]]
        self.bulk_share.grown(sum([draft.seconds for draft in filled]) - sum(batch_s))
        return filled

    def _fill(self, draft: Draft, end: float, queued: Iterator[_Candidate], growth_s: float) -> Draft:
        """The batch with as many of the first bulk sequences as make it at most `growth_s` longer, and none late."""
        max_seconds = draft.seconds + min(growth_s, min(draft.deadlines) - end)
        # Enough candidates even if the batch itself took no time: a short batch has room that costs nothing.
        room_s, ids, lengths = max_seconds, list(draft.ids), list(draft.lengths)
        for one, length, deadline, work_s in islice(queued, self._caps.max_sequences):
            room_s -= work_s
            if deadline >= end + growth_s:
                ids.append(one)
                lengths.append(length)
            if room_s < 0:
                break
        filled = fifo(lengths, self._cost, self._caps._replace(max_seconds=max_seconds), 1)
        num = len(filled.batches[0])
        if num <= len(draft.ids):
            return draft
        return draft._replace(ids=ids[:num], lengths=lengths[:num], seconds=filled.seconds[0])

    def _ends(self, drafts: Sequence[Draft], now: float, lanes: int) -> list[float]:
        """End of each batch if it goes to the first free lane, and all lanes are free now."""
        free = [now + self.estimator.usual_late_s] * lanes
        ends = []
        for draft in drafts:
            ends.append(free[0] + draft.seconds)
            heapq.heapreplace(free, ends[-1])
        return ends
