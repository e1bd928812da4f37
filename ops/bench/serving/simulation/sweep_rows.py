"""A row of the sweep: its words for a terminal, and its figures."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.ops.bench.serving.simulation.simulated_fleet import FleetOutcome


def words(what: Mapping[str, Any]) -> str:
    """The settings of a row."""
    shown = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in what.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def figures(outcome: FleetOutcome) -> dict[str, Any]:
    """The figures of a row. RuntimeError: a request is neither answered nor refused."""
    count = len(outcome.arrival)
    if outcome.num_answered + outcome.num_refused != count:
        raise RuntimeError(f"{count} requests, but {outcome.num_answered} answers and {outcome.num_refused} refusals.")
    answered = np.isfinite(outcome.finish)
    latency = (outcome.finish - outcome.arrival)[answered]
    return {
        "requests": count,
        "answered": outcome.num_answered,
        "refused": outcome.num_refused,
        "hits": outcome.num_hits,
        "moved": outcome.num_moved,
        "p50_s": float(np.percentile(latency, 50)),
        "p99_s": float(np.percentile(latency, 99)),
        "max_s": float(latency.max()),
        "busy_s_per_million": outcome.busy_s_per_million(),
        "paid_s_per_million": outcome.paid_s_per_million(),
        "busiest": float(outcome.busy_s.max() / outcome.busy_s.mean()),
    }
