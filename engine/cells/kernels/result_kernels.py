"""Compiled: what the nodes of a request have emitted, as one row. See session_kernels.py."""

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import Int32Array
from penstock.engine.cells.kernels.blocks import inlined
from penstock.engine.cells.node_table import CELL, DONE, NODE, NONE, NUM_NODES, START

BoolArray = npt.NDArray[np.bool_]

_INFINITY = 0x7F800000  # bits of a float32; those above, but for the sign, are NaN


def collect(nodes: Int32Array, places: Int32Array, values: Int32Array, requests: Int32Array, keys: Int32Array,
            columns: Int32Array, widths: Int32Array, is_float: Int32Array, offsets: Int32Array, results: Int32Array,
            is_not_finite: BoolArray) -> int:  # fmt: skip
    """Write the results of requests end to end, and where each begins and ends to offsets [G + 1].

    keys [G]. columns [emissions, cells]: of `places`, where an emission of a cell lies, or NONE. widths, is_float
    [emissions]. A result is the number of rows of each emission, then those rows, emission by emission: those of a node
    after those of the node before. A float is there by its bits. Writes is_not_finite [G]. Returns the length of all
    results, or NONE: they differ. Where `results` is shorter than all of them, only offsets are written.
    """
    length = _measure(nodes, requests, keys, columns, widths, offsets)
    if offsets[len(keys)] > len(results):
        return length
    for number in range(len(keys)):
        first = requests[keys[number], NODE]
        at = offsets[number] + len(widths)
        is_not_finite[number] = False
        for emission in range(len(widths)):
            num_rows = 0
            for node in range(first, first + requests[keys[number], NUM_NODES]):
                column = columns[emission, nodes[node, CELL]]
                if column != NONE:
                    start, size = places[node, START, column], nodes[node, DONE] * widths[emission]
                    is_finite = _copy(values[start : start + size], results[at : at + size], is_float[emission])
                    is_not_finite[number] |= not is_finite
                    at += size
                    num_rows += nodes[node, DONE]
            results[offsets[number] + emission] = num_rows
    return length


@inlined
def _copy(values: Int32Array, out: Int32Array, is_float: int) -> bool:
    """Copy what a node has emitted. Returns whether all of it is finite; integers are."""
    is_finite = True
    for place in range(len(values)):
        out[place] = values[place]
        is_finite &= not is_float or values[place] & 0x7FFFFFFF < _INFINITY
    return is_finite


@inlined
def _measure(nodes: Int32Array, requests: Int32Array, keys: Int32Array, columns: Int32Array, widths: Int32Array,
             offsets: Int32Array) -> int:  # fmt: skip
    """Write where each result begins and ends. Returns their length, or NONE: they differ."""
    offsets[0] = 0
    length = NONE
    for number in range(len(keys)):
        size = len(widths)
        first = requests[keys[number], NODE]
        for node in range(first, first + requests[keys[number], NUM_NODES]):
            for emission in range(len(widths)):
                if columns[emission, nodes[node, CELL]] != NONE:
                    size += nodes[node, DONE] * widths[emission]
        offsets[number + 1] = offsets[number] + size
        if number == 0:
            length = size
        elif size != length:
            length = NONE
    return length
