"""Cellular batching beside the policies before it, in virtual time."""

import itertools
import random
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest

from penstock.ops.bench.cellular.policies import BucketPadding, CellScheduling, GraphBatching, padded
from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask
from tests.scheduler.cellular.virtual_devices import Outcome, Simulation

RULES = [CellRule("lstm", 64, max_steps=4)]


def step_seconds(cell: int, num_rows: int, quantum: int) -> float:
    """Of a device that takes hardly longer for many rows, as long as weights cost more than rows."""
    return quantum * (50e-6 + 1e-6 * num_rows)


def jobs_of(rate: float, num: int, *, seed: int = 0) -> list[CellJob]:
    """Chains of a mean of about 24 steps, some of them long, that arrive at random."""
    chance = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(num):
        at += chance.expovariate(rate)
        steps = min(330, max(1, round(chance.lognormvariate(2.9, 0.7))))
        jobs.append(CellJob(number, CellGraph.of_stages((0, steps)), at))
    return jobs


def run(scheduler: CellScheduling, jobs: list[CellJob]) -> Outcome:
    outcome = Simulation(scheduler, step_seconds).run(jobs)
    assert len(outcome.latencies) == len(jobs)
    assert outcome.steps >= sum(int(job.graph.steps.sum()) for job in jobs)
    return outcome


def in_buckets(jobs: list[CellJob]) -> list[CellJob]:
    return [job._replace(graph=replace(job.graph, steps=padded(job.graph.steps, 10))) for job in jobs]


def saturation() -> float:
    return 64 / step_seconds(0, 64, 1) / 24


def quantile(outcome: Outcome, share: float) -> float:
    return float(outcome.latencies[int(share * len(outcome.latencies))])


def test_short_requests_do_not_wait_for_long_ones() -> None:
    jobs = jobs_of(0.4 * saturation(), 1500)
    ours = run(CellScheduler(RULES), jobs)
    graphs = run(GraphBatching(RULES, 64), jobs)
    padding = run(BucketPadding(RULES, 64), in_buckets(jobs))
    assert quantile(ours, 0.9) < 0.5 * min(quantile(graphs, 0.9), quantile(padding, 0.9))


def test_throughput_is_not_less_than_with_batches_of_requests() -> None:
    jobs = jobs_of(3 * saturation(), 1500)
    ours = run(CellScheduler(RULES), jobs)
    assert ours.jobs_per_s > run(GraphBatching(RULES, 64), jobs).jobs_per_s
    assert ours.jobs_per_s > run(BucketPadding(RULES, 64), in_buckets(jobs)).jobs_per_s


def test_a_job_waits_for_two_quanta_at_most_below_saturation() -> None:
    ours = run(CellScheduler(RULES), jobs_of(0.5 * saturation(), 1500))
    assert ours.queueing[int(0.99 * len(ours.queueing))] <= 2 * step_seconds(0, 64, 4)


def test_no_device_idles_while_the_next_task_is_prepared() -> None:
    """With one task that runs and one that waits, the host's time is hidden."""
    jobs = [job._replace(arrival=0.0) for job in jobs_of(1.0, 500)]
    idle = []
    for max_tasks in (1, 2):
        scheduler = CellScheduler(RULES, max_tasks=max_tasks)
        scheduler.observe_host(100e-6)
        outcome = Simulation(scheduler, step_seconds, host_s=100e-6).run(jobs)
        idle.append(1 - outcome.busy_s / outcome.end)
    assert idle[1] < 0.05 < 0.15 < idle[0]


def test_quanta_that_hide_the_host_have_the_least_latency_however_light_the_load() -> None:
    """Of a device whose step takes less than a tenth of what the host needs for a task, as on an H200."""
    jobs = jobs_of(2000.0, 600)
    p90 = []
    for max_steps in (2, 8, 32):
        scheduler = CellScheduler([CellRule("lstm", 64, max_steps)])
        scheduler.observe_host(200e-6)
        outcome = Simulation(scheduler, lambda cell, rows, quantum: quantum * 7e-6, host_s=200e-6).run(jobs)
        p90.append(quantile(outcome, 0.9))
    assert p90[2] < 0.7 * p90[1] < 0.7 * 0.5 * p90[0]


def test_chains_that_stop_leave_early() -> None:
    jobs = [CellJob(number, CellGraph.of_stages((0, 300)), 0.0) for number in range(200)]
    stops = {(number, 0): 1 + number % 30 for number in range(200)}
    outcome = Simulation(CellScheduler(RULES), step_seconds, stops=stops).run(jobs)
    assert outcome.steps == sum(stops.values())
    assert len(outcome.latencies) == 200


def test_expired_jobs_leave_under_overload_and_the_others_end_in_time() -> None:
    jobs = [job._replace(deadline=job.arrival + 0.05) for job in jobs_of(2 * saturation(), 3000)]
    outcome = Simulation(CellScheduler(RULES), step_seconds).run(jobs)
    assert len(outcome.latencies) + len(outcome.rejected) == 3000
    assert outcome.rejected
    assert outcome.latencies[-1] <= 0.05 + step_seconds(0, 64, 4)


def decision_us(num_active: int, num_decisions: int = 300) -> float:
    """Median microseconds of this thread to end a task of a saturated scheduler and to plan the next."""
    scheduler = CellScheduler([CellRule("lstm", 512, max_steps=4)])
    graphs = itertools.cycle([job.graph for job in jobs_of(1.0, 4096)])
    jobs = (CellJob(number, graph, float(number)) for number, graph in enumerate(graphs))
    scheduler.add([next(jobs) for _ in range(num_active)], 0.0)
    task, times = scheduler.poll(0.0), []
    for _ in range(2 * num_decisions):  # the first half loads what is compiled, and reaches the usual mix of lengths
        began = time.thread_time()
        following = scheduler.poll(0.0)
        planned = time.thread_time()
        assert isinstance(task, CellTask)
        is_stopped = np.zeros(len(task.jobs), np.bool_)
        told = time.thread_time()
        ended = scheduler.finished(task.id, 0.0, task.steps, is_stopped, 1e-4)
        times.append(planned - began + time.thread_time() - told)
        scheduler.add([next(jobs) for _ in ended], 0.0)
        task = following
    return statistics.median(times[num_decisions:]) * 1e6


@pytest.mark.slow
def test_a_decision_has_no_work_for_each_active_request() -> None:
    """Four times as many active requests cost no four times as much."""

    def least_us(num_active: int) -> float:
        return min([decision_us(num_active) for _ in range(3)])

    assert least_us(2048) < 3 * least_us(512)
