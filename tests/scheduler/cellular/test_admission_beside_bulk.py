"""Admission of online jobs while bulk jobs fill what they leave of a device."""

import random

import numpy as np
import pytest

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask

STEP_S, ROWS, STEPS, DEADLINE_S = 0.010, 8, 20, 0.35


def share_lost(num_bulk: int, load: float, max_slots: int | None) -> float:
    """Online jobs without an answer in time, while so many bulk jobs are there."""
    scheduler = CellScheduler([CellRule("decode", ROWS, 4)], 1, max_slots, admission="deadline")
    for num_rows in (1, 2, 4, 8):
        scheduler.cost.observe(0, num_rows, 4, 4 * STEP_S)
    graph, chance, now = CellGraph.of_stages((0, STEPS)), random.Random(3), 0.0
    arrivals = np.cumsum([chance.expovariate(load * ROWS / (STEPS * STEP_S)) for _ in range(200)]).tolist()
    scheduler.add([CellJob(1000 + number, graph, 0.0, bulk=True) for number in range(num_bulk)], 0.0)
    num_added = in_time = 0
    while now < arrivals[-1] + 1.0:
        while num_added < len(arrivals) and arrivals[num_added] <= now:
            at = arrivals[num_added]
            scheduler.add([CellJob(num_added, graph, at, at + DEADLINE_S)], now)
            num_added += 1
        task = scheduler.poll(now)
        now += STEP_S * (task.quantum if isinstance(task, CellTask) else 1)
        if isinstance(task, CellTask):
            stopped = np.zeros(len(task.jobs), np.bool_)
            ended = scheduler.finished(task.id, now, task.steps, stopped, STEP_S * task.quantum)
            in_time += sum(job < 1000 and now <= arrivals[job] + DEADLINE_S for job in ended)
            scheduler.add([CellJob(job, graph, now, bulk=True) for job in ended if job >= 1000], now)
    return 1 - in_time / len(arrivals)


@pytest.mark.parametrize(("max_slots", "most"), [(ROWS, 0.1), (None, 0.01)], ids=["slots are few", "rows are few"])
def test_bulk_jobs_make_few_online_jobs_late(max_slots: int | None, most: float) -> None:
    assert share_lost(16, 0.5, max_slots) <= share_lost(0, 0.5, max_slots) + most


def test_bulk_jobs_that_give_way_do_not_count_as_slow_ones() -> None:
    assert share_lost(16, 0.7, None) <= share_lost(0, 0.7, None) + 0.01
