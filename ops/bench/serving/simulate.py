"""One worker on a discrete-event clock: the real scheduler, lanes whose batches take what a cost function says."""

import heapq
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.ops.bench.serving.arrivals import Floats
from penstock.ops.bench.serving.feed import LOOK_S, Feed, Work
from penstock.ops.bench.serving.outcome import Outcome, Ran
from penstock.ops.bench.serving.stream import Arrivals, Stream
from penstock.scheduler import CostFunction, CostTable

# (tokens, squares, longest, count) of a batch, and whether it found its lane idle -> s
Seconds = Callable[[int, int, int, int, bool], float]


@dataclass(frozen=True, slots=True)
class Noise:
    """How measured times scatter about predicted ones: factors, drawn with replacement."""

    ratios: Floats  # measured / predicted, one a batch seen; each > 0

    @classmethod
    def none(cls) -> "Noise":
        """Every batch takes what was predicted."""
        return cls(np.ones(1))

    @classmethod
    def of_table(cls, table: CostTable) -> "Noise":
        """As the timings that a table was fitted to scatter about it; none where it carries none."""
        ratios = [1 / (1 + residual.error) for residual in table.residuals()]
        return cls(np.array(ratios)) if ratios else cls.none()

    def draws(self, seed: int) -> Iterator[float]:
        """Endless."""
        random = np.random.default_rng(seed)
        while True:
            yield from random.choice(self.ratios, 4096).tolist()


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of the host, for each batch: from its start to its known end, beyond the device's time."""

    idle_s: float = 0.0  # of one that found its lane idle: the device waits for all that the host does
    behind_s: float = 0.0  # of one that waited behind another: most of it was done by then


def noisy(cost: CostFunction, noise: Noise, seed: int, overhead: Overhead = Overhead()) -> Seconds:
    """Batches that take `cost` times a factor, and the host's part."""
    factor = noise.draws(seed)

    def seconds(tokens: int, squares: int, longest: int, count: int, is_idle: bool) -> float:
        host_s = overhead.idle_s if is_idle else overhead.behind_s
        return float(cost.seconds(tokens, squares, longest, count)) * next(factor) + host_s

    return seconds


class SimulatedWorker:
    """A feed, its lanes and the moment. `run` may be called again with a later end."""

    def __init__(self, stream: Stream, feed: Feed, seconds: Seconds, *, keep_batches: bool = False) -> None:
        self._stream = stream
        self._feed = feed
        self._seconds = seconds
        self._batches: list[Ran] | None = [] if keep_batches else None
        self._arrivals = Arrivals(stream)
        # Plain arrays: numbers one at a time, without numpy's overhead for each.
        self._lengths = array("q", stream.lengths.astype(np.int64).tobytes())
        self._running: list[tuple[float, int, Work]] = []  # heap by end
        self.num_batches = 0
        self._busy_s = 0.0
        self._start = array("d", [math.nan]) * len(stream.arrival)
        self._finish = array("d", [math.nan]) * len(stream.arrival)

    def run(self, until: float = math.inf) -> None:
        """Go on until nothing is left to do, or to the last event that is not after `until`."""
        feed, arrivals, running = self._feed, self._arrivals, self._running
        now = 0.0
        while True:
            next_job = max(arrivals.next_at, now + LOOK_S) if feed.is_busy else arrivals.next_at
            following = min(next_job, running[0][0] if running else math.inf)
            if feed.wake_at is not None:
                following = min(following, feed.wake_at)
            if following > until or following == math.inf:
                return
            now = max(now, following)
            if jobs := arrivals.take(now, feed.scheduler.num_queued):
                feed.add(jobs, now)
            while running and running[0][0] <= now:
                self._end(heapq.heappop(running)[2], now)
            while (work := feed.take(now)) is not None:
                if work.started is not None:
                    self._begin(work, now, is_idle=True)

    def outcome(self) -> Outcome:
        """So far."""
        return Outcome(
            self._stream.arrival,
            np.array(self._start),
            np.array(self._finish),
            dict(self._feed.refused),
            tuple(self._batches or ()),
            self._feed.scheduler_s,
            self._stream.num_bulk,
            self._busy_s,
        )

    def _begin(self, work: Work, now: float, *, is_idle: bool) -> None:
        ids, of = work.batch.ids, self._lengths
        lengths = [of[index] for index in ids]
        tokens, longest = sum(lengths), max(lengths)
        squares = sum([length * length for length in lengths])
        seconds = self._seconds(tokens, squares, longest, len(ids), is_idle)
        start = self._start
        for index in ids:
            start[index] = now
        self._busy_s += seconds
        self.num_batches += 1
        heapq.heappush(self._running, (now + seconds, self.num_batches, work))
        if self._batches is not None:
            sums = (len(ids), tokens, squares, longest)
            predicted_s = work.batch.predicted_s
            self._batches.append(Ran(now, now + seconds, *sums, predicted_s, seconds, work.trigger, work.partition))

    def _end(self, work: Work, now: float) -> None:
        finish = self._finish
        for index in work.batch.ids:
            finish[index] = now
        following = self._feed.done(work, now)
        if following is not None:
            self._begin(following, now, is_idle=False)


def simulate(stream: Stream, feed: Feed, seconds: Seconds, *, keep_batches: bool = True) -> Outcome:
    """One worker, all of `stream`, to the last answer."""
    worker = SimulatedWorker(stream, feed, seconds, keep_batches=keep_batches)
    worker.run()
    return worker.outcome()
