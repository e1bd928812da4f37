"""Notices a batch that does not end: the engine or its device hangs, and the worker must leave its work to others."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from penstock.scheduler import LaneBatch, LaneDriver

HANG_S = 60.0  # at least; far beyond the slowest batch, compilation and a stall of the machine
HANG_FACTOR = 20.0  # times the predicted time of the work
_EVERY_S = 1.0


class EngineHung(Exception):
    """The engine has not finished some work in time."""


class Watchdog(ABC):
    """Compares how long work of the engine has run with max(`HANG_S`, 20 times its predicted time).

    Time in which the event loop itself stood still, as in a suspended process, does not count.
    """

    def __init__(self, clock: Callable[[], float], hung: Callable[[EngineHung], None]) -> None:
        """`hung` is called once, on the event loop."""
        self._clock = clock
        self._hung = hung
        self._looked_at = clock()

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
        for work, run_s, predicted_s in self._running(passed_s):
            if run_s > max(HANG_S, HANG_FACTOR * predicted_s):
                self._hung(EngineHung(f"{work} has run for {run_s:.0f} s; predicted: {predicted_s:.3g} s."))
                return True
        return False

    @abstractmethod
    def _running(self, passed_s: float) -> Iterable[tuple[str, float, float]]:
        """Work that runs, its seconds so far, and those predicted. `passed_s`: that count since the last call."""


class BatchWatchdog(Watchdog):
    """Watches each batch on the lanes."""

    def __init__(self, driver: LaneDriver, clock: Callable[[], float], hung: Callable[[EngineHung], None]) -> None:
        super().__init__(clock, hung)
        self._driver = driver
        self._run_s: dict[LaneBatch, float] = {}

    def _running(self, passed_s: float) -> Iterable[tuple[str, float, float]]:
        self._run_s = {batch: self._run_s.get(batch, -passed_s) + passed_s for batch in self._driver.running}
        for batch, run_s in self._run_s.items():
            yield f"A batch of {len(batch.ids)} sequences", run_s, batch.predicted_s
