"""Order policies: the place of a job in the queue, and of a batch in its plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.scheduler.queueing.queued_job import Key, QueuedJob


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch that is being planned."""

    jobs: Sequence[QueuedJob]  # at least one
    seconds: float  # predicted

    @property
    def first_key(self) -> Key:
        """Key of the job that is due first."""
        return min([job.key for job in self.jobs])


class OrderPolicy(Protocol):
    """Sorts jobs and batches. Starves none: of equals the one that came first is first."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        """Place of a job in the queue, ascending. `number` counts the jobs, so that no two keys are equal."""
        ...

    def rank(self, draft: Draft) -> Key:
        """Place of a batch among those of one plan, ascending."""
        ...


class EarliestDeadline:
    """Earliest deadline first: meets every deadline that can be met, with one lane and jobs of equal cost."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        return (deadline, arrival, number)

    def rank(self, draft: Draft) -> Key:
        return draft.first_key


class Arrival:
    """First come, first served."""

    def key(self, deadline: float, arrival: float, number: int) -> Key:
        return (arrival, number)

    def rank(self, draft: Draft) -> Key:
        return draft.first_key


class CostFirst(Arrival):
    """Jobs by arrival; the batches of a plan by seconds per sequence (Smith's rule: least mean completion time)."""

    def rank(self, draft: Draft) -> Key:
        return (draft.seconds / len(draft.jobs), *draft.first_key)


def order_policy(name: str) -> OrderPolicy:
    """The policy of that name. ValueError when there is none."""
    policies: dict[str, type[OrderPolicy]] = {"edf": EarliestDeadline, "arrival": Arrival, "cost-first": CostFirst}
    if name not in policies:
        raise ValueError(f"order must be one of {', '.join(policies)}. Given: {name!r}")
    return policies[name]()
