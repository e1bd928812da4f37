"""Slots of the states' pool: which are free, and how many references the others have."""

import numpy as np

from penstock.engine.cells.contract import NO_SLOT


class StatePool:
    """Slots 1 to num_slots - 1. A slot is free again when its last reference is released. Slot 0 holds zeros.

    The kernels of sessions acquire and release.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"num_slots must be at least 2, not {num_slots}: slot {NO_SLOT} holds zeros.")
        self.num_slots = num_slots
        self._references = np.zeros(num_slots, np.int32)
        self._free = np.arange(num_slots - 1, -1, -1, dtype=np.int32)  # a stack: the first `_num_free` of them
        self._num_free = np.full(1, num_slots - 1, np.int32)
        self.arrays = self._references, self._free, self._num_free

    @property
    def num_free(self) -> int:
        return int(self._num_free[0])

    def check_integrity(self) -> None:
        """Raise if a slot is both free and referenced, or neither. Called by tests, and when nothing is active."""
        free = self._free[: self.num_free]
        is_free = np.zeros(self.num_slots, np.bool_)
        is_free[free] = True
        is_free[NO_SLOT] = True
        if is_free.sum() != self.num_free + 1 or ((self._references == 0) != is_free).any():
            raise RuntimeError("the free slots are not those without references. This is a bug.")
