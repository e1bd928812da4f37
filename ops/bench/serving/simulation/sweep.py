"""`penstock bench simulate`: how cost and p99 grow with load, with the fleet and with popular keys."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ops.bench.common.machine import title
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.simulation.simulate import scatter_of
from penstock.ops.bench.serving.simulation.simulated_fleet import Fleet, FleetOutcome, Traffic, simulate_fleet
from penstock.scheduler import CostTable, PackedCost, SchedulerSettings

# BERT-base in float16 on an H200, rounded from a run under ops/bench/results/gpu/nvidia-h200: 2.5 million tokens a
# second, at least 0.6 ms a batch. Only the default of `penstock bench simulate`, which takes a result file instead.
_H200 = PackedCost(floor_s=0.6e-3, alpha_s=0.1e-3, beta_s=0.39e-6, gamma_s=4e-11)
_H200_CAPS = (1024, 16_384)  # sequences, tokens
_MAX_WAIT_S = 0.002
_LOADS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
_SKEW: Mapping[str, Any] = {"num_keys": 100_000, "zipf": 0.9}
_MOST_FOR_ONE = 200_000  # requests of a run with one worker

_COLUMNS: Mapping[str, Callable[[FleetOutcome], str]] = {
    "req/s": lambda outcome: f"{len(outcome.arrival) / outcome.span_s:,.0f}",
    "p50 ms": lambda outcome: f"{_latency_s(outcome, 50) * 1e3:.2f}",
    "p99 ms": lambda outcome: f"{_latency_s(outcome, 99) * 1e3:.2f}",
    "refused": lambda outcome: f"{outcome.num_refused / len(outcome.arrival):.1%}",
    "busy s per million": lambda outcome: f"{outcome.busy_s_per_million():.1f}",
    "paid s per million": lambda outcome: f"{outcome.paid_s_per_million():.1f}",
    "busiest / mean": lambda outcome: f"{outcome.busy_s.max() / outcome.busy_s.mean():.2f}",
}


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Options of the simulation."""

    workers: tuple[int, ...] = (1, 4, 16, 64, 256)
    num_requests: int = 1_000_000  # in each run
    lengths: str = "2-100"
    slo_s: float = 0.05
    load: float = 0.8
    seed: int = 0


class UnusableResult(Exception):
    """A file that holds no measured costs, or a fleet that answers no request. The message says which."""


def run_sweep(plan: SweepPlan, *, result: Path | None) -> int:
    """Run the sweep and print its tables. `result`: a file of `penstock bench serve`. Raises UnusableResult."""
    what, one = _of_h200(plan) if result is None else _measured(plan, result)
    saturation = _saturation(plan, one)
    print(f"{what}: one worker answers {saturation:,.0f} req/s when saturated", flush=True)

    def traffic(workers: int, load: float, count: int, **skew: Any) -> Traffic:
        return Traffic(load * workers * saturation, count, plan.lengths, seed=plan.seed, **skew)

    few = min(plan.num_requests, _MOST_FOR_ONE)
    print(
        _shown("One worker, load 1 is its saturation", {f"{load:g} x": (one, traffic(1, load, few)) for load in _LOADS})
    )
    runs = {}
    for workers in plan.workers:
        fleet = replace(one, num_workers=workers)
        for keys, skew in (("all different", {}), ("Zipf", _SKEW)):
            runs[f"{workers}, {keys}"] = fleet, traffic(workers, plan.load, plan.num_requests, **skew)
    print(_shown(f"Fleets at {plan.load:g} of their saturation: workers, keys", runs))
    return 0


def _shown(title: str, runs: Mapping[str, tuple[Fleet, Traffic]]) -> str:
    rows, began = [], time.monotonic()
    for name, (fleet, traffic) in runs.items():
        outcome = simulate_fleet(traffic, fleet, num_processes=len(os.sched_getaffinity(0)))
        if outcome.num_answered + outcome.num_refused != traffic.num_requests:
            raise RuntimeError(f"Of {traffic.num_requests} requests some have no end. This is a bug.")
        rows.append([name, *[show(outcome) for show in _COLUMNS.values()]])
    return f"\n{title}\n\n{table(['', *_COLUMNS], rows)}\n\nSimulated in {time.monotonic() - began:.0f} s."


def _latency_s(outcome: FleetOutcome, percent: float) -> float:
    """Of what is answered."""
    return float(np.nanpercentile(outcome.finish - outcome.arrival, percent))


def _saturation(plan: SweepPlan, one: Fleet) -> float:
    """Answers a second of one worker at twice the load that its cost function predicts as saturation."""
    settings = one.settings
    lengths = draw(plan.lengths, settings.max_batch_sequences, 0)
    lengths = lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), settings.max_batch_tokens)))]
    batch_s = float(one.cost.seconds(int(lengths.sum()), int((lengths**2).sum()), int(lengths.max()), len(lengths)))
    rate = 2 * settings.num_lanes * len(lengths) / batch_s
    outcome = simulate_fleet(Traffic(rate, 20_000, plan.lengths), one)
    # The lane driver tries a late request now and then: its answer alone does not count as service.
    if not (outcome.finish - outcome.arrival <= plan.slo_s).any():
        raise UnusableResult(
            f"Not one request is answered within {plan.slo_s * 1e3:g} ms: there is no load to simulate."
        )
    return float((outcome.finish <= outcome.span_s).sum()) / outcome.span_s


def _of_h200(plan: SweepPlan) -> tuple[str, Fleet]:
    settings = SchedulerSettings(_MAX_WAIT_S, *_H200_CAPS, slo_s=plan.slo_s)
    return "a model of BERT-base on an H200", Fleet(1, settings, _H200)


def _measured(plan: SweepPlan, result: Path) -> tuple[str, Fleet]:
    """What a result file describes, and one worker of it. Raises UnusableResult."""
    try:
        record = json.loads(result.read_text(encoding="utf-8"))
        cost = CostTable.from_dict(record["engines"]["packed"]["table"])
        what = f"{record['model']}, {record['dtype']}, {title(record['machine'])}"
        caps = record["max_batch_sequences"], record["max_batch_tokens"]
        settings = SchedulerSettings(_MAX_WAIT_S, *caps, slo_s=plan.slo_s, num_lanes=record["num_lanes"])
        return what, Fleet(1, settings, cost, scatter_of(cost))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # CorruptTable is a ValueError, as is no JSON
        raise UnusableResult(f"{result} is no result of penstock bench serve: {error!r:.200}") from error
