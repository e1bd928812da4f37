"""The request to stop, and its reason; waiting for a broker no longer than until it comes."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

_ACCUMULATOR = "aiokafka/producer/message_accumulator.py"
_CANCEL_S = 5.0  # aiokafka may take long to give up a connection

log = structlog.get_logger("penstock.worker")

T = TypeVar("T")


class StopSignal:
    """Set once. Called on the worker's event loop only."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.asked_at: float | None = None  # monotonic seconds
        self.failure: BaseException | None = None  # why the worker must not answer anything more
        self.on_ask: Callable[[], object] = _nothing  # called once, at the first request
        self._waiting: asyncio.Task[Any] | None = None  # in `cut_short`

    def ask(self) -> None:
        """Ask the worker to stop; any number of times."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self.on_ask()
        self._event.set()
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            self._waiting.cancel()
            self._waiting = None

    def fail(self, error: BaseException) -> None:
        """Stop without answering what is left: other workers read it again."""
        self.failure = error
        self.ask()

    def is_set(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._event.is_set()

    async def unless_stopped(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Run a call that may wait for a broker without end. Returns None if the stop comes first: it is cancelled."""
        task = asyncio.create_task(call)
        stop = asyncio.create_task(self._event.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCEL_S)
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, or asyncio warns of it
        return None

    async def cut_short(self, wait: Awaitable[None]) -> None:
        """Await what ends as soon as it is cancelled, at the longest until the stop. One task at a time calls this.

        It costs less than `unless_stopped`.
        """
        self._waiting = task = asyncio.current_task()
        try:
            await wait
        except asyncio.CancelledError:
            if self._waiting is not None or task is None:
                raise  # the task itself was cancelled
            task.uncancel()
        finally:
            self._waiting = None

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's exception handler. A failed callback may strand a record, so the worker fails."""
        error = context.get("exception") or RuntimeError(context.get("message"))
        # Not a callback is a library's forgotten future or connection, which holds no record.
        if "handle" not in context or _is_double_removal(error):
            log.warning("library_noise", message=context.get("message"), error=repr(error))
            return
        log.error("callback_failed", error=repr(error), note="This is a bug.", exc_info=error)
        self.fail(error)


def watched(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start a task whose exception reaches `on_loop_error`."""
    task = asyncio.create_task(work)
    task.add_done_callback(_raise_failure)
    return task


def _nothing() -> None: ...


def _is_double_removal(error: BaseException) -> bool:
    """Whether aiokafka's producer has removed a batch twice, as it does when the batch fails between two attempts.

    The batch itself has ended with its error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, KeyError) and bool(frames) and frames[-1].filename.endswith(_ACCUMULATOR)


def _raise_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.result()
