"""Everything that logs say, added up in one pass: the summary, the tables, `diff` and the report read it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.blocks import BATCH, DONE, KINDS, Part
from penstock.ops.logs.lines.event import MOST, Event, number
from penstock.ops.logs.lines.reader import LogReader
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.totals.lives import Gaps, Lives, held_twice_s
from penstock.ops.logs.totals.rejections import Rejections, Tally, process_of, tally_of
from penstock.ops.logs.totals.samples import BatchTotals, RequestTotals
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN, COUNTED, MISSES, Series, latency_column

_MAX_ROUTES = 200
_LOAD_EVERY_S = 10.0  # of worker_load: its counts are of so many seconds at most, under steady work

Figures = dict[str, float | None]  # a row of the series


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
        self.routes: dict[str, Counter[str]] = {}  # records by outcome, by input topic
        self._last_load: dict[str, float] = {}  # by process
        for part in reader.parts():
            self._add(part, reader.origin(part.source))
        self.series.add(self.rejections.settle(is_end=True))
        self.lines = reader.counts
        self.num_kept = reader.num_kept  # events that passed the filters
        # The longest time for which, by their clocks, workers of two logs held one partition.
        self.held_twice_s = held_twice_s(self.lives.events, reader.origin)

    def _add(self, part: Part, log: str) -> None:
        self.series.add(self.batches.add(part, part.rows.filter(event=BATCH)))
        self.series.add(self.requests.add(part, part.rows.filter(event=DONE)))
        figures = [*self._loads(part, log), *[row for event in part.kept(*KINDS) for row in self._other(event)]]
        self.series.add(self.rejections.add(part, log))
        if figures:
            names = dict.fromkeys(name for row in figures for name in row)
            self.series.add(pl.DataFrame(figures, dict.fromkeys(names, pl.Float64)))
        self.gaps.add(part.source, part.rows["time_s"].drop_nulls().to_numpy())

    def _other(self, event: Event) -> Iterator[Figures]:
        self.lives.add(event)
        if event.level in ("warning", "error", "critical"):
            lines = 1 + max(0, int(min(event.number("suppressed") or 0, MOST)))  # with those over the limit before it
            tally_of(self.problems, event.name).add(event, lines)
            yield {"time_s": event.time_s, "warnings" if event.level == "warning" else "errors": lines}
        if event.name == "settings_resolved":
            self.settings = event.fields
        elif event.name == "worker_ready" and (model := event.text("model")):
            self.models.add(model)

    def _loads(self, part: Part, log: str) -> Iterator[Figures]:
        """Counts since the process' last load. They are spread over the seconds in between."""
        rows = part.rows.filter(pl.col("counted").is_not_null()).with_columns(process=process_of(log))
        of_load = pl.col("time_s", "process").first(), pl.col("code", "counted")
        for place, time_s, process, codes, counts in (
            rows.group_by("place", maintain_order=True).agg(of_load).iter_rows()
        ):
            rejected = {code: requests for code, requests in zip(codes, counts, strict=True) if requests}
            self.rejections.add_counted(rejected, time_s)
            if time_s is None:
                continue
            since_s = min(max(time_s - self._last_load.get(process, time_s - 1.0), 1.0), _LOAD_EVERY_S)
            self._last_load[process] = time_s
            # Of a load that filters leave out, its counts of rejections alone may pass.
            load = part.event(place) if 0 in counts else Event(part.source, time_s, {})
            self._add_routes(load)
            yield {"time_s": time_s, "spread_s": round(since_s), **_counts(load, rejected)}
            yield {"time_s": time_s, **{name: load.number(name) or 0.0 for name in ("backlog_s", "queued_sequences")}}

    def _add_routes(self, load: Event) -> None:
        for topic, outcomes in _mapping(load.fields.get("routes")).items():
            if topic in self.routes or len(self.routes) < _MAX_ROUTES:
                counted = {outcome: min(number(records) or 0, MOST) for outcome, records in _mapping(outcomes).items()}
                self.routes.setdefault(topic, Counter()).update({name: int(n) for name, n in counted.items() if n > 0})


def _counts(load: Event, rejected: Mapping[str, int]) -> Figures:
    missed, latencies = _mapping(load.fields.get("missed")), _mapping(load.fields.get("latency_le_s"))
    values = {name: load.number(name) or 0.0 for name in COUNTED}
    values |= {name: number(missed.get(name)) or 0.0 for name in MISSES[1:]}
    values |= {"refused": sum(rejected.values()), "overloaded": rejected.get("overloaded", 0)}
    values[CAUSE_UNKNOWN] = 0.0 if missed else rejected.get("expired", 0)
    for bound, requests in latencies.items():
        column = latency_column(bound)
        values[column] = values.get(column, 0.0) + (number(requests) or 0.0)
    return {**values}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
