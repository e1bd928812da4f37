"""Compiled: what is worked out of the reads of a graph's nodes, each of which comes after the nodes that it reads."""

import numpy as np

from penstock.engine.cells.contract import NO_NODE, Int32Array
from penstock.engine.cells.kernels.blocks import inlined
from penstock.engine.cells.node_table import NONE


def plan_slots(
    reads: Int32Array, slots: Int32Array, spare: Int32Array, is_last: Int32Array, references: Int32Array
) -> int:
    """Write the fields of a SlotPlan, with a reference count for each node. Returns the number of slots.

    reads [N, arity]; the others [N], spare [N, arity].
    """
    num_slots = 0
    num_readers = np.zeros(len(reads), np.int32)
    for read in reads.flat:
        if read != NO_NODE:
            num_readers[read] += 1
    for node in range(len(reads)):
        own = NONE
        for place in range(reads.shape[1]):
            read = reads[node, place]
            spare[node, place] = NONE
            if read != NO_NODE and own == NONE and num_readers[read] == 1:
                own = slots[read]
            elif read != NO_NODE:
                spare[node, place] = slots[read]
                references[slots[read]] += 1
        if own == NONE:
            own = num_slots
            references[own] = 0
            num_slots += 1
        is_last[node] = num_readers[node] == 0
        references[own] += is_last[node]
        slots[node] = own
    return num_slots


def measure_shape(reads: Int32Array) -> tuple[int, int]:
    """Nodes on the longest path, and parts that do not read each other."""
    num_nodes = num_groups = len(reads)
    depths, groups = np.ones(num_nodes, np.int32), np.arange(num_nodes, dtype=np.int32)
    for node in range(num_nodes):
        for read in reads[node]:
            if read == NO_NODE:
                continue
            depths[node] = max(depths[node], depths[read] + 1)
            one, other = _root(groups, node), _root(groups, read)
            if one != other:
                groups[other] = one
                num_groups -= 1
    return int(depths.max()), num_groups


@inlined
def _root(groups: Int32Array, node: int) -> int:
    """The node that stands for all of a group."""
    while groups[node] != node:
        groups[node] = groups[groups[node]]
        node = groups[node]
    return node
