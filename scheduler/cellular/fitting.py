"""Compiled: how many of the jobs that wait fit on a device. Imported on first use, as joining.py."""

from penstock.scheduler.cellular.arrays import SLOTS
from penstock.scheduler.cellular.types import Int64Array


def fit(
    columns: Int64Array, first: int, is_bulk: bool, online: int, bulk: int, max_slots: float, most_bulk: float
) -> tuple[int, int]:
    """Jobs from `first` on that join in their order until one finds no slots, and the slots that they need.

    columns [5, J]: ID, NUMBER, BULK, SLOTS, SIZE, all of one class. online, bulk: slots that are held. A bulk job joins
    where bulk jobs then hold `most_bulk` slots at most, or as the only one.
    """
    held, num_slots = online + bulk, 0
    for row in range(first, columns.shape[1]):
        needed = columns[SLOTS, row]
        ahead = bulk + num_slots
        is_over_share = is_bulk and ahead > 0 and ahead + needed > most_bulk
        if held + num_slots + needed > max_slots or is_over_share:
            return row - first, num_slots
        num_slots += needed
    return columns.shape[1] - first, num_slots
