"""A batch is rejected by the definition of what would read or write outside of the pool, or race."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.cells.batch_checks import BatchCheck
from penstock.engine.cells.contract import CellBatch, CellSpec, StateSpec
from penstock.engine.errors import InvalidBatch

SLOTS, QUANTUM = 6, 3
SPEC = CellSpec("pair", (StateSpec("h", 1),), arity=2, max_rows=4, max_steps=QUANTUM)
ROW = st.tuples(st.integers(-1, SLOTS), st.integers(-1, SLOTS), st.integers(-1, SLOTS), st.integers(0, QUANTUM + 1))
CHECK = BatchCheck(SLOTS)


def is_sound(rows: list[tuple[int, int, int, int]]) -> bool:
    """By definition."""
    writes = [write for _, _, write, _ in rows]
    return (
        len(set(writes)) == len(writes)
        and all(1 <= write < SLOTS and 1 <= steps <= QUANTUM for _, _, write, steps in rows)
        and all(0 <= read < SLOTS for one, other, _, _ in rows for read in (one, other))
        and not any(read in writes and read != write for one, other, write, _ in rows for read in (one, other))
    )


@given(st.lists(ROW, min_size=1, max_size=4))
def test_a_batch_is_rejected_if_and_only_if_it_is_unsound(rows: list[tuple[int, int, int, int]]) -> None:
    one, other, write, steps = np.array(rows, np.int32).T.copy()
    batch = CellBatch("pair", np.stack([one, other], 1), write, {}, steps, np.ones(len(rows), np.bool_), QUANTUM)
    if is_sound(rows):
        CHECK(batch, SPEC)
    else:
        with pytest.raises(InvalidBatch):
            CHECK(batch, SPEC)
