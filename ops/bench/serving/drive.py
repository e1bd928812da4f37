"""A real run in process: requests come in real time to a scheduler and the engine's lanes.

The load generator shares the interpreter with what it measures, so it does little a request: jobs exist before the run
begins, and nothing waits for a request of its own. Latencies count from the scheduled moment of arrival, so a stall of
anything, this loop included, is in every latency that it delays (no coordinated omission).
"""

import asyncio
import gc
import math
import selectors
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine import Engine, EngineLanes, PackedBatch, TaskOptions
from penstock.engine.types import BatchOutput, Int32Array
from penstock.ops.bench.common.lengths import Lengths
from penstock.ops.bench.serving.feed import LOOK_S, Feed, Work
from penstock.ops.bench.serving.outcome import Outcome, Ran
from penstock.ops.bench.serving.stream import Arrivals, Stream
from penstock.scheduler import LearnedCost

_OPTIONS = TaskOptions("embed")
_LEAD_S = 0.01  # between the run's start and time 0 of the arrivals


@dataclass(frozen=True, slots=True)
class Requests:
    """What comes, and when."""

    stream: Stream
    token_ids: Sequence[Int32Array]  # one a request, as long as its length in the stream


def random_ids(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Sequences of these lengths, of random token ids."""
    ends = np.cumsum(lengths)
    ids = np.random.default_rng(seed).integers(0, vocab_size, int(ends[-1]), dtype=np.int32)
    return np.split(ids, ends[:-1])


def packed_batch(sequences: Sequence[Int32Array]) -> PackedBatch:
    """The engine's view of token ids."""
    lengths = [len(sequence) for sequence in sequences]
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return PackedBatch(np.concatenate(sequences), cu_seqlens, max(lengths), None, [_OPTIONS] * len(lengths))


def drive(
    requests: Requests, feed: Feed, engine: Engine, num_lanes: int, cost: LearnedCost, *, grace_s: float
) -> Outcome:
    """Run one load. What is not answered `grace_s` after the last arrival stays unanswered.

    Raises what the engine raises.
    """
    # select() waits to the microsecond; epoll, and uvloop's timers, to the millisecond, which is a batch on a GPU.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(_drive(requests, feed, engine, num_lanes, cost, grace_s))


async def _drive(
    requests: Requests, feed: Feed, engine: Engine, num_lanes: int, cost: LearnedCost, grace_s: float
) -> Outcome:
    lanes = EngineLanes(engine, num_lanes)
    run = _Drive(requests, feed, lanes, cost, grace_s)
    gc.collect()
    gc.disable()  # a collection in the middle would be a pause of ours, not of a worker's
    try:
        return await run.run()
    finally:
        gc.enable()
        await lanes.close()


class _Drive:
    """The state of one run; everything happens on its event loop."""

    def __init__(self, requests: Requests, feed: Feed, lanes: EngineLanes, cost: LearnedCost, grace_s: float) -> None:
        count = len(requests.token_ids)
        self._requests = requests
        self._feed = feed
        self._lanes = lanes
        self._cost = cost
        self._end_s = float(requests.stream.arrival[-1]) + grace_s
        self._arrivals = Arrivals(requests.stream, chunk=count)
        self._lengths = requests.stream.lengths
        self._start = np.full(count, np.nan)
        self._finish = np.full(count, np.nan)
        self._batches: list[Ran] = []
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._epoch = 0.0

    async def run(self) -> Outcome:
        self._epoch = self._loop.time() + _LEAD_S
        self._timer = self._loop.call_at(self._epoch + self._arrivals.next_at, self._step)
        stop = self._loop.call_at(self._epoch + self._end_s, self._finish_run, None)
        try:
            await self._ended
        finally:
            stop.cancel()
            self._timer.cancel()
        stream, feed = self._requests.stream, self._feed
        busy_s = sum(batch.measured_s for batch in self._batches)
        return Outcome(
            stream.arrival,
            self._start,
            self._finish,
            dict(feed.refused),
            tuple(self._batches),
            feed.scheduler_s,
            stream.num_bulk,
            busy_s,
        )

    def _step(self) -> None:
        """Take in what has come, give the lanes what they can take, and see when to look again."""
        if self._ended.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time() - self._epoch
        if jobs := self._arrivals.take(now, self._feed.scheduler.num_queued):
            self._feed.add(jobs, now)
        while (work := self._feed.take(now)) is not None:
            self._submit(work, now)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        feed = self._feed
        moments = [] if feed.wake_at is None else [feed.wake_at]
        arrival = self._arrivals.next_at
        if arrival < math.inf:
            moments.append(max(arrival, now + LOOK_S) if feed.is_busy else arrival)
        elif feed.num_unfinished == 0 and feed.scheduler.num_queued == 0:
            self._finish_run(None)
        if moments:
            self._timer = self._loop.call_at(self._epoch + min(moments), self._step)

    def _submit(self, work: Work, now: float) -> None:
        ids = np.array(work.batch.ids)
        lengths = self._lengths[ids]
        if work.started is not None:
            self._start[ids] = now
        token_ids = self._requests.token_ids
        batch = packed_batch([token_ids[index] for index in work.batch.ids])
        future = self._lanes.submit(batch)
        future.add_done_callback(lambda done: self._on_done(work, ids, lengths, done))

    def _on_done(self, work: Work, ids: Lengths, lengths: Lengths, done: "asyncio.Future[BatchOutput]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if self._ended.done():  # by its time; what the lanes still had is failed by their end
            return
        if error is not None:
            self._finish_run(error)
            return
        now = self._loop.time() - self._epoch
        self._finish[ids] = now
        self._record(work, lengths, done.result().device_s, now)
        following = self._feed.done(work, now)
        if following is not None:
            self._start[list(following.batch.ids)] = now
        self._step()

    def _record(self, work: Work, lengths: Lengths, device_s: float, now: float) -> None:
        tokens, squares = int(lengths.sum()), int((lengths * lengths).sum())
        longest, count = int(lengths.max()), len(lengths)
        self._cost.observe(tokens, squares, longest, count, device_s)
        started = work.started if work.started is not None else 0.0
        sums = (count, tokens, squares, longest)
        self._batches.append(Ran(started, now, *sums, work.batch.predicted_s, device_s, work.trigger, work.partition))

    def _finish_run(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
