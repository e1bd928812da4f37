"""One worker on a discrete-event clock: the real lane driver, and batches with the seconds of a cost function."""

import heapq
import math
from array import array

import numpy as np

from penstock.ops.bench.serving.loads.measured_driver import ADMISSION_INTERVAL_S, MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome, Ran
from penstock.ops.bench.serving.loads.stream import Arrivals, Stream
from penstock.ops.bench.serving.simulation.noise import Seconds
from penstock.scheduler import LaneBatch


class SimulatedWorker:
    """A lane driver and the batches on its lanes. `run` may be called again with a later end."""

    def __init__(self, stream: Stream, driver: MeasuredDriver, seconds: Seconds, *, keep_batches: bool = False) -> None:
        self._stream = stream
        self._driver = driver
        self._seconds = seconds
        self._batches: list[Ran] | None = [] if keep_batches else None
        self._arrivals = Arrivals(stream)
        # Plain arrays: single numbers are read without numpy's overhead.
        self._lengths = array("q", stream.lengths.astype(np.int64).tobytes())
        self._running: list[tuple[float, int, LaneBatch]] = []  # heap by end
        self.num_batches = 0
        self._busy_s = 0.0
        self._start = array("d", [math.nan]) * len(stream.arrival)
        self._finish = array("d", [math.nan]) * len(stream.arrival)

    def run(self, until: float = math.inf) -> None:
        """Continue until no work is left, or to the last event that is not after `until`."""
        driver, arrivals, running = self._driver, self._arrivals, self._running
        now, wake_at = 0.0, None
        while True:
            next_job = max(arrivals.next_at, now + ADMISSION_INTERVAL_S) if driver.is_busy else arrivals.next_at
            following = min(next_job, running[0][0] if running else math.inf)
            if wake_at is not None:
                following = min(following, wake_at)
            if following > until or following == math.inf:
                return
            now = max(now, following)
            if jobs := arrivals.take(now, driver.scheduler.num_queued):
                driver.add(jobs, now)
            while running and running[0][0] <= now:
                self._end(heapq.heappop(running)[2], now)
            dispatch = driver.dispatch(now)
            wake_at = dispatch.wake_at
            for batch in dispatch.start:
                if batch.started is not None:
                    self._begin(batch, now, is_idle=True)

    def outcome(self) -> Outcome:
        """Outcome so far."""
        return Outcome(
            self._stream.arrival,
            np.array(self._start),
            np.array(self._finish),
            dict(self._driver.rejected),
            tuple(self._batches or ()),
            self._driver.scheduler_s,
            self._stream.num_bulk,
            self._busy_s,
        )

    def _begin(self, batch: LaneBatch, now: float, *, is_idle: bool) -> None:
        ids, of = batch.ids, self._lengths
        lengths = [of[index] for index in ids]
        tokens, longest = sum(lengths), max(lengths)
        squares = sum([length * length for length in lengths])
        seconds = self._seconds(tokens, squares, longest, len(ids), is_idle)
        start = self._start
        for index in ids:
            start[index] = now
        self._busy_s += seconds
        self.num_batches += 1
        heapq.heappush(self._running, (now + seconds, self.num_batches, batch))
        if self._batches is not None:
            sums = (len(ids), tokens, squares, longest)
            end = now + seconds
            self._batches.append(Ran(now, end, *sums, batch.predicted_s, seconds, batch.trigger, batch.partition))

    def _end(self, batch: LaneBatch, now: float) -> None:
        finish = self._finish
        for index in batch.ids:
            finish[index] = now
        following = self._driver.finish(batch, now)
        if following is not None:
            self._begin(following, now, is_idle=False)


def simulate(stream: Stream, driver: MeasuredDriver, seconds: Seconds, *, keep_batches: bool = True) -> Outcome:
    """Run all of `stream` on one worker, to the last answer."""
    worker = SimulatedWorker(stream, driver, seconds, keep_batches=keep_batches)
    worker.run()
    return worker.outcome()
