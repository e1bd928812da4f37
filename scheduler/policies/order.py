"""Who is first: the place of a job in the queue, and of a batch among those of one plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.scheduler.queueing.block import Key, Waiting


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch in the making."""

    jobs: Sequence[Waiting]  # at least one
    seconds: float  # predicted


class OrderPolicy(Protocol):
    """Keeps nobody waiting for ever: among equals the job that came first is first."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        """Place of a job in the queue, ascending. `number` counts the jobs that came, so no two keys are equal."""
        ...

    def rank(self, draft: Draft) -> Key:
        """Place of a batch among those of one plan, ascending."""
        ...


class EarliestDeadline:
    """Earliest deadline first: meets all deadlines where that is possible with one lane and jobs of equal cost."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        return (deadline, arrival, number)

    def rank(self, draft: Draft) -> Key:
        return _first(draft)


class Arrival:
    """First come, first served."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        return (arrival, number)

    def rank(self, draft: Draft) -> Key:
        return _first(draft)


class CostFirst(Arrival):
    """Queued as they came; of a plan's batches, the cheapest per sequence is first.

    Smith's rule: the least mean completion time of the given batches on one lane.
    """

    def rank(self, draft: Draft) -> Key:
        return (draft.seconds / len(draft.jobs), *_first(draft))


def order_policy(name: str) -> OrderPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[OrderPolicy]] = {"edf": EarliestDeadline, "arrival": Arrival, "cost-first": CostFirst}
    if name not in policies:
        raise ValueError(f"order must be one of {', '.join(policies)}. Given: {name!r}")
    return policies[name]()


def _first(draft: Draft) -> Key:
    return min([job.key for job in draft.jobs])
