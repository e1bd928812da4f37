"""Each system's throughput at saturation: the answers of a run in which more requests arrive than can be answered."""

from collections.abc import Callable
from typing import Any

from penstock.ops.bench.serving.harness import BenchHarness
from penstock.ops.bench.serving.loads.outcome import SINCE, Outcome
from penstock.ops.bench.serving.loads.systems import DEFAULT, SYSTEMS, System
from penstock.ops.bench.serving.run_plan import RunPlan

_OVERLOAD = 1.4  # times the throughput that is expected
_SATURATED = 0.9  # answered / offered: above it there was no overload

Row = dict[str, Any]
Say = Callable[[str], None]


def run(bench: BenchHarness, plan: RunPlan, lengths: str, say: Say, *, only_default: bool = False) -> Row:
    """One workload with every system, or with `only_default` just what the other parts need."""
    slo_s = plan.slo_of(bench, lengths)
    say(f"{lengths} tokens, SLO {slo_s * 1e3:.0f} ms")
    rows: list[Row] = []
    for name in (DEFAULT,) if only_default else (*SYSTEMS, DEFAULT):
        system = bench.system(name, slo_s)
        overload = _overloaded(bench, plan, system, lengths, slo_s)
        saturation = overload.answered_per_s(SINCE)
        figures = {"saturation_per_s": saturation, "overload": overload.figures(slo_s)}
        rows.append({"system": name, "engine": system.engine, **figures})
        say(f"  {name}: {saturation:,.0f} req/s saturated")
    return {"lengths": lengths, "slo_s": slo_s, "rows": rows}


def saturation_of(workload: Row) -> float:
    """Saturation of the default system, answers a second."""
    (rate,) = [row["saturation_per_s"] for row in workload["rows"] if row["system"] == DEFAULT]
    return float(rate)


def _overloaded(bench: BenchHarness, plan: RunPlan, system: System, lengths: str, slo_s: float) -> Outcome:
    expected = bench.capacity_per_s(system, lengths)
    while True:
        load = plan.overload(lengths, _OVERLOAD * expected, slo_s, expected)
        outcome = bench.real(system, load, grace_s=0.0)
        if outcome.answered_per_s(SINCE) <= _SATURATED * outcome.offered_per_s(SINCE):
            return outcome
        expected *= 2
