"""Jobs that wait, against a plain sorted list, in blocks and windows of a few rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.cellular import waiting as room
from penstock.scheduler.cellular.active import ActiveJobs
from penstock.scheduler.cellular.arrays import BULK, ID, NUMBER, SLOTS
from penstock.scheduler.cellular.new_jobs import Forecast, JobRows, NewJobs
from penstock.scheduler.cellular.settings import CellSettings
from penstock.scheduler.cellular.types import CellGraph, CellJob, JobColumns
from penstock.scheduler.cellular.waiting import WaitingJobs

MAX_SLOTS = 12

Entry = tuple[int, float, int, int, float]  # bulk, due, number, slots, seconds by which it is late: as they are ordered


def rows_of(entries: list[Entry]) -> JobRows:
    bulk, due, numbers, slots, late_s = (list(column) for column in zip(*entries, strict=True))
    columns = np.zeros((5, len(entries)), np.int64)
    columns[[ID, NUMBER, BULK, SLOTS]] = numbers, numbers, bulk, slots
    graphs: list[Any] = [f"graph of {number}" for number in numbers]
    return JobRows(columns, np.array(due), np.array(late_s), np.zeros((len(entries), 5)), graphs)


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

    def take(self, held: list[tuple[int, int]]) -> tuple[list[list[int]], list[int]]:
        slots, joining, late = [list(one) for one in held], [list[int]() for _ in held], list[int]()
        for entry in sorted(self.entries):
            bulk, _, number, needed, late_s = entry
            if late_s > 0:
                late.append(number)
            else:
                device = min(range(len(slots)), key=lambda device: sum(slots[device]))
                online, of_bulk = slots[device]
                if not fits(bulk, needed, online, of_bulk):
                    break
                slots[device][bulk] += needed
                joining[device].append(number)
            self.entries.remove(entry)
        return joining, late


def fits(bulk: int, needed: int, online: int, of_bulk: int) -> bool:
    """Whether a device has room for a job."""
    is_over = bulk and of_bulk > 0 and of_bulk + needed > 0.75 * MAX_SLOTS
    return not (online + of_bulk and (online + of_bulk + needed > MAX_SLOTS or is_over))


JOBS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, MAX_SLOTS), st.sampled_from((-1.0, -1.0, 1.0))),
    min_size=1,
    max_size=8,
)
HELD = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=2)
STEP = st.one_of(st.tuples(st.just("push"), JOBS), st.tuples(st.just("leave"), st.integers(0, 99)), HELD)


@given(st.lists(STEP, max_size=25))
def test_the_same_jobs_join_and_leave_as_of_a_sorted_list(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in (("_WINDOW", 3), ("_SMALL", 2), ("_FEW", 1)):
            patch.setattr(room, constant, value)
        queue, model, number = WaitingJobs(MAX_SLOTS), SortedList(), 0
        for step in steps:
            if isinstance(step, list):
                joining, late = queue.take(step, lambda rows: rows.deadlines)
                expected, expected_late = model.take(step)
                assert [numbers_of(parts) for parts in joining] == expected
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


@given(JOBS, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=3))
def test_jobs_of_several_devices_join_together_where_each_finds_slots(
    jobs: list[tuple[int, int, int, float]], held: list[tuple[int, int]]
) -> None:
    graph = CellGraph.of_stages((0, 1))
    found = [CellJob(at, graph, 0.0, bulk=bool(bulk), slots=slots) for at, (bulk, _, slots, _) in enumerate(jobs)]
    settings = CellSettings(len(held), max_slots=MAX_SLOTS)
    forecast = Forecast(np.ones((2, 1)))
    new = NewJobs.of(JobColumns.of(found), ActiveJobs(), 0, settings, forecast)
    slots, expected = [list(one) for one in held], [list[int]() for _ in held]
    for job in found:
        device = min(range(len(slots)), key=lambda device: sum(slots[device]))
        online, of_bulk = slots[device]
        if not fits(job.bulk, job.slots, online, of_bulk):
            expected = []
            break
        slots[device][job.bulk] += job.slots
        expected[device].append(job.id)
    waiting = WaitingJobs(MAX_SLOTS)
    joined = {number: joining.columns[ID].tolist() for number, joining in waiting.fit_together(new, held)}
    assert joined == {number: ids for number, ids in enumerate(expected) if ids}
    waiting.push(new.rows())
    assert waiting.fit_together(new, held) == []  # others wait
