"""A request's graph as one array of int32, so that many requests are handed to a kernel at once.

A header; then of each node its cell, steps, slot, whether no node reads it, reads and spare slots; then the references
of each slot; then of each input the offsets and the values. Slots and reads are those of `SlotPlan`, numbered from 0.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import Int32Array

if TYPE_CHECKING:
    from penstock.engine.cells.graph import Unfolded

# Fields of the header. SIZE: of the packed graph, header included.
NUM_NODES, ARITY, NUM_INPUTS, NUM_SLOTS, SIZE = range(5)
HEADER = 5


def pack(graph: "Unfolded") -> Int32Array:
    """The packed graph. Inputs are in the order of their names; an input's last offset is the number of its values."""
    plan = graph.slot_plan
    names = sorted(graph.inputs)
    header: npt.ArrayLike = [*graph.reads.shape, len(names), plan.num_slots, 0]
    nodes: list[npt.ArrayLike] = [
        graph.cells,
        graph.steps,
        plan.slots,
        plan.is_last,
        graph.reads.ravel(),
        np.ravel(plan.spare),
    ]
    inputs = [part for name in names for part in (graph.inputs[name].offsets, graph.inputs[name].values)]
    packed: Int32Array = np.concatenate([header, *nodes, plan.references, *inputs], dtype=np.int32, casting="same_kind")
    packed[SIZE] = len(packed)
    return packed
