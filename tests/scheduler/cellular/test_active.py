"""Ids of active jobs, against a plain set: any integers, as few or as many of them as there are."""

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler

FAR = [-(2**63), 2**63 - 1, -1, *[place << 40 for place in range(1, 20)]]  # besides, many are near one another
IDS = st.lists(st.sampled_from([*FAR, *range(60)]), max_size=12)
STEP = st.tuples(st.sampled_from(["add", "cancel"]), IDS)
GRAPH = CellGraph.of_stages((0, 1))


@given(st.lists(STEP, max_size=25), st.sampled_from([None, 4]))
def test_an_id_is_in_use_until_its_job_leaves(steps: list[tuple[str, list[int]]], max_slots: int | None) -> None:
    scheduler, active = CellScheduler([CellRule("cell", 4)], max_slots=max_slots), set[int]()
    for action, ids in steps:
        if action == "cancel":
            assert scheduler.cancel(ids) == len(active & set(ids))
            active -= set(ids)
        else:
            is_free = len(set(ids)) == len(ids) and not active & set(ids)
            context: Any = nullcontext() if is_free else pytest.raises(ValueError, match="must be unique")
            with context:
                scheduler.add([CellJob(job_id, GRAPH, 0.0) for job_id in ids], 0.0)
                active |= set(ids)
        assert scheduler.num_joined + scheduler.num_waiting == len(active)
    assert scheduler.cancel([*FAR, *range(60)]) == len(active)
