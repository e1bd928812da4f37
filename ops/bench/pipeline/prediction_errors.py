"""Errors of the predicted times of batches, in all and by load."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

LONG_S = 4e-3  # a batch of so long fills a GPU by itself
SUMMED = 8  # batches

Event = Mapping[str, Any]


def prediction_errors(batches: Sequence[Event]) -> dict[str, Any]:
    """|predicted / measured - 1| of `batch_done` events, which are in the order of each member.

    A batch meets the batches of other members by chance. Admission adds up predictions, in which chance cancels: so
    there is an error of sums too.
    """
    members: dict[tuple[Any, Any], list[tuple[float, float]]] = {}
    for event in batches:
        times_s = event["predicted_s"], max(event["device_s"], 1e-9)
        members.setdefault((event["command"], event.get("pid")), []).append(times_s)
    single = [times_s for of_member in members.values() for times_s in of_member]
    sums = [
        np.sum(of_member[at : at + SUMMED], axis=0)
        for of_member in members.values()
        for at in range(0, len(of_member) - SUMMED + 1, SUMMED)
    ]
    return {
        "batches": len(single),
        "p50": _quantile(single, 50),
        "p95": _quantile(single, 95),
        "long_p95": _quantile([(predicted, measured) for predicted, measured in single if predicted >= LONG_S], 95),
        "sums_p95": _quantile(sums, 95),
    }


def _quantile(times_s: Iterable[Sequence[float]], percent: float) -> float | None:
    """Of the errors of (predicted, measured) times; None without any."""
    predicted_s, measured_s = np.array(list(times_s), np.float64).reshape(-1, 2).T
    return float(np.percentile(np.abs(predicted_s / measured_s - 1), percent)) if len(predicted_s) else None
