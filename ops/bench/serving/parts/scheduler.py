"""The scheduler alone: microseconds to add and plan a request while 10,000 others wait, and of one run of the DP."""

import time

import numpy as np

from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.loads.systems import EngineKind, Limits, default, on_packed
from penstock.ops.bench.serving.parts.saturation import Row
from penstock.scheduler import Job, Plan, Scheduler, SchedulerSettings
from penstock.scheduler.policies.dp import cheapest_cuts

QUEUED = 10_000
_REQUESTS = 100_000
_TOGETHER = 64  # jobs in one call of `add`
_SLO_S = 3600.0  # no job is late
_ONE_SLO = (_SLO_S,)
_THREE_SLOS = (
    _SLO_S,
    _SLO_S + 0.005,
    _SLO_S + 0.015,
)  # an arriving job is due before many queued ones, whose deadlines span 10 ms

DP_QUEUED, DP_MAX_BATCH = 1000, 512
_DP_KINDS: tuple[EngineKind, ...] = ("packed", "padded")
_DP_TIMES = 51


def run(bench: BenchHarness) -> Row:
    """Measure the scheduler for all settings, in some 6 s."""
    limits = bench.limits(_SLO_S)
    systems = {system.name: system for system in (default(limits), *on_packed(limits))}
    chosen = {name: systems[name].settings for name in _names(limits)}
    return {
        "queued": QUEUED,
        "us": {name: _us(bench, settings, _ONE_SLO) for name, settings in chosen.items()},
        "us_three_slos": {name: _us(bench, settings, _THREE_SLOS) for name, settings in chosen.items()},
        "dp_queued": DP_QUEUED,
        "dp_max_batch": DP_MAX_BATCH,
        "dp_ms": {kind: _dp_ms(bench, kind) for kind in _DP_KINDS},
    }


def _names(limits: Limits) -> list[str]:
    return [default(limits).name, "packed, DP"]


def _us(bench: BenchHarness, settings: SchedulerSettings, slos_s: tuple[float, ...]) -> float:
    """Microseconds of processor time a request; jobs have the objectives in turn."""
    scheduler = Scheduler(settings, bench.known("packed").cost)
    lengths = np.random.default_rng(0).integers(2, 101, QUEUED + _REQUESTS).tolist()
    jobs = []
    for index, length in enumerate(lengths):
        arrival = index * 1e-6
        jobs.append(Job(index, length, arrival, arrival + slos_s[index % len(slos_s)]))
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


def _dp_ms(bench: BenchHarness, kind: EngineKind) -> float:
    """Median time of one DP over a queue, with the learned cost of this engine."""
    cost = bench.known(kind).cost
    ascending = np.sort(np.random.default_rng(0).integers(2, 513, DP_QUEUED)).astype(np.float64)
    seconds = []
    for _ in range(_DP_TIMES):
        began = time.perf_counter()
        cheapest_cuts(ascending, cost, max_sequences=DP_MAX_BATCH, max_tokens=10**9)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) * 1e3
