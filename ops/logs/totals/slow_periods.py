"""Slow periods: spans of ten seconds in which requests were late, rejected for lateness, or far slower than usual."""

from typing import NamedTuple

import numpy as np

from penstock.ops.logs.totals.series import LATE, LATENCIES, Series, latency_percentile_s

SPAN_S = 10
_TIMES_USUAL = 3.0  # above the median span's p95: more than one bucket of the latencies


class SlowPeriod(NamedTuple):
    """Consecutive slow spans."""

    start_s: float
    end_s: float
    p95_s: float  # of the answered online requests; NaN without any
    answered: float
    missed: float  # deadlines, and requests rejected because they would have
    backlog_s: float  # the greatest that was logged


def slow_periods(series: Series) -> list[SlowPeriod]:
    """In order of time."""
    if not series:
        return []
    starts, columns = series.spans(SPAN_S)
    width_s = int(starts[1] - starts[0]) if len(starts) > 1 else max(SPAN_S, series.width_s)
    p95 = np.array([_p95(columns, slice(row, row + 1)) for row in range(len(starts))])
    missed = sum((columns[name] for name in LATE), np.zeros(len(starts)))
    usual = np.median(p95[np.isfinite(p95)]) if np.isfinite(p95).any() else np.inf
    is_slow = (np.nan_to_num(p95) > _TIMES_USUAL * usual) | (missed > 0.01 * np.maximum(columns["answered"], 1.0))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_slow.astype(np.int8), [0]])))
    periods = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        rows = slice(first, last)
        figures = _p95(columns, rows), columns["answered"][rows].sum(), missed[rows].sum(), columns["backlog_s"][rows]
        periods.append(
            SlowPeriod(float(starts[first]), float(starts[last - 1] + width_s), *figures[:3], float(figures[3].max()))
        )
    return periods


def _p95(columns: dict[str, np.ndarray], rows: slice) -> float:
    return latency_percentile_s({name: columns[name][rows] for name in LATENCIES}, 95)
