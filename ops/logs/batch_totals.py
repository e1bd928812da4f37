"""Batches, added up: triggers, sizes, padding, times, and predicted against measured seconds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.ops.logs.histogram import LogHistogram, bins_of
from penstock.ops.logs.libraries import polars
from penstock.ops.logs.series import LOGGED, TRIGGERS, Series

NUM_LONGEST = 50
_MAX_TOKENS_BIN = 24
_ROWS_AT_ONCE = 100_000
_SUMMED = ("batches", "sequences", "tokens", "slots", "predicted_s", "device_s")


@dataclass(slots=True)
class Group:
    """Batches of one kind."""

    batches: int = 0
    sequences: int = 0
    tokens: int = 0
    slots: int = 0  # that padded batches would have had
    predicted_s: float = 0.0
    device_s: float = 0.0
    ratios: LogHistogram = field(default_factory=LogHistogram)  # predicted over measured seconds

    @property
    def padding_avoided(self) -> float:
        """Share of the slots that would have been padding."""
        return 1.0 - self.tokens / self.slots if self.slots else 0.0

    @property
    def bias(self) -> float:
        """Predicted over measured seconds of all, less 1."""
        return self.predicted_s / self.device_s - 1.0 if self.device_s else 0.0

    def error(self, percent: float) -> float:
        """A percentile of |predicted / measured - 1|."""
        return self.ratios.deviation(1.0, percent)


class BatchTotals:
    """The batches that were logged: of each worker the first 100 of each second."""

    def __init__(self) -> None:
        self.all = Group()
        self.by_trigger: dict[str, Group] = {}
        self.by_partition: dict[str, Group] = {}
        self.by_tokens: dict[int, Group] = {}  # key n: 2^(n-1) < tokens <= 2^n
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
        _, size = np.frexp(np.maximum(frame["tokens"].to_numpy() - 1.0, 0.0))  # n: 2^(n-1) < tokens <= 2^n
        frame = frame.with_columns(
            slots=pl.col("sequences") * pl.col("max_seqlen"),
            size=pl.Series(np.minimum(size, _MAX_TOKENS_BIN).astype(np.int64)),
        )
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
        groups = _grouped(frame)
        for key, table in (("trigger", self.by_trigger), ("partition", self.by_partition), ("size", self.by_tokens)):
            _add_to_table(table, key, groups)
        _add_to_table({"": self.all}, "", groups)

    def _keep_longest(self, source: int, frame: Any) -> None:
        if len(self.longest_batches) == NUM_LONGEST:
            frame = frame.filter(polars().col("device_s") > self.longest_batches[-1]["device_s"])
        longest = frame.top_k(NUM_LONGEST, by="device_s").to_dicts()
        merged = [*self.longest_batches, *[{**row, "source": source} for row in longest]]
        self.longest_batches = sorted(merged, key=lambda row: -row["device_s"])[:NUM_LONGEST]


def _grouped(frame: Any) -> Any:
    """Batches that are alike in all keys and in the bin of their cost's error, added up."""
    pl = polars()
    ratios = frame["predicted_s"].to_numpy() / np.maximum(frame["device_s"].to_numpy(), 1e-9)
    frame = frame.with_columns(bin=pl.Series(bins_of(ratios)), batches=pl.lit(1))
    # One number for all keys is grouped in a third of the time of four columns.
    units = {"trigger": 2**40, "partition": 2**18, "size": 2**13, "bin": 1}
    key = sum(pl.col(name).to_physical().cast(pl.Int64) * unit for name, unit in units.items())
    return (
        frame.group_by(key.alias("key"))
        .agg(pl.col(*units).first(), pl.col(_SUMMED).sum())
        .with_columns(pl.lit("").alias(""))
    )


def _add_to_table(table: dict[Any, Group], key: str, groups: Any) -> None:
    for (name,), part in groups.partition_by(key, as_dict=True).items():
        group = table.setdefault(name, Group())
        for column in _SUMMED:
            setattr(group, column, getattr(group, column) + part[column].sum())
        group.ratios.add_counts(part["bin"].to_numpy(), part["batches"].to_numpy())


def _add_to_series(frame: Any, series: Series) -> None:
    pl = polars()
    sums = [pl.col(name).sum().alias(f"logged_{name}") for name in ("sequences", "tokens", "slots", "device_s")]
    frame = frame.drop_nulls("second")
    for row in frame.group_by("second").agg(pl.len().alias(LOGGED[0]), *sums).iter_rows(named=True):
        series.add(row.pop("second"), row)
    key = pl.col("second") * 2**22 + pl.col("trigger").to_physical().cast(pl.Int64)
    triggers = frame.group_by(key.alias("key")).agg(pl.col("second", "trigger").first(), pl.len())
    for second, trigger, number in triggers.select("second", "trigger", "len").iter_rows():
        series.add(second, {trigger if trigger in TRIGGERS else TRIGGERS[-1]: number})
