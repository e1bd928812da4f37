"""Blocks of the table, and its least number of slots. That slots add up, test_sessions.py asserts after every run."""

from itertools import pairwise

import numpy as np
import pytest

from penstock.engine.cells.kernels.blocks import give_back, take
from penstock.engine.cells.node_table import END, NONE, NodeTable
from tests.engine.cells.test_sessions import MODEL


def test_a_pool_needs_a_slot_beside_the_zeros() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        NodeTable(MODEL.specs, 1)


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
