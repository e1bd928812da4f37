"""Variants of the scheduler for its ablation: each leaves out, simplifies or retunes one mechanism."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from penstock.scheduler import planner, scheduler
from penstock.scheduler.costs import learned
from penstock.scheduler.lane_driver import LaneDriver
from penstock.scheduler.planner import Planner
from penstock.scheduler.policies import partition
from penstock.scheduler.policies.admission import InTime
from penstock.scheduler.policies.bulk_share import BulkShare
from penstock.scheduler.queueing import lateness, work_estimator
from penstock.scheduler.queueing.job_queue import JobQueue
from penstock.scheduler.queueing.lateness import LatenessTracker
from penstock.scheduler.queueing.queued_job import QueuedJob
from penstock.scheduler.queueing.work_estimator import WorkEstimator

Variant = Callable[[], AbstractContextManager[Any]]


def _own_deadline(self: InTime, queue: JobQueue, job: QueuedJob, begin: float) -> float:
    """The job's own lateness, whatever becomes of those behind it."""
    ahead_s = sum([other.work_s for other in queue if other.key < job.key])
    return begin + ahead_s - job.latest_begin


def _mean_lateness(self: LatenessTracker, predicted_s: float, late_s: float) -> None:
    """The mean of the last batches as every margin."""
    _observe(self, predicted_s, late_s)
    self.usual_s = self.batch_s = self._mean_s


_observe = LatenessTracker.observe


def _half_slice(self: BulkShare, now: float) -> float:
    return self._slice_s / 2


def _no_credit(self: BulkShare, now: float) -> float:
    return self._earned_s(now)


def _no_mean_load(self: BulkShare, now: float) -> float:
    return 0.0


def _only_update(self: WorkEstimator, drafts: Sequence[Any], *, are_full: bool) -> None:
    self._update()


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
    "lateness: none": _replaced(LatenessTracker, "observe", _nothing),
    "lateness: mean for every margin": _replaced(LatenessTracker, "observe", _mean_lateness),
    "lateness: 16 batches, not 64": _constant(lateness, "_NUM_RECENT", 16),
    "lateness: quantile 0.5, not 0.9": _constant(lateness, "_HIGH", 0.5),
    "estimate: without the last plan": _replaced(WorkEstimator, "learn", _only_update),
    "estimate: mix of 64 jobs, not 1024": _constant(work_estimator, "_MEMORY", 64),
    "batch share 1/2, not 1/4": lambda: _batch_share(1 / 2),
    "batch share 1/8, not 1/4": lambda: _batch_share(1 / 8),
    "learning: none": _replaced(learned.LearnedCost, "observe", _nothing),
    "learning: median of 45, not 15": _constant(learned, "_NUM_RECENT", 45),
    "admission: own deadline only": _replaced(InTime, "lateness", _own_deadline),
    "second check before running: none": _replaced(Planner, "_late", lambda *_: []),
    "prepared ahead: none": _replaced(LaneDriver, "_has_room", lambda self: not self.is_busy),
    "sharing out among lanes: none": _replaced(planner, "share_out", lambda parts, *_, **__: parts),
    "bulk: always half a slice": _replaced(BulkShare, "growth_s", _half_slice),
    "bulk: nothing saved up": _replaced(BulkShare, "growth_s", _no_credit),
    "bulk: load of the last plan alone": _replaced(BulkShare, "_mean_load_at", _no_mean_load),
    "partition: fifo": _replaced(partition.Auto, "__new__", lambda _: partition.Fifo()),
    "partition: dp at any gain": _constant(partition, "MIN_DP_GAIN", 0.0),
}
