"""Slots: each is free or referenced, never both, and never given twice."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.engine.cells.contract import NO_SLOT
from penstock.engine.cells.kernels.blocks import give_back, take
from penstock.engine.cells.state.state_pool import StatePool
from penstock.engine.cells.tables.node_table import END, NONE

SLOTS = 12


class PoolMachine(RuleBasedStateMachine):
    """Any order of acquire, fork and release, against a dictionary of counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = StatePool(SLOTS)
        self.references: dict[int, int] = {}

    @rule(count=st.integers(0, SLOTS))
    def acquire(self, count: int) -> None:
        slots = self.pool.acquire(count)
        num_free = SLOTS - 1 - len(self.references)
        assert (slots is None) == (count > num_free)
        if slots is not None:
            assert not set(slots.tolist()) & {NO_SLOT, *self.references}
            self.references |= dict.fromkeys(slots.tolist(), 1)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.references)), max_size=4))
        self.pool.fork(slots)
        for slot in slots:
            self.references[slot] += 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = [slot for slot, count in self.references.items() for _ in range(count)]
        slots = data.draw(st.lists(st.sampled_from(range(len(held))), unique=True))
        self.pool.release([held[index] for index in slots])
        for index in slots:
            self.references[held[index]] -= 1
        self.references = {slot: count for slot, count in self.references.items() if count > 0}

    @invariant()
    def slots_add_up(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == SLOTS - 1 - len(self.references)


TestPool = PoolMachine.TestCase


def test_a_slot_that_is_released_or_forked_once_too_often_is_a_bug() -> None:
    pool = StatePool(4)
    slots = pool.acquire(1)
    assert slots is not None
    pool.release(slots)
    with pytest.raises(RuntimeError, match="This is a bug"):
        pool.release(slots)
    with pytest.raises(RuntimeError, match="This is a bug"):
        StatePool(4).fork(slots)
    with pytest.raises(RuntimeError, match="This is a bug"):
        StatePool(4).release([NO_SLOT])


def test_a_pool_needs_a_slot_beside_the_zeros() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        StatePool(1)


def test_blocks_do_not_overlap_and_are_used_again() -> None:
    random, links, counts = np.random.default_rng(0), np.zeros(4000, np.int32), np.full(END + 1, NONE, np.int32)
    counts[END] = 0
    taken: dict[int, int] = {}
    for _ in range(400):
        if taken and random.random() < 0.5:
            start = int(random.choice(list(taken)))
            give_back(counts, 0, links, start, taken.pop(start))
        else:
            length = int(random.integers(1, 40))
            taken[int(take(counts, 0, links, length))] = length
        ends = sorted((start, start + length) for start, length in taken.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert all(end <= counts[END] for _, end in ends)
    assert counts[END] < 4000
