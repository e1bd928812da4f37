"""Compiled: a batch of cells is checked, and described as a device takes it. See session_kernels.py."""

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.node_table import NONE

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


def describe_rows(
    read: Int32Array, write: Int32Array, steps: Int32Array, is_first: npt.NDArray[np.bool_], scratch: int,
    sections: npt.NDArray[np.int64], rows: int, out: Int32Array,
) -> None:  # fmt: skip
    """Write the sections of slots that are read and written, of steps, and of first steps. read [R, arity].

    A description is one array of sections. sections: where these and the inputs begin. Rows beyond R read zeros, write
    the slot `scratch` and run no step.
    """
    arity, count = read.shape[1], len(steps)
    for row in range(rows):
        is_spare = row >= count
        for place in range(arity):
            out[sections[0] + row * arity + place] = NO_SLOT if is_spare else read[row, place]
        out[sections[1] + row] = scratch if is_spare else write[row]
        out[sections[2] + row] = 0 if is_spare else steps[row]
        out[sections[3] + row] = 1 if is_spare else is_first[row]


def describe_input(values: Int32Array, steps: Int32Array, size: int, begin: int, rows: int, out: Int32Array) -> bool:
    """Write the section of an input, step by step. values [R, quantum]; 0 in rows beyond R.

    False: a value of a step that runs lies outside of [0, size). A size of NONE allows all.
    """
    count, quantum = values.shape
    are_inside = True
    for step in range(quantum):
        first = begin + step * rows
        for row in range(count):
            value = values[row, step]
            are_inside &= size == NONE or 0 <= value < size or step >= steps[row]
            out[first + row] = value
        out[first + count : first + rows] = 0
    return are_inside
