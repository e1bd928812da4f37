"""Order: Smith's rule has the least mean completion time; EDF meets all deadlines where any order does."""

import itertools
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler import PackedCost, Plan, Scheduler, SchedulerSettings
from penstock.scheduler.policies.order import ORDERS, Draft
from penstock.scheduler.settings import OrderName
from tests.examples import examples
from tests.scheduler.jobs import one_job

ONE_SECOND = PackedCost(1.0, 0.0, 0.0, 0.0)  # for any batch


def draft(first_id: int, count: int, seconds: float) -> Draft:
    return Draft(first_id, range(first_id, first_id + count), [1] * count, [9.0] * count, count, seconds)


def sum_of_completions(drafts: tuple[Draft, ...]) -> float:
    ends = itertools.accumulate(draft.seconds for draft in drafts)
    return sum(len(draft.ids) * end for draft, end in zip(drafts, ends, strict=True))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 1000)), min_size=1, max_size=6))
def test_smiths_order_has_the_least_mean_completion_time(shapes: list[tuple[int, int]]) -> None:
    drafts = [draft(10 * index, count, float(seconds)) for index, (count, seconds) in enumerate(shapes)]
    smith = tuple(sorted(drafts, key=ORDERS["cost-first"].rank))
    assert sum_of_completions(smith) == min(map(sum_of_completions, itertools.permutations(drafts)))


@pytest.mark.parametrize("order", get_args(OrderName))
def test_among_equals_the_oldest_is_first(order: OrderName) -> None:
    drafts = [draft(first, 2, 1.0) for first in (6, 2, 4, 0)]
    assert [made.ids[0] for made in sorted(drafts, key=ORDERS[order].rank)] == [0, 2, 4, 6]
    scheduler = Scheduler(SchedulerSettings(0.0, 8, 8, None, "hungry", "fifo", order, "accept"), ONE_SECOND)
    scheduler.add([one_job(number, 1, 1.0, 9.0) for number in (3, 0, 4, 1, 2)], 1.0)
    plan = scheduler.poll(1.0, idle_lanes=1)
    assert isinstance(plan, Plan)
    assert plan.batches[0].ids == (3, 0, 4, 1, 2)


def in_time(order: OrderName, deadlines: list[int]) -> int:
    """How many of these jobs, all there at 0, end by their deadlines on one lane, one second each."""
    scheduler = Scheduler(SchedulerSettings(0.0, 1, 8, None, "hungry", "none", order, "accept"), ONE_SECOND)
    scheduler.add([one_job(number, 1, 0.0, float(due)) for number, due in enumerate(deadlines)], 0.0)
    met = 0
    for start in itertools.count():
        plan = scheduler.poll(float(start), idle_lanes=1)
        if not isinstance(plan, Plan):
            return met
        met += sum(deadlines[job_id] >= start + 1 for batch in plan.batches for job_id in batch.ids)
    raise AssertionError("The queue never empties.")


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 8), min_size=1, max_size=7))
def test_edf_meets_all_deadlines_where_any_order_does(deadlines: list[int]) -> None:
    possible = all(sum(other <= due for other in deadlines) <= due for due in deadlines)  # by Jackson, 1955
    assert (in_time("edf", deadlines) == len(deadlines)) == possible
    if in_time("arrival", deadlines) == len(deadlines):
        assert in_time("edf", deadlines) == len(deadlines)


def test_batches_of_one_plan_run_in_the_chosen_order() -> None:
    """Three batches of a plan: of 40s (oldest), of 1s (cheapest), of 90s (earliest deadline)."""
    firsts = {}
    for order in ("edf", "arrival", "cost-first"):
        settings_ = SchedulerSettings(0.0, 2, 1000, None, "hungry", "sorted", order, "accept")
        scheduler = Scheduler(settings_, PackedCost(0.0, 0.0, 1.0, 0.0))
        shapes = [(40, 9e6), (40, 9e6), (1, 8e6), (1, 8e6), (90, 7e6), (90, 7e6)]
        scheduler.add(
            [one_job(number, *shape[:1], float(number), shape[1]) for number, shape in enumerate(shapes)], 9.0
        )
        plan = scheduler.poll(9.0, idle_lanes=1)
        assert isinstance(plan, Plan)
        assert len(plan.batches) == 3
        firsts[order] = plan.batches[0].ids
    assert firsts == {"edf": (4, 5), "arrival": (0, 1), "cost-first": (2, 3)}
