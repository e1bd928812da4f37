"""Notices work that does not end: the engine or its device hangs, and the worker must leave its work to others."""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

HANG_S = 60.0  # at least; far beyond the slowest batch, compilation and a stall of the machine
HANG_FACTOR = 20.0  # times the predicted time of the work
_EVERY_S = 1.0


class EngineHung(Exception):
    """The engine has not finished some work in time."""


class WorkUnderway(NamedTuple):
    """Work that the engine is at: a batch on a lane, or a turn of a step runner."""

    key: Hashable  # the same at each look while this work runs
    name: str  # the subject of a sentence
    predicted_s: float  # in all


class Watchdog:
    """Compares how long work of the engine has run with max(`HANG_S`, 20 times its predicted time).

    Time in which the event loop itself stood still, as in a suspended process, does not count.
    """

    def __init__(
        self,
        running: Callable[[], Iterable[WorkUnderway]],
        clock: Callable[[], float],
        hung: Callable[[EngineHung], None],
    ) -> None:
        """`running`: what runs now. `hung` is called once, on the event loop."""
        self._running = running
        self._clock = clock
        self._hung = hung
        self._looked_at = clock()
        self._run_s: dict[Hashable, float] = {}  # by key: since it was first seen

    async def run(self) -> None:
        """Look once a second, until work hangs or the task is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self.look():
                return

    def look(self) -> bool:
        """Whether work hangs: then `hung` was called."""
        now = self._clock()
        passed_s = min(now - self._looked_at, 2 * _EVERY_S)
        self._looked_at = now
        running = list(self._running())
        self._run_s = {work.key: self._run_s.get(work.key, -passed_s) + passed_s for work in running}
        for work in running:
            run_s = self._run_s[work.key]
            if run_s > max(HANG_S, HANG_FACTOR * work.predicted_s):
                self._hung(EngineHung(f"{work.name} has run for {run_s:.0f} s; predicted: {work.predicted_s:.3g} s."))
                return True
        return False
