"""The variants of the ablation: what each replaces in the scheduler."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from penstock.scheduler import lane_driver, planner, scheduler
from penstock.scheduler.costs.learned import LearnedCost
from penstock.scheduler.policies import admission, bulk_share, partition
from penstock.scheduler.queueing import job_queue, lateness, work_estimator

Lag, Prices, BulkShare = lateness.Lag, work_estimator.Prices, bulk_share.BulkShare


@contextmanager
def several(*patches: Any) -> Iterator[None]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def const(module, name, value):
    return patch.object(module, name, value)


def lag_without(self, predicted_s, late_s, now):
    return


def lag_mean_only(self, predicted_s, late_s, now):
    """EWMA of lateness; batch_s = usual_s = it."""
    if not (-math.inf < late_s < math.inf and 0 <= predicted_s < math.inf):
        return
    late_s = max(-self._horizon_s, min(self._horizon_s, late_s))
    self._n = getattr(self, "_n", 0) + 1
    w = max(1 / 16, 1 / self._n)
    self._late_mean = getattr(self, "_late_mean", 0.0)
    self._pred_mean = getattr(self, "_pred_mean", 0.0)
    self._late_mean += w * (late_s - self._late_mean)
    self._pred_mean += w * (predicted_s - self._pred_mean)
    self._mean_s = self.usual_s = self.batch_s = max(0.0, self._late_mean)
    self.slower = 1 + (self.usual_s / self._pred_mean if self._pred_mean > 0 else 0)


def lag_quantile_only(self, predicted_s, late_s, now):
    """One window, two quantiles: p50 for shares, p90 for a batch."""
    if not (-math.inf < late_s < math.inf and 0 <= predicted_s < math.inf):
        return
    late_s = max(-self._horizon_s, min(self._horizon_s, late_s))
    self._late_s.append(late_s)
    self._predicted_s.append(predicted_s)
    self.usual_s, self.batch_s = lateness._quantiles(self._late_s, 0.5, 0.9)
    self._mean_s = max(0.0, sum(self._late_s) / len(self._late_s))
    mean_p = sum(self._predicted_s) / len(self._predicted_s)
    self.slower = 1 + (self.usual_s / mean_p if mean_p > 0 else 0)


def no_learning(self, *args):
    return


def scale_only():
    from penstock.scheduler.costs import learned

    return const(learned, "_REGION_GAIN", 0.0)


class SelfOnly(admission.InTime):
    """Only its own deadline, not of those behind it."""

    def lateness(self, queue, job, begin):
        ahead = 0.0
        if queue._blocks and queue._blocks[-1].jobs[-1].key >= job.key:
            timeline, index = queue._up_to_date(), queue._block_for(job.key)
            block = queue._blocks[index]
            place = block.place(job.key)
            ahead = timeline.ahead_s(index) + sum([b.work_s for b in block.jobs[:place]])
        else:
            ahead = queue.work_s
        return begin - (job.latest_begin - ahead)


def growth_half_slice(self, now):
    return self._slice_s / 2


def growth_no_credit(self, now):
    load = max(self._load_at(now), self._load_of_plan)
    return max(0.0, 1 - load) / self._lag.slower**2 * self._slice_s / 2


def growth_avg_only(self, now):
    share = max(0.0, 1 - self._load_at(now)) / self._lag.slower**2
    self._credit_s = min(self._slice_s, self._credit_s + share * self._slice_s / 2)
    return self._credit_s


def growth_plan_only(self, now):
    share = max(0.0, 1 - self._load_of_plan) / self._lag.slower**2
    self._credit_s = min(self._slice_s, self._credit_s + share * self._slice_s / 2)
    return self._credit_s


def growth_no_slower(self, now):
    share = max(0.0, 1 - max(self._load_at(now), self._load_of_plan))
    self._credit_s = min(self._slice_s, self._credit_s + share * self._slice_s / 2)
    return self._credit_s


def pace_one(self, drafts, *, are_full):
    self._look_up()


def no_launch(original):
    def look_up(self):
        original(self)
        self.launch_s = 0.0

    return look_up


VARIANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "as is": nullcontext,
    "lag: none": lambda: patch.object(Lag, "observe", lag_without),
    "lag: EWMA": lambda: patch.object(Lag, "observe", lag_mean_only),
    "lag: one window": lambda: patch.object(Lag, "observe", lag_quantile_only),
    "pace: none": lambda: patch.object(Prices, "learn", pace_one),
    "launch: none": lambda: patch.object(Prices, "_look_up", no_launch(Prices._look_up)),
    "batch share 1/2": lambda: several(
        const(work_estimator, "BATCH_SHARE", 0.5), const(scheduler, "BATCH_SHARE", 0.5)
    ),
    "batch share 1/8": lambda: several(
        const(work_estimator, "BATCH_SHARE", 0.125), const(scheduler, "BATCH_SHARE", 0.125)
    ),
    "lag share 1/4": lambda: const(scheduler, "LAG_SHARE", 0.25),
    "lag share 1/16": lambda: const(scheduler, "LAG_SHARE", 1 / 16),
    "small: none": lambda: const(work_estimator, "_SMALL", 0.0),
    "small: 1": lambda: const(work_estimator, "_SMALL", 1.0),
    "mix memory 64": lambda: const(work_estimator, "_MEMORY", 64),
    "learning: none": lambda: patch.object(LearnedCost, "observe", no_learning),
    "learning: scale only": scale_only,
    "admission: own deadline only": lambda: patch.object(admission.InTime, "lateness", SelfOnly.lateness),
    "bulk: half slice": lambda: patch.object(BulkShare, "growth_s", growth_half_slice),
    "bulk: no credit": lambda: patch.object(BulkShare, "growth_s", growth_no_credit),
    "bulk: average load only": lambda: patch.object(BulkShare, "growth_s", growth_avg_only),
    "bulk: plan load only": lambda: patch.object(BulkShare, "growth_s", growth_plan_only),
    "bulk: no slower": lambda: patch.object(BulkShare, "growth_s", growth_no_slower),
    "underfull tail: runs": lambda: patch.object(planner, "full_batches_end", lambda lengths, caps, padded: 0),
    "sharing out: none": lambda: patch.object(planner, "share_out", lambda parts, *a, **k: parts),
    "prepared ahead: none": lambda: patch.object(
        lane_driver.LaneDriver, "_has_room", lambda self: not self.is_busy
    ),
    "second check: none": lambda: patch.object(planner.Planner, "_late", lambda self, d, n, l: []),
    "pace weight 1": lambda: const(work_estimator, "_WEIGHT", 1.0),
}
