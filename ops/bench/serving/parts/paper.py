"""TurboTransformers' Tables 4 and 5: its four systems' latency at each other's critical points."""

from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.systems import PAPER_CHAIN, all_systems
from penstock.ops.bench.serving.parts.saturation import Row, Say, described


def run(bench: BenchHarness, plan: RunPlan, workload: Mapping[str, Any], say: Say) -> Row:
    """`workload`: what part saturation found. A system is run at every rate up to its own saturation."""
    lengths, slo_s = workload["lengths"], workload["slo_s"]
    found = {row["system"]: row for row in workload["rows"]}
    systems = {system.name: system for system in all_systems(bench.limits(slo_s))}
    rates = sorted(found[ours]["critical_per_s"] or 0.0 for _, ours in PAPER_CHAIN)
    rows = []
    for rate in [rate for rate in rates if rate > 0]:
        cells = {}
        for theirs, ours in PAPER_CHAIN:
            if rate <= found[ours]["saturation_per_s"]:
                outcome = bench.real(systems[ours], plan.load(lengths, rate, slo_s), grace_s=2 * slo_s)
                cells[theirs] = described(outcome, slo_s)
        rows.append({"rate_per_s": rate, "cells": cells})
        say(f"  the paper's systems at {rate:,.0f} req/s")
    return {"lengths": lengths, "rows": rows}
