"""One worker on a discrete-event clock: the real lane driver, and batches with the seconds of a cost function."""

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from penstock.ops.bench.serving.loads.measured_driver import ADMISSION_INTERVAL_S, MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome, Ran
from penstock.ops.bench.serving.loads.stream import Arrivals, Stream
from penstock.scheduler import CostFunction, CostTable, LaneBatch

Seconds = Callable[[int, int, int, int], float]  # (tokens, squares, longest, count) of a batch -> s

Scatter = Sequence[float]  # measured over predicted seconds, one a batch seen

NO_SCATTER: Scatter = (1.0,)
_DRAWS = 4096  # at a time


def scatter_of(table: CostTable) -> Scatter:
    """Scatter of the timings that a table was fitted to; none where it holds no timings."""
    return [1 / (1 + sample.error(table)) for sample in table.samples] or NO_SCATTER


def noisy(cost: CostFunction, scatter: Scatter, seed: int) -> Seconds:
    """Batches that take `cost` times a factor, drawn from `scatter` with replacement."""

    def draws() -> Iterator[float]:
        random = np.random.default_rng(seed)
        while True:
            yield from random.choice(scatter, _DRAWS).tolist()

    factor = draws()
    return lambda *batch: float(cost.seconds(*batch)) * next(factor)


def simulate(stream: Stream, driver: MeasuredDriver, seconds: Seconds) -> Outcome:
    """Run all of `stream` on one worker, to the last answer."""
    return _SimulatedWorker(stream, driver, seconds).run()


class _SimulatedWorker:
    """A lane driver and the batches on its lanes."""

    def __init__(self, stream: Stream, driver: MeasuredDriver, seconds: Seconds) -> None:
        self._stream = stream
        self._driver = driver
        self._seconds = seconds
        self._batches: list[Ran] = []
        # Plain arrays: single numbers are read without numpy's overhead.
        self._lengths = array("q", stream.lengths.astype(np.int64).tobytes())
        self._running: list[tuple[float, int, LaneBatch]] = []  # heap by end
        self._start = array("d", [math.nan]) * len(stream.arrival)
        self._finish = array("d", [math.nan]) * len(stream.arrival)

    def run(self) -> Outcome:
        driver, arrivals, running = self._driver, Arrivals(self._stream), self._running
        now, wake_at = 0.0, math.inf
        while True:
            next_job = max(arrivals.next_at, now + ADMISSION_INTERVAL_S) if driver.is_busy else arrivals.next_at
            following = min(next_job, running[0][0] if running else math.inf, wake_at)
            if following == math.inf:
                return self._outcome()
            now = max(now, following)
            if jobs := arrivals.take(now, driver.scheduler.num_queued):
                driver.add(jobs, now)
            while running and running[0][0] <= now:
                self._end(heapq.heappop(running)[2], now)
            dispatch = driver.dispatch(now)
            wake_at = math.inf if dispatch.wake_at is None else dispatch.wake_at
            for batch in dispatch.start:
                if batch.started is not None:
                    self._begin(batch, now)

    def _outcome(self) -> Outcome:
        stream, driver = self._stream, self._driver
        times = np.array(self._start), np.array(self._finish)
        refused, batches = dict(driver.rejected), tuple(self._batches)
        return Outcome(stream.arrival, *times, refused, batches, driver.scheduler_s, stream.num_bulk)

    def _begin(self, batch: LaneBatch, now: float) -> None:
        lengths = [self._lengths[index] for index in batch.ids]
        tokens, count = sum(lengths), len(lengths)
        seconds = self._seconds(tokens, sum([length * length for length in lengths]), max(lengths), count)
        for index in batch.ids:
            self._start[index] = now
        heapq.heappush(self._running, (now + seconds, len(self._batches), batch))
        self._batches.append(Ran(now, count, tokens, batch.predicted_s, seconds))

    def _end(self, batch: LaneBatch, now: float) -> None:
        for index in batch.ids:
            self._finish[index] = now
        following = self._driver.finish(batch, now)
        if following is not None:
            self._begin(following, now)
