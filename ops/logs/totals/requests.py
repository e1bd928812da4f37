"""Answered requests, added up: the stages of sampled ones, and the slowest."""

from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import CLASSES, STAGES, array
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.parser import Part
from penstock.ops.logs.totals.histogram import Histogram

_NUM_SLOWEST = 100


class RequestTotals:
    """`request_done` has two requests of each second of each worker: the first, and the slowest online one."""

    def __init__(self) -> None:
        # By class, then by stage; of the first ones, which are a fair sample.
        self.stages = {name: {stage: Histogram() for stage in STAGES} for name in CLASSES}
        self.slowest: dict[str, list[Event]] = {name: [] for name in CLASSES}  # that were logged, slowest first
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's

    def add(self, part: Part, rows: Any) -> Any:
        """Rows of request_done. Returns them for a Series."""
        is_bulk = (pl.col("class") == "bulk").fill_null(False)
        for name, of_class in zip(CLASSES, (rows.filter(~is_bulk), rows.filter(is_bulk)), strict=True):
            first = of_class.filter(sample="first")
            for stage, times in self.stages[name].items():
                times.add(array(first, f"{stage}_ms") / 1e3)
            self.num_ahead += int((first["kafka_ms"] < -1.0).sum())
            self._keep_slowest(self.slowest[name], part, of_class)
        greatest = (
            (pl.col("kafka_ms").clip(0).max() / 1e3).alias("kafka_s"),
            (pl.col("total_ms").max() / 1e3).alias("slowest_s"),
        )
        return rows.group_by(pl.col("time_s").floor()).agg(greatest)

    @staticmethod
    def _keep_slowest(kept: list[Event], part: Part, rows: Any) -> None:
        least_ms = _total_ms(kept[-1]) if len(kept) == _NUM_SLOWEST else float("-inf")
        slow = rows.filter(pl.col("total_ms") > least_ms).top_k(_NUM_SLOWEST, by="total_ms").sort("place")
        kept += [part.event(place) for place in slow["place"].to_list()]
        kept.sort(key=_total_ms, reverse=True)
        del kept[_NUM_SLOWEST:]


def _total_ms(event: Event) -> float:
    return event.number("total_ms") or 0.0
