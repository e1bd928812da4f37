"""A simulated worker: the real lane driver and scheduler, with batches that take about their predicted seconds."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.scheduler import (
    Cause,
    CostFunction,
    Job,
    LaneBatch,
    LaneDriver,
    PackedCost,
    RejectedJob,
    Scheduler,
    SchedulerSettings,
)
from tests.scheduler.jobs import one_job

# BERT-base in float16 on one H200, roughly: 0.35 ms at least, 50,000 sequences of 51 tokens a second.
GPU = PackedCost(floor_s=3.5e-4, alpha_s=1e-4, beta_s=3.7e-7, gamma_s=0.0)


class Arrival(NamedTuple):
    at: float
    num_tokens: int
    slo_s: float | None = None


@dataclass
class Outcome:
    """The end of every job, by its arrival."""

    answered: list[tuple[float, float, float]] = field(default_factory=list)  # arrival, end, deadline
    rejected: list[tuple[float, Cause]] = field(default_factory=list)  # arrival, cause
    bulk_tokens: int = 0  # run while there were still arrivals to come
    end: float = 0.0

    @property
    def latencies(self) -> list[float]:
        return sorted(end - arrival for arrival, end, _ in self.answered)

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.answered) - 1, int(share * len(self.answered)))]

    @property
    def num_in_time(self) -> int:
        return sum(end <= deadline for _, end, deadline in self.answered)

    def num_rejected(self, cause: Cause) -> int:
        return sum(rejection is cause for _, rejection in self.rejected)


class Simulation:
    """Runs the lane driver. Arrivals go to the scheduler directly: trials of late jobs would break stated bounds."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cost: CostFunction = GPU,
        *,
        endless_bulk: Callable[[], int] | None = None,
        run_s: Callable[[float], float] = lambda predicted_s: predicted_s,
        reply_s: Callable[[], float] | None = None,
    ) -> None:
        """`endless_bulk` gives the lengths of bulk jobs, of which some always wait; `run_s` what a batch takes.

        `reply_s` is what a batch's replies take to the broker. Answers end there.
        """
        self.scheduler = Scheduler(settings, cost)
        self._driver = LaneDriver(self.scheduler, settings.num_lanes)
        self._settings = settings
        self._endless_bulk = endless_bulk
        self._run_s = run_s
        self._reply_s = reply_s
        self._ids = itertools.count()
        self._jobs: dict[int, Job] = {}
        self._running: list[tuple[float, int, LaneBatch]] = []  # end, tie-breaker, batch
        self._outcome = Outcome()
        self._is_over = False

    def run(self, arrivals: Iterable[Arrival]) -> Outcome:
        """Until all have left. A moment's arrivals are added together."""
        coming = itertools.groupby(arrivals, key=lambda arrival: arrival.at)
        upcoming = next(coming, None)
        wake_at: float | None = None
        now = 0.0
        while upcoming is not None or self._running or wake_at is not None:
            moments = [upcoming[0]] if upcoming else []
            moments += [self._running[0][0]] if self._running else []
            moments += [wake_at] if wake_at is not None else []
            now = max(now, min(moments))
            while self._running and self._running[0][0] <= now:
                self._finish(heapq.heappop(self._running)[2], now)
            if upcoming and upcoming[0] <= now:
                self._add(list(upcoming[1]), now)
                upcoming = next(coming, None)
            self._is_over = upcoming is None
            self._refill_bulk(now)
            dispatch = self._driver.dispatch(now)
            self._reject(dispatch.rejected)
            for batch in dispatch.start:
                self._begin(batch)
            wake_at = dispatch.wake_at
        self._outcome.end = now
        return self._outcome

    def _add(self, arrivals: Sequence[Arrival], now: float) -> None:
        jobs = []
        for arrival in arrivals:
            slo_s = arrival.slo_s if arrival.slo_s is not None else self._settings.slo_s
            deadline = None if slo_s is None else arrival.at + slo_s
            jobs.append(one_job(next(self._ids), arrival.num_tokens, arrival.at, deadline))
        self._jobs.update((job.ids[0], job) for job in jobs)
        self._reject(self.scheduler.add(jobs, now, busy_s=self._driver.busy_s(now)))

    def _refill_bulk(self, now: float) -> None:
        if self._endless_bulk is None or self._is_over or self.scheduler.num_queued > 2000:
            return
        jobs = [one_job(next(self._ids), self._endless_bulk(), now, bulk=True) for _ in range(1000)]
        self._jobs.update((job.ids[0], job) for job in jobs)
        assert not self.scheduler.add(jobs, now)

    def _begin(self, batch: LaneBatch) -> None:
        if batch.started is not None:
            heapq.heappush(self._running, (batch.started + self._run_s(batch.predicted_s), batch.ids[0], batch))

    def _finish(self, batch: LaneBatch, now: float) -> None:
        following = self._driver.finish(batch, now)
        if following is not None:
            self._begin(following)
        reply_s = 0.0 if self._reply_s is None else self._reply_s()
        if self._reply_s is not None:
            self.scheduler.replied(reply_s)
        for job_id in batch.ids:
            job = self._jobs.pop(job_id)
            if job.bulk:
                self._outcome.bulk_tokens += 0 if self._is_over else job.lengths[0]
            else:
                deadline = float("inf") if job.deadline is None else job.deadline
                self._outcome.answered.append((job.arrival, now + reply_s, deadline))

    def _reject(self, rejected: Sequence[RejectedJob]) -> None:
        for rejection in rejected:
            self._outcome.rejected.append((self._jobs.pop(rejection.id).arrival, rejection.cause))


def poisson(
    rate: float, seconds: float, lengths: tuple[int, int] = (2, 100), *, seed: int = 0, start: float = 0.0
) -> Iterator[Arrival]:
    """Arrivals a second at `rate`, from `start` on, with lengths uniform between two limits."""
    chance = random.Random(seed)
    at = start + chance.expovariate(rate)
    while at < start + seconds:
        yield Arrival(at, chance.randint(*lengths))
        at += chance.expovariate(rate)


def saturation(cost: CostFunction, mean_tokens: float, settings: SchedulerSettings) -> float:
    """Sequences a second with full batches of sequences of about that length."""
    count = min(settings.max_batch_sequences, settings.max_batch_tokens / mean_tokens)
    tokens = count * mean_tokens
    return settings.num_lanes * count / float(cost.seconds(tokens, tokens * mean_tokens, mean_tokens, count))
