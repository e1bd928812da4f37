"""Notices a turn of a step runner that does not end: the engine hangs, and the worker must leave its work to others."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.worker.batching import watchdog

_EVERY_S = 1.0


class Turns(Protocol):
    """The part of `StepThread` that is watched."""

    num_turns: int
    is_running: bool

    @property
    def predicted_s(self) -> float: ...


class StepWatchdog:
    """Compares how long a turn has run with max(`HANG_S`, 20 times its predicted time), as `BatchWatchdog` does.

    Time in which the event loop itself stood still, as in a suspended process, does not count.
    """

    def __init__(self, thread: Turns, clock: Callable[[], float], hung: Callable[[watchdog.EngineHung], None]) -> None:
        """`hung` is called once, on the event loop."""
        self._thread = thread
        self._clock = clock
        self._hung = hung
        self._looked_at = clock()
        self._turn = -1
        self._run_s = 0.0

    async def run(self) -> None:
        """Look once a second, until a turn hangs or the task is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self.look():
                return

    def look(self) -> bool:
        """Whether a turn hangs: then `hung` was called."""
        now = self._clock()
        passed_s = min(now - self._looked_at, 2 * _EVERY_S)
        self._looked_at = now
        is_same = self._thread.is_running and self._thread.num_turns == self._turn
        self._run_s = self._run_s + passed_s if is_same else 0.0
        self._turn = self._thread.num_turns
        predicted_s = self._thread.predicted_s
        if self._run_s <= max(watchdog.HANG_S, watchdog.HANG_FACTOR * predicted_s):
            return False
        predicted = f"predicted: {predicted_s:.3g} s"
        self._hung(watchdog.EngineHung(f"A turn of steps runs since {self._run_s:.0f} s; {predicted}."))
        return True
