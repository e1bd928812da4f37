"""Threads that run an engine: batches in through a queue, results out through the event loop."""

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

import structlog

from penstock.engine.errors import EngineError, LanesClosed
from penstock.engine.types import BatchOutput, Engine, PackedBatch, PipelinedEngine, Running

_MAX_UNDERWAY = 2  # batches on a device: one that it computes, and the next

log = structlog.get_logger("penstock.engine")


class _Work(NamedTuple):
    batch: PackedBatch
    future: asyncio.Future[BatchOutput]


class _BatchEnded:
    """Wakes a pipelined lane, which may have nothing underway now."""


_Queue = SimpleQueue[_Work | _BatchEnded | None]  # None: stop
_Underway = SimpleQueue[tuple[_Work, Running] | None]


class EngineLanes:
    """`num_lanes` threads over one engine; each runs one batch at a time, taken from a common queue.

    A pipelined engine has one lane, of two threads. Every future is completed, whatever the engine raises. Close it: an
    unclosed one warns when collected.
    """

    def __init__(self, engine: Engine, num_lanes: int = 1) -> None:
        if num_lanes < 1:
            raise ValueError(f"num_lanes must be at least 1, not {num_lanes}.")
        run_lane: Callable[[_Queue], None] = partial(_run_batches, engine)
        if isinstance(engine, PipelinedEngine):
            if num_lanes > 1:
                raise ValueError(f"an engine that queues batches on its device has one lane, not {num_lanes}.")
            run_lane = partial(_pipeline_batches, engine)
        self.dtype = engine.info.dtype  # the arithmetic's precision
        self._queue: _Queue = SimpleQueue()
        self._closed = False
        self._num_unfinished = 0
        self._idle_since = time.monotonic()
        # The threads hold the queue and the engine but not this object, so that it can be collected.
        self._threads = [
            threading.Thread(target=run_lane, args=(self._queue,), name=f"engine-lane-{i}", daemon=True)
            for i in range(num_lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_lanes(self) -> int:
        return len(self._threads)

    @property
    def idle_s(self) -> float | None:
        """Seconds since the last batch ended; None while one is queued or runs. Read on the event loop."""
        return None if self._num_unfinished else time.monotonic() - self._idle_since

    def submit(self, batch: PackedBatch) -> asyncio.Future[BatchOutput]:
        """Queue a batch. Called on the event loop. The queue is unbounded: the caller limits what it submits.

        The future raises what the engine raised, or LanesClosed. Raises LanesClosed at once after `close`.
        """
        if self._closed:
            raise LanesClosed("the engine lanes are closed; the batch was not computed.")
        future: asyncio.Future[BatchOutput] = asyncio.get_running_loop().create_future()
        self._num_unfinished += 1
        future.add_done_callback(self._note_end)
        self._queue.put(_Work(batch, future))
        return future

    def _note_end(self, _: asyncio.Future[BatchOutput]) -> None:
        self._num_unfinished -= 1
        self._idle_since = time.monotonic()

    async def close(self, timeout_s: float = 5.0) -> bool:
        """Fail queued batches with LanesClosed, and wait for those that already run. Idempotent.

        False if a batch still runs after `timeout_s`. Its future is not completed, and its thread cannot be ended.
        """
        if not self._closed:
            self._closed = True
            self._fail_queued()
            self._stop()
        return await asyncio.to_thread(self._join, time.monotonic() + timeout_s)

    def _join(self, until: float) -> bool:
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _fail_queued(self) -> None:
        while True:
            try:
                work = self._queue.get_nowait()
            except Empty:
                return
            if isinstance(work, _Work):
                _complete(work.future, LanesClosed("the engine lanes were closed before this batch was computed."))

    def _stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                "EngineLanes was never closed; its threads are being stopped.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._stop()


def _run_batches(engine: Engine, queue: _Queue) -> None:
    while isinstance(work := queue.get(), _Work):
        if not work.future.cancelled():
            _report(work, partial(engine.run, work.batch))
        del work  # otherwise its arrays live until the next batch


def _pipeline_batches(engine: PipelinedEngine, queue: _Queue) -> None:
    """Start batches on the device, the next one while the last is computed; a second thread waits for their results.

    A thread cannot wait for the device and for the queue at once. A callback on the stream (cudaLaunchHostFunc) would
    need the GIL while the device waits for it; the second thread sleeps in the driver, without the GIL.
    """
    underway: _Underway = SimpleQueue()
    room = threading.Semaphore(_MAX_UNDERWAY)
    waiter = threading.Thread(target=_await_results, args=(underway, room, queue), name="engine-results", daemon=True)
    waiter.start()
    while room.acquire() and (work := _next_work(engine, queue, room)) is not None:
        try:
            underway.put((work, engine.start(work.batch)))
        except BaseException as error:
            _report(work, partial(_raise, error))
            room.release()
        del work
    underway.put(None)
    waiter.join()


def _next_work(engine: PipelinedEngine, queue: _Queue, room: threading.Semaphore) -> _Work | None:
    """The next batch to start, or None to stop. The engine does its idle work while no batch is queued or underway.

    room: the caller has acquired the place of the next batch.
    """
    while True:
        wait_s: float | None = None
        if queue.empty() and room.acquire(blocking=False):  # the other place: nothing is underway
            wait_s = _idle(engine)
            room.release()
        with contextlib.suppress(Empty):
            work = queue.get(timeout=wait_s)
            if work is None:
                return None
            if isinstance(work, _Work) and not work.future.cancelled():
                return work


def _idle(engine: PipelinedEngine) -> float | None:
    try:
        wait_s = engine.idle()
    except BaseException as error:
        log.warning("idle_work_failed", error=repr(error))
        return None
    return None if wait_s is None else max(0.0, wait_s)


def _await_results(underway: _Underway, room: threading.Semaphore, queue: _Queue) -> None:
    """Complete the futures of started batches, in their order."""
    while (started := underway.get()) is not None:
        work, running = started
        _report(work, running.result)
        del started, work, running
        room.release()
        queue.put(_BatchEnded())


def _raise(error: BaseException) -> BatchOutput:
    raise error


def _report(work: _Work, compute: Callable[[], BatchOutput]) -> None:
    """Complete the future with what `compute` returns or raises, so that no error ends a lane."""
    result: BatchOutput | Exception
    try:
        result = compute()
    except Exception as error:
        result = error
    except BaseException as error:
        result = EngineError(f"the engine raised {error!r}")
        result.__cause__ = error
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the future
        work.future.get_loop().call_soon_threadsafe(_complete, work.future, result)


def _complete(future: asyncio.Future[BatchOutput], result: BatchOutput | Exception) -> None:
    if future.done():
        return
    if isinstance(result, StopIteration):  # a future refuses to carry it
        future.set_exception(EngineError(f"the engine raised {result!r}"))
    elif isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
