"""The bench of a suite, which its parts share in the process that measures them, and the deadline of each."""

import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any


class DeadlinePassed(Exception):
    """A part exceeded its share of the run's time."""


class PartBench:
    """Parts run one after another. A suite's own has what its parts need, made from the options of the run."""

    again_s = 120.0  # after a deadline, until it is raised again: what was started is stopped meanwhile

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: by name, as the suite declares them."""
        self.options = options
        self.failures: dict[str, dict[str, Any]] = {}  # of one part: contestant -> first error, where, how often
        self.ends = math.inf  # of the part, by time.monotonic()

    def machine(self) -> dict[str, Any]:
        """Description of the device; empty for a CPU."""
        return {}

    def mode(self) -> AbstractContextManager[object]:
        """Surrounds each part."""
        return nullcontext()

    def after(self) -> dict[str, Any]:
        """Facts that are kept with each part. Called when it has ended."""
        return {}

    def is_well(self) -> bool:
        """Whether another part can be measured in this process. Called when a part has ended."""
        return True

    def close(self) -> None:
        """Called once, after the last part."""

    @contextmanager
    def guarded(self, name: str, where: str) -> Iterator[None]:
        """Record the failure of one contestant; the others go on."""
        try:
            yield
        except DeadlinePassed:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:600]
            known = self.failures.setdefault(name, {"error": told, "where": where, "count": 0})
            known["count"] += 1


@contextmanager
def deadline(seconds: float, again_s: float) -> Iterator[None]:
    """Raises DeadlinePassed in the main thread after `seconds`, and again every `again_s`, between Python instructions.

    Again, because a library may have swallowed it.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise DeadlinePassed(f"not finished after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
