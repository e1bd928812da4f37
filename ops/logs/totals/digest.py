"""Everything that logs say, added up in one pass: the summary, the tables, `diff` and the report read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import BATCH, DONE, KINDS
from penstock.ops.logs.lines.event import Event, number
from penstock.ops.logs.lines.parser import Part
from penstock.ops.logs.lines.reader import LogReader
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.totals.batches import BatchTotals
from penstock.ops.logs.totals.lives import Gaps, Lives, held_twice_s
from penstock.ops.logs.totals.rejections import Rejections
from penstock.ops.logs.totals.requests import RequestTotals
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN, COUNTED, MISSES, Series, latency_column
from penstock.ops.logs.totals.tally import Tally, left_out_before, tally_of

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
        self.problems: dict[str, Tally] = {}  # other lines of level warning and worse, by event
        self.lives = Lives()
        self.gaps = Gaps()
        self.settings: dict[str, Any] = {}  # of the last settings_resolved
        self.models: set[str] = set()
        self._reader = reader
        self._last_load: dict[tuple[object, ...], float] = {}  # by process
        for part in reader.parts():
            self._add(part)
        self.series.add(self.rejections.settle(is_end=True))
        self.lines = reader.counts
        self.num_kept = reader.num_kept  # events that passed the filters

    @property
    def held_twice_s(self) -> float:
        """The longest time for which, by their clocks, workers of two logs held one partition."""
        return held_twice_s(self.lives.events, self._reader.origin)

    def _add(self, part: Part) -> None:
        self.series.add(self.batches.add(part.source, part.rows.filter(event=BATCH)))
        self.series.add(self.requests.add(part, part.rows.filter(event=DONE)))
        self.series.add(self.rejections.add(part, self._reader.origin(part.source)))
        others = [event for event in part.events.values() if event.name not in KINDS]
        figures = [row for event in others for row in self._figures(event)]
        if figures:
            names = dict.fromkeys(name for row in figures for name in row)
            self.series.add(pl.DataFrame(figures, dict.fromkeys(names, pl.Float64)))
        self.gaps.add(part.source, part.rows["time_s"].drop_nulls().to_numpy())

    def _figures(self, event: Event) -> Iterator[dict[str, float | None]]:
        """Count an event; rows of the series."""
        self.lives.add(event)
        name = event.name
        if event.level in ("warning", "error", "critical"):
            lines = 1 + left_out_before(event)
            tally_of(self.problems, name).add(event, lines)
            yield {"time_s": event.time_s, "warnings" if event.level == "warning" else "errors": lines}
        if name == "settings_resolved":
            self.settings = event.fields
        elif name == "worker_ready" and (model := event.text("model")):
            self.models.add(model)
        elif name == "worker_load" and event.time_s is not None:
            yield from self._load(event, event.time_s)

    def _load(self, event: Event, time_s: float) -> Iterator[dict[str, float | None]]:
        """Counts since the process' last load. They are spread over the seconds in between."""
        named = [event.fields.get(key) for key in ("service.instance.id", "pid", "worker")]
        process = (self._reader.origin(event.source), *map(str, named))
        since_s = min(max(time_s - self._last_load.get(process, time_s - 1.0), 1.0), _LOAD_EVERY_S)
        self._last_load[process] = time_s
        missed, latencies = _mapping(event.fields.get("missed")), _mapping(event.fields.get("latency_le_s"))
        rejected = event.rejected or {}
        values = {name: event.number(name) or 0.0 for name in COUNTED}
        values |= {name: number(missed.get(name)) or 0.0 for name in MISSES[1:]}
        values["refused"] = float(sum(rejected.values()))
        overloaded = event.number("overloaded")
        values["overloaded"] = rejected.get("overloaded", 0.0) if overloaded is None else overloaded
        values[CAUSE_UNKNOWN] = 0.0 if missed else rejected.get("expired", 0.0)
        for bound, requests in latencies.items():
            column = latency_column(bound)
            values[column] = values.get(column, 0.0) + (number(requests) or 0.0)
        yield {"time_s": time_s, "spread_s": round(since_s), **values}
        yield {"time_s": time_s, **{name: event.number(name) or 0.0 for name in ("backlog_s", "queued_sequences")}}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
