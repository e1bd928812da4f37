"""A worker without a clock: arrivals, the real scheduler, lanes that take as long as predicted (or nearly)."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.scheduler import Batch, Cause, CostFunction, Job, PackedCost, Plan, Refusal, Scheduler, SchedulerSettings

# BERT-base in float16 on one H200, roughly: 0.35 ms at least, 50,000 sequences of 51 tokens a second.
GPU = PackedCost(floor_s=3.5e-4, alpha_s=1e-4, beta_s=3.7e-7, gamma_s=0.0)


class Arrival(NamedTuple):
    at: float
    num_tokens: int
    slo_s: float | None = None


@dataclass
class Outcome:
    """What became of each job, by when it came."""

    answered: list[tuple[float, float, float]] = field(default_factory=list)  # arrival, end, deadline
    refused: list[tuple[float, Cause]] = field(default_factory=list)  # arrival, cause
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

    def num_refused(self, cause: Cause) -> int:
        return sum(refusal is cause for _, refusal in self.refused)


class Simulation:
    """Drives a scheduler as the dispatcher does: one batch a lane, one more prepared ahead when a full one waits."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cost: CostFunction = GPU,
        *,
        endless_bulk: Callable[[], int] | None = None,
        run_s: Callable[[float], float] = lambda predicted_s: predicted_s,
    ) -> None:
        """`endless_bulk` gives the lengths of bulk jobs, of which there are always some; `run_s` what a batch takes."""
        self.scheduler = Scheduler(settings, cost)
        self._settings = settings
        self._endless_bulk = endless_bulk
        self._run_s = run_s
        self._ids = itertools.count()
        self._jobs: dict[int, Job] = {}
        self._ready: list[Batch] = []
        self._running: list[tuple[float, int, Batch, float]] = []  # end, tie-breaker, batch, predicted end
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
                end, _, batch, predicted_end = heapq.heappop(self._running)
                self.scheduler.ended(batch.predicted_s, end - predicted_end, now)
                self._finish(end, batch)
            if upcoming and upcoming[0] <= now:
                self._add(list(upcoming[1]), now)
                upcoming = next(coming, None)
            self._is_over = upcoming is None
            self._refill_bulk(now)
            wake_at = self._dispatch(now)
        self._outcome.end = now
        return self._outcome

    def _add(self, arrivals: Sequence[Arrival], now: float) -> None:
        jobs = []
        for arrival in arrivals:
            slo_s = arrival.slo_s if arrival.slo_s is not None else self._settings.slo_s
            deadline = None if slo_s is None else arrival.at + slo_s
            jobs.append(Job(next(self._ids), arrival.num_tokens, arrival.at, deadline))
        self._jobs.update((job.id, job) for job in jobs)
        self._refuse(self.scheduler.add(jobs, now, busy_s=self._busy_s(now)))

    def _refill_bulk(self, now: float) -> None:
        if self._endless_bulk is None or self._is_over or self.scheduler.num_queued > 2000:
            return
        jobs = [Job(next(self._ids), self._endless_bulk(), now, bulk=True) for _ in range(1000)]
        self._jobs.update((job.id, job) for job in jobs)
        assert not self.scheduler.add(jobs, now)

    def _dispatch(self, now: float) -> float | None:
        lanes = self._settings.num_lanes
        while len(self._running) < lanes or (not self._ready and self.scheduler.is_full):
            if not self._ready:
                idle = lanes - len(self._running)
                ahead_s = self._running[0][3] - now if not idle else 0.0
                decision = self.scheduler.poll(now, idle_lanes=max(1, idle), busy_s=max(0.0, ahead_s))
                self._refuse(decision.refused)
                if not isinstance(decision, Plan):
                    return decision.wake_at
                self._ready += decision.batches
            if len(self._running) == lanes:
                return None
            batch = self._ready.pop(0)
            heapq.heappush(
                self._running, (now + self._run_s(batch.predicted_s), batch.ids[0], batch, now + batch.predicted_s)
            )
        return None

    def _busy_s(self, now: float) -> float:
        running_s = sum(max(0.0, predicted_end - now) for _, _, _, predicted_end in self._running)
        return (running_s + sum(batch.predicted_s for batch in self._ready)) / self._settings.num_lanes

    def _finish(self, end: float, batch: Batch) -> None:
        for job_id in batch.ids:
            job = self._jobs.pop(job_id)
            if job.bulk:
                self._outcome.bulk_tokens += 0 if self._is_over else job.num_tokens
            else:
                deadline = float("inf") if job.deadline is None else job.deadline
                self._outcome.answered.append((job.arrival, end, deadline))

    def _refuse(self, refused: Sequence[Refusal]) -> None:
        for refusal in refused:
            self._outcome.refused.append((self._jobs.pop(refusal.id).arrival, refusal.cause))


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
