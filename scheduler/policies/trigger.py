"""Trigger policies: when to run a plan (TurboTransformers section 5). A rule gives a time and fires after it."""

from dataclasses import dataclass
from typing import Protocol

from penstock.scheduler.types import Trigger


class Outlook(Protocol):
    """The figures of the online queue, which holds at least one job."""

    @property
    def is_full(self) -> bool: ...  # the jobs fill a batch, by count, tokens or predicted seconds

    @property
    def oldest_arrival(self) -> float: ...

    @property
    def half_slo_at(self) -> float: ...  # earliest moment at which a job has used half of its SLO; inf: no deadline

    @property
    def run_s(self) -> float: ...  # predicted seconds of all jobs as one batch


class TriggerPolicy(Protocol):
    """Asked by the scheduler when a lane is idle and at least one online job is queued."""

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        """The rule that fires now, or the moment (> now) at which one will, if no job comes or leaves before."""
        ...


class Hungry:
    """Runs queued jobs whenever a lane is idle."""

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        return Trigger.HUNGRY


@dataclass(frozen=True, slots=True)
class Lazy:
    """Runs a full batch at once, and an underfull one after `max_wait_s` or when an SLO allows no longer wait.

    Half-SLO: a batch starts when a job's age plus the predicted run reach half of its SLO.
    """

    max_wait_s: float

    def decide(self, outlook: Outlook, now: float) -> Trigger | float:
        if outlook.is_full:
            return Trigger.MAX_BATCH
        # Compared as moments, not as ages: the rule must fire at the very number given out as the wake time.
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
