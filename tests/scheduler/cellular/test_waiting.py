"""Jobs that wait, against a plain sorted list, in blocks and windows of a few rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.cellular import waiting as room
from penstock.scheduler.cellular.arrays import BULK, DEADLINE, DUE_AT, ID, NUMBER, SLOTS
from penstock.scheduler.cellular.jobs import JobRows
from penstock.scheduler.cellular.waiting import WaitingJobs

MAX_SLOTS = 12

Entry = tuple[int, float, int, int, float]  # bulk, due, number, slots, seconds by which it is late: as they are ordered


def rows_of(entries: list[Entry]) -> JobRows:
    bulk, due, numbers, slots, late_s = (list(column) for column in zip(*entries, strict=True))
    columns = np.zeros((5, len(entries)), np.int64)
    columns[[ID, NUMBER, BULK, SLOTS]] = numbers, numbers, bulk, slots
    graphs: list[Any] = [f"graph of {number}" for number in numbers]
    times = np.zeros((3, len(entries)))
    times[[DEADLINE, DUE_AT]] = late_s, due
    return JobRows.before_arrival(columns, times, graphs)


def numbers_of(parts: list[JobRows]) -> list[int]:
    for part in parts:
        assert [str(graph) for graph in part.graphs] == [
            f"graph of {number}" for number in part.columns[NUMBER].tolist()
        ]
    return [number for part in parts for number in part.columns[NUMBER].tolist()]


class SortedList:
    """The same queue, one job at a time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def take(self, held: tuple[int, int]) -> tuple[list[int], list[int]]:
        slots, joining, late = list(held), list[int](), list[int]()
        for entry in sorted(self.entries):
            bulk, _, number, needed, late_s = entry
            if late_s > 0:
                late.append(number)
            else:
                if not fits(bulk, needed, *slots):
                    break
                slots[bulk] += needed
                joining.append(number)
            self.entries.remove(entry)
        return joining, late


def fits(bulk: int, needed: int, online: int, of_bulk: int) -> bool:
    """Whether there is room for a job."""
    is_over = bulk and of_bulk > 0 and of_bulk + needed > 0.75 * MAX_SLOTS
    return not (online + of_bulk and (online + of_bulk + needed > MAX_SLOTS or is_over))


JOBS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, MAX_SLOTS), st.sampled_from((-1.0, -1.0, 1.0))),
    min_size=1,
    max_size=8,
)
HELD = st.tuples(st.integers(0, 6), st.integers(0, 6))
STEP = st.one_of(
    st.tuples(st.just("push"), JOBS), st.tuples(st.just("leave"), st.integers(0, 99)), st.tuples(st.just("take"), HELD)
)


@given(st.lists(STEP, max_size=25))
def test_the_same_jobs_join_and_leave_as_of_a_sorted_list(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in (("_WINDOW", 3), ("_SMALL", 2), ("_FEW", 1)):
            patch.setattr(room, constant, value)
        queue, model, number = WaitingJobs(MAX_SLOTS), SortedList(), 0
        for step in steps:
            if step[0] == "take":
                joining, late = queue.take(step[1], lambda rows: rows.times[DEADLINE])
                expected, expected_late = model.take(step[1])
                assert numbers_of(joining) == expected
                assert [job for rows, _ in late for job in rows.columns[NUMBER].tolist()] == expected_late
            elif step[0] == "push":
                entries = [
                    (bulk, float(due), number + at, slots, late_s)
                    for at, (bulk, due, slots, late_s) in enumerate(step[1])
                ]
                number += len(entries)
                queue.push(rows_of(entries))
                model.entries += entries
            elif model.entries:
                gone = model.entries.pop(step[1] % len(model.entries))
                queue.leave([gone[2]])
        assert len(queue) >= len(model.entries)


@given(JOBS, HELD)
def test_jobs_join_together_where_each_finds_slots_in_any_order(
    jobs: list[tuple[int, int, int, float]], held: tuple[int, int]
) -> None:
    slots = [sum([needed for bulk, _, needed, _ in jobs if bulk in classes]) for classes in ((0, 1), (1,))]
    waiting = WaitingJobs(MAX_SLOTS)
    is_over = slots[1] and held[1] + slots[1] > 0.75 * MAX_SLOTS
    do_fit = not is_over and sum(held) + slots[0] <= MAX_SLOTS
    assert waiting.fit_together((slots[0], slots[1]), held) == do_fit
    waiting.push(
        rows_of([(bulk, float(due), at, needed, late_s) for at, (bulk, due, needed, late_s) in enumerate(jobs)])
    )
    assert not waiting.fit_together((slots[0], slots[1]), held)  # others wait
