"""Batches, added up: triggers, sizes, padding, times, and predicted against measured seconds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.totals.columns import FloatArray, Int64Array, distinct
from penstock.ops.logs.totals.histogram import NUM_BINS, LogHistogram, bins_of
from penstock.ops.logs.totals.series import LOGGED, TRIGGERS, Series

NUM_LONGEST = 50
_MAX_TOKENS_BIN = 24
_NUM_SIZES = _MAX_TOKENS_BIN + 1
_ROWS_AT_ONCE = 100_000
_SUMMED = ("sequences", "tokens", "padded_tokens", "predicted_s", "device_s")


@dataclass(slots=True)
class BatchGroup:
    """Batches of one kind."""

    batches: int = 0
    sequences: int = 0
    tokens: int = 0
    padded_tokens: int = 0  # that padded batches would have had
    predicted_s: float = 0.0
    device_s: float = 0.0
    ratios: LogHistogram = field(default_factory=LogHistogram)  # predicted over measured seconds

    @property
    def padding_avoided(self) -> float:
        """Share of the padded tokens that would have been padding."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def bias(self) -> float:
        """Predicted over measured seconds of all, less 1."""
        return self.predicted_s / self.device_s - 1.0 if self.device_s else 0.0

    def error(self, percent: float) -> float:
        """A percentile of |predicted / measured - 1|."""
        return self.ratios.deviation(1.0, percent)

    def add(self, batches: int, sums: FloatArray) -> None:
        """Count batches, of which the sums are those of _SUMMED."""
        self.batches += batches
        self.sequences, self.tokens, self.padded_tokens = (
            known + round(new)
            for known, new in zip((self.sequences, self.tokens, self.padded_tokens), sums[:3], strict=True)
        )
        self.predicted_s += float(sums[3])
        self.device_s += float(sums[4])


class BatchTotals:
    """The batches that were logged: of each worker the first 100 of each second."""

    def __init__(self) -> None:
        self.all = BatchGroup()
        self.by_trigger: dict[str, BatchGroup] = {}
        self.by_partition: dict[str, BatchGroup] = {}
        self.by_tokens: dict[int, BatchGroup] = {}  # key n: 2^(n-1) < tokens <= 2^n
        self.sequences, self.tokens, self.longest, self.seconds = (LogHistogram() for _ in range(4))
        self.dp_gain = LogHistogram()
        self.longest_batches: list[dict[str, Any]] = []
        self._source = 0
        self._waiting: list[Any] = []  # frames of this source

    def add(self, source: int, frame: Any, series: Series) -> None:
        """Count a frame of BATCH_COLUMNS, at the latest in `settle`: many small frames take longer than a large one."""
        if self._waiting and (source != self._source or sum(map(len, self._waiting)) >= _ROWS_AT_ONCE):
            self.settle(series)
        self._source = source
        self._waiting.append(frame)

    def settle(self, series: Series) -> None:
        """Count what is waiting. Called before anything is read."""
        if not self._waiting:
            return
        pl = polars()
        source, frame, self._waiting = self._source, pl.concat(self._waiting), []
        frame = frame.drop_nulls(["sequences", "tokens", "max_seqlen", "predicted_s", "device_s"])
        frame = frame.with_columns(padded_tokens=pl.col("sequences") * pl.col("max_seqlen"))
        if not len(frame):
            return
        self._count(frame)
        self._keep_longest(source, frame)
        _add_to_series(frame, series)

    def _count(self, frame: Any) -> None:
        numpy = {name: frame[name].to_numpy() for name in ("sequences", "tokens", "max_seqlen", "device_s", "dp_gain")}
        self.sequences.add_integers(numpy["sequences"])
        self.tokens.add_integers(numpy["tokens"])
        self.longest.add_integers(numpy["max_seqlen"])
        self.seconds.add(numpy["device_s"])
        gains = numpy["dp_gain"]
        self.dp_gain.add(gains[np.isfinite(gains) & (gains > 0)])
        self._add_groups(frame)

    def _add_groups(self, frame: Any) -> None:
        """Add up batches that are alike in trigger, partition and size, and put the few kinds into the tables."""
        triggers, trigger = _texts(frame["trigger"])
        partitions, partition = _texts(frame["partition"])
        size = _sizes(frame["tokens"].to_numpy())
        kinds, kind = distinct((trigger * len(partitions) + partition) * _NUM_SIZES + size)
        columns = [frame[name].to_numpy() for name in _SUMMED]
        batches = np.bincount(kind)
        sums = np.stack([np.bincount(kind, column) for column in columns])
        ratios = columns[3] / np.maximum(columns[4], 1e-9)
        bins, in_bin = distinct(kind * NUM_BINS + bins_of(ratios))
        counts = np.bincount(in_bin)
        of_texts, size = np.divmod(kinds, _NUM_SIZES)
        trigger, partition = np.divmod(of_texts, len(partitions))
        for table, names, key in (
            ({"": self.all}, [""], np.zeros_like(kinds)),
            (self.by_trigger, triggers, trigger),
            (self.by_partition, partitions, partition),
            (self.by_tokens, range(_NUM_SIZES), size),
        ):
            for number in np.unique(key).tolist():
                group = table.setdefault(names[number], BatchGroup())
                is_own = key == number
                group.add(int(batches[is_own].sum()), sums[:, is_own].sum(axis=1))
                is_own = is_own[bins // NUM_BINS]
                group.ratios.add_counts(bins[is_own] % NUM_BINS, counts[is_own])

    def _keep_longest(self, source: int, frame: Any) -> None:
        if len(self.longest_batches) == NUM_LONGEST:
            frame = frame.filter(polars().col("device_s") > self.longest_batches[-1]["device_s"])
        longest = frame.top_k(NUM_LONGEST, by="device_s").to_dicts()
        merged = [*self.longest_batches, *[{**row, "source": source} for row in longest]]
        self.longest_batches = sorted(merged, key=lambda row: -row["device_s"])[:NUM_LONGEST]


def _add_to_series(frame: Any, series: Series) -> None:
    frame = frame.drop_nulls("second")
    seconds, second = distinct(frame["second"].to_numpy())
    triggers, trigger = _texts(frame["trigger"])
    sums = [np.bincount(second)]
    sums += [
        np.bincount(second, frame[name].to_numpy()) for name in ("sequences", "tokens", "padded_tokens", "device_s")
    ]
    rows = [dict(zip(LOGGED, row, strict=True)) for row in np.stack(sums, axis=1).tolist()]
    names = [name if name in TRIGGERS else TRIGGERS[-1] for name in triggers]
    pairs, pair = distinct(second * len(triggers) + trigger)
    for place, count in zip(pairs.tolist(), np.bincount(pair).tolist(), strict=True):
        row, name = rows[place // len(triggers)], names[place % len(triggers)]
        row[name] = row.get(name, 0) + count
    for time_s, row in zip(seconds.tolist(), rows, strict=True):
        series.add(time_s, row)


def _texts(column: Any) -> tuple[list[str], Int64Array]:
    """The distinct texts of a column, and the place of each row's among them."""
    texts = column.unique()
    names = dict(zip(texts.to_physical().to_list(), texts.to_list(), strict=True))
    codes, place = distinct(column.to_physical().to_numpy().astype(np.int64))
    return [names[code] for code in codes.tolist()], place


def _sizes(tokens: Int64Array) -> Int64Array:
    """The key of `by_tokens` for each batch."""
    _, exponents = np.frexp(np.maximum(tokens - 1.0, 0.0))
    sizes: Int64Array = np.minimum(exponents.astype(np.int64), _MAX_TOKENS_BIN)
    return sizes
