"""Trigger policies, by name: when to run a plan (TurboTransformers section 5)."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.scheduler.types import Trigger


class Outlook(NamedTuple):
    """Figures of the online queue, which holds at least one job. If it is full, the other figures are not used."""

    is_full: bool  # the jobs fill a batch, by count, tokens or predicted seconds
    oldest_arrival: float = math.inf
    half_slo_at: float = math.inf  # earliest moment at which a job has used half of its SLO; inf: no deadline
    run_s: float = 0.0  # predicted seconds of all jobs as one batch


# Asked when a lane is idle, with the moment and `max_wait_s`: the rule that fires now, or the later moment at which one
# will if no job comes or leaves before.
TriggerPolicy = Callable[[Outlook, float, float], Trigger | float]


def lazy(outlook: Outlook, now: float, max_wait_s: float) -> Trigger | float:
    """Run a full batch at once; else after `max_wait_s`, or when a job's age plus the run reach half of its SLO."""
    if outlook.is_full:
        return Trigger.MAX_BATCH
    # Compared as moments, not as ages: the rule must fire at the very number given out as the wake time.
    timeout_at = outlook.oldest_arrival + max_wait_s
    half_slo_at = outlook.half_slo_at - outlook.run_s
    if now >= min(timeout_at, half_slo_at):
        return Trigger.TIMEOUT if timeout_at <= half_slo_at else Trigger.HALF_SLO
    return min(timeout_at, half_slo_at)


TRIGGERS: Mapping[str, TriggerPolicy] = {
    "lazy": lazy,
    "hungry": lambda outlook, now, max_wait_s: Trigger.HUNGRY,  # whenever a lane is idle
}
