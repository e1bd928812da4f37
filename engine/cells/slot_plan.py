"""The slots of a pool that a request needs."""

from typing import NamedTuple

from penstock.engine.cells.contract import Int32Array


class SlotPlan(NamedTuple):
    """Which slots a request's nodes use, numbered from 0; chosen so that the request never waits for a slot.

    A node writes the slot of a node that it reads where it is the only reader, else a slot of its own.
    """

    slots: list[int]  # [N] written
    spare: list[list[int]]  # [N, arity] slots that are read and not written: a reference each, until the node has read
    is_last: list[bool]  # [N] whether no node reads it: it holds a reference until it ends
    references: list[int]  # of each slot

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
    plan = SlotPlan([], [], [count == 0 for count in num_readers], [])
    for row, is_last in zip(reads, plan.is_last, strict=True):
        own, spare = -1, [-1] * len(row)
        for column, read in enumerate(row):
            if read >= 0 and own < 0 and num_readers[read] == 1:
                own = plan.slots[read]
            elif read >= 0:
                spare[column] = plan.slots[read]
                plan.references[plan.slots[read]] += 1
        if own < 0:
            own = len(plan.references)
            plan.references.append(0)
        plan.references[own] += is_last
        plan.slots.append(own)
        plan.spare.append(spare)
    return plan
