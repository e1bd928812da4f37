"""Threads that own the engine: batches in through a queue, results out through the event loop."""

import asyncio
import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, runtime_checkable

from penstock.engine.errors import EngineError, LanesClosed
from penstock.engine.types import BatchOutput, Engine, PackedBatch, PipelinedEngine, Running


class _Work(NamedTuple):
    batch: PackedBatch
    future: asyncio.Future[BatchOutput]


_Queue = SimpleQueue[_Work | None]

_LOOK_S = 0.0002  # how often a lane that waits for the device looks for a batch to queue behind
_REST_S = 30.0  # how long a lane waits for a batch before its engine may give back what it does not need


@runtime_checkable
class _Resting(Protocol):
    """An engine that has something to do when nothing comes."""

    def rest(self) -> None:
        """Called by the thread that calls `start`, each _REST_S without a batch, with none underway. Raises nothing."""
        ...


class EngineLanes:
    """`num_lanes` threads over one engine; each runs one batch at a time, taken from a common queue.

    Every future is completed, whatever the engine does. Close it: an unclosed one warns when collected.
    """

    def __init__(self, engine: Engine, num_lanes: int = 1) -> None:
        if num_lanes < 1:
            raise ValueError(f"num_lanes must be at least 1, not {num_lanes}.")
        self._queue: _Queue = SimpleQueue()
        self._closed = False
        # The threads hold the queue and the engine but not this object, so that it can be collected.
        self._threads = [
            threading.Thread(target=_lane, args=(engine, self._queue), name=f"engine-lane-{i}", daemon=True)
            for i in range(num_lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_lanes(self) -> int:
        return len(self._threads)

    def submit(self, batch: PackedBatch) -> asyncio.Future[BatchOutput]:
        """Queue a batch. Called on the event loop. The queue is unbounded: the caller limits what it submits.

        The future raises what the engine raised, or LanesClosed. Raises LanesClosed at once after `close`.
        """
        if self._closed:
            raise LanesClosed("the engine lanes are closed; the batch was not computed.")
        future: asyncio.Future[BatchOutput] = asyncio.get_running_loop().create_future()
        self._queue.put(_Work(batch, future))
        return future

    async def close(self) -> None:
        """Fail what is queued with LanesClosed, and wait for the batches that already run. Idempotent."""
        if not self._closed:
            self._closed = True
            self._fail_queued()
            self._stop()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _fail_queued(self) -> None:
        while True:
            try:
                work = self._queue.get_nowait()
            except Empty:
                return
            if work is not None:
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


def _lane(engine: Engine, queue: _Queue) -> None:
    if isinstance(engine, PipelinedEngine):
        _pipeline(engine, queue)
        return
    while (work := queue.get()) is not None:
        if not work.future.cancelled():
            _report(work, partial(engine.run, work.batch))
        del work  # else the arrays live until the next batch comes


def _pipeline(engine: PipelinedEngine, queue: _Queue) -> None:
    """Two batches on the device: the next is queued while one is computed, and the device never waits for the host."""
    underway: deque[tuple[_Work, Running]] = deque()
    open_ = True
    while open_ or underway:
        if underway and (not open_ or len(underway) == 2 or underway[0][1].ready()):
            work, running = underway.popleft()
            _report(work, running.result)
            del work, running
            continue
        try:
            work_or_end = queue.get(timeout=_LOOK_S if underway else _REST_S)
        except Empty:
            if not underway and isinstance(engine, _Resting):
                engine.rest()
            continue
        if work_or_end is None:
            open_ = False
        elif not work_or_end.future.cancelled():
            _start(engine, work_or_end, underway)
        del work_or_end


def _start(engine: PipelinedEngine, work: _Work, underway: "deque[tuple[_Work, Running]]") -> None:
    try:
        underway.append((work, engine.start(work.batch)))
    except BaseException as error:
        _report(work, partial(_raise, error))


def _raise(error: BaseException) -> BatchOutput:
    raise error


def _report(work: _Work, compute: Callable[[], BatchOutput]) -> None:
    """Complete the future with what `compute` returns or raises: a lane never dies with a future in its hands."""
    result: BatchOutput | Exception
    try:
        result = compute()
    except Exception as error:
        result = error
    except BaseException as error:
        result = EngineError(f"the engine raised {error!r}")
        result.__cause__ = error
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody can be waiting
        work.future.get_loop().call_soon_threadsafe(_complete, work.future, result)


def _complete(future: asyncio.Future[BatchOutput], result: BatchOutput | Exception) -> None:
    if future.done():
        return
    if isinstance(result, StopIteration):  # which a future refuses to carry
        future.set_exception(EngineError(f"the engine raised {result!r}"))
    elif isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
