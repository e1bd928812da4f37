"""The cheap check that every new plan goes through."""

from dataclasses import replace

import pytest

from penstock.engine.memory import Lifetime, MemoryPlanner
from penstock.engine.memory.plan import check_regions

ONE = (Lifetime("a", 0, 1, bytes_per_row=256), Lifetime("b", 1, 2, bytes_per_row=512))
CONFLICTS = ({1}, {0})


@pytest.mark.parametrize(("offsets", "chunks"), [([0, 256], [0, 0]), ([512, 0], [0, 0]), ([0, 0], [0, 1])])
def test_disjoint_regions_pass(offsets: list[int], chunks: list[int]) -> None:
    plan = MemoryPlanner(ONE).plan(1, 1)
    check_regions(replace(plan, region_offset=offsets, region_chunk=chunks), CONFLICTS)


@pytest.mark.parametrize("offsets", [[0, 0], [256, 0], [0, 255]])
def test_overlapping_regions_are_a_bug(offsets: list[int]) -> None:
    plan = MemoryPlanner(ONE).plan(1, 1)
    with pytest.raises(RuntimeError, match="This is a bug"):
        check_regions(replace(plan, region_offset=offsets), CONFLICTS)
    check_regions(replace(plan, region_offset=offsets), (set(), set()))
