"""The simulator beside a real run of one worker with the same requests, and that run beside its repetition."""

import math

import numpy as np

from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.systems import default, tei
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.bench.serving.parts.slo import saturation_of

_LOADS = (0.5, 0.8)
_LEARNT_LOADS = (0.4, 0.65, 0.9, 1.3)
_TIMES = 3.0  # the usual length of a run
_SCATTERS = 15  # simulated runs, whose median counts: in a run of a second or two the p99 is a handful of requests


def run(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """Throughput and p99 of a real run and of a simulated one."""
    lengths, slo_s = workload["lengths"], workload["slo_s"]
    saturation = saturation_of(workload)
    limits = bench.limits(slo_s)
    # The simulator learns from some runs and is held to others: batches that find lanes idle, small and large, and some
    # that wait.
    learnt = [plan.load(lengths, load * saturation, slo_s) for load in _LEARNT_LOADS]
    bench.learn("packed", [bench.real(tei(limits), load, grace_s=0.0) for load in learnt])
    rows = []
    for system in (default(limits), tei(limits)):
        for load in _LOADS:
            offered = plan.load(lengths, load * saturation, slo_s, times=_TIMES)
            first, again = (_figures(bench.real(system, offered, grace_s=2 * slo_s)) for _ in range(2))
            simulated = [_figures(bench.simulated(system, offered, scatter=seed)) for seed in range(_SCATTERS)]
            median = {key: float(np.median([figures[key] for figures in simulated])) for key in first}
            rows.append({"system": system.name, "load": load, "real": first, "again": again, "simulated": median})
    say("  the simulator beside real runs")
    return {"lengths": lengths, "rows": rows}


def _figures(outcome: Outcome) -> Row:
    latency = outcome.latency_s
    answered = latency[np.isfinite(latency)]
    return {
        "answered_per_s": outcome.answered_per_s(0.0),
        "p99_s": float(np.percentile(answered, 99)) if len(answered) else math.inf,
        "refused": outcome.num_refused / outcome.num_requests,
    }
