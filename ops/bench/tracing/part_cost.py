"""Processor time of a request at each level of tracing, in turn."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.ops.bench.common.comparison import Grid, PartResult
from penstock.ops.bench.common.processes import ProcessFailed, run_once
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.tracing.collector import collector
from penstock.ops.bench.tracing.measured_process import Spec
from penstock.ops.bench.tracing.tracing_levels import LEVELS, SIDES
from penstock.ops.bench.tracing.tracing_tables import cpu_us, spans_a_request

_PASSES = 2  # of each process, after one that warms up
_WORKER_REQUESTS = 4000
_CLIENT_REQUESTS = 2000

Passes = Mapping[str, Any]  # of one level: side -> `Cost` of every pass, as JSON


def run_cost(setup: Setup) -> PartResult:
    """Part `cost`: `ROUNDS` processes a level, which take turns. Every second round is in reverse order."""
    found: dict[str, dict[str, list[Any]]] = {name: {side: [] for side in SIDES} for name in LEVELS}
    with collector() as endpoint:
        for number in range(ROUNDS):
            for name in LEVELS if number % 2 == 0 else reversed(list(LEVELS)):
                measured = _run(setup, name, endpoint)
                for side in SIDES:
                    found[name][side] += measured[side]
    rows = [_row(name, passes) for name, passes in found.items()]
    grid = Grid("processor µs a request", ("level", *SIDES, "worker's spans", "client's spans"), rows)
    return PartResult(grids=[grid], details=found)


def _run(setup: Setup, name: str, endpoint: str) -> Mapping[str, Any]:
    level = LEVELS[name]
    counts = [setup.count(full) for full in (_WORKER_REQUESTS, _CLIENT_REQUESTS)]
    spec = Spec(level.is_installed, level.share, endpoint, _PASSES, *counts)
    measured = run_once("tracing.measured_process", asdict(spec), setup.logs / "tracing.log")
    if measured["imported"] != (level.share is not None):
        raise ProcessFailed(f"{name}: OpenTelemetry was {'' if measured['imported'] else 'not '}imported.")
    return measured


def _row(name: str, passes: Passes) -> Sequence[str | float]:
    times = [statistics.median(map(cpu_us, passes[side])) for side in SIDES]
    spans = [statistics.median(map(spans_a_request, passes[side])) for side in SIDES]
    return [name, *times, *spans]
