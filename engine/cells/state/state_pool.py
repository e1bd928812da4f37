"""Slots of the states' pool: which are free, and how many references the others have."""

from collections.abc import Sequence

import numpy as np

from penstock.engine.cells.contract import NO_SLOT, Int32Array
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.tables.node_table import NONE


class StatePool:
    """Slots 1 to num_slots - 1. A slot is free again when its last reference is released. Slot 0 holds zeros."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"num_slots must be at least 2, not {num_slots}: slot {NO_SLOT} holds zeros.")
        self.num_slots = num_slots
        self._references = np.zeros(num_slots, np.int32)
        self._free = np.arange(num_slots - 1, 0, -1, dtype=np.int32)  # a stack: `_num_free` of them
        self._num_free = num_slots - 1
        self._kernels = load_kernels()

    @property
    def num_free(self) -> int:
        return self._num_free

    def acquire(self, count: int) -> Int32Array | None:
        """`count` slots with a reference each, or None while there are not so many. Their states are undefined."""
        if count > self._num_free:
            return None
        self._num_free -= count
        slots = self._free[self._num_free : self._num_free + count].copy()
        self._references[slots] = 1
        return slots

    def fork(self, slots: Int32Array | Sequence[int]) -> None:
        """Add a reference to each slot; a slot that is listed twice gets two. Each must have one already."""
        slots = np.asarray(slots, np.int32)
        if (self._references[slots] < 1).any():
            raise RuntimeError("a free slot was forked. This is a bug.")
        np.add.at(self._references, slots, 1)

    def release(self, slots: Int32Array | Sequence[int]) -> None:
        """Drop a reference of each slot; of a slot that is listed twice, two."""
        num_free = self._kernels.release(
            self._references, self._free, self._num_free, np.ascontiguousarray(slots, np.int32)
        )
        if num_free == NONE:
            raise RuntimeError("a slot was released more often than it was acquired and forked. This is a bug.")
        self._num_free = num_free

    def check_integrity(self) -> None:
        """Raise if a slot is both free and referenced, or neither. Called by tests, and when nothing is active."""
        free = self._free[: self._num_free]
        is_free = np.zeros(self.num_slots, np.bool_)
        is_free[free] = True
        is_free[NO_SLOT] = True
        if is_free.sum() != self._num_free + 1 or ((self._references == 0) != is_free).any():
            raise RuntimeError("the free slots are not those without references. This is a bug.")
