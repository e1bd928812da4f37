"""Order policies, by name: the place of a job in the queue, and of a batch in its plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.scheduler.queueing.job_queue import QueuedJob


class Draft(NamedTuple):
    """A batch that is being planned."""

    jobs: Sequence[QueuedJob]  # at least one
    seconds: float  # predicted


class Order(NamedTuple):
    """Two places, ascending."""

    due: Callable[[float, float], float]  # of a job, from its deadline and arrival
    rank: Callable[[Draft], Any]  # of a batch among those of one plan


def _first_job(draft: Draft) -> QueuedJob:
    return min(draft.jobs)


def _seconds_per_job(draft: Draft) -> tuple[float, QueuedJob]:
    return draft.seconds / len(draft.jobs), min(draft.jobs)


ORDERS: Mapping[str, Order] = {
    # Earliest deadline first meets every deadline that can be met, with one lane and jobs of equal cost.
    "edf": Order(lambda deadline, arrival: deadline, _first_job),
    "arrival": Order(lambda deadline, arrival: arrival, _first_job),
    # Smith's rule: the least mean completion time of a plan's jobs.
    "cost-first": Order(lambda deadline, arrival: arrival, _seconds_per_job),
}
