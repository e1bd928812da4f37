"""From blocks of lines to batches and events, and counts of the lines that are neither."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.batch_columns import BATCHES, batches_in, batches_of
from penstock.ops.logs.lines.event import Event, parse_time
from penstock.ops.logs.lines.journal import is_journal, unwrapped
from penstock.ops.logs.lines.line_columns import Found, LineColumns
from penstock.ops.logs.lines.request_columns import REQUESTS
from penstock.worker.telemetry.ecs import MARK, from_ecs

_MAX_STARTS = 8  # of an object within a broken line
_MAX_EXAMPLES = 3
_EXAMPLE_CHARS = 100


class Parsed(NamedTuple):
    """The contents of a block."""

    batches: Any  # a polars frame with BATCH_COLUMNS
    requests: list[Found]  # request_done and request_refused, where the parser takes them as columns
    events: list[Event]


@dataclass(slots=True)
class LineCounts:
    """The lines of one or more logs, by what became of them."""

    lines: int = 0  # that are not empty
    events: int = 0  # batches too
    broken: int = 0  # begin as an event and are cut, mixed with another or too long
    foreign: int = 0  # of other programs: text, traces, JSON without an event
    timeless: int = 0  # events without a time that can be read
    examples: list[str] = field(default_factory=list)  # of broken lines


class BlockParser:
    """Parses the blocks of one source, in order. Never raises for what a line holds."""

    def __init__(self, source: int, counts: LineCounts, *, in_columns: bool = False) -> None:
        """`in_columns`: requests are columns, in large logs, as batches are; else they are events."""
        self._source = source
        self._counts = counts
        self._columns = LineColumns((BATCHES, *REQUESTS) if in_columns else (BATCHES,))

    def parse(self, block: bytes) -> Parsed:
        """Batches and requests in columns, and the other events of whole lines."""
        found, others = self._columns.cut(unwrapped(block) if is_journal(block) else block)
        scanned = batches_in([one for one in found if one.event == BATCHES.event])
        requests = [one for one in found if one.event != BATCHES.event]
        self._counts.lines += len(others) + sum(len(one.rows) for one in found)
        events: list[Event] = []
        rows: list[dict[str, Any]] = []
        for fields in self._objects(others):
            if fields["event"] == "batch_done":
                rows.append(fields)
            else:
                events.append(self._event(fields))
        batches = polars().concat([scanned, batches_of(rows)]) if rows else scanned
        self._counts.events += len(events) + len(batches) + sum(len(one.rows) for one in requests)
        self._counts.timeless += sum(event.time_s is None for event in events) + batches["second"].null_count()
        return Parsed(batches, requests, events)

    def events(self, block: bytes) -> list[Event]:
        """All events of whole lines, batches too, for a command that shows lines."""
        lines = (unwrapped(block) if is_journal(block) else block).split(b"\n")
        return [self._event(fields) for fields in self._objects(lines)]

    def _event(self, fields: dict[str, Any]) -> Event:
        return Event(self._source, parse_time(fields.get("timestamp")), fields)

    def _objects(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            text = line.decode("utf-8", "replace").strip("\x00 \r\t\n")
            found = _parsed(text) if text.startswith("{") else None
            if not _is_event(found):
                self._count_other(text, is_json=found is not None)
                found = _salvaged(text) if found is None else None
            if found is not None:
                yield found

    def _count_other(self, text: str, *, is_json: bool) -> None:
        """A line that is no event. What follows the prefix of another program is counted as an event only."""
        if text.startswith("{") and not is_json:
            self._counts.broken += 1
            if len(self._counts.examples) < _MAX_EXAMPLES:
                self._counts.examples.append(text[:_EXAMPLE_CHARS])
        elif text and (is_json or _salvaged(text) is None):
            self._counts.foreign += 1


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return from_ecs(found) if isinstance(found, dict) and MARK in found else found


def _is_event(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("event"), str)


def _salvaged(text: str) -> dict[str, Any] | None:
    """The event at the end of a line, after another program's prefix or the beginning of a line that was cut."""
    start = text.find('{"', 1)
    for _ in range(_MAX_STARTS):
        if start < 0:
            return None
        found = _parsed(text[start:])
        if _is_event(found):
            event: dict[str, Any] = found
            return event
        start = text.find('{"', start + 1)
    return None
