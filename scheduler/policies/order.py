"""Order policies, by name: the place of a job in the queue, and of a batch in its plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.scheduler.queueing.job_queue import QueuedJob


class Draft(NamedTuple):
    """A batch that is being planned."""

    jobs: Sequence[QueuedJob]  # at least one
    seconds: float  # predicted


class Order(NamedTuple):
    """The queue is in order of deadlines or of arrivals, and the batches of one plan are in order of `rank`."""

    by_deadline: bool
    rank: Callable[[Draft], Any]


def _first_job(draft: Draft) -> QueuedJob:
    return min(draft.jobs)


def _seconds_per_job(draft: Draft) -> tuple[float, QueuedJob]:
    return draft.seconds / len(draft.jobs), min(draft.jobs)


ORDERS: Mapping[str, Order] = {
    # Earliest deadline first meets every deadline that can be met, with one lane and jobs of equal cost.
    "edf": Order(True, _first_job),
    "arrival": Order(False, _first_job),
    # Smith's rule: the least mean completion time of a plan's jobs.
    "cost-first": Order(False, _seconds_per_job),
}
