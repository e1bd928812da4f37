"""Goodput against TEI's rule, from half of saturation to twice, steady and in bursts; and two classes."""

import math
from dataclasses import replace
from typing import Any

from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.arrivals import BURSTS
from penstock.ops.bench.serving.loads.systems import default, tei
from penstock.ops.bench.serving.parts.saturation import Row, Say, described

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
        accepting = bench.real(tei(bench.limits(slo_s)), offered, grace_s=2 * slo_s)
        for objective in objectives:
            system = default(bench.limits(slo_s), objective)
            deciding = bench.real(system, offered, grace_s=2 * slo_s)
            for name, outcome in ((system.name, deciding), ("TEI's rule", accepting)):
                rows.append({"load": load, "slo_s": objective, "system": name, **described(outcome, objective)})
        say(f"  goodput at {load:g} of saturation")
    return {"lengths": lengths, "saturation_per_s": saturation, "rows": rows}


def run_bursts(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """On/off arrivals of the same mean, over whole periods."""
    lengths, slo_s, saturation = workload["lengths"], workload["slo_s"], saturation_of(workload)
    limits = bench.limits(slo_s)
    rows = []
    for load in _BURST_LOADS:
        steady = plan.load(lengths, load * saturation, slo_s, times=_BURST_TIMES)
        seconds = BURSTS.period_s * max(_FEWEST_PERIODS, math.ceil(steady.seconds / BURSTS.period_s))
        for system in (default(limits), tei(limits)):
            outcome = bench.real(system, replace(steady, seconds=seconds, is_bursty=True), grace_s=2 * slo_s)
            figures = described(replace(outcome, offered_s=seconds), slo_s, since=0.0)
            rows.append({"load": load, "slo_s": slo_s, "system": system.name, "seconds": seconds, **figures})
        say(f"  bursts at {load:g} of saturation")
    return {"lengths": lengths, "saturation_per_s": saturation, "rows": rows}


def run_classes(bench: BenchHarness, plan: RunPlan, workload: Row, say: Say) -> Row:
    """Online requests at half of saturation, without bulk and beside more bulk than can be computed."""
    lengths, slo_s, saturation = workload["lengths"], workload["slo_s"], saturation_of(workload)
    online = plan.load(lengths, _ONLINE_LOAD * saturation, slo_s, times=_BURST_TIMES)
    backlog = round(saturation * online.seconds)
    rows: list[Row] = []
    for name, num_bulk in (("no bulk", 0), ("saturating bulk", backlog)):
        outcome = bench.real(default(bench.limits(slo_s)), replace(online, num_bulk=num_bulk), grace_s=2 * slo_s)
        rows.append({"load": name, "bulk_per_s": outcome.bulk_per_s(), **described(outcome, slo_s)})
    say("  two classes")
    return {"lengths": lengths, "online_per_s": online.rate_per_s, "slo_s": slo_s, "rows": rows}


def saturation_of(workload: Row) -> float:
    """Saturation of the default system, answers a second."""
    rates: dict[str, Any] = {row["system"]: row["saturation_per_s"] for row in workload["rows"]}
    return float(rates["penstock default"])
