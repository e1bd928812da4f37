"""The slots of a pool that a request needs."""

from typing import NamedTuple

import numpy as np

from penstock.engine.cells.contract import Int32Array


class SlotPlan(NamedTuple):
    """Which slots a request's nodes use, numbered from 0; chosen so that the request never waits for a slot.

    A node writes the slot of a node that it reads where it is the only reader, else a slot of its own.
    """

    slots: Int32Array  # [N] written
    spare: Int32Array  # [N, arity] slots that are read and not written: a reference each, until the node has read
    is_last: Int32Array  # [N] whether no node reads it: it holds a reference until it ends
    references: Int32Array  # of each slot

    @property
    def num_slots(self) -> int:
        """Slots that the request acquires at once."""
        return len(self.references)


def plan_slots(node_reads: Int32Array) -> SlotPlan:
    """The slots of a graph with these reads [N, arity], by one pass in its order."""
    reads = node_reads.tolist()
    num_readers = [0] * len(reads)
    for row in reads:
        for read in row:
            if read >= 0:
                num_readers[read] += 1
    slots, spares, references = list[int](), list[list[int]](), list[int]()
    for row, count in zip(reads, num_readers, strict=True):
        own, spare = -1, [-1] * len(row)
        for column, read in enumerate(row):
            if read >= 0 and own < 0 and num_readers[read] == 1:
                own = slots[read]
            elif read >= 0:
                spare[column] = slots[read]
                references[slots[read]] += 1
        if own < 0:
            own = len(references)
            references.append(0)
        references[own] += count == 0
        slots.append(own)
        spares.append(spare)
    is_last = [count == 0 for count in num_readers]
    # As arrays: requests that wait keep their plans, and lists take eight times the memory.
    return SlotPlan(*[np.array(values, np.int32) for values in (slots, spares, is_last, references)])
