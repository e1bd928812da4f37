"""From blocks of lines to rows and events, and counts of the lines that are neither."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import read_rows, rows_of
from penstock.ops.logs.lines.event import Event, parse_time
from penstock.worker.telemetry.ecs import MARK, from_ecs

_MAX_STARTS = 8  # of an object within a broken line
_MAX_EXAMPLES = 3
_EXAMPLE_CHARS = 100
_OF_A_JOURNAL = b'"__REALTIME_TIMESTAMP"'  # every entry of `journalctl -o json` has it


class Part(NamedTuple):
    """The events of a block, or those that are kept of it."""

    source: int
    rows: Any  # of all events, as `read_rows` makes them, in order
    events: dict[int, Event]  # those that a JSON parser has read, by the places of their lines
    lines: list[bytes]

    def event(self, place: int) -> Event:
        """The event of a row, by its `place`."""
        event = self.events.get(place) or event_of(self.source, self.lines[place])
        if event is None:
            raise RuntimeError("A row is of a line that is no event. This is a bug.")
        return event


@dataclass(slots=True)
class LineCounts:
    """The lines of one or more logs, by what became of them."""

    lines: int = 0  # that are not empty
    events: int = 0
    broken: int = 0  # begin as an event and are cut, mixed with another or too long
    foreign: int = 0  # of other programs: text, traces, JSON without an event
    timeless: int = 0  # events without a time that can be read
    examples: list[str] = field(default_factory=list)  # of broken lines


def parse_block(block: bytes, source: int, counts: LineCounts, fields: Collection[str] = ()) -> Part:
    """All events of whole lines. `fields`: what rows need beside their own. Never raises for what a line holds."""
    lines = [line for line in _unwrapped(block).split(b"\n") if line.strip()]
    frequent = read_rows(lines, fields)
    is_left = np.ones(len(lines), np.bool_)
    is_left[frequent["place"].to_numpy()] = False
    found = {place: event_of(source, lines[place], counts) for place in np.flatnonzero(is_left).tolist()}
    events = {place: event for place, event in found.items() if event is not None}
    rows = pl.concat([frequent, rows_of(events, fields)]).sort("place")
    counts.lines += len(lines)
    counts.events += len(rows)
    counts.timeless += rows["time_s"].null_count()
    return Part(source, rows, events, lines)


def event_of(source: int, line: bytes, counts: LineCounts | None = None) -> Event | None:
    """The event of a line; None for one that has none. `counts`: where lines that are broken or foreign are counted.

    An event may follow another program's prefix, or the beginning of a line that was cut.
    """
    text = line.decode("utf-8", "replace").strip("\x00 \r\t\n")
    start, found = (0 if text.startswith("{") else text.find('{"')), None
    for _ in range(_MAX_STARTS):
        if start < 0 or (found := _parsed(text[start:])) is not None:
            break
        start = text.find('{"', start + 1)
    fields = found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
    if counts is not None and text.startswith("{") and (found is None or start):
        counts.broken += 1
        counts.examples += [text[:_EXAMPLE_CHARS]] if len(counts.examples) < _MAX_EXAMPLES else []
    elif counts is not None and text and fields is None:
        counts.foreign += 1
    return None if fields is None else Event(source, parse_time(fields.get("timestamp")), fields)


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return from_ecs(found) if isinstance(found, dict) and MARK in found else found


def _unwrapped(block: bytes) -> bytes:
    """A block; of a journal the messages of its entries, one a line. A line that is no entry stays as it is."""
    if _OF_A_JOURNAL not in block[: block.find(b"\n") if b"\n" in block else len(block)]:
        return block
    try:
        messages = pl.read_ndjson(block, schema={"MESSAGE": pl.String}, ignore_errors=True)["MESSAGE"].to_list()
    except pl.exceptions.PolarsError:  # a line is cut
        messages = [None]
    if any(message is None or message.startswith("[") for message in messages):
        messages = [_message(line) for line in block.decode("utf-8", "replace").splitlines()]
    return "\n".join([message.replace("\n", " ") for message in messages]).encode("utf-8", "replace")


def _message(line: str) -> str:
    try:
        message = json.loads(line)["MESSAGE"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return line
    if isinstance(message, list):  # bytes that are not UTF-8
        return bytes([one for one in message if isinstance(one, int) and 0 <= one < 256]).decode("utf-8", "replace")
    return str(message or "")
