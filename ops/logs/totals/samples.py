"""Logged batches and answered requests, added up: of each worker and second the first 100, and two."""

from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.blocks import CLASSES, STAGES, Part, array
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.totals.histogram import Histogram, bins_of
from penstock.ops.logs.totals.series import LOGGED, TRIGGERS

_MAX_SIZE = 24
_KIND = ("trigger", "partition", "size", "ratio_bin")
_SUMMED = ("batches", "sequences", "tokens", "padded_tokens", "predicted_s", "device_s")


class Longest:
    """The events in which a field is greatest, in falling order."""

    def __init__(self, key: str, most: int) -> None:
        self.events: list[Event] = []
        self._key = key
        self._most = most

    def add(self, part: Part, rows: Any) -> None:
        """Some rows of a part."""
        least = self._value(self.events[-1]) if len(self.events) == self._most else float("-inf")
        found = rows.filter(pl.col(self._key) > least).top_k(self._most, by=self._key).sort("place")
        self.events += [part.event(place) for place in found["place"].to_list()]
        self.events.sort(key=self._value, reverse=True)
        del self.events[self._most :]

    def _value(self, event: Event) -> float:
        return event.number(self._key) or 0.0


class RequestTotals:
    """`request_done` has two requests of each second of each worker: the first, and the slowest online one."""

    def __init__(self) -> None:
        # By class, then by stage; of the first ones, which are a fair sample.
        self.stages = {name: {stage: Histogram() for stage in STAGES} for name in CLASSES}
        self.slowest = {name: Longest("total_ms", 100) for name in CLASSES}
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's

    def add(self, part: Part, rows: Any) -> Any:
        """Rows of request_done. Returns them for a Series."""
        is_bulk = (pl.col("class") == "bulk").fill_null(False)
        for name, of_class in zip(CLASSES, (rows.filter(~is_bulk), rows.filter(is_bulk)), strict=True):
            first = of_class.filter(sample="first")
            for stage, times in self.stages[name].items():
                times.add(array(first, f"{stage}_ms") / 1e3)
            self.num_ahead += int((first["kafka_ms"] < -1.0).sum())
            self.slowest[name].add(part, of_class)
        return rows.group_by(pl.col("time_s").floor()).agg(
            (pl.col("kafka_ms").clip(0).max() / 1e3).alias("kafka_s"),
            (pl.col("total_ms").max() / 1e3).alias("slowest_s"),
        )


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
    """The batches that were logged."""

    def __init__(self) -> None:
        self.histograms = {key: Histogram() for key in ("sequences", "tokens", "device_s", "dp_gain")}
        self.longest = Longest("device_s", 50)
        self._kinds: Any = None  # a frame: batches that are alike by _KIND, added up

    def add(self, part: Part, rows: Any) -> Any:
        """Rows of batch_done. Returns them for a Series."""
        rows = rows.drop_nulls(("sequences", "tokens", "max_seqlen", "predicted_s", "device_s"))
        for key, histogram in self.histograms.items():
            values = array(rows, key)
            histogram.add(values[values > 0] if key == "dp_gain" else values)
        self.longest.add(part, rows)
        ratios = array(rows, "predicted_s") / np.maximum(array(rows, "device_s"), 1e-9)
        _, size = np.frexp(np.maximum(array(rows, "tokens") - 1.0, 0.0))
        rows = rows.with_columns(
            pl.col("trigger", "partition").fill_null("None"),
            pl.Series("size", np.minimum(size, _MAX_SIZE), pl.Int64),
            pl.Series("ratio_bin", bins_of(np.maximum(ratios, 0.0)), pl.Int64),
            batches=pl.lit(1, pl.Int64),
            padded_tokens=pl.col("sequences") * pl.col("max_seqlen"),
        )
        alike = _alike(rows)
        self._kinds = alike if self._kinds is None else _alike(pl.concat([self._kinds, alike]))
        is_known = pl.col("trigger").is_in(TRIGGERS[:-1])
        trigger = pl.when(is_known).then("trigger").otherwise(pl.lit(TRIGGERS[-1]))
        return rows.group_by(pl.col("time_s").floor()).agg(
            *[pl.col(name.removeprefix("logged_")).sum().alias(name) for name in LOGGED],
            *[(trigger == name).sum().alias(name) for name in TRIGGERS],
        )

    @property
    def all(self) -> BatchGroup:
        """All batches."""
        return _group("all", self._kinds)

    def by(self, key: str) -> list[BatchGroup]:
        """The batches by `size`, or by `trigger` or `partition`, most of them first."""
        groups = [_group(frame[key][0], frame) for frame in self._kinds.partition_by(key, maintain_order=True)]
        return sorted(groups, key=lambda group: group.name if key == "size" else -group.batches)


def _alike(rows: Any) -> Any:
    return rows.group_by(_KIND, maintain_order=True).agg(pl.col(_SUMMED).sum())


def _group(name: Any, kinds: Any) -> BatchGroup:
    ratios = Histogram.of_bins(kinds["ratio_bin"].to_numpy(), kinds["batches"].to_numpy())
    return BatchGroup(name, **{key: kinds[key].sum() for key in _SUMMED}, ratios=ratios)
