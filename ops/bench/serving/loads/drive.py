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


def random_ids(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Sequences of these lengths, of random token ids."""
    ends = np.cumsum(lengths)
    ids = np.random.default_rng(seed).integers(0, vocab_size, int(ends[-1]), dtype=np.int32)
    return np.split(ids, ends[:-1])


def drive(
    stream: Stream,
    token_ids: Sequence[Int32Array],
    driver: MeasuredDriver,
    engine: Engine,
    cost: LearnedCost,
    *,
    grace_s: float,
) -> Outcome:
    """Run one load. `token_ids`: one a request, as long as its length in the stream.

    Requests not answered `grace_s` after the last arrival stay unanswered. Raises the engine's errors.
    """

    async def run() -> Outcome:
        lanes = EngineLanes(engine, driver.num_lanes)
        gc.collect()
        gc.disable()  # a collection would pause the load generator, which a worker does not have
        try:
            return await _Drive(stream, token_ids, driver, lanes, cost).run(grace_s)
        finally:
            gc.enable()
            await lanes.close()

    # select() waits to the microsecond; epoll, and uvloop's timers, to the millisecond, which is a batch on a GPU.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(run())


class _Drive:
    """The state of one run; everything happens on its event loop."""

    def __init__(
        self,
        stream: Stream,
        token_ids: Sequence[Int32Array],
        driver: MeasuredDriver,
        lanes: EngineLanes,
        cost: LearnedCost,
    ) -> None:
        count = len(token_ids)
        self._stream = stream
        self._token_ids = token_ids
        self._driver = driver
        self._lanes = lanes
        self._cost = cost
        self._arrivals = Arrivals(stream, chunk=count)
        self._start = np.full(count, np.nan)
        self._finish = np.full(count, np.nan)
        self._batches: list[Ran] = []
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._epoch = 0.0

    async def run(self, grace_s: float) -> Outcome:
        self._epoch = self._loop.time() + _LEAD_S
        self._timer = self._loop.call_at(self._epoch + self._arrivals.next_at, self._step)
        end_s = float(self._stream.arrival[-1]) + grace_s
        stop = self._loop.call_at(self._epoch + end_s, self._finish_run, None)
        try:
            await self._ended
        finally:
            stop.cancel()
            self._timer.cancel()
        stream, driver = self._stream, self._driver
        refused, batches = dict(driver.rejected), tuple(self._batches)
        return Outcome(stream.arrival, self._start, self._finish, refused, batches, driver.scheduler_s, stream.num_bulk)

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
        if batch.started is not None:
            self._start[list(batch.ids)] = now
        sequences = [self._token_ids[index] for index in batch.ids]
        future = self._lanes.submit(PackedBatch.of(sequences, [_OPTIONS] * len(sequences)))
        future.add_done_callback(lambda done: self._on_done(batch, done))

    def _on_done(self, batch: LaneBatch, done: "asyncio.Future[BatchOutput]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if self._ended.done():  # the run is over: batches fail because their lanes are closed
            return
        if error is not None:
            self._finish_run(error)
            return
        now = self._loop.time() - self._epoch
        self._finish[list(batch.ids)] = now
        self._record(batch, done.result().device_s)
        following = self._driver.finish(batch, now)
        if following is not None:
            self._start[list(following.ids)] = now
        self._step()

    def _record(self, batch: LaneBatch, device_s: float) -> None:
        lengths = self._stream.lengths[list(batch.ids)]
        tokens, count = int(lengths.sum()), len(lengths)
        self._cost.observe(tokens, int((lengths * lengths).sum()), int(lengths.max()), count, device_s)
        self._batches.append(Ran(batch.started or 0.0, count, tokens, batch.predicted_s, device_s))

    def _finish_run(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
