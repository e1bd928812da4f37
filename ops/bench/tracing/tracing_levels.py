"""How much a process traces: the levels that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One way to run a worker and a client."""

    is_installed: bool  # whether OpenTelemetry can be imported
    share: float | None  # of requests whose trace is recorded; None: no variable of OpenTelemetry is set


LEVELS: Mapping[str, Level] = {
    "OpenTelemetry is not installed": Level(False, None),
    "no variable set": Level(True, None),
    "one trace in a hundred": Level(True, 0.01),
    "every trace": Level(True, 1.0),
}
SIDES = ("worker", "client")
