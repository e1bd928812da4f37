"""Which batch the lanes get next: a scheduler and as many lanes, as the worker's dispatcher drives them.

The real run and the simulator both ask this, so that they decide alike. It has no clock, no thread and no engine.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.scheduler import Job, Plan, Scheduler, Wait
from penstock.scheduler.types import Batch, Refusal

LOOK_S = 0.001  # while no lane is free nothing waits for an arrival: they are taken in at this interval


@dataclass(slots=True, eq=False)
class Work:
    """One batch on its way through the lanes."""

    batch: Batch
    trigger: str
    partition: str
    started: float | None = None  # s on the caller's clock; None: it waits behind the batches that run


class Feed:
    """Jobs in, batches out, at most one batch more than there are lanes, as `Scheduler` and the lanes allow."""

    def __init__(self, scheduler: Scheduler, num_lanes: int) -> None:
        self.scheduler = scheduler
        self.refused: Counter[str] = Counter()
        self.scheduler_s = 0.0
        self.wake_at: float | None = None  # when to take again if nothing happens before
        self._num_lanes = num_lanes
        self._ready: deque[Work] = deque()
        self._ready_s = 0.0  # predicted, of all that is ready
        self._running: list[Work] = []
        self._ahead: deque[Work] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether every lane has a batch: an arrival can change nothing now."""
        return len(self._running) >= self._num_lanes

    @property
    def num_unfinished(self) -> int:
        """Batches that were given out and did not come back, or wait to be given out."""
        return len(self._running) + len(self._ahead) + len(self._ready)

    def add(self, jobs: Sequence[Job], now: float) -> list[Refusal]:
        """Queue jobs; those that are refused at once come back."""
        busy_s = self._busy_s(now)
        began = time.perf_counter()
        refused = self.scheduler.add(jobs, now, busy_s=busy_s)
        self.scheduler_s += time.perf_counter() - began
        self._count(refused)
        return refused

    def take(self, now: float) -> Work | None:
        """The next batch to hand to the lanes; None when there is none yet, and then `wake_at` is set.

        Call it until it gives None, after arrivals, when a batch is done, and at `wake_at`.
        """
        self.wake_at = None
        if not self._has_room() or not (self._ready or self._plan(now)):
            return None
        work = self._ready.popleft()
        self._ready_s -= work.batch.predicted_s
        if self.is_busy:
            self._ahead.append(work)
        else:
            self._start(work, now)
        return work

    def done(self, work: Work, now: float) -> Work | None:
        """A batch is done; the one that waited behind it, and starts now, or None."""
        self._running.remove(work)
        if work.started is not None:
            predicted_s = work.batch.predicted_s
            self.scheduler.ended(predicted_s, now - work.started - predicted_s, now)
        if not self._ahead:
            return None
        following = self._ahead.popleft()
        self._start(following, now)
        return following

    def _start(self, work: Work, now: float) -> None:
        work.started = now
        self._running.append(work)

    def _has_room(self) -> bool:
        """One batch a lane; one more, prepared ahead, when waiting longer could not make it any fuller."""
        if not self.is_busy:
            return True
        return not self._ahead and (bool(self._ready) or self.scheduler.is_full)

    def _plan(self, now: float) -> bool:
        """Ask the scheduler; true when there are batches to run."""
        decision = self._poll(now)
        while isinstance(decision, Plan) and not decision.batches:  # all that it looked at was refused
            decision = self._poll(now)
        if not isinstance(decision, Plan):
            self.wake_at = decision.wake_at
            return False
        for batch in decision.batches:
            self._ready.append(Work(batch, decision.trigger.value, decision.partition))
            self._ready_s += batch.predicted_s
        return True

    def _poll(self, now: float) -> Plan | Wait:
        idle_lanes = max(1, self._num_lanes - len(self._running))
        busy_s = self._first_free_s(now)
        began = time.perf_counter()
        decision = self.scheduler.poll(now, idle_lanes=idle_lanes, busy_s=busy_s)
        self.scheduler_s += time.perf_counter() - began
        self._count(decision.refused)
        return decision

    def _count(self, refused: Sequence[Refusal]) -> None:
        for refusal in refused:
            self.refused[refusal.cause.value] += 1

    def _first_free_s(self, now: float) -> float:
        """Predicted seconds until a lane is free."""
        return min([self._left_s(work, now) for work in self._running]) if self.is_busy else 0.0

    def _busy_s(self, now: float) -> float:
        """Predicted seconds until the lanes have worked off what they were given, on average over the lanes."""
        total_s = self._ready_s + sum([self._left_s(work, now) for work in self._running])
        total_s += sum([work.batch.predicted_s for work in self._ahead])
        return max(0.0, total_s) / self._num_lanes

    @staticmethod
    def _left_s(work: Work, now: float) -> float:
        if work.started is None:
            raise RuntimeError("A batch runs that was never started. This is a bug.")
        return max(0.0, work.started + work.batch.predicted_s - now)
