"""An event loop on a thread of its own, for callers that wait."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from penstock.producer.errors import ShuttingDown, WrongLoop

T = TypeVar("T")

_EXIT_S = 15.0  # longer than a client takes to close


def result_of(running: "Future[T]") -> T:
    """The result or the error of the work of `LoopThread.begin`. Raises ShuttingDown where `stop` has cancelled it."""
    try:
        return running.result()
    except CancelledError:
        raise ShuttingDown("The client was closed before the answer came.") from None


class LoopThread:
    """Runs coroutines for any thread. A daemon thread: an interpreter that exits does not wait for it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._is_open = True
        self._submitting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled when the caller is interrupted. Raises as `begin`."""
        running = self.begin(work)
        try:
            return result_of(running)
        except BaseException:
            running.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start `work`; returns the future of its result, for any thread.

        Raises:
            ShuttingDown: after `stop`.
            WrongLoop: on the thread of the loop, which would wait for itself, or in a forked process.
        """
        try:
            self._check()
            with self._submitting:
                if not self._is_open:
                    raise ShuttingDown("The client is closed.")
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something on the loop soon; not after `stop`."""
        with self._submitting:
            if self._is_open:
                self.loop.call_soon_threadsafe(call, *arguments)

    def stop(self, last: Coroutine[Any, Any, object]) -> None:
        """Run `last`, then cancel what is left and end the thread. Called once.

        Waits for it, but not on the thread itself, where a collected client is finalized; nor in a forked process.
        """
        if os.getpid() != self._pid:
            last.close()
            return
        with self._submitting:
            self._is_open = False
            ending = asyncio.run_coroutine_threadsafe(last, self.loop)
        ending.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        if threading.current_thread() is not self._thread:
            self._thread.join(_EXIT_S)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise WrongLoop("A SyncClient does not work after a fork. Make one in each process.")
        if threading.current_thread() is self._thread:
            raise WrongLoop("A SyncClient was called by its own callback, and would wait for itself without end.")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
