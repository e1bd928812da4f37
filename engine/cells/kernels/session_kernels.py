"""Compiled: requests are put into batches, end and close in the arrays of a `NodeTable`.

Letters of shapes: R rows of a batch, G requests. Each kernel takes arrays, since a tuple of them takes numba longer to
unpack than a row does to be worked on.
"""

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.kernels.blocks import give_back, inlined
from penstock.engine.cells.tables.node_table import (
    BEGUN,
    CELL,
    DONE,
    FREE_REQUEST,
    HAS_ENDED,
    HAS_FAILED,
    HAS_READ,
    IS_CLOSED,
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
    UNDERWAY,
    VALUE,
)

BoolArray = npt.NDArray[np.bool_]


def advance(nodes: Int32Array, slots: Int32Array, places: Int32Array, values: Int32Array, requests: Int32Array,
            keys: Int32Array, members: Int32Array, steps: Int32Array, cell: int, rows: Int32Array, read: Int32Array,
            write: Int32Array, is_first: BoolArray, given: Int32Array) -> int:  # fmt: skip
    """Make a batch. keys, members, steps [R]: requests, nodes in their graphs, and steps.

    Writes rows [R] of the table, read [R, arity], write [R], is_first [R] and given [inputs, R, quantum]. NONE, and
    nothing changed: a node is of another cell, has fewer steps left, or its request is not open.
    """
    for row in range(len(keys)):
        request = keys[row]
        if not 0 <= request < len(requests) or not 0 <= members[row] < requests[request, NUM_NODES]:
            return NONE
        node = requests[request, NODE] + members[row]
        is_open = nodes[node, REQUEST] == request and not requests[request, IS_CLOSED]
        if not is_open or nodes[node, CELL] != cell or nodes[node, BEGUN] + steps[row] > nodes[node, STEPS]:
            return NONE
        rows[row] = node
    for row in range(len(keys)):
        node = rows[row]
        begun = nodes[node, BEGUN]
        is_first[row] = begun == 0
        write[row] = nodes[node, SLOT]
        for place in range(read.shape[1]):
            read[row, place] = slots[node, READ, place] if begun == 0 else nodes[node, SLOT]
        last = nodes[node, STEPS] - 1 - begun
        for column in range(len(given)):
            stride, out = places[node, STRIDE, column], given[column, row]
            start = places[node, START, column] + begun * stride
            for step in range(len(out)):
                out[step] = values[start + min(step, last) * stride]
        nodes[node, BEGUN] += steps[row]
        requests[keys[row], UNDERWAY] += 1
    return 0


def count_steps(asked: Int32Array, ran: Int32Array) -> int:
    """Steps that ran, of all rows; NONE: a row ran more than it was asked for, or fewer than none."""
    total = 0
    for row in range(len(asked)):
        if not 0 <= ran[row] <= asked[row]:
            return NONE
        total += ran[row]
    return total


def store(nodes: Int32Array, places: Int32Array, values: Int32Array, requests: Int32Array, rows: Int32Array,
          ran: Int32Array, column: int, width: int, emitted: Int32Array) -> None:  # fmt: skip
    """Keep an emission of a batch, before `apply`. rows, ran [R]; emitted [R, quantum * width]."""
    for row in range(len(rows)):
        node = rows[row]
        if not requests[nodes[node, REQUEST], IS_CLOSED]:
            start = places[node, START, column] + nodes[node, DONE] * width
            for index in range(ran[row] * width):
                values[start + index] = emitted[row, index]


