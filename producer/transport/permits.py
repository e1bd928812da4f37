"""A bound on the records in flight."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.producer.errors import PenstockError


class Permits:
    """A number of permits, one for each record in flight. Records beyond it wait in order."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()

    def take(self) -> "Permit | None":
        """A permit; None if all are taken."""
        if not self._free:
            return None
        self._free -= 1
        return Permit(self)

    async def wait(self, deadline: float) -> "Permit":
        """A permit as soon as one is released. Raises the error of `refuse`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, deadline))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                self.release()  # it was this caller's turn
            raise
        return Permit(self)

    def release(self) -> None:
        """Give a permit to the first that waits, or keep it."""
        while self._waiting:
            turn, _ = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def refuse(self, deadline: float, make_error: Callable[[], PenstockError]) -> None:
        """End the waiting of records whose deadline is before this one."""
        for turn, own in self._waiting:
            if own < deadline and not turn.done():
                turn.set_exception(make_error())
        self._waiting = deque([waiting for waiting in self._waiting if not waiting[0].done()])


class Permit:
    """A permit for one record in flight. It is returned when the caller and the unsent record have both released it."""

    __slots__ = ("_num_holders", "_permits")

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self._num_holders = 1

    def retain(self) -> None:
        """Add a holder."""
        self._num_holders += 1

    def release(self) -> None:
        """Remove a holder. The last one returns the permit."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self._permits.release()
