"""Reads several logs: what passes the filters, and what else the lines were."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.columns import BATCH, KINDS, OWN, integer, rows_of, text
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.filters import Filters, check_fields
from penstock.ops.logs.lines.parser import BlockParser, LineCounts, Parsed, event_of
from penstock.ops.logs.lines.source import LogSource, origin

_TOPIC = re.compile(r"penstock\.requests\.(.+?)(\.bulk)?")


class Part(NamedTuple):
    """What is kept of one block of a source."""

    source: int
    rows: Any  # a polars frame: the events of KINDS, as `read_rows` makes them
    events: list[Event]  # all others
    lines: list[bytes]

    def event(self, place: int) -> Event:
        """The event of a row, by its `place`."""
        return event_of(self.source, self.lines[place])

    def of_requests(self) -> Iterator[Event]:
        """All events but batches."""
        yield from self.events
        for place in self.rows.filter(polars().col("event") != BATCH)["place"].to_list():
            yield self.event(place)


class LogReader:
    """One pass over logs, in bounded memory."""

    def __init__(
        self, sources: Sequence[LogSource], filters: Filters, progress: Callable[[int], None] | None = None
    ) -> None:
        """`progress` is called after each block, with the bytes that have been read of all sources."""
        self.sources = sources
        self._progress = progress
        self.counts = LineCounts()
        self.num_kept = 0  # events that passed the filters
        self._filters = filters
        self.absent_fields = filters.fields  # of the filters, that no event so far has
        self._models: dict[str, dict[object, str]] = {}  # by origin and worker

    def parts(self) -> Iterator[Part]:
        """Read everything, one source after another. Raises NoEvents at the end if no line was an event.

        And BadFilter if a filter is by a field that neither an event has nor a worker logs.
        """
        for index, source in enumerate(self.sources):
            for parsed in self._parsed_ahead(index, source):
                yield self._filtered(index, parsed)
                if self._progress is not None:
                    self._progress(sum(one.num_bytes for one in self.sources))
            self.counts.broken += source.num_long_lines
            self.counts.lines += source.num_long_lines
        if not self.counts.events:
            raise NoEvents(self._why_nothing())
        check_fields(self.absent_fields)

    def origin(self, source: int) -> str:
        """The name that a log has kept through its rotations: worker.log for worker.log.2.gz."""
        return origin(self.sources[source].name)

    def _parsed_ahead(self, index: int, source: LogSource) -> Iterator[Parsed]:
        """A source's blocks, parsed one ahead in a thread, on another core."""
        parser, blocks = BlockParser(index, self.counts, self._filters.fields), source.blocks()

        def parse_next() -> Parsed | None:
            block = next(blocks, None)
            return None if block is None else parser.parse(block, in_rows=True)

        with ThreadPoolExecutor(1) as thread, closing(source):
            ahead = thread.submit(parse_next)
            while (parsed := ahead.result()) is not None:
                ahead = thread.submit(parse_next)
                yield parsed

    def _filtered(self, source: int, parsed: Parsed) -> Part:
        rows, found, lines = parsed
        kept = {}
        models = self._models.setdefault(self.origin(source), {})
        for place, event in found.items():
            self.absent_fields -= event.fields.keys()
            worker = integer(event.fields.get("worker"))
            if (model := text(model_named_by(event))) is not None:
                models[worker] = model
            if (passed := self._filters.passed(event, models.get(worker))) is not None:
                kept[place] = passed
        self.absent_fields -= {key for key in self.absent_fields & set(rows.columns) - {*OWN} if rows[key].count()}
        rows = self._filters.rows(rows, models)
        self.num_kept += len(kept) + len(rows)
        slow = {place: event for place, event in kept.items() if event.name in KINDS}
        others = [event for event in kept.values() if event.name not in KINDS]
        unusual = rows_of(slow)
        rows = rows.select(unusual.columns)
        rows = polars().concat([rows, unusual]).sort("place") if slow else rows
        return Part(source, rows, others, lines)

    def _why_nothing(self) -> str:
        names = ", ".join(source.name for source in self.sources[:3]) + (" …" if len(self.sources) > 3 else "")
        notes = "".join(f" {source.name}: {note}." for source in self.sources for note in source.notes)
        if not self.counts.lines:
            return f"{names}: no line.{notes}"
        return (
            f"{names}: none of {self.counts.lines:,} lines is an event of penstock.{notes} A worker logs JSON with "
            "PENSTOCK_LOG_FORMAT=json, and where its stderr is no terminal."
        )


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events of several sources by time. One without a time follows the line before it."""
    last: dict[int, float] = {}
    keyed = []
    for number, event in enumerate(events):
        time_s = last.get(event.source, 0.0) if event.time_s is None else event.time_s
        last[event.source] = time_s
        keyed.append((time_s, number, event))
    return [event for _, _, event in sorted(keyed, key=lambda one: one[:2])]


def model_named_by(event: Event) -> str | None:
    """The model of an event's worker, if the event tells it."""
    if event.name in ("worker_ready", "model_loaded"):
        return event.text("model")
    topic = event.fields.get("topic")
    match = _TOPIC.fullmatch(topic) if isinstance(topic, str) else None
    return match[1] if match is not None else None
