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


ORDERS: Mapping[str, Order] = {
    # Earliest deadline first meets every deadline that can be met, with one lane and jobs of equal cost.
    "edf": Order(True, lambda draft: min(draft.jobs)),
    "arrival": Order(False, lambda draft: min(draft.jobs)),
    # Smith's rule: the least mean completion time of a plan's jobs.
    "cost-first": Order(False, lambda draft: (draft.seconds / len(draft.jobs), min(draft.jobs))),
}
