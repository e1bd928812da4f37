"""The scheduler alone: processor microseconds a request, added and planned, with 10,000 others waiting."""

import time

import numpy as np

from penstock.ops.bench.serving.part_saturation import Row
from penstock.ops.bench.serving.stand import Stand
from penstock.ops.bench.serving.systems import Limits, default, on_packed
from penstock.scheduler import Job, Plan, Scheduler, SchedulerSettings

QUEUED = 10_000
_REQUESTS = 100_000
_TOGETHER = 64  # jobs in one call of `add`
_SLO_S = 3600.0  # nobody is late


def run(stand: Stand) -> Row:
    """Some 3 s."""
    limits = stand.limits(_SLO_S)
    systems = {system.name: system for system in (default(limits), *on_packed(limits))}
    return {"queued": QUEUED, "us": {name: _us(stand, systems[name].settings) for name in _names(limits)}}


def _names(limits: Limits) -> list[str]:
    return [default(limits).name, "packed, DP"]


def _us(stand: Stand, settings: SchedulerSettings) -> float:
    scheduler = Scheduler(settings, stand.known("packed").cost)
    lengths = np.random.default_rng(0).integers(2, 101, QUEUED + _REQUESTS).tolist()
    jobs = [Job(index, length, index * 1e-6) for index, length in enumerate(lengths)]
    scheduler.add(jobs[:QUEUED], 1.0)
    num_planned, now = 0, 1.0
    began = time.process_time()
    for begin in range(QUEUED, len(jobs), _TOGETHER):
        now += 1e-4
        scheduler.add(jobs[begin : begin + _TOGETHER], now)
        while scheduler.num_queued > QUEUED:
            decision = scheduler.poll(now, idle_lanes=1)
            if not isinstance(decision, Plan):
                raise RuntimeError(f"{scheduler.num_queued} jobs wait, and nothing is planned. This is a bug.")
            num_planned += sum(len(batch.ids) for batch in decision.batches)
    return (time.process_time() - began) / num_planned * 1e6
