"""The lanes of one engine: what each runs, which batch is prepared ahead, and for how long they are busy."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.trials import Trials
from penstock.scheduler.types import Cause, Job, RejectedJob, Wait


@dataclass(slots=True, eq=False)
class LaneBatch:
    """One batch on its way through the lanes. Its sequences may become fewer, with a new prediction, until it runs."""

    ids: tuple[int, ...]
    trigger: str
    partition: str  # the policy that made it
    predicted_s: float
    dp_gain: float = 0.0  # share of FIFO's predicted seconds that the partition saves; 0 where FIFO was taken
    num_retries: int = 0  # earlier runs of it that failed for a reason that may pass
    started: float | None = None  # when a lane took it up, on the caller's clock; None: it waits for a lane
    number: int = 0  # of the batches of its driver, from 1; its parts have it too. 0: a probe

    def left_s(self, now: float) -> float:
        """Predicted seconds of lane time that it still needs."""
        return self.predicted_s if self.started is None else max(0.0, self.started + self.predicted_s - now)


class Dispatch(NamedTuple):
    """Batches to start now, in the order to hand them to the lanes, and rejections."""

    start: list[LaneBatch]
    rejected: list[RejectedJob]  # they have left the queue
    planned: list[int]  # sequences that have left the queue for a batch: it is in `start`, now or in a later dispatch
    wake_at: float | None  # ask again at this time if nothing happens before; None: only an event can change it


class LaneDriver:
    """Keeps every lane busy: one batch a lane, and one prepared ahead once waiting cannot make it any fuller.

    The last idle lane of several is for full batches, for bulk work and for jobs that cannot wait. A short queue leaves
    its core to what else runs on the machine, the event loop first of all, and grows until another lane is free.

    Lanes take up batches in order of submission. Ask `dispatch` after arrivals, after each `finish`, and at `wake_at`.
    """

    def __init__(self, scheduler: Scheduler, num_lanes: int) -> None:
        self.scheduler = scheduler
        self.num_lanes = num_lanes
        self._numbers = count(1)
        self._prepared: deque[LaneBatch] = deque()  # planned, not handed out
        self._submitted: list[LaneBatch] = []  # handed out, in order; the first `num_lanes` of them run
        self._trials = Trials()
        self.is_draining = False  # the caller sets it to run what is queued without waiting for full batches

    @property
    def is_busy(self) -> bool:
        """Whether every lane has a batch."""
        return len(self._submitted) >= self.num_lanes

    @property
    def num_unfinished(self) -> int:
        """Batches planned and not finished."""
        return len(self._prepared) + len(self._submitted)

    @property
    def running(self) -> list[LaneBatch]:
        """Batches that lanes have taken up and not finished."""
        return self._submitted[: self.num_lanes]

    def busy_s(self, now: float) -> float:
        """Predicted seconds until the lanes have finished what was planned, mean over lanes."""
        batches = (*self._submitted, *self._prepared)
        return sum([batch.left_s(now) for batch in batches]) / self.num_lanes

    def add(self, jobs: Sequence[Job], now: float) -> list[RejectedJob]:
        """Queue jobs; returns the sequences of those rejected at once.

        When nothing else is queued or running, one request that would be late is admitted as a trial, with no deadline.
        """
        rejected = self.scheduler.add(jobs, now, busy_s=self.busy_s(now))
        if rejected and not self.scheduler.num_queued and not self.num_unfinished:
            return self._try_one(jobs, rejected, now)
        return rejected

    def dispatch(self, now: float) -> Dispatch:
        """The batches that the lanes can take now. They count as submitted: call `finish` for each."""
        done = Dispatch([], [], [], None)
        while self._has_room():
            if self._prepared:
                done.start.append(self._prepared.popleft())
                self.run_now(done.start[-1], now)
                continue
            first_free_s = min([batch.left_s(now) for batch in self._submitted]) if self.is_busy else 0.0
            idle_lanes = max(1, self.num_lanes - len(self._submitted))
            if self.num_lanes > 1 and not self.is_busy and (latest := self._waits_until(now)) is not None:
                idle_lanes -= 1
                if idle_lanes == 0:
                    return done._replace(wake_at=latest)
            plan = self.scheduler.poll(now, idle_lanes=idle_lanes, busy_s=first_free_s, draining=self.is_draining)
            done.rejected.extend(plan.rejected)
            if isinstance(plan, Wait):
                return done._replace(wake_at=plan.wake_at)
            for ids, predicted_s in plan.batches:
                rule, number = (plan.trigger.value, plan.partition), next(self._numbers)
                self._prepared.append(LaneBatch(ids, *rule, predicted_s, plan.dp_gain, number=number))
                done.planned.extend(ids)
        return done

    def finish(self, batch: LaneBatch, now: float, *, failed: bool = False) -> LaneBatch | None:
        """A submitted batch leaves the lanes. Returns the batch that its lane takes up next, if one waits.

        The scheduler learns how late batches end, but not from one that `failed`, or that did not run.
        """
        if batch.started is not None and not failed:
            self.scheduler.ended(batch.predicted_s, now - batch.started - batch.predicted_s, now)
        self._submitted.remove(batch)
        for following in self.running:
            if following.started is None:
                following.started = now
                return following
        return None

    def run_first(self, batches: Sequence[LaneBatch]) -> None:
        """Batches made by the caller, such as halves of one that failed, run before any other that is prepared."""
        self._prepared.extendleft(reversed(batches))

    def run_now(self, batch: LaneBatch, now: float) -> None:
        """A batch that the caller hands to the lanes at once, such as a health probe."""
        batch.started = None if self.is_busy else now
        self._submitted.append(batch)

    def _waits_until(self, now: float) -> float | None:
        """See `Scheduler.waits_until`; a lane of those that run is the next to be free, now if none runs."""
        if self.is_draining:
            return None
        return self.scheduler.waits_until(now + min([batch.left_s(now) for batch in self._submitted], default=0.0))

    def _has_room(self) -> bool:
        excess = len(self._submitted) - self.num_lanes
        return excess < 0 or (excess == 0 and (bool(self._prepared) or self.scheduler.is_full))

    def _try_one(self, jobs: Sequence[Job], rejected: list[RejectedJob], now: float) -> list[RejectedJob]:
        overloaded = {one.id for one in rejected if one.cause is Cause.OVERLOADED}
        if not overloaded or not self._trials.are_due(now):
            return rejected
        self._trials.begin(now)
        tried = next(one for job in jobs for one in job.by_request() if not overloaded.isdisjoint(one.ids))
        self.scheduler.add([tried._replace(deadline=math.inf)], now)
        return [one for one in rejected if one.id not in tried.ids]
