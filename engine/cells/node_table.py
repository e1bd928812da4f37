"""The active requests, their nodes, values and state slots, as arrays for the kernels of session_kernels.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, CellSpec, Int32Array

NONE = -1

# Fields of a node. STEPS: at most. BEGUN: steps given to batches. DONE: steps that have run. SLOT: written. IS_LAST: no
# node reads it. HAS_READ: its first batch has ended. NEXT_BLOCK: where a free block of nodes begins, the next such one.
REQUEST, CELL, STEPS, BEGUN, DONE, SLOT, IS_LAST, HAS_READ, HAS_ENDED, NEXT_BLOCK = range(10)
# What a node reads: slots, and those of them that it does not write too.
READ, SPARE = range(2)
# Where its inputs and emissions lie. STRIDE: values of one step; 0: one value for all steps.
START, STRIDE = range(2)
# Fields of a request. NODE and VALUE: the first; of a free row, NODE is the next free one. OPEN_NODES: not yet ended.
# UNDERWAY: its rows in batches that were begun and not yet applied.
NODE, NUM_NODES, VALUE, NUM_VALUES, OPEN_NODES, UNDERWAY, IS_CLOSED, HAS_FAILED = range(8)
# Fields of `counts`. NUM_KNOWN: requests that have rows, also closed ones with batches underway. OF_NODES + i: the
# first free block of 2 ** i nodes. OF_NODES + END: where nodes begin that were in no block yet. OF_VALUES: likewise.
FREE_REQUEST, NUM_KNOWN, NUM_OPEN = range(3)
END = 32
OF_NODES, OF_VALUES = 3, 4 + END
_MOST_KEPT = 1 << 18  # nodes and values of an empty table


class NodeTable:
    """Arrays that grow. A request's nodes are contiguous and so are its values; both stay where they are.

    State slots are 1 to num_slots - 1; slot 0 holds zeros. A slot is free again when its last reference is released.
    """

    def __init__(self, specs: Sequence[CellSpec], num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"num_slots must be at least 2, not {num_slots}: slot {NO_SLOT} holds zeros.")
        self.num_slots = num_slots
        self._references = np.zeros(num_slots, np.int32)
        self._free_slots = np.arange(num_slots - 1, -1, -1, dtype=np.int32)  # a stack: the first `num_free` of them
        self._num_free = np.full(1, num_slots - 1, np.int32)
        self.pool = self._references, self._free_slots, self._num_free
        names = sorted({name for spec in specs for name in spec.inputs})
        self.num_inputs = len(names)
        self.arity = max(spec.arity for spec in specs)
        self.inputs = np.full((len(specs), max(1, *[len(spec.inputs) for spec in specs])), NONE, np.int32)
        self.widths = np.zeros((len(specs), max(1, *[len(spec.emits) for spec in specs])), np.int32)
        for cell, spec in enumerate(specs):
            self.inputs[cell, : len(spec.inputs)] = [names.index(name) for name in spec.inputs]
            self.widths[cell, : len(spec.emits)] = [emission.width for emission in spec.emits]
        self._clear()

    def _clear(self) -> None:
        num_columns = self.inputs.shape[1] + self.widths.shape[1]
        self.nodes = np.zeros((0, 10), np.int32)  # [N]
        self.slots = np.zeros((0, 2, self.arity), np.int32)  # [N] READ and SPARE
        self.places = np.zeros((0, 2, num_columns), np.int32)  # [N] START and STRIDE of inputs, then of emissions
        self.values = np.zeros(0, np.int32)  # floats by their bits
        self.requests = np.zeros((0, 8), np.int32)
        self.counts = np.full(OF_VALUES + END + 1, NONE, np.int32)
        self.counts[[NUM_KNOWN, NUM_OPEN, OF_NODES + END, OF_VALUES + END]] = 0

    @property
    def num_free(self) -> int:
        """Slots without a reference."""
        return int(self._num_free[0])

    @property
    def first_emission(self) -> int:
        """The column of `places` with a cell's first emission."""
        return self.inputs.shape[1]

    def shrink(self) -> None:
        """Give back the memory of a table without requests, if it is large. Blocks of one size are no use to others."""
        if self.counts[NUM_KNOWN] == 0 and len(self.values) + len(self.nodes) > _MOST_KEPT:
            self._clear()

    def reserve(self, num_requests: int, num_nodes: int, num_values: int) -> None:
        """Make room for requests whose blocks have so many nodes and values."""
        counts, size = self.counts, len(self.requests)
        num_nodes += int(counts[OF_NODES + END])
        num_values += int(counts[OF_VALUES + END])
        num_requests += int(counts[NUM_KNOWN])
        if num_nodes > len(self.nodes):
            self.nodes, self.slots = _grown(self.nodes, num_nodes), _grown(self.slots, num_nodes)
            self.places = _grown(self.places, num_nodes)
        if num_values > len(self.values):
            self.values = _grown(self.values, num_values)
        if num_requests > size:
            self.requests = _grown(self.requests, num_requests)
            self.requests[size:, NODE] = np.arange(size + 1, len(self.requests) + 1)
            self.requests[-1, NODE] = counts[FREE_REQUEST]
            counts[FREE_REQUEST] = size

    def is_closed(self, keys: Int32Array) -> npt.NDArray[np.bool_]:
        """Whether requests have left [G]."""
        is_closed: npt.NDArray[np.bool_] = self.requests[keys, IS_CLOSED] != 0
        return is_closed

    def check_integrity(self) -> None:
        """Raise unless each request, node, value and slot is in use or free, and none is both."""
        free = self._free_slots[: self.num_free]
        is_free = np.zeros(self.num_slots, np.bool_)
        is_free[free] = True
        is_free[NO_SLOT] = True
        if is_free.sum() != self.num_free + 1 or ((self._references == 0) != is_free).any():
            raise RuntimeError("the free slots are not those without references. This is a bug.")
        if self.counts[NUM_KNOWN] == 0 and self.num_free != self.num_slots - 1:
            raise RuntimeError("slots are in use, but no request is open. This is a bug.")
        known = self.requests[self.requests[:, NUM_NODES] > 0]
        if [len(known), (known[:, IS_CLOSED] == 0).sum()] != self.counts[[NUM_KNOWN, NUM_OPEN]].tolist():
            raise RuntimeError("the rows of requests in use are not as many as the requests. This is a bug.")
        for blocks, links, first, size in (
            (OF_NODES, self.nodes[:, NEXT_BLOCK], NODE, NUM_NODES),
            (OF_VALUES, self.values, VALUE, NUM_VALUES),
        ):
            used = [(start, _bucket(length)) for start, length in known[:, [first, size]].tolist()]
            ranges = sorted([(start, start + (1 << bucket)) for start, bucket in used + self._free(blocks, links)])
            ends = [0, *[end for _, end in ranges]]
            if [start for start, _ in ranges] != ends[:-1] or ends[-1] != self.counts[blocks + END]:
                raise RuntimeError("the blocks in use and the free ones do not make up the table. This is a bug.")

    def _free(self, blocks: int, links: Int32Array) -> list[tuple[int, int]]:
        """Starts and buckets of free blocks."""
        found = []
        for bucket in range(END):
            start = int(self.counts[blocks + bucket])
            while start != NONE:
                found.append((start, bucket))
                start = int(links[start])
        return found


def _bucket(length: int) -> int:
    return max(0, length - 1).bit_length()


def _grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """A copy that is at least twice as long and reaches `length`."""
    larger = np.zeros((max(length, 2 * len(array), 256), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
