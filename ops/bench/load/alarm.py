"""A wait that ends when it should: the timers of an event loop are up to 1 ms late, which calls would seem to take."""

import asyncio
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

# The least wait. Calls that are due within it are made together, as a busy service makes them: an alarm for each of
# 3,000 calls a second takes a third of a core.
_LEAST_S = 0.001


class Alarm:
    """A context manager on the event loop of the main thread. One at a time: it owns the process's interval timer."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, self._rung.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)

    async def until(self, moment: float) -> None:
        """Wait until the clock shows `moment`, but for at least 1 ms if it has not passed."""
        while (left_s := moment - self._clock()) > 0:
            self._rung.clear()
            signal.setitimer(signal.ITIMER_REAL, max(_LEAST_S, left_s))
            await self._rung.wait()
