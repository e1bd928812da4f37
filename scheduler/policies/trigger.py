"""When to run: the two strategies of TurboTransformers section 5. Each rule is a moment; it fires once that is past."""

from dataclasses import dataclass
from typing import Protocol

from penstock.scheduler.types import Trigger


class Outlook(Protocol):
    """What a trigger may know of the online jobs that wait, of which there is one at least."""

    @property
    def is_full(self) -> bool:
        """Whether they fill a batch, by count, tokens or predicted seconds."""
        ...

    @property
    def oldest_arrival(self) -> float: ...

    @property
    def half_slo_at(self) -> float:
        """Earliest moment at which a job has used half of its SLO, deadline - arrival; inf: none has a deadline."""
        ...

    @property
    def run_s(self) -> float:
        """Predicted run time of all of them as one batch."""
        ...


class TriggerPolicy(Protocol):
    """Asked by the scheduler when a lane is idle and at least one online job waits."""

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        """The rule that fires now, or the moment (> now) at which one will, if no job comes or leaves before."""
        ...


class Hungry:
    """Never let the engine wait."""

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        return Trigger.HUNGRY


@dataclass(frozen=True, slots=True)
class Lazy:
    """Wait for batch mates, but no longer than `max_wait_s`, than a full batch takes to gather, or than an SLO allows.

    Half-SLO: a batch starts when a job's age plus the predicted run reach half of its SLO.
    """

    max_wait_s: float

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        if outlook.is_full:
            return Trigger.MAX_BATCH
        # Compared as moments, not as ages: the very number given out as the wake time must fire when it comes.
        timeout_at = outlook.oldest_arrival + self.max_wait_s
        half_slo_at = outlook.half_slo_at - outlook.run_s
        if now >= min(timeout_at, half_slo_at):
            return Trigger.TIMEOUT if timeout_at <= half_slo_at else Trigger.HALF_SLO
        return min(timeout_at, half_slo_at)


def trigger_policy(name: str, max_wait_s: float) -> TriggerPolicy:
    """The policy of that name. ValueError when there is none."""
    if name == "hungry":
        return Hungry()
    if name == "lazy":
        return Lazy(max_wait_s)
    raise ValueError(f"trigger must be one of lazy, hungry. Given: {name!r}")
