"""Bulk work's share of the lanes beside online work."""

import math

from penstock.scheduler.queueing.work_estimator import WorkEstimator
from penstock.scheduler.settings import SchedulerSettings

_LOAD_WINDOW_S = 0.25  # time over which the online load is averaged


class BulkShare:
    """Divides `bulk_slice_s`, the wait that bulk work may add to an online job, among the ways that it can.

    A job may find a bulk batch running, or an online one that was filled up, and wait for its end: half of the slice.
    Its own batch may be filled up too: the other half. While a batch runs longer, online work gathers at the rate of
    the online load and makes the next batch longer by that share, and so on: 1 / (1 - load) in all. So filling stops
    as load nears 1. Real batches take `WorkEstimator.slowdown` times as long as predicted. This lengthens both the
    growth and the work that gathers meanwhile, so growth is divided by its square.
    """

    def __init__(self, settings: SchedulerSettings, estimator: WorkEstimator) -> None:
        self.alone_s = settings.bulk_slice_s / 2  # longest batch of bulk jobs alone, while online jobs come
        self._settings = settings
        self._estimator = estimator
        self._mean_load = 0.0  # seconds of online work that come in a second, as of `_came_at`
        self._plan_load = 0.0  # the same between the last two plans of it
        self._came_at = self._planned_at = -math.inf
        self._credit_s = 0.0

    def online_came(self, work_s: float, now: float) -> None:
        """Record the arrival of online jobs that keep all lanes busy for `work_s`."""
        self._mean_load = self._mean_load_at(now) + work_s / _LOAD_WINDOW_S
        self._came_at = now

    def online_planned(self, work_s: float, now: float) -> None:
        """Record a plan of online jobs, whose work of `work_s` had gathered since the last plan."""
        elapsed_s = now - self._planned_at
        self._plan_load = min(1.0, work_s / elapsed_s) if elapsed_s > 0 else 1.0
        self._planned_at = now

    def is_quiet(self, now: float) -> bool:
        """Whether no online job came for so long that bulk may have the lanes to itself."""
        return now - self._came_at >= self._settings.bulk_quiet_s

    def growth_s(self, now: float) -> float:
        """Seconds by which the online batch that was planned last may grow with bulk jobs in it.

        The mean load is steady, that of the last plan shows a burst: the greater counts. Unused growth is saved up to a
        whole slice, so that a long bulk job fits in the end.
        """
        load = min(1.0, max(self._mean_load_at(now), self._plan_load))
        earned_s = (1 - load) / self._estimator.slowdown**2 * self.alone_s
        self._credit_s = min(self._settings.bulk_slice_s, self._credit_s + earned_s)
        return self._credit_s

    def grown(self, seconds: float) -> None:
        """Record that the batch was made longer by `seconds`."""
        self._credit_s = max(0.0, self._credit_s - seconds)

    def _mean_load_at(self, now: float) -> float:
        return self._mean_load * math.exp((self._came_at - now) / _LOAD_WINDOW_S)
