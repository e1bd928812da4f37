"""Everything that logs say, added up in one pass: the summary, the tables, `diff` and the report read it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.ops.logs.lines.block_parser import LineCounts
from penstock.ops.logs.lines.event import Event, number
from penstock.ops.logs.lines.line_columns import Found
from penstock.ops.logs.lines.reader import LogReader, Part
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.totals.batch_totals import BatchTotals
from penstock.ops.logs.totals.columns import distinct
from penstock.ops.logs.totals.held_twice import held_twice_s
from penstock.ops.logs.totals.lifecycle import Gaps, Lifecycle
from penstock.ops.logs.totals.rejections import Process, Rejections, left_out_before, rejected_of
from penstock.ops.logs.totals.request_totals import RequestTotals
from penstock.ops.logs.totals.samples import Samples
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN, COUNTED, MISSES, Series, latency_column

_LOAD_EVERY_S = 10.0  # of worker_load: its counts are of so many seconds at most, under steady work


class Digest:
    """The sums of a pass over logs."""

    def __init__(self, reader: LogReader) -> None:
        """Read all of them. Raises NoEvents."""
        self.sources: list[LogSource] = list(reader.sources)
        self.series = Series()
        self.batches = BatchTotals()
        self.requests = RequestTotals()
        self.rejections = Rejections()
        self.lifecycle = Lifecycle()
        self.gaps = Gaps()
        self.settings: dict[str, Any] = {}  # of the last settings_resolved
        self.models: set[str] = set()
        self._reader = reader
        self._last_load: dict[Process, float] = {}
        for part in reader.parts(in_columns=True):
            self._add(part)
        self.batches.settle(self.series)
        self.rejections.settle(self.series, is_end=True)

    @property
    def lines(self) -> LineCounts:
        return self._reader.counts

    @property
    def num_kept(self) -> int:
        """Batches and events that passed the filters."""
        return self._reader.num_kept

    @property
    def held_twice_s(self) -> float:
        """The longest time for which, by their clocks, workers of two logs held one partition."""
        return held_twice_s(self.lifecycle.events, self._reader.origin)

    def _add(self, part: Part) -> None:
        self.batches.add(part.source, part.batches, self.series)
        self._add_samples(Samples.of_events([event for event in part.events if event.name == "request_done"]))
        for event in part.events:
            if event.name != "request_done":
                self._add_event(event)
        seconds = set(part.batches["second"].drop_nulls().unique().to_list())
        for found in part.requests:
            self._add_requests(found, part.source)
            seconds |= set(found.rows["second"].unique().to_list())
        self.rejections.settle(self.series)
        self.gaps.add(part.source, [*seconds, *{event.time_s for event in part.events if event.time_s is not None}])

    def _add_requests(self, found: Found, source: int) -> None:
        if found.event == "request_done":
            self._add_samples(Samples.of_lines(found, source))
            return
        self.requests.count(found.event, len(found.rows))
        self.rejections.add_lines(found, source, self._reader.origin(source))

    def _add_samples(self, samples: Samples) -> None:
        """Requests of request_done, which are nearly all events that are no batches."""
        self.requests.add_samples(samples)
        is_timed = np.isfinite(samples.times_s)
        seconds, place = distinct(samples.times_s[is_timed].astype(np.int64))
        greatest = np.zeros((2, len(seconds)))
        for row, stage in zip(greatest, ("kafka", "total"), strict=True):
            np.maximum.at(row, place, np.nan_to_num(samples.stages_ms[stage][is_timed]) / 1e3)
        self.series.add_columns(seconds.tolist(), dict(zip(("kafka_s", "slowest_s"), greatest.tolist(), strict=True)))

    def _add_event(self, event: Event) -> None:
        self.requests.add(event)
        process = Process.of(event, self._reader.origin(event.source))
        self.rejections.add(event, process)
        self.lifecycle.add(event)
        name = event.name
        if name == "settings_resolved":
            self.settings = event.fields
        elif name == "worker_ready" and (model := event.text("model")):
            self.models.add(model)
        if event.time_s is None:
            return
        if name == "worker_load":
            self._add_load(event, event.time_s, process)
        elif event.level in ("error", "critical"):
            self.series.add(event.time_s, {"errors": 1 + left_out_before(event)})
        elif event.level == "warning":
            self.series.add(event.time_s, {"warnings": 1 + left_out_before(event)})

    def _add_load(self, event: Event, time_s: float, process: Process) -> None:
        """Counts since the process' last load. They are spread over the seconds in between."""
        since_s = min(max(time_s - self._last_load.get(process, time_s - 1.0), 1.0), _LOAD_EVERY_S)
        self._last_load[process] = time_s
        missed, latencies = _mapping(event.fields.get("missed")), _mapping(event.fields.get("latency_le_s"))
        rejected = rejected_of(event) or {}
        values = {name: event.number(name) or 0.0 for name in COUNTED}
        values |= {name: number(missed.get(name)) or 0.0 for name in MISSES[1:]}
        values["refused"] = float(sum(rejected.values()))
        overloaded = event.number("overloaded")
        values["overloaded"] = rejected.get("overloaded", 0.0) if overloaded is None else overloaded
        values[CAUSE_UNKNOWN] = 0.0 if missed else rejected.get("expired", 0.0)
        for bound, requests in latencies.items():
            column = latency_column(bound)
            values[column] = values.get(column, 0.0) + (number(requests) or 0.0)
        self.series.add(time_s, values, spread_s=round(since_s))
        gauges = {name: event.number(name) or 0.0 for name in ("backlog_s", "queued_sequences")}
        self.series.add(time_s, gauges)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
