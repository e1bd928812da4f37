"""The host's own seconds between two results, for quanta that hide them."""

from collections.abc import Callable


class HostTime:
    """Used by the runner's thread."""

    def __init__(self, clock: Callable[[], float], start_computes: bool) -> None:
        """start_computes: an engine's `start` is the device's work, as on a CPU. Else it is the host's."""
        self._clock = clock
        self._start_computes = start_computes
        self._result_at: float | None = None  # when the last result came; None: there was nothing to do since
        self._starting_s = 0.0  # of the engines' `start` since then, where it computes

    def now(self) -> float:
        """The clock's seconds."""
        return self._clock()

    def started(self, began: float) -> None:
        """An engine's `start` has run since then."""
        if self._start_computes:
            self._starting_s += self._clock() - began

    def take(self) -> float:
        """Seconds since the last result, without those of the device's work; 0 where there was nothing to do."""
        own_s = 0.0 if self._result_at is None else self._clock() - self._result_at - self._starting_s
        self._starting_s = 0.0
        return own_s

    def came(self) -> None:
        """A result has come."""
        self._result_at = self._clock()

    def rest(self) -> None:
        """There is nothing to do."""
        self._result_at = None
