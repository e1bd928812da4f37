"""Compiled: which device each of the jobs that wait joins. Imported on first use, as joining.py."""

from penstock.scheduler.cellular.arrays import BULK, NONE, SLOTS
from penstock.scheduler.cellular.types import BoolArray, Int64Array


def place(
    columns: Int64Array, first: int, may_join: BoolArray, held: Int64Array, max_slots: float, most_bulk: float,
    devices: Int64Array,
) -> int:  # fmt: skip
    """Give each job from `first` on that may join to the device with the fewest slots held, until one finds no slots.

    columns [5, J]: ID, NUMBER, BULK, SLOTS, SIZE. may_join [N]. held [D, 2]: slots of each device that online and bulk
    jobs hold; those of the jobs that join are added. A bulk job joins where bulk jobs then hold `most_bulk` slots at
    most, or as the only one. Writes devices [N]: NONE for a job that may not join. Returns the number of jobs before
    the one that found no slots; N: none.
    """
    for row in range(len(may_join)):
        devices[row] = NONE
        if not may_join[row]:
            continue
        needed, group = columns[SLOTS, first + row], columns[BULK, first + row]
        device, total = 0, held[0, 0] + held[0, 1]
        for other in range(1, len(held)):
            if held[other, 0] + held[other, 1] < total:
                device, total = other, held[other, 0] + held[other, 1]
        bulk = held[device, 1]
        is_over_share = group and bulk > 0 and bulk + needed > most_bulk
        if total > 0 and (total + needed > max_slots or is_over_share):
            return row
        held[device, group] += needed
        devices[row] = device
    return len(may_join)
