"""Batches, added up: triggers, sizes, padding, times, and predicted against measured seconds."""

from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import array
from penstock.ops.logs.totals.histogram import Histogram, bins_of
from penstock.ops.logs.totals.series import LOGGED, TRIGGERS

_NUM_LONGEST = 50
_MAX_SIZE = 24
_KIND = ("trigger", "partition", "size", "ratio_bin")
_NEEDED = ("sequences", "tokens", "max_seqlen", "predicted_s", "device_s")
_SUMMED = ("sequences", "tokens", "padded_tokens", "predicted_s", "device_s")


class BatchGroup(NamedTuple):
    """Batches of one kind."""

    name: Any  # a trigger, a partition, or for a size n: 2^(n-1) < tokens <= 2^n
    batches: int
    sequences: int
    tokens: int
    padded_tokens: int  # that padded batches would have had
    predicted_s: float
    device_s: float
    ratios: Histogram  # predicted over measured seconds

    @property
    def padding_avoided(self) -> float:
        """Share of the padded tokens that would have been padding."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def bias(self) -> float:
        """Predicted over measured seconds of all, less 1."""
        return self.predicted_s / self.device_s - 1.0 if self.device_s else 0.0


class BatchTotals:
    """The batches that were logged: of each worker the first 100 of each second."""

    def __init__(self) -> None:
        self.sequences, self.tokens, self.seconds, self.dp_gain = (Histogram() for _ in range(4))
        self.longest: list[dict[str, Any]] = []  # the batches that took longest, longest first
        kind = dict.fromkeys(_KIND, pl.Int64) | {"trigger": pl.String, "partition": pl.String}
        sums = dict.fromkeys(("batches", *_SUMMED), pl.Int64) | {"predicted_s": pl.Float64, "device_s": pl.Float64}
        self._kinds = pl.DataFrame(schema={**kind, **sums})  # batches that are alike by _KIND, added up

    def add(self, source: int, rows: Any) -> Any:
        """Rows of batch_done. Returns them for a Series."""
        rows = rows.drop_nulls(_NEEDED)
        for histogram, key in ((self.sequences, "sequences"), (self.tokens, "tokens"), (self.seconds, "device_s")):
            histogram.add(array(rows, key))
        gains = array(rows, "dp_gain")
        self.dp_gain.add(gains[gains > 0])
        ratios = array(rows, "predicted_s") / np.maximum(array(rows, "device_s"), 1e-9)
        _, size = np.frexp(np.maximum(array(rows, "tokens") - 1.0, 0.0))
        rows = rows.with_columns(
            pl.col("trigger", "partition").fill_null("None"),
            pl.Series("size", np.minimum(size, _MAX_SIZE), pl.Int64),
            pl.Series("ratio_bin", bins_of(np.maximum(ratios, 0.0)), pl.Int64),
            pl.lit(source).alias("source"),
            padded_tokens=pl.col("sequences") * pl.col("max_seqlen"),
        )
        kinds = rows.group_by(_KIND, maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("batches"), pl.col(_SUMMED).sum()
        )
        self._kinds = pl.concat([self._kinds, kinds]).group_by(_KIND, maintain_order=True).sum()
        longest = [*self.longest, *rows.top_k(_NUM_LONGEST, by="device_s").to_dicts()]
        self.longest = sorted(longest, key=lambda row: -row["device_s"])[:_NUM_LONGEST]
        return _by_second(rows)

    @property
    def all(self) -> BatchGroup:
        """All batches."""
        return _group("all", self._kinds)

    def by(self, key: str) -> list[BatchGroup]:
        """The batches by `size`, or by `trigger` or `partition`, most of them first."""
        groups = [_group(frame[key][0], frame) for frame in self._kinds.partition_by(key, maintain_order=True)]
        return sorted(groups, key=lambda group: group.name if key == "size" else -group.batches)


def _group(name: Any, kinds: Any) -> BatchGroup:
    sums = {key: kinds[key].sum() for key in ("batches", *_SUMMED)}
    ratios = Histogram.of_bins(kinds["ratio_bin"].to_numpy(), kinds["batches"].to_numpy())
    return BatchGroup(name, **sums, ratios=ratios)


def _by_second(rows: Any) -> Any:
    trigger = pl.col("trigger")
    is_known = trigger.is_in(TRIGGERS[:-1])
    return rows.group_by(pl.col("time_s").floor()).agg(
        pl.len().alias(LOGGED[0]),
        *[pl.col(logged.removeprefix("logged_")).sum().alias(logged) for logged in LOGGED[1:]],
        *[(trigger == name).sum().alias(name) for name in TRIGGERS[:-1]],
        (~is_known).sum().alias(TRIGGERS[-1]),
    )
