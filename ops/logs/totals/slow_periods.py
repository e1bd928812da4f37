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
    starts, columns = series.filled_spans(SPAN_S)
    width_s = max(SPAN_S, series.width_s)
    p95 = np.array([_p95(columns, np.array([row])) for row in range(len(starts))])
    missed = sum((columns[name] for name in LATE), np.zeros(len(starts)))
    usual = np.median(p95[np.isfinite(p95)]) if np.isfinite(p95).any() else np.inf
    is_slow = (np.nan_to_num(p95) > _TIMES_USUAL * usual) | (missed > 0.01 * np.maximum(columns["answered"], 1.0))
    slow = np.flatnonzero(is_slow)
    periods = []
    for rows in np.split(slow, np.flatnonzero(np.diff(starts[slow]) != width_s) + 1) if len(slow) else ():
        figures = _p95(columns, rows), columns["answered"][rows].sum(), missed[rows].sum(), columns["backlog_s"][rows]
        periods.append(
            SlowPeriod(float(starts[rows[0]]), float(starts[rows[-1]] + width_s), *figures[:3], float(figures[3].max()))
        )
    return periods


def _p95(columns: dict[str, np.ndarray], rows: np.ndarray) -> float:
    return latency_percentile_s({name: columns[name][rows] for name in LATENCIES}, 95)
