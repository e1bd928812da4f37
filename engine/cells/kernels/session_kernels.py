"""Compiled: requests are put into batches, end and close in the arrays of a `NodeTable`.

Letters of shapes: R rows of a batch, G requests. Each kernel takes arrays, since a tuple of them takes numba longer to
unpack than a row does to be worked on.
"""

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.kernels.blocks import give_back, inlined
from penstock.engine.cells.node_table import (
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


def store(nodes: Int32Array, places: Int32Array, values: Int32Array, requests: Int32Array, rows: Int32Array,
          asked: Int32Array, ran: Int32Array, column: int, width: int, emitted: Int32Array) -> bool:  # fmt: skip
    """Keep an emission of a batch, before `apply`. rows, asked, ran [R]; emitted [R, quantum * width].

    False, and nothing kept: impossible steps.
    """
    if _count_steps(asked, ran) == NONE:
        return False
    for row in range(len(rows)):
        node = rows[row]
        if not requests[nodes[node, REQUEST], IS_CLOSED]:
            start = places[node, START, column] + nodes[node, DONE] * width
            for index in range(ran[row] * width):
                values[start + index] = emitted[row, index]
    return True


def apply(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
          references: Int32Array, free: Int32Array, num_free: Int32Array, rows: Int32Array, asked: Int32Array,
          ran: Int32Array, is_stopped: BoolArray, has_failed: BoolArray,
          finished: Int32Array) -> tuple[int, int]:  # fmt: skip
    """A batch has run. rows, asked, ran, is_stopped, has_failed [R]. references, free, num_free: of the pool.

    Writes the rows whose request has finished with them. Returns the number of these, and the steps
    that ran, of all rows; NONE, and nothing changed: a row ran more than it was asked for, or fewer than none. Slots
    that are read no more are free. Requests that are closed, and have no other batch underway, are forgotten.
    """
    num_steps = _count_steps(asked, ran)
    if num_steps == NONE:
        return 0, NONE
    num_finished = 0
    for row in range(len(rows)):
        if has_failed[row]:
            requests[nodes[rows[row], REQUEST], HAS_FAILED] = 1
    for row in range(len(rows)):
        node = rows[row]
        request = nodes[node, REQUEST]
        requests[request, UNDERWAY] -= 1
        if requests[request, IS_CLOSED]:
            if requests[request, UNDERWAY] == 0:
                _forget(nodes, slots, values, requests, counts, references, free, num_free, request)
            continue
        if not nodes[node, HAS_READ]:
            nodes[node, HAS_READ] = 1
            _release_spare(slots, node, references, free, num_free)
        if not has_failed[row]:
            nodes[node, DONE] += ran[row]
        is_over = is_stopped[row] or has_failed[row] or nodes[node, DONE] >= nodes[node, STEPS]
        if not is_over or nodes[node, HAS_ENDED]:
            continue
        nodes[node, HAS_ENDED] = 1
        if nodes[node, IS_LAST]:
            _release(references, free, num_free, nodes[node, SLOT])
        requests[request, OPEN_NODES] -= 1
        if requests[request, OPEN_NODES] == 0 and not requests[request, HAS_FAILED]:
            finished[num_finished] = row
            num_finished += 1
    return num_finished, num_steps


def close(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
          references: Int32Array, free: Int32Array, num_free: Int32Array, keys: Int32Array) -> bool:  # fmt: skip
    """Requests [G] have left; False: one of them was not open, and those behind it are as before."""
    for request in keys:
        if requests[request, IS_CLOSED]:
            return False
        requests[request, IS_CLOSED] = 1
        counts[NUM_OPEN] -= 1
        if requests[request, UNDERWAY] == 0:
            _forget(nodes, slots, values, requests, counts, references, free, num_free, request)
    return True


@inlined
def _count_steps(asked: Int32Array, ran: Int32Array) -> int:
    """Steps that ran, of all rows; NONE: a row ran more than it was asked for, or fewer than none."""
    total = 0
    for row in range(len(asked)):
        if not 0 <= ran[row] <= asked[row]:
            return NONE
        total += ran[row]
    return total


@inlined
def _forget(nodes: Int32Array, slots: Int32Array, values: Int32Array, requests: Int32Array, counts: Int32Array,
            references: Int32Array, free: Int32Array, num_free: Int32Array, request: int) -> None:  # fmt: skip
    """Free the rows of a closed request without batches, and release the slots that it still has."""
    first, num_nodes = requests[request, NODE], requests[request, NUM_NODES]
    for node in range(first, first + num_nodes):
        if not nodes[node, HAS_READ]:
            _release_spare(slots, node, references, free, num_free)
        if nodes[node, IS_LAST] and not nodes[node, HAS_ENDED]:
            _release(references, free, num_free, nodes[node, SLOT])
        nodes[node, REQUEST] = NONE
    give_back(counts, OF_NODES, nodes[:, NEXT_BLOCK], first, num_nodes)
    give_back(counts, OF_VALUES, values, requests[request, VALUE], requests[request, NUM_VALUES])
    requests[request, NODE], requests[request, NUM_NODES] = counts[FREE_REQUEST], 0
    counts[FREE_REQUEST] = request
    counts[NUM_KNOWN] -= 1


@inlined
def _release_spare(slots: Int32Array, node: int, references: Int32Array, free: Int32Array,
                   num_free: Int32Array) -> None:  # fmt: skip
    """Release the slots that a node has read and not written."""
    for place in range(slots.shape[2]):
        if slots[node, SPARE, place] != NO_SLOT:
            _release(references, free, num_free, slots[node, SPARE, place])


@inlined
def _release(references: Int32Array, free: Int32Array, num_free: Int32Array, slot: int) -> None:
    """Drop a reference of a slot, which goes to the stack of free ones where it was the last.

    RuntimeError: it had none.
    """
    if references[slot] < 1:
        raise RuntimeError("a slot was released more often than it was acquired. This is a bug.")
    references[slot] -= 1
    if references[slot] == 0:
        free[num_free[0]] = slot
        num_free[0] += 1
