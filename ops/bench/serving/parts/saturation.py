"""Each system's throughput at saturation, and its critical point: the highest rate at which it keeps up and in time.

The critical point is first looked for in the simulator, which knows from the saturated run how this engine behaves, and
then confirmed by real runs. Only real runs are reported; the simulator draws the line of the plot.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.outcome import Outcome, p50_p95
from penstock.ops.bench.serving.loads.systems import System, all_systems, default
from penstock.ops.bench.serving.parts.rate_search import confirm, highest

_OVERLOAD = 1.4  # times the throughput that is expected
_SATURATED = 0.9  # answered / offered: above it there was no overload
_CURVE = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2)  # of the best system's saturation
SINCE = 0.3

Row = dict[str, Any]
Say = Callable[[str], None]


def run(bench: BenchHarness, plan: RunPlan, lengths: str, say: Say, *, only_default: bool = False) -> Row:
    """One workload with every system, or with `only_default` just what the other parts need."""
    slo_s = plan.slo_of(bench, lengths)
    say(f"{lengths} tokens, SLO {slo_s * 1e3:.0f} ms")
    limits = bench.limits(slo_s)
    systems = [default(limits)] if only_default else all_systems(limits)
    rows = [_system(bench, plan, system, lengths, slo_s, say) for system in systems]
    best = max(row["saturation_per_s"] for row in rows)
    for system, row in zip(systems, rows, strict=True):
        row["curve"] = _curve(bench, plan, system, lengths, slo_s, best)
    us_a_token = {kind: bench.lane_us_a_token(kind, lengths) for kind in {system.engine: None for system in systems}}
    return {"lengths": lengths, "slo_s": slo_s, "rows": rows, "us_a_token": us_a_token}


def _system(bench: BenchHarness, plan: RunPlan, system: System, lengths: str, slo_s: float, say: Say) -> Row:
    overload = overloaded(bench, plan, system, lengths, slo_s)
    bench.learn(system.engine, [overload])
    saturation = overload.answered_per_s(SINCE)

    def keeps_up(rate: float) -> bool:
        return bench.simulated(system, plan.simulated_load(lengths, rate, slo_s)).keeps_up(slo_s)

    found = highest(keeps_up, 0.9 * saturation, precision=0.03)
    confirmed = confirm(
        lambda rate: bench.real(system, plan.load(lengths, rate, slo_s), grace_s=2 * slo_s),
        lambda outcome: outcome.keeps_up(slo_s),
        min(found, saturation) or 0.1 * saturation,  # a short run may pass by chance what cannot last
        most=plan.most_trials,
    )
    row = {
        "system": system.name,
        "engine": system.engine,
        "saturation_per_s": saturation,
        "overload": described(overload, slo_s),
        "simulated_critical_per_s": found,
        "critical_per_s": confirmed.rate if confirmed.was_sustained else None,
        "at_critical": described(confirmed.trial, slo_s),
    }
    at = f"critical at {confirmed.rate:,.0f}" if confirmed.was_sustained else f"not in time at {confirmed.rate:,.0f}"
    say(f"  {system.name}: {saturation:,.0f} req/s saturated, {at}")
    return row


def overloaded(bench: BenchHarness, plan: RunPlan, system: System, lengths: str, slo_s: float) -> Outcome:
    """One run in which more requests arrive than can be answered."""
    bound = bench.capacity_per_s(system.engine, lengths, system.settings.max_batch_sequences)
    simulated = bench.simulated(system, plan.simulated_load(lengths, 2 * bound, slo_s)).answered_per_s(SINCE)
    expected = max(simulated, 0.05 * bound)
    rate = _OVERLOAD * expected
    outcome = bench.real(system, plan.overload(lengths, rate, slo_s, expected), grace_s=0.0)
    while outcome.answered_per_s(SINCE) > _SATURATED * outcome.offered_per_s(SINCE):
        rate, expected = 2 * rate, 2 * expected
        outcome = bench.real(system, plan.overload(lengths, rate, slo_s, expected), grace_s=0.0)
    return outcome


def _curve(
    bench: BenchHarness, plan: RunPlan, system: System, lengths: str, slo_s: float, best: float
) -> list[tuple[float, float]]:
    """Simulated (offered, answered), requests a second."""
    points = []
    for share in _CURVE:
        outcome = bench.simulated(system, plan.simulated_load(lengths, share * best, slo_s))
        points.append((outcome.offered_per_s(SINCE), outcome.answered_per_s(SINCE)))
    return points


def described(outcome: Outcome, slo_s: float, since: float = SINCE) -> Row:
    """A run's figures, as JSON carries them. Rates are those after the share `since` of the time."""
    latency = outcome.latency_s
    return {
        "offered_per_s": outcome.offered_per_s(since),
        "answered_per_s": outcome.answered_per_s(since),
        "goodput_per_s": outcome.goodput_per_s(slo_s, since),
        "in_time_of_accepted": outcome.in_time_of_accepted(slo_s),
        "refused": dict(outcome.refused),
        "requests": len(latency),
        "latency_s": outcome.latency_summary_s(),
        "cdf_s": np.percentile(latency, range(101), method="higher").tolist(),
        "padding": outcome.padding(),
        "mean_batch": outcome.mean_batch(),
        "scheduler_us": outcome.scheduler_us(),
        "prediction_error": p50_p95(outcome.prediction_errors()),
    }
