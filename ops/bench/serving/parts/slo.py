"""Goodput against TEI's rule, from half of saturation to twice, steady and in bursts; and two classes."""

import math
from dataclasses import replace

from penstock.ops.bench.serving.harness import BenchHarness
from penstock.ops.bench.serving.loads.arrivals import PERIOD_S
from penstock.ops.bench.serving.loads.systems import DEFAULT, TEI
from penstock.ops.bench.serving.parts.saturation import Row, Say, saturation_of
from penstock.ops.bench.serving.run_plan import RunPlan

LOADS = (0.5, 0.9, 1.0, 1.5, 2.0)  # of the default's saturation
SLO_SHARES = (0.5, 1.0, 2.0)  # 25, 50 and 100 ms where the objective is 50 ms
_BURST_LOADS = (0.4, 0.7)
_BURST_TIMES = 2.0  # the usual length of a run
_FEWEST_PERIODS = 5  # of bursts
_ONLINE_LOAD = 0.5


def run_goodput(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """Steady Poisson arrivals. A system that accepts all requests ignores objectives, so it runs once for all."""
    lengths, slo_s, saturation = workload["lengths"], workload["slo_s"], saturation_of(workload)
    objectives = [share * slo_s for share in SLO_SHARES]
    rows: list[Row] = []
    for load in LOADS:
        offered = plan.load(lengths, load * saturation, slo_s)
        accepting = bench.real(bench.system(TEI, slo_s), offered, grace_s=2 * slo_s)
        for objective in objectives:
            deciding = bench.real(bench.system(DEFAULT, objective), offered, grace_s=2 * slo_s)
            for name, outcome in ((DEFAULT, deciding), (TEI, accepting)):
                rows.append({"load": load, "slo_s": objective, "system": name, **outcome.figures(objective)})
        say(f"  goodput at {load:g} of saturation")
    return {"lengths": lengths, "saturation_per_s": saturation, "rows": rows}


def run_bursts(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """On/off arrivals of the same mean, over whole periods."""
    lengths, slo_s, saturation = workload["lengths"], workload["slo_s"], saturation_of(workload)
    rows = []
    for load in _BURST_LOADS:
        steady = plan.load(lengths, load * saturation, slo_s, times=_BURST_TIMES)
        seconds = PERIOD_S * max(_FEWEST_PERIODS, math.ceil(steady.seconds / PERIOD_S))
        for name in (DEFAULT, TEI):
            offered = replace(steady, seconds=seconds, is_bursty=True)
            outcome = bench.real(bench.system(name, slo_s), offered, grace_s=2 * slo_s)
            figures = replace(outcome, offered_s=seconds).figures(slo_s, since=0.0)
            rows.append({"load": load, "slo_s": slo_s, "system": name, "seconds": seconds, **figures})
        say(f"  bursts at {load:g} of saturation")
    return {"lengths": lengths, "saturation_per_s": saturation, "rows": rows}


def run_classes(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """Online requests at half of saturation, without bulk and beside more bulk than can be computed."""
    lengths, slo_s, saturation = workload["lengths"], workload["slo_s"], saturation_of(workload)
    online = plan.load(lengths, _ONLINE_LOAD * saturation, slo_s, times=_BURST_TIMES)
    backlog = round(saturation * online.seconds)
    rows: list[Row] = []
    for name, num_bulk in (("no bulk", 0), ("saturating bulk", backlog)):
        outcome = bench.real(bench.system(DEFAULT, slo_s), replace(online, num_bulk=num_bulk), grace_s=2 * slo_s)
        rows.append({"load": name, "bulk_per_s": outcome.bulk_per_s(), **outcome.figures(slo_s)})
    say("  two classes")
    return {"lengths": lengths, "online_per_s": online.rate_per_s, "slo_s": slo_s, "rows": rows}