def apply(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
          rows: Int32Array, ran: Int32Array, is_stopped: BoolArray, has_failed: BoolArray,
          has_ended: BoolArray, finished: Int32Array, released: Int32Array) -> tuple[int, int]:  # fmt: skip
    """A batch has run. rows, ran, is_stopped, has_failed [R].

    Writes has_ended [R], the rows whose request has finished with them, and the slots that are read no more. Returns
    the numbers of these two. Requests that are closed, and have no other batch underway, are forgotten.
    """
    num_finished = num_released = 0
    for row in range(len(rows)):
        if has_failed[row]:
            requests[nodes[rows[row], REQUEST], HAS_FAILED] = 1
    for row in range(len(rows)):
        node = rows[row]
        request = nodes[node, REQUEST]
        requests[request, UNDERWAY] -= 1
        has_ended[row] = False
        if requests[request, IS_CLOSED]:
            if requests[request, UNDERWAY] == 0:
                num_released = _forget(nodes, slots, values, requests, counts, request, released, num_released)
            continue
        if not nodes[node, HAS_READ]:
            nodes[node, HAS_READ] = 1
            num_released = _release_spare(slots, node, released, num_released)
        if not has_failed[row]:
            nodes[node, DONE] += ran[row]
        is_over = is_stopped[row] or has_failed[row] or nodes[node, DONE] >= nodes[node, STEPS]
        if not is_over or nodes[node, HAS_ENDED]:
            continue
        has_ended[row] = True
        nodes[node, HAS_ENDED] = 1
        if nodes[node, IS_LAST]:
            released[num_released] = nodes[node, SLOT]
            num_released += 1
        requests[request, OPEN_NODES] -= 1
        if requests[request, OPEN_NODES] == 0 and not requests[request, HAS_FAILED]:
            finished[num_finished] = row
            num_finished += 1
    return num_finished, num_released


def abandon(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
            rows: Int32Array, steps: Int32Array, released: Int32Array) -> int:  # fmt: skip
    """A batch has not run: take its steps back. rows, steps [R]. Returns the number of released slots, as `apply`."""
    num_released = 0
    for row in range(len(rows)):
        request = nodes[rows[row], REQUEST]
        nodes[rows[row], BEGUN] -= steps[row]
        requests[request, UNDERWAY] -= 1
        if requests[request, IS_CLOSED] and requests[request, UNDERWAY] == 0:
            num_released = _forget(nodes, slots, values, requests, counts, request, released, num_released)
    return num_released


def close(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
          keys: Int32Array, released: Int32Array) -> int:  # fmt: skip
    """Requests [G] have left. Returns the number of released slots, as `apply`; NONE: one of them was not open."""
    num_released = 0
    for request in keys:
        if requests[request, IS_CLOSED]:
            return NONE
        requests[request, IS_CLOSED] = 1
        counts[NUM_OPEN] -= 1
        if requests[request, UNDERWAY] == 0:
            num_released = _forget(nodes, slots, values, requests, counts, request, released, num_released)
    return num_released


def release(references: Int32Array, free: Int32Array, num_free: int, slots: Int32Array) -> int:
    """Drop a reference of each slot, and put those that have none left on the stack of free ones.

    Returns how many are free; NONE: a slot had no reference.
    """
    for slot in slots:
        if slot == NO_SLOT or references[slot] < 1:
            return NONE
        references[slot] -= 1
        if references[slot] == 0:
            free[num_free] = slot
            num_free += 1
    return num_free


@inlined
def _forget(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
            request: int, released: Int32Array, num_released: int) -> int:  # fmt: skip
    """Free the rows of a closed request without batches, and list the slots that it still has."""
    first, num_nodes = requests[request, NODE], requests[request, NUM_NODES]
    for node in range(first, first + num_nodes):
        if not nodes[node, HAS_READ]:
            num_released = _release_spare(slots, node, released, num_released)
        if nodes[node, IS_LAST] and not nodes[node, HAS_ENDED]:
            released[num_released] = nodes[node, SLOT]
            num_released += 1
        nodes[node, REQUEST] = NONE
    give_back(counts, OF_NODES, nodes[:, NEXT_BLOCK], first, num_nodes)
    give_back(counts, OF_VALUES, values, requests[request, VALUE], requests[request, NUM_VALUES])
    requests[request, NODE], requests[request, NUM_NODES] = counts[FREE_REQUEST], 0
    counts[FREE_REQUEST] = request
    counts[NUM_KNOWN] -= 1
    return num_released


@inlined
def _release_spare(slots: Int32Array, node: int, released: Int32Array, num_released: int) -> int:
    """List the slots that a node has read and not written."""
    for place in range(slots.shape[2]):
        if slots[node, SPARE, place] != NO_SLOT:
            released[num_released] = slots[node, SPARE, place]
            num_released += 1
    return num_released
