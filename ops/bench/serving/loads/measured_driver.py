"""The lane driver of all benchmarks: the real one, with its time and its rejections counted."""

import time
from collections import Counter
from collections.abc import Sequence

from penstock.scheduler import Dispatch, Job, LaneBatch, LaneDriver, RejectedJob, Scheduler

ADMISSION_INTERVAL_S = 0.001  # while every lane is busy no request waits for an arrival: they are added this often


class MeasuredDriver(LaneDriver):
    """Counts rejected requests by cause, and seconds of processor time in the driver and the scheduler."""

    def __init__(self, scheduler: Scheduler, num_lanes: int) -> None:
        super().__init__(scheduler, num_lanes)
        self.rejected: Counter[str] = Counter()
        self.scheduler_s = 0.0

    def add(self, jobs: Sequence[Job], now: float) -> list[RejectedJob]:
        """See `LaneDriver.add`."""
        began = time.perf_counter()
        rejected = super().add(jobs, now)
        self._note(began, rejected)
        return rejected

    def dispatch(self, now: float) -> Dispatch:
        """See `LaneDriver.dispatch`."""
        began = time.perf_counter()
        dispatch = super().dispatch(now)
        self._note(began, dispatch.rejected)
        return dispatch

    def finish(self, batch: LaneBatch, now: float, *, failed: bool = False) -> LaneBatch | None:
        """See `LaneDriver.finish`."""
        began = time.perf_counter()
        following = super().finish(batch, now, failed=failed)
        self._note(began, ())
        return following

    def _note(self, began: float, rejected: Sequence[RejectedJob]) -> None:
        self.scheduler_s += time.perf_counter() - began
        for job in rejected:
            self.rejected[job.cause.value] += 1
