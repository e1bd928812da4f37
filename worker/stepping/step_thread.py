"""The thread that owns a step runner: jobs in between two quanta, events out through the event loop."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import structlog

from penstock.scheduler.types import RejectedJob
from penstock.worker.batching.flights import Flight
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.batching.watchdog import WorkUnderway
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stepping.contract import StepJob, StepRunner

log = structlog.get_logger("penstock.worker")


class _Cancel(NamedTuple):
    ids: Sequence[int]


class _Add(NamedTuple):
    jobs: Sequence[StepJob]


_Order = _Add | _Cancel | None  # None: stop


class StepThread:
    """Implements `JobRunner`: advances a step runner while it has jobs, and rejects none at once.

    Callbacks are set by `start`, once. Until then no job is added.
    """

    by_step = True

    def __init__(self, runner: StepRunner, work_of: Callable[[SequenceBlock], object]) -> None:
        """`work_of` makes the runner's input for a sequence."""
        self._runner = runner
        self._work_of = work_of
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        # A turn is a piece of the runner's work: a step, jobs that come or leave, or idle work.
        self.num_turns = 0  # that have ended
        self.is_running = False  # whether one is under way
        self.idle_since = time.monotonic()

    def start(self, events: Callable[[JobEvents], None], failed: Callable[[BaseException], None]) -> None:
        """Begin. Both callbacks run on the event loop of the caller.

        Args:
            events: after each turn.
            failed: the runner has raised. The thread has ended.
        """
        self._loop = asyncio.get_running_loop()
        self._events, self._failed = events, failed
        self._thread.start()

    def put(self, jobs: Sequence[StepJob]) -> None:
        """Hand jobs to the runner before its next turn."""
        self._orders.put(_Add(jobs))

    def add(self, flights: Sequence[Flight]) -> Sequence[RejectedJob]:
        """See `JobRunner`. The step runner rejects what it does not admit by an event."""
        jobs = [self._job(flight) for flight in flights]
        if replaced := [flight.former.job_id for flight in flights if flight.former is not None]:
            self.cancel(replaced)
        self.put(jobs)
        return ()

    def cancel(self, ids: Sequence[int]) -> None:
        """See `JobRunner`. They leave before the next turn."""
        self._orders.put(_Cancel(ids))

    def advance(self) -> None:
        """See `JobRunner`. The thread begins what it can by itself."""

    def drain(self) -> None:
        """See `JobRunner`. No step waits for more jobs."""

    def resume(self) -> None:
        """See `JobRunner`."""

    def running(self) -> list[WorkUnderway]:
        """See `JobRunner`: the turn under way, if there is one."""
        return [WorkUnderway(self.num_turns, "A turn of steps", self._runner.predicted_s)] if self.is_running else []

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """See `JobRunner`. The turn that is under way ends. Idempotent."""
        self._stopped = True
        self._orders.put(None)

    async def close(self, timeout_s: float) -> bool:
        """End after the turn that is under way. False if it still runs after `timeout_s`. Idempotent."""
        self.stop()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _job(self, flight: Flight) -> StepJob:
        leader = flight.leader
        request = leader.request
        return StepJob(flight.job_id, self._work_of(leader), flight.arrival, request.deadline, request.bulk)

    def _run(self) -> None:
        try:
            while self._take_orders() and not self._stopped:
                with self._turn():
                    events = self._runner.advance(time.monotonic())
                self.idle_since = time.monotonic()
                self._tell(self._events, events)
        except BaseException as error:
            self._tell(self._failed, error)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """A piece of work of the runner, which the watchdog watches."""
        self.is_running = True
        try:
            yield
        finally:
            self.num_turns += 1
            self.is_running = False

    def _take_orders(self) -> bool:
        """Hand over what has come, and jobs together. Waits while the runner has no job. Returns false at the end."""
        jobs: list[StepJob] = []
        while True:
            try:
                order = self._orders.get(block=not jobs and self._runner.is_idle and self._is_rested())
            except Empty:
                self._add(jobs)
                return True
            match order:
                case None:
                    return False
                case _Add(more):
                    jobs += more
                case _Cancel(ids):
                    self._add(jobs)
                    jobs = []
                    with self._turn():
                        self._runner.cancel(ids)

    def _add(self, jobs: Sequence[StepJob]) -> None:
        if jobs:
            with self._turn():
                self._runner.add(jobs)

    def _is_rested(self) -> bool:
        """Let the runner do its idle work until an order comes, or no work is left. Returns whether none is left."""
        while self._orders.empty():
            try:
                with self._turn():
                    is_rested = not self._runner.idle()
                if is_rested:
                    return True
            except Exception as error:
                log.warning("idle_work_failed", error=repr(error))
                return True
        return False

    def _tell(self, callback: Callable[[Any], None], what: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for it
                self._loop.call_soon_threadsafe(callback, what)
