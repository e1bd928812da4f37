"""When to run: the two strategies of TurboTransformers section 5. Each rule is a moment; it fires once that is past."""

from dataclasses import dataclass
from typing import Protocol

from penstock.scheduler.queue import QueueSummary
from penstock.scheduler.types import Trigger


class TriggerPolicy(Protocol):
    """Asked by the scheduler when the engine is idle and at least one job waits."""

    def decide(self, queue: QueueSummary, now: float, predicted_run_s: float) -> Trigger | float:
        """The rule that fires now, or the moment (> now) at which one will, if no job comes or leaves before.

        `predicted_run_s` is the run time of all waiting jobs as one batch.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hungry:
    """Never let the engine wait."""

    def decide(self, queue: QueueSummary, now: float, predicted_run_s: float) -> Trigger | float:
        return Trigger.HUNGRY


@dataclass(frozen=True, slots=True)
class Lazy:
    """Wait for batch mates, but no longer than `max_wait_s`, than a full batch takes to gather, or than the SLO allows.

    Half-SLO: a batch starts when the oldest job's age plus the predicted run reach half of `slo_s`. A deadline is an
    SLO of the job's own, deadline - arrival, with the same rule; the strictest of all waiting jobs counts.
    """

    max_wait_s: float
    max_batch_sequences: int
    max_batch_tokens: int
    slo_s: float

    def decide(self, queue: QueueSummary, now: float, predicted_run_s: float) -> Trigger | float:
        if queue.num_jobs >= self.max_batch_sequences or queue.tokens >= self.max_batch_tokens:
            return Trigger.MAX_BATCH
        # Compared as moments, not as ages: the very number given out as the wake time must fire when it comes.
        timeout_at = queue.oldest_arrival + self.max_wait_s
        half_slo_at = min(queue.oldest_arrival + self.slo_s / 2, queue.half_deadline) - predicted_run_s
        if now >= min(timeout_at, half_slo_at):
            return Trigger.TIMEOUT if timeout_at <= half_slo_at else Trigger.HALF_SLO
        return min(timeout_at, half_slo_at)
