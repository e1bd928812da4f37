"""The slots of a pool that a request needs."""

from typing import NamedTuple

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
