"""Compiled: requests open in the arrays of a `NodeTable`. Shapes are those of session_kernels.py; G: packed graphs."""

import numpy as np

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.kernels.blocks import bucket_of, inlined, take
from penstock.engine.cells.node_table import (
    CELL,
    END,
    FREE_REQUEST,
    IS_LAST,
    NEXT_BLOCK,
    NODE,
    NONE,
    NUM_KNOWN,
    NUM_NODES,
    NUM_OPEN,
    NUM_VALUES,
    OF_NODES,
    OF_VALUES,
    OPEN_NODES,
    READ,
    REQUEST,
    SLOT,
    SPARE,
    START,
    STEPS,
    STRIDE,
    VALUE,
)
from penstock.engine.cells.packing import ARITY, HEADER, NUM_INPUTS, NUM_SLOTS, SIZE
from penstock.engine.cells.packing import NUM_NODES as PACKED_NODES

# What became of requests that were to be opened.
OPENED, NO_SLOTS, NO_ROOM = -1, -2, -3
# Fields of `needed`: of all together.
NODES_NEEDED, VALUES_NEEDED, SLOTS_NEEDED = range(3)


def open_requests(packed: Int32Array, inputs: Int32Array, widths: Int32Array, num_inputs: int,
                  nodes: Int32Array, slots: Int32Array, places: Int32Array, values: Int32Array, requests: Int32Array,
                  counts: Int32Array, references: Int32Array, free: Int32Array, num_free: Int32Array, keys: Int32Array,
                  num_values: Int32Array, needed: Int32Array) -> int:  # fmt: skip
    """Write requests with their nodes and inputs, and give them slots: all of them, or none.

    packed: graphs end to end. inputs, widths: of each cell. references, free, num_free: of the pool. Writes the row of
    each to keys [G], its values to num_values [G], and to `needed` [3] the elements of blocks of nodes and of values,
    and the slots, of all together. Returns OPENED; NO_SLOTS: that are free; NO_ROOM: in the arrays; or the first
    request that is none of this model.
    """
    wrong = _measure(packed, inputs, widths, slots.shape[2], num_inputs, num_values, needed)
    if wrong != NONE:
        return wrong
    if needed[SLOTS_NEEDED] > num_free[0]:
        return NO_SLOTS
    has_room = counts[OF_NODES + END] + needed[NODES_NEEDED] <= len(nodes)
    has_room &= counts[OF_VALUES + END] + needed[VALUES_NEEDED] <= len(values)
    if not has_room or counts[NUM_KNOWN] + len(keys) > len(requests):
        return NO_ROOM
    at = 0
    arity = slots.shape[2]
    starts = np.empty(max(num_inputs, 1), np.int32)
    for number in range(len(keys)):
        num_nodes = packed[at + PACKED_NODES]
        of_slots = _find_inputs(packed, at, starts)
        num_free[0] -= packed[at + NUM_SLOTS]
        acquired = num_free[0]
        for slot in range(packed[at + NUM_SLOTS]):
            references[free[acquired + slot]] = packed[of_slots + slot]
        request = counts[FREE_REQUEST]
        counts[FREE_REQUEST] = requests[request, NODE]
        counts[NUM_KNOWN] += 1
        counts[NUM_OPEN] += 1
        first = take(counts, OF_NODES, nodes[:, NEXT_BLOCK], num_nodes)
        value = take(counts, OF_VALUES, values, num_values[number])
        keys[number] = request
        requests[request] = 0
        requests[request, NODE], requests[request, NUM_NODES] = first, num_nodes
        requests[request, OPEN_NODES] = num_nodes
        requests[request, VALUE], requests[request, NUM_VALUES] = value, num_values[number]
        for index in range(num_nodes):
            node, column = first + index, at + HEADER + index
            cell, steps = packed[column], packed[column + num_nodes]
            nodes[node] = 0
            nodes[node, REQUEST], nodes[node, CELL], nodes[node, STEPS] = request, cell, steps
            nodes[node, SLOT] = free[acquired + packed[column + 2 * num_nodes]]
            nodes[node, IS_LAST] = packed[column + 3 * num_nodes]
            read = at + HEADER + 4 * num_nodes + index * arity
            for place in range(arity):
                other, spare = packed[read + place], packed[read + num_nodes * arity + place]
                slots[node, READ, place] = nodes[first + other, SLOT] if other >= 0 else NO_SLOT
                slots[node, SPARE, place] = free[acquired + spare] if spare >= 0 else NO_SLOT
            for input_column in range(inputs.shape[1]):
                if inputs[cell, input_column] != NONE:
                    offsets = starts[inputs[cell, input_column]]
                    begin = offsets + num_nodes + 1 + packed[offsets + index]
                    length = packed[offsets + index + 1] - packed[offsets + index]
                    places[node, START, input_column], places[node, STRIDE, input_column] = value, length > 1
                    values[value : value + length] = packed[begin : begin + length]
                    value += length
            for emission in range(widths.shape[1]):
                width = widths[cell, emission]
                places[node, START, inputs.shape[1] + emission] = value
                places[node, STRIDE, inputs.shape[1] + emission] = width
                value += steps * width
        at += packed[at + SIZE]
    return OPENED


@inlined
def _measure(packed: Int32Array, inputs: Int32Array, widths: Int32Array, arity: int, num_inputs: int,
             num_values: Int32Array, needed: Int32Array) -> int:  # fmt: skip
    """The needs of requests, as `open_requests` writes them. Returns the first that is none of this model, or NONE."""
    at = 0
    starts = np.empty(max(num_inputs, 1), np.int32)
    needed[:] = 0
    for number in range(len(num_values)):
        num_nodes = packed[at + PACKED_NODES]
        if packed[at + ARITY] != arity or packed[at + NUM_INPUTS] != num_inputs:
            return number
        _find_inputs(packed, at, starts)
        cells, steps = at + HEADER, at + HEADER + num_nodes
        count = 0
        for node in range(num_nodes):
            cell = packed[cells + node]
            for column in range(inputs.shape[1]):
                if inputs[cell, column] != NONE:
                    offsets = starts[inputs[cell, column]] + node
                    count += packed[offsets + 1] - packed[offsets]
            for column in range(widths.shape[1]):
                count += packed[steps + node] * widths[cell, column]
        num_values[number] = count
        needed[NODES_NEEDED] += 1 << bucket_of(num_nodes)
        needed[VALUES_NEEDED] += 1 << bucket_of(count)
        needed[SLOTS_NEEDED] += packed[at + NUM_SLOTS]
        at += packed[at + SIZE]
    return NONE


@inlined
def _find_inputs(packed: Int32Array, at: int, starts: Int32Array) -> int:
    """Write where the offsets of each input of the graph at `at` begin. Returns where its slots' references do."""
    num_nodes = packed[at + PACKED_NODES]
    references = at + HEADER + (4 + 2 * packed[at + ARITY]) * num_nodes
    place = references + packed[at + NUM_SLOTS]
    for index in range(packed[at + NUM_INPUTS]):
        starts[index] = place
        place += num_nodes + 1 + packed[place + num_nodes]
    return references  # type: ignore[no-any-return]  # numpy's
