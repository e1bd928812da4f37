"""Admission: no single measurement rejects a job that has ten times the time that it needs."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask
from penstock.scheduler.settings import AdmissionName
from tests.examples import examples

MAX_ROWS, MAX_STEPS = 64, 4
SIZES = st.tuples(st.sampled_from((1, 2, 5, 16, 40, 64)), st.sampled_from((1, 2, 4)))  # rows and quantum


@dataclass
class Outlier:
    """One wrong measurement."""

    factor: float
    place: int  # of the task that is measured wrongly; -1: before all, of `size`
    size: tuple[int, int]


def true_s(num_rows: int, quantum: int) -> float:
    """Of a task whose time grows by a half from one row to the most."""
    return (0.002 + 0.008 * quantum) * (1 + num_rows / MAX_ROWS) / 1.5


def serve(scheduler: CellScheduler, jobs: list[CellJob], outlier: Outlier | None) -> tuple[float, int]:
    """The longest time from arrival to end in virtual time, and the number of rejected jobs."""
    coming, arrivals = list(reversed(jobs)), {job.id: job.arrival for job in jobs}
    now, longest_s, num_left, num_rejected, num_tasks = 0.0, 0.0, len(jobs), 0, 0
    while num_left:
        while coming and coming[-1].arrival <= now:
            rejected = len(scheduler.add([coming.pop()], now))
            num_rejected, num_left = num_rejected + rejected, num_left - rejected
        plan = scheduler.poll(now)
        num_rejected, num_left = num_rejected + len(plan.rejected), num_left - len(plan.rejected)
        if not isinstance(plan, CellTask):
            now = coming[-1].arrival if coming else now
            continue
        seconds = true_s(len(plan.jobs), plan.quantum)
        is_wrong = outlier is not None and outlier.place == num_tasks
        now, num_tasks = now + seconds, num_tasks + 1
        measured_s = seconds * (outlier.factor if outlier is not None and is_wrong else 1.0)
        stopped = np.zeros(len(plan.jobs), np.bool_)
        for job_id in scheduler.finished(plan.id, now, plan.steps, stopped, measured_s):
            longest_s, num_left = max(longest_s, now - arrivals[job_id]), num_left - 1
    return longest_s, num_rejected


def scheduler_of(admission: AdmissionName, warm_up: list[tuple[int, int]], outlier: Outlier | None) -> CellScheduler:
    """One that has timed tasks of these sizes, and before them perhaps a wrong one."""
    rule = CellRule("decode", MAX_ROWS, MAX_STEPS)
    scheduler = CellScheduler([rule], max_tasks=1, max_slots=MAX_ROWS, admission=admission)
    if outlier is not None and outlier.place < 0:
        scheduler.cost.observe(0, *outlier.size, true_s(*outlier.size) * outlier.factor)
    for size in warm_up:
        scheduler.cost.observe(0, *size, true_s(*size))
    return scheduler


@given(
    num_jobs=st.integers(1, 80),
    num_steps=st.integers(1, 100),
    apart_s=st.sampled_from((0.0, 0.01, 0.2)),
    warm_up=st.lists(SIZES, max_size=12),
    outlier=st.builds(Outlier, st.sampled_from((1e-3, 0.1, 4.0, 40.0, 1e3, 1e6)), st.integers(-1, 30), SIZES),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_one_measurement_was_a_job_with_ten_times_the_time_it_needs_is_admitted(
    num_jobs: int, num_steps: int, apart_s: float, warm_up: list[tuple[int, int]], outlier: Outlier
) -> None:
    graph = CellGraph.of_stages((0, num_steps))
    jobs = [CellJob(number, graph, number * apart_s) for number in range(num_jobs)]
    needed_s, _ = serve(scheduler_of("accept", warm_up, None), jobs, None)
    dated = [job._replace(deadline=job.arrival + 10 * needed_s) for job in jobs]
    _, num_rejected = serve(scheduler_of("deadline", warm_up, outlier), dated, outlier)
    assert num_rejected == 0


def test_one_cold_task_of_the_most_rows_rejects_none_of_forty_calls() -> None:
    """Steps take 8 ms; one task of 64 rows took 0.3 s while a model was warmed up."""
    scheduler = scheduler_of("deadline", [], Outlier(0.3 / true_s(64, 1), -1, (64, 1)))
    jobs = [CellJob(number, CellGraph.of_stages((0, 300)), 0.0, 30.0) for number in range(40)]
    assert serve(scheduler, jobs, None)[1] == 0
