"""A request's graph as one array of int32, by its bytes, so that many requests are handed to a kernel at once.

A header; then of each node its cell, steps, slot, whether no node reads it, reads and spare slots; then the references
of each slot; then of each input the offsets and the values. Slots and reads are those of `SlotPlan`, numbered from 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import Int32Array

# Fields of the header. SIZE: of the packed graph, header included.
NUM_NODES, ARITY, NUM_INPUTS, NUM_SLOTS, SIZE = range(5)
HEADER = 5


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


def pack(
    cells: Int32Array,
    steps: Int32Array,
    reads: Int32Array,
    plan: SlotPlan,
    inputs: Sequence[tuple[Int32Array, Int32Array]],
) -> bytes:
    """The packed graph.

    cells, steps [N]; reads [N, arity]. inputs: offsets [N + 1] and values of each, by the inputs' names; the
    last offset is the number of values.
    """
    header: npt.ArrayLike = [*reads.shape, len(inputs), plan.num_slots, 0]
    nodes: list[npt.ArrayLike] = [cells, steps, plan.slots, plan.is_last, reads.ravel(), np.ravel(plan.spare)]
    parts = [part for given in inputs for part in given]
    packed = np.concatenate([header, *nodes, plan.references, *parts], dtype=np.int32, casting="same_kind")
    packed[SIZE] = len(packed)
    return packed.tobytes()
