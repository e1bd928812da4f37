"""Compiled: the first fault of a batch of cells. See session_kernels.py."""

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.tables.node_table import NONE

# What may be wrong with a batch.
OF_STEPS, OF_POOL, OF_READS, OF_WRITERS = range(4)


def find_fault(read: Int32Array, write: Int32Array, steps: Int32Array, quantum: int, writer: Int32Array) -> int:
    """The fault of a batch, one of OF_…, or NONE. read [R, arity], write [R], steps [R].

    writer [slots]: NONE of each, before and after.
    """
    num_slots = len(writer)
    for row in range(len(steps)):
        if not 1 <= steps[row] <= quantum:
            return OF_STEPS
        if not NO_SLOT < write[row] < num_slots:
            return OF_POOL
        for place in range(read.shape[1]):
            if read[row, place] >= num_slots:
                return OF_POOL
            if read[row, place] < NO_SLOT:
                return OF_READS
    fault = NONE
    for row in range(len(steps)):
        if writer[write[row]] != NONE:
            fault = OF_WRITERS
        writer[write[row]] = row
    for row in range(len(steps)):
        for place in range(read.shape[1]):
            other = writer[read[row, place]]
            if other != NONE and other != row:
                fault = OF_WRITERS
    for row in range(len(steps)):
        writer[write[row]] = NONE
    return fault
