"""Figures over time: sums and greatest values by second, in bounded memory."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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
COUNTED = (
    "batches",
    "answered",
    "sequences",
    "cached",
    "tokens",
    "padded_tokens",
    "device_s",
)  # by worker_load: all of them
LOGGED = tuple(
    [f"logged_{name}" for name in ("batches", "sequences", "tokens", "padded_tokens", "device_s")]
)  # by batch_done
SUMS = (*COUNTED, *LOGGED, *LATE, *TRIGGERS, *LATENCIES, "refused", "errors", "warnings")
GREATEST = ("backlog_s", "queued_sequences", "kafka_s", "slowest_s")
_NUM_SUMS = len(SUMS)
_COLUMN = {name: index for index, name in enumerate((*SUMS, *GREATEST))}
_MAX_SPANS = 50_000


class Series:
    """One row a span of `width_s` seconds. The width doubles when there are too many rows."""

    def __init__(self, width_s: int = 1) -> None:
        self.width_s = width_s
        self._rows: dict[int, list[float]] = {}  # lists: numbers are added one by one

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, time_s: float, values: Mapping[str, float], spread_s: int = 1) -> None:
        """Add to the sums, and raise the greatest values. `spread_s`: the seconds before `time_s` that share sums."""
        last = int(time_s)
        columns = [(_COLUMN[name], value) for name, value in values.items() if value]
        shares = [(column, value / spread_s) for column, value in columns if column < _NUM_SUMS]
        greatest = [(column, value) for column, value in columns if column >= _NUM_SUMS]
        for second in range(last - spread_s + 1, last + 1):
            row = self._row(second)
            for column, share in shares:
                row[column] += share
            for column, value in greatest:
                row[column] = max(row[column], value)

    def add_columns(self, seconds: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """The same as `add` for many seconds, in less time. `columns` [seconds]."""
        named = [(_COLUMN[name], values) for name, values in columns.items()]
        sums = [one for one in named if one[0] < _NUM_SUMS]
        greatest = [one for one in named if one[0] >= _NUM_SUMS]
        for place, second in enumerate(seconds):
            row = self._row(second)
            for column, values in sums:
                row[column] += values[place]
            for column, values in greatest:
                if values[place] > row[column]:
                    row[column] = values[place]

    def filled_spans(self, width_s: int) -> tuple[npt.NDArray[np.int64], dict[str, FloatArray]]:
        """Starts in Unix seconds and the columns, in spans of at least `width_s`; of those that hold anything."""
        width_s = max(width_s, self.width_s)
        keys = sorted({second * self.width_s // width_s for second in self._rows})
        places = {key: place for place, key in enumerate(keys)}
        table = np.zeros((len(keys), len(_COLUMN)))
        for second, row in self._rows.items():
            _merge(table[places[second * self.width_s // width_s]], np.array(row))
        return np.array(keys, np.int64) * width_s, {name: table[:, index] for name, index in _COLUMN.items()}

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
        total = np.zeros(len(_COLUMN))
        for row in self._rows.values():
            _merge(total, np.array(row))
        return {name: float(total[index]) for name, index in _COLUMN.items()}

    @property
    def span_s(self) -> int:
        """From the first second to the last."""
        return (max(self._rows) - min(self._rows) + 1) * self.width_s if self._rows else 0

    def _row(self, second: int) -> list[float]:
        row = self._rows.get(second // self.width_s)
        if row is None:
            while len(self._rows) >= _MAX_SPANS:
                self._halve()
            row = self._rows.setdefault(second // self.width_s, [0.0] * len(_COLUMN))
        return row

    def _halve(self) -> None:
        halves, self._rows = self._rows, {}
        self.width_s *= 2
        for key, row in halves.items():
            into = np.array(self._rows.get(key // 2, [0.0] * len(row)))
            _merge(into, np.array(row))
            self._rows[key // 2] = into.tolist()


def _merge(into: FloatArray, row: FloatArray) -> None:
    into[:_NUM_SUMS] += row[:_NUM_SUMS]
    np.maximum(into[_NUM_SUMS:], row[_NUM_SUMS:], out=into[_NUM_SUMS:])


def latency_column(bound: str) -> str:
    """The column for a bucket that a worker names. One of another version goes to the next that is known."""
    try:
        value = float(bound)
    except ValueError:
        value = float("inf")
    return next(name for name, known in zip(LATENCIES, LATENCY_BOUNDS_S, strict=True) if value <= known)


def latency_percentile_s(counts: Mapping[str, float] | Mapping[str, FloatArray], percent: float) -> float:
    """A percentile of counts by LATENCIES, straight within a bucket. NaN without counts; at most 30 s."""
    numbers = np.array([float(np.sum(counts[name])) for name in LATENCIES])
    if not numbers.sum():
        return float("nan")
    wanted = numbers.sum() * percent / 100
    edges = [0.0, *LATENCY_BOUNDS_S]
    below = 0.0
    for (low, high), count in zip(pairwise(edges), numbers, strict=True):
        if count and below + count >= wanted:
            return low if np.isinf(high) else low + (high - low) * (wanted - below) / count
        below += count
    return edges[-2]
