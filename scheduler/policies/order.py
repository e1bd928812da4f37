"""Order policies, by name: the place of a job in the queue, and of a batch in its plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Draft(NamedTuple):
    """A batch that is being planned: its sequences by columns, at least one."""

    first: int  # place in the queue of the one that is due first
    ids: Sequence[int]
    lengths: Sequence[int]
    deadlines: Sequence[float]
    work_s: float
    seconds: float  # predicted


class Order(NamedTuple):
    """The queue is in order of deadlines or of arrivals, and the batches of one plan are in order of `rank`."""

    by_deadline: bool
    rank: Callable[[Draft], Any]


ORDERS: Mapping[str, Order] = {
    # Earliest deadline first meets every deadline that can be met, with one lane and jobs of equal cost.
    "edf": Order(True, lambda draft: draft.first),
    "arrival": Order(False, lambda draft: draft.first),
    # Smith's rule: the least mean completion time of a plan's sequences.
    "cost-first": Order(False, lambda draft: (draft.seconds / len(draft.ids), draft.first)),
}
