"""The share of the time for which an engine that warms up may use a device from which other members serve."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class DeviceShare:
    """Rests after each piece of work, so that pieces take a part of the time."""

    def __init__(self, share: float = 1.0) -> None:
        """share: above 0; at 1, there is no rest."""
        self._rest = 1 / share - 1  # seconds for each second of work
        self.rested_s = 0.0

    @contextmanager
    def used(self) -> Iterator[None]:
        """A piece of work: a batch, or a launch that loads kernels."""
        started = time.perf_counter()
        yield
        rest_s = self._rest * (time.perf_counter() - started)
        if rest_s:
            time.sleep(rest_s)
            self.rested_s += rest_s
