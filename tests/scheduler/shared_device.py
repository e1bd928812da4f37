"""A simulated device that several members of a consumer group share, each with its own scheduler and learned cost."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.scheduler import CostTable, Job, LaneBatch, LaneDriver, LearnedCost, Scheduler, SchedulerSettings
from tests.scheduler import simulation
from tests.scheduler.jobs import one_job


@dataclass(eq=False)
class Member:
    """One worker process: its lanes, what its running batch still needs of the device, and what became of its jobs."""

    cost: LearnedCost
    driver: LaneDriver
    running: LaneBatch | None = None
    left_s: float = 0.0  # seconds of the device, alone
    wake_at: float | None = None


@dataclass
class Report:
    """The end of every job, by its arrival, and the errors of the predictions of all members."""

    answered: list[tuple[float, float, float]] = field(default_factory=list)  # arrival, end, deadline
    rejected: list[float] = field(default_factory=list)  # arrivals of jobs that were not admitted
    broken: list[float] = field(default_factory=list)  # moments at which admitted jobs were rejected
    errors: list[tuple[float, float]] = field(default_factory=list)  # moment, |predicted / measured - 1| of a batch

    def goodput(self, since: float, until: float) -> float:
        """Answers in time a second, of jobs that arrived in this time."""
        return sum(end <= deadline and since <= at < until for at, end, deadline in self.answered) / (until - since)

    def broken_share(self, since: float = 0.0) -> float:
        """Share of the admitted jobs that were not answered in time."""
        admitted = [(end <= deadline) for at, end, deadline in self.answered if at >= since]
        num_broken = admitted.count(False) + sum(at >= since for at in self.broken)
        return num_broken / max(1, len(admitted) + sum(at >= since for at in self.broken))

    def p95_error(self, is_counted: Callable[[float], bool]) -> float:
        """Of the predictions of batches that ended at moments that count."""
        errors = sorted(error for at, error in self.errors if is_counted(at))
        return errors[int(0.95 * len(errors))]


class SharedDevice:
    """Members that have a batch running share the device: at equal speeds, or in turns of `slice_s` if it is above 0.

    Members start and stop by `num_members`, a step function of time. The last to start is the first to stop: it drains.
    """

    def __init__(
        self,
        table: CostTable,
        settings: SchedulerSettings,
        num_members: Callable[[float], int],
        *,
        slice_s: float = 0.0,
        noise: float = 0.03,
        seed: int = 0,
    ) -> None:
        self._table = table
        self._settings = settings
        self._num_members = num_members
        self._slice_s = slice_s
        self._noise = noise
        self._chance = random.Random(seed)
        self._members: list[Member] = []
        self._draining: list[Member] = []
        self._turn = 0  # of the running members, in turns
        self._jobs: dict[int, Job] = {}
        self.report = Report()

    def run(self, arrivals: Iterator[tuple[float, int]]) -> Report:
        """Until all have left. Each job goes to a random member that has started."""
        ids = itertools.count()
        upcoming = next(arrivals, None)
        now = 0.0
        while upcoming is not None or self._busy():
            moments = [upcoming[0]] if upcoming is not None else []
            moments += [member.wake_at for member in self._all() if member.wake_at is not None]
            event = min([*moments, self._next_end(now)])
            self._advance(event - now)
            now = event
            self._resize(self._num_members(now))
            for member in [member for member in self._all() if member.running and member.left_s <= 1e-12]:
                self._end(member, now)
            coming: dict[Member, list[Job]] = {}
            while upcoming is not None and upcoming[0] <= now:
                job = one_job(next(ids), upcoming[1], now, now + (self._settings.slo_s or math.inf))
                self._jobs[job.ids[0]] = job
                coming.setdefault(self._chance.choice(self._members), []).append(job)
                upcoming = next(arrivals, None)
            for member, jobs in coming.items():
                rejected = member.driver.add(jobs, now)
                self.report.rejected += [self._jobs.pop(rejection.id).arrival for rejection in rejected]
            for member in self._all():
                self._dispatch(member, now)
            self._draining = [member for member in self._draining if member.driver.num_unfinished]
        return self.report

    def _all(self) -> list[Member]:
        return self._members + self._draining

    def _busy(self) -> bool:
        return any(member.driver.num_unfinished or member.driver.scheduler.num_queued for member in self._all())

    def _resize(self, num: int) -> None:
        while len(self._members) < num:
            cost = LearnedCost(self._table)
            self._members.append(Member(cost, LaneDriver(Scheduler(self._settings, cost), 1)))
        while len(self._members) > num:
            self._draining.append(self._members.pop())
            self._draining[-1].driver.is_draining = True

    def _running(self) -> Sequence[Member]:
        return [member for member in self._all() if member.running]

    def _next_end(self, now: float) -> float:
        running = self._running()
        if not running:
            return math.inf
        if self._slice_s:
            return now + min(self._slice_s, running[self._turn % len(running)].left_s)
        return now + min([member.left_s for member in running]) * len(running)

    def _advance(self, elapsed_s: float) -> None:
        running = self._running()
        if not running:
            return
        if self._slice_s:
            running[self._turn % len(running)].left_s -= elapsed_s
            self._turn += 1
        for member in () if self._slice_s else running:
            member.left_s -= elapsed_s / len(running)

    def _dispatch(self, member: Member, now: float) -> None:
        dispatch = member.driver.dispatch(now)
        member.wake_at = dispatch.wake_at
        for rejection in dispatch.rejected:
            self.report.broken.append(self._jobs.pop(rejection.id).arrival)
        for batch in dispatch.start:
            if batch.started is not None:
                self._begin(member, batch)

    def _sums(self, batch: LaneBatch) -> tuple[int, int, int, int]:
        lengths = [self._jobs[job_id].lengths[0] for job_id in batch.ids]
        return sum(lengths), sum(length * length for length in lengths), max(lengths), len(lengths)

    def _begin(self, member: Member, batch: LaneBatch) -> None:
        alone_s = float(self._table.seconds(*self._sums(batch)))
        member.running, member.left_s = batch, alone_s * math.exp(self._chance.gauss(0, self._noise))

    def _end(self, member: Member, now: float) -> None:
        batch = member.running
        assert batch is not None
        assert batch.started is not None
        sums, measured_s = self._sums(batch), now - batch.started
        self.report.errors.append((now, abs(float(member.cost.seconds(*sums)) / measured_s - 1)))
        member.cost.observe(*sums, measured_s)
        member.running = None
        following = member.driver.finish(batch, now)
        for job_id in batch.ids:
            job = self._jobs.pop(job_id)
            self.report.answered.append((job.arrival, now, job.deadline or math.inf))
        if following is not None:
            self._begin(member, following)


def poisson(rate: float, seconds: float, seed: int) -> Iterator[tuple[float, int]]:
    """Arrivals with lengths of 2 to 100 tokens, seen by polls a millisecond apart."""
    for one in simulation.poisson(rate, seconds, seed=seed):
        yield math.ceil(one.at * 1e3) / 1e3, one.num_tokens
