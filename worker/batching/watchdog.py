"""Notices a batch that does not end: the engine or its device hangs, and the worker must leave its work to others."""

import asyncio
from collections.abc import Callable

from penstock.scheduler import LaneBatch, LaneDriver

HANG_S = 60.0  # at least; far beyond the slowest batch, compilation and a stall of the machine
HANG_FACTOR = 20.0  # times the predicted time of the batch
_EVERY_S = 1.0


class EngineHung(Exception):
    """A batch has not ended in time."""


class BatchWatchdog:
    """Compares how long each batch has run with max(`HANG_S`, 20 times its predicted time).

    Time in which the event loop itself stood still, as in a suspended process, does not count.
    """

    def __init__(self, driver: LaneDriver, clock: Callable[[], float], hung: Callable[[EngineHung], None]) -> None:
        """`hung` is called once, on the event loop."""
        self._driver = driver
        self._clock = clock
        self._hung = hung
        self._looked_at = clock()
        self._run_s: dict[LaneBatch, float] = {}

    async def run(self) -> None:
        """Look once a second, until a batch hangs or the task is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self.look():
                return

    def look(self) -> bool:
        """Whether a batch hangs: then `hung` was called."""
        now = self._clock()
        passed_s = min(now - self._looked_at, 2 * _EVERY_S)
        self._looked_at = now
        self._run_s = {batch: self._run_s.get(batch, -passed_s) + passed_s for batch in self._driver.running}
        for batch, run_s in self._run_s.items():
            if run_s > max(HANG_S, HANG_FACTOR * batch.predicted_s):
                predicted = f"predicted: {batch.predicted_s:.3g} s"
                self._hung(EngineHung(f"A batch of {len(batch.ids)} sequences runs since {run_s:.0f} s; {predicted}."))
                return True
        return False
