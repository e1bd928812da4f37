"""A real run in process: requests arrive in real time at the product's lane driver and the engine's lanes.

The load generator shares the interpreter with the system under test, so it does little work per request: jobs exist
before the run begins. Latencies count from the scheduled arrival, so every latency includes the stalls that delay it,
those of the load generator too (no coordinated omission).
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
from penstock.ops.bench.serving.loads.measured_driver import ADMISSION_INTERVAL_S, MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome, Ran
from penstock.ops.bench.serving.loads.stream import Arrivals, Stream
from penstock.scheduler import LaneBatch, LearnedCost

_OPTIONS = TaskOptions("embed")
_LEAD_S = 0.01  # between the run's start and time 0 of the arrivals


@dataclass(frozen=True, slots=True)
class Requests:
    """The offered requests: when they arrive, and their token ids."""

    stream: Stream
    token_ids: Sequence[Int32Array]  # one a request, as long as its length in the stream


def random_ids(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Sequences of these lengths, of random token ids."""
    ends = np.cumsum(lengths)
    ids = np.random.default_rng(seed).integers(0, vocab_size, int(ends[-1]), dtype=np.int32)
    return np.split(ids, ends[:-1])


def packed_batch(sequences: Sequence[Int32Array]) -> PackedBatch:
    """Pack token ids as the worker does, to be embedded."""
    return PackedBatch.of(sequences, [_OPTIONS] * len(sequences))


def drive(requests: Requests, driver: MeasuredDriver, engine: Engine, cost: LearnedCost, *, grace_s: float) -> Outcome:
    """Run one load. Requests not answered `grace_s` after the last arrival stay unanswered.

    Raises the engine's errors.
    """
    # select() waits to the microsecond; epoll, and uvloop's timers, to the millisecond, which is a batch on a GPU.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(_drive(requests, driver, engine, cost, grace_s))


async def _drive(
    requests: Requests, driver: MeasuredDriver, engine: Engine, cost: LearnedCost, grace_s: float
) -> Outcome:
    lanes = EngineLanes(engine, driver.num_lanes)
    run = _Drive(requests, driver, lanes, cost, grace_s)
    gc.collect()
    gc.disable()  # a collection would pause the load generator, which a worker does not have
    try:
        return await run.run()
    finally:
        gc.enable()
        await lanes.close()


class _Drive:
    """The state of one run; everything happens on its event loop."""

    def __init__(
        self, requests: Requests, driver: MeasuredDriver, lanes: EngineLanes, cost: LearnedCost, grace_s: float
    ) -> None:
        count = len(requests.token_ids)
        self._requests = requests
        self._driver = driver
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
        stream, driver = self._requests.stream, self._driver
        busy_s = sum(batch.measured_s for batch in self._batches)
        return Outcome(
            stream.arrival,
            self._start,
            self._finish,
            dict(driver.rejected),
            tuple(self._batches),
            driver.scheduler_s,
            stream.num_bulk,
            busy_s,
        )

    def _step(self) -> None:
        """Add the requests that have arrived, hand batches to the lanes, and set the timer for the next step."""
        if self._ended.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time() - self._epoch
        if jobs := self._arrivals.take(now, self._driver.scheduler.num_queued):
            self._driver.add(jobs, now)
        dispatch = self._driver.dispatch(now)
        for batch in dispatch.start:
            self._submit(batch, now)
        self._set_timer(now, dispatch.wake_at)

    def _set_timer(self, now: float, wake_at: float | None) -> None:
        driver = self._driver
        moments = [] if wake_at is None else [wake_at]
        arrival = self._arrivals.next_at
        if arrival < math.inf:
            moments.append(max(arrival, now + ADMISSION_INTERVAL_S) if driver.is_busy else arrival)
        elif driver.num_unfinished == 0 and driver.scheduler.num_queued == 0:
            self._finish_run(None)
        if moments:
            self._timer = self._loop.call_at(self._epoch + min(moments), self._step)

    def _submit(self, batch: LaneBatch, now: float) -> None:
        ids = np.array(batch.ids)
        lengths = self._lengths[ids]
        if batch.started is not None:
            self._start[ids] = now
        token_ids = self._requests.token_ids
        future = self._lanes.submit(packed_batch([token_ids[index] for index in batch.ids]))
        future.add_done_callback(lambda done: self._on_done(batch, ids, lengths, done))

    def _on_done(self, batch: LaneBatch, ids: Lengths, lengths: Lengths, done: "asyncio.Future[BatchOutput]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if self._ended.done():  # the run is over: batches fail because their lanes are closed
            return
        if error is not None:
            self._finish_run(error)
            return
        now = self._loop.time() - self._epoch
        self._finish[ids] = now
        self._record(batch, lengths, done.result().device_s, now)
        following = self._driver.finish(batch, now)
        if following is not None:
            self._start[list(following.ids)] = now
        self._step()

    def _record(self, batch: LaneBatch, lengths: Lengths, device_s: float, now: float) -> None:
        tokens, squares = int(lengths.sum()), int((lengths * lengths).sum())
        longest, count = int(lengths.max()), len(lengths)
        self._cost.observe(tokens, squares, longest, count, device_s)
        started = batch.started if batch.started is not None else 0.0
        sums = (count, tokens, squares, longest)
        self._batches.append(Ran(started, now, *sums, batch.predicted_s, device_s, batch.trigger, batch.partition))

    def _finish_run(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
