"""The cheap check that every new plan goes through."""

from dataclasses import replace

import pytest

from penstock.engine.memory import Lifetime, MemoryPlanner
from penstock.engine.memory.plan import check_slots

ONE = (Lifetime("a", 0, 1, bytes_per_row=256), Lifetime("b", 1, 2, bytes_per_row=512))
CONFLICTS = ({1}, {0})


@pytest.mark.parametrize(("offsets", "chunks"), [([0, 256], [0, 0]), ([512, 0], [0, 0]), ([0, 0], [0, 1])])
def test_disjoint_slots_pass(offsets: list[int], chunks: list[int]) -> None:
    plan = MemoryPlanner(ONE).plan(1, 1)
    check_slots(replace(plan, slot_offset=offsets, slot_chunk=chunks), CONFLICTS)


@pytest.mark.parametrize("offsets", [[0, 0], [256, 0], [0, 255]])
def test_overlapping_slots_are_a_bug(offsets: list[int]) -> None:
    plan = MemoryPlanner(ONE).plan(1, 1)
    with pytest.raises(RuntimeError, match="This is a bug"):
        check_slots(replace(plan, slot_offset=offsets), CONFLICTS)
    check_slots(replace(plan, slot_offset=offsets), (set(), set()))
