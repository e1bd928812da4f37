"""One worker on a discrete-event clock: the real scheduler, lanes whose batches take what a cost function says."""

import heapq
import math
from array import array

import numpy as np

from penstock.ops.bench.serving.feed import LOOK_S, Feed, Work
from penstock.ops.bench.serving.noise import Seconds
from penstock.ops.bench.serving.outcome import Outcome, Ran
from penstock.ops.bench.serving.stream import Arrivals, Stream


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
