"""Variants of the scheduler for its ablation: each leaves out, simplifies or retunes one mechanism."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import accumulate
from typing import Any
from unittest.mock import patch

from penstock.scheduler import planner, scheduler
from penstock.scheduler.costs import table
from penstock.scheduler.costs.cost import predicted_s
from penstock.scheduler.lane_driver import LaneDriver
from penstock.scheduler.planner import Planner
from penstock.scheduler.policies import bulk_share, partition
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.policies.order import Draft
from penstock.scheduler.policies.partition import PartitionPolicy
from penstock.scheduler.queueing import work_estimator
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob
from penstock.scheduler.queueing.work_estimator import WorkEstimator
from penstock.scheduler.types import Cause, RejectedJob

Variant = Callable[[], AbstractContextManager[Any]]


def _own_deadlines(self: JobQueue, groups: Sequence[Sequence[QueuedJob]], begin: float) -> list[float]:
    """The lateness of the groups' own jobs, whatever becomes of those behind them."""
    found: list[float] = []
    came_s = 0.0
    for jobs in groups:
        ahead_s = came_s + sum([other.work_s for other in self if other < jobs[0]])
        work_s = list(accumulate([job.work_s for job in jobs], initial=0.0))  # before each job, and of all
        found.append(max([begin + ahead_s + s - job.latest_begin for s, job in zip(work_s, jobs, strict=False)]))
        came_s += work_s[-1] if found[-1] <= 0 else 0.0
    return found


@contextmanager
def _own_deadlines_only() -> Iterator[None]:
    with patch.object(JobQueue, "surely_in_time", lambda *_: False), patch.object(JobQueue, "lateness", _own_deadlines):
        yield


def _reject_in_every_batch(
    self: Planner, drafts: list[Draft], now: float, lanes: int
) -> tuple[list[Draft], tuple[RejectedJob, ...]]:
    """All late jobs of all batches are rejected, not those of the first batch alone."""
    late = tuple(
        RejectedJob(job.id, Cause.QUEUED, end - job.deadline)
        for draft, end in zip(drafts, self._ends(drafts, now, lanes), strict=True)
        for job in draft.jobs
        if job.deadline < end
    )
    return ([], late) if late else (drafts, ())


def _mean_lateness(self: WorkEstimator, predicted_s: float, late_s: float) -> None:
    """The mean of the last batches as every margin."""
    _ended(self, predicted_s, late_s)
    self.usual_late_s = self.high_late_s = self._mean_late_s


_ended = WorkEstimator.ended


def _share_of_recent(self: WorkEstimator) -> float:
    """As if queued work ran in batches like the recent ones, however short they were."""
    mean_s = sum(predicted_s for predicted_s, _ in self._recent) / max(1, len(self._recent))
    return min(work_estimator._MAX_SHARE, self._mean_late_s / mean_s) if mean_s > 0 else 0.0


def _planned_without_scale(self: WorkEstimator, tokens: int, batch_s: Sequence[float], *, are_full: bool) -> None:
    """The estimate follows the learned cost with the next full plan only."""
    self.small_s = predicted_s(self._cost, 1, 1, 1, 1)
    _planned(self, tokens, batch_s, are_full=are_full)


_planned = WorkEstimator.planned


def _half_slice(self: BulkShare, now: float) -> float:
    return self.alone_s


def _no_credit(self: BulkShare, now: float) -> float:
    self._credit_s = 0.0
    return _growth_s(self, now)


_growth_s = BulkShare.growth_s


def _nothing(*_: object, **__: object) -> None:
    return


@contextmanager
def _batch_share(share: float) -> Iterator[None]:
    with ExitStack() as stack:
        for module in (work_estimator, scheduler):
            stack.enter_context(patch.object(module, "BATCH_SHARE", share))
        yield


def _constant(module: object, name: str, value: float) -> Variant:
    return lambda: patch.object(module, name, value)


def _replaced(owner: object, name: str, value: object) -> Variant:
    return lambda: patch.object(owner, name, value)


VARIANTS: dict[str, Variant] = {
    "as is": nullcontext,
    "lateness: none": _replaced(WorkEstimator, "ended", _nothing),
    "lateness: mean for every margin": _replaced(WorkEstimator, "ended", _mean_lateness),
    "lateness: 16 batches, not 64": _constant(work_estimator, "_NUM_RECENT", 16),
    "lateness: one block, not of 8 batches": _constant(work_estimator, "_BLOCK", 64),
    "lateness: quantile 0.5, not 0.9": _constant(work_estimator, "_HIGH", 0.5),
    "lateness: share of recent batches": _replaced(WorkEstimator, "late_share", property(_share_of_recent)),
    "estimate: without the last plan": _replaced(WorkEstimator, "planned", _nothing),
    "estimate: not scaled with the learned cost": _replaced(WorkEstimator, "planned", _planned_without_scale),
    "batch share 1/2, not 1/4": lambda: _batch_share(1 / 2),
    "batch share 1/8, not 1/4": lambda: _batch_share(1 / 8),
    "learning: none": _replaced(table.LearnedCost, "observe", _nothing),
    "learning: median of 45, not 15": _constant(table, "_NUM_RECENT", 45),
    "admission: own deadline only": _own_deadlines_only,
    "second check before running: none": _replaced(Planner, "_in_time", lambda _self, drafts, *_: (drafts, ())),
    "second check before running: in every batch": _replaced(Planner, "_in_time", _reject_in_every_batch),
    "prepared ahead: none": _replaced(LaneDriver, "_has_room", lambda self: not self.is_busy),
    "sharing out among lanes: none": _replaced(planner, "share_out", lambda parts, *_, **__: parts),
    "bulk: always half a slice": _replaced(BulkShare, "growth_s", _half_slice),
    "bulk: nothing saved up": _replaced(BulkShare, "growth_s", _no_credit),
    "bulk: load averaged over 0.05 s, not 0.25": _constant(bulk_share, "_LOAD_WINDOW_S", 0.05),
    "bulk: load averaged over 1 s, not 0.25": _constant(bulk_share, "_LOAD_WINDOW_S", 1.0),
    "partition: fifo": _replaced(planner, "PartitionPolicy", lambda _: PartitionPolicy("fifo")),
    "partition: dp at any gain": _constant(partition, "MIN_DP_GAIN", 0.0),
    "partition: dp by FIFO's total, not its pace": _replaced(
        partition, "_pace", lambda in_order, _: sum(in_order.seconds)
    ),
}
