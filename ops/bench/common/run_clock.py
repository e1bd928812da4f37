"""The time of a run: progress with seconds, and the limit at which it stops cleanly."""

import time
from collections.abc import Callable


class TimeUp(Exception):
    """Too little of the run's time is left for the next measurement."""


class RunClock:
    """Counts from its construction."""

    def __init__(self, limit_s: float, write: Callable[[str], None]) -> None:
        self._begun = time.monotonic()
        self._limit_s = limit_s
        self._write = write

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def left_s(self) -> float:
        return self._limit_s - self.elapsed_s

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self._write(f"[{self.elapsed_s:6.1f} s] {text}")

    def require(self, seconds: float, what: str) -> None:
        """Raises TimeUp unless so much time is left."""
        if self.left_s < seconds:
            raise TimeUp(f"{what} not begun: {max(0.0, self.left_s):.0f} s were left, and it takes {seconds:.0f}")
