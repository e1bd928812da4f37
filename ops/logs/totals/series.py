"""Figures over time: sums and greatest values by second, in bounded memory; and the slow periods in them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.totals.histogram import bucket_percentile

FloatArray = npt.NDArray[np.float64]

# The buckets of a worker's latencies, as `worker_load` names them: penstock_request_seconds has the same.
LATENCY_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, float("inf")),
)
LATENCIES = tuple([f"le_{bound:g}" for bound in LATENCY_BOUNDS_S])
TRIGGERS = ("timeout", "max_batch", "half_slo", "hungry", "bulk", "drain", "other")
MISSES = ("overloaded", "arrived_late", "queued", "predicted_wrong")
CAUSE_UNKNOWN = "cause_unknown"  # of requests that expired, where no worker_load tells
LATE = (*MISSES, CAUSE_UNKNOWN)
COUNTED = ("batches", "answered", "sequences", "cached", "tokens", "padded_tokens", "device_s")  # all, by worker_load
LOGGED = tuple([f"logged_{name}" for name in ("batches", "sequences", "tokens", "padded_tokens", "device_s")])
SUMS = (*COUNTED, *LOGGED, *LATE, *TRIGGERS, *LATENCIES, "refused", "errors", "warnings")
GREATEST = ("backlog_s", "queued_sequences", "kafka_s", "slowest_s")
_MAX_SPANS = 50_000
_MAX_WAITING = 20_000  # rows
_PERIOD_S = 10
_TIMES_USUAL = 3.0  # above the median span's p95: more than one bucket of the latencies


class Series:
    """One row a span of `width_s` seconds. The width doubles when there are too many rows."""

    def __init__(self) -> None:
        self.width_s = 1
        self._rows = pl.DataFrame(schema={"second": pl.Int64, **dict.fromkeys((*SUMS, *GREATEST), pl.Float64)})
        self._waiting: list[Any] = []

    def __bool__(self) -> bool:
        return bool(len(self._settled()))

    def add(self, frame: Any) -> None:
        """Add rows of a polars frame: `time_s`, and any of SUMS and GREATEST. Those without a time are left out.

        `spread_s`, where there is such a column: the seconds before the time that share the sums.
        """
        spread_s = pl.col("spread_s").fill_null(1).cast(pl.Int64) if "spread_s" in frame.columns else pl.lit(1)
        last = pl.col("time_s").floor().cast(pl.Int64)
        frame = frame.drop_nulls("time_s").with_columns(
            pl.int_ranges(last - spread_s + 1, last + 1).alias("second"),
            *[pl.col(name) / spread_s for name in frame.columns if name in SUMS],
            *[pl.col(name).cast(pl.Float64) for name in frame.columns if name in GREATEST],
        )
        self._waiting.append(frame.drop("time_s", "spread_s", strict=False).explode("second"))
        if sum(map(len, self._waiting)) > _MAX_WAITING:
            self._settled()

    def filled_spans(self, width_s: int) -> tuple[npt.NDArray[np.int64], dict[str, FloatArray]]:
        """Starts in Unix seconds and the columns, in spans of at least `width_s`; of those that hold anything."""
        width_s = max(width_s, self.width_s)
        spans = _summed(self._settled(), width_s)
        return spans["second"].to_numpy(), {name: spans[name].to_numpy() for name in (*SUMS, *GREATEST)}

    def spans(self, width_s: int) -> tuple[npt.NDArray[np.int64], dict[str, FloatArray]]:
        """The same without holes between them, of which a wrong clock makes years: `width_s` is a part of `span_s`."""
        filled, columns = self.filled_spans(width_s)
        width_s = max(width_s, self.width_s)
        starts = np.arange(filled[0], filled[-1] + 1, width_s)
        dense = np.zeros((len(columns), len(starts)))
        dense[:, (filled - filled[0]) // width_s] = list(columns.values())
        return starts, dict(zip(columns, dense, strict=True))

    def totals(self) -> dict[str, float]:
        """Sums and greatest values of the whole time."""
        rows = self._settled()
        sums, greatest = rows.select(pl.col(SUMS).sum()), rows.select(pl.col(GREATEST).max().fill_null(0.0))
        return {**sums.row(0, named=True), **greatest.row(0, named=True)}

    def best_rate(self, name: str) -> float:
        """The greatest sum of ten seconds, a second. NaN without any."""
        if not self:
            return float("nan")
        _, columns = self.filled_spans(_PERIOD_S)
        return float(columns[name].max()) / min(max(_PERIOD_S, self.width_s), max(self.span_s, 1))

    @property
    def span_s(self) -> int:
        """From the first second to the last."""
        seconds = self._settled()["second"]
        return int(seconds.max() - seconds.min()) + self.width_s if len(seconds) else 0

    def _settled(self) -> Any:
        """All rows, by time."""
        if self._waiting:
            every = pl.concat([self._rows, *self._waiting], how="diagonal")
            self._rows, self._waiting = _summed(every, self.width_s), []
        while len(self._rows) > _MAX_SPANS:
            self.width_s *= 2
            self._rows = _summed(self._rows, self.width_s)
        return self._rows


def _summed(rows: Any, width_s: int) -> Any:
    spans = rows.group_by(pl.col("second") // width_s * width_s)
    return spans.agg(pl.col(SUMS).sum(), pl.col(GREATEST).max().fill_null(0.0)).sort("second")


def latency_column(bound: str) -> str:
    """The column for a bucket that a worker names. One of another version goes to the next that is known."""
    try:
        value = float(bound)
    except ValueError:
        value = float("inf")
    return next(
        (name for name, known in zip(LATENCIES, LATENCY_BOUNDS_S, strict=True) if value <= known), LATENCIES[-1]
    )


def latency_percentile_s(counts: Mapping[str, float] | Mapping[str, FloatArray], percent: float) -> float:
    """A percentile of counts by LATENCIES, straight within a bucket. NaN without counts; at most 30 s."""
    return bucket_percentile(LATENCY_BOUNDS_S, [float(np.sum(counts[name])) for name in LATENCIES], percent)


class SlowPeriod(NamedTuple):
    """Consecutive spans of ten seconds in which requests were late, rejected for it, or far slower than usual."""

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
    starts, columns = series.filled_spans(_PERIOD_S)
    width_s = max(_PERIOD_S, series.width_s)
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


def _p95(columns: dict[str, FloatArray], rows: Any) -> float:
    return latency_percentile_s({name: columns[name][rows] for name in LATENCIES}, 95)
