"""A request's graph as one array of int32, by its bytes, so that many requests are handed to a kernel at once.

A header; then of each node its cell, steps, slot, whether no node reads it, reads and spare slots; then the references
of each slot; then of each input the offsets and the values. Slots and reads are those of `SlotPlan`, numbered from 0.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import Int32Array
from penstock.engine.cells.tables.slot_plan import SlotPlan

# Fields of the header. SIZE: of the packed graph, header included.
NUM_NODES, ARITY, NUM_INPUTS, NUM_SLOTS, SIZE = range(5)
HEADER = 5


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
