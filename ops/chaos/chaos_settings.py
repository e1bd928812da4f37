"""Options of a run against a fleet with faults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.ops.chaos.faults.faults import OF_LOADS


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """Options of a run. Equal settings inject the same faults and send the same requests."""

    seed: int = 1
    minutes: float = 10.0  # at most, until the load ends
    requests: int | None = None  # the load ends when brokers have taken as many plain records
    min_moments: int = 0  # of faults, before the load ends by either bound
    processes: int = 2
    rate: float = 200.0  # plain records a second
    callers: int = 8
    partitions: int = 6
    load: Literal["requests", "routes"] = "requests"
    kinds: Sequence[str] = ()  # of faults; none: all of the load
    most_at_once: int = 3
    gap_s: tuple[float, float] = (4.0, 10.0)  # between two moments of faults
    outage_s: float = 20.0
    leaderless_s: float = 60.0
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"

    @property
    def injected(self) -> Sequence[str]:
        """Kinds of faults that are injected."""
        return self.kinds or OF_LOADS[self.load]
