"""Blocks of lines as rows of a polars frame and as events, and counts of the lines that are neither.

Polars reads the rows, also those of events that a JSON parser has found, so that a value has one reading.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.event import MOST, OF_EVERY_LINE, Event, number, parse_time
from penstock.worker.telemetry.ecs import MARK, from_ecs

BATCH, DONE, REFUSED = KINDS = ("batch_done", "request_done", "request_refused")  # most lines of a busy worker
LOAD = "worker_load"
CLASSES = ("online", "bulk")
STAGES = ("kafka", "tokenize", "cache", "schedule", "compute", "total")  # the fields of request_done are STAGE_ms
TEXTS = ("event", "level", "model", "trigger", "partition", "sample", "class", "code", "service.instance.id")
INTEGERS = ("worker", "pid", "sequences", "tokens", "max_seqlen", "records", "suppressed")
FLOATS = ("dp_gain", "predicted_s", "device_s", *[f"{stage}_ms" for stage in STAGES])
FIELDS = (*TEXTS, *INTEGERS, *FLOATS)
OWN = ("place", "time_s", "counted")  # columns that are no fields
_TIME = "%Y-%m-%dT%H:%M:%S.%6fZ"  # as workers write it; polars is four times as fast as with any number of digits
_MAX_STARTS = 8  # of an object within a broken line
_MAX_EXAMPLES = 3
_EXAMPLE_CHARS = 100
_OF_A_JOURNAL = b'"__REALTIME_TIMESTAMP"'  # every entry of `journalctl -o json` has it


class Part(NamedTuple):
    """The events of a block, or those that are kept of it."""

    source: int
    rows: Any  # of all events, as `read_rows` makes them, in order; and what loads count, as `rows_of` says
    events: dict[int, Event]  # those that a JSON parser has read, kept or not, by the places of their lines
    lines: list[bytes]

    def event(self, place: int) -> Event:
        """The event of a row, by its `place`."""
        event = self.events.get(place) or event_of(self.source, self.lines[place])
        if event is None:
            raise RuntimeError("A row is of a line that is no event. This is a bug.")
        return event

    def kept(self, *besides: str) -> Iterator[Event]:
        """The events that are kept, in the order of their lines, without those of some names."""
        is_line = pl.col("counted").is_null() | (pl.col("counted") == 0)
        return map(self.event, self.rows.filter(is_line & ~pl.col("event").is_in(besides))["place"].to_list())


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
    rows = pl.concat([frequent, rows_of(events, fields)]).sort("place", maintain_order=True)
    counts.lines += len(lines)
    counts.events += len(frequent) + len(events)
    counts.timeless += sum(event.time_s is None for event in events.values())
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


def read_rows(lines: Sequence[bytes], more: Collection[str] = ()) -> Any:
    """The lines of KINDS: `place` among the lines, `time_s`, FIELDS, and `more` fields as texts.

    A value is null where a line lacks it or has one of another type. Lines that polars cannot read, and those with
    another form of time, have no row: they are left to a JSON parser.
    """
    schema, places = _schema(more), [*range(len(lines))]
    read = _read(lines, schema)
    for is_sound in (_looks_whole, _is_json, lambda line: False):
        if read is None:
            places = [place for place in places if is_sound(lines[place])]
            read = _read([lines[place] for place in places], schema)
    times = read["timestamp"].str.to_datetime(_TIME, time_unit="us", strict=False)
    time_s = times.dt.timestamp("us").fill_null(-1).to_numpy() / 1e6  # polars does not divide exactly
    rows = _typed(read, places, time_s, None)
    return rows.filter(pl.col("event").is_in(KINDS) & (pl.col("time_s") >= 0))


def rows_of(events: Mapping[int, Event], more: Collection[str] = ()) -> Any:
    """The same of any events, by the places of their lines. `time_s` is null without a time.

    A load has a row for each code too, like that of a line of request_refused: requests with this `code` that it has
    `counted`. That is 0 in the load's own row, and null in those of other events.
    """
    told = [(place, event.time_s, *one) for place, event in events.items() for one in _told(event)]
    lines = [json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") for *_, line in told]
    places, times_s, counted = ([one[column] for one in told] for column in range(3))
    return _typed(_read(lines, _schema(more)), places, pl.Series(times_s, dtype=pl.Float64), counted)


def array(rows: Any, key: str) -> npt.NDArray[np.float64]:
    """A column of numbers, with NaN for null."""
    numbers: npt.NDArray[np.float64] = rows[key].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return numbers


def _told(event: Event) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The count (None: a line) and the fields of each row of an event."""
    fields = {key: _plain(value) for key, value in event.fields.items()}
    yield (0 if event.name == LOAD else None), fields
    rejected = event.fields.get("rejected") if event.name == LOAD else None
    common = {key: fields[key] for key in OF_EVERY_LINE if key in fields}
    for code, count in rejected.items() if isinstance(rejected, dict) else ():
        if (requests := int(min(number(count) or 0, MOST))) > 0:
            yield requests, {**common, "event": REFUSED, "code": code}


def _plain(value: object) -> object:
    """A value as polars can read it: an array or an object as text, no number that is not finite."""
    if isinstance(value, str | bool) or (isinstance(value, int) and abs(value) <= MOST):
        return value
    try:
        return json.dumps(value) if isinstance(value, list | dict) else number(value)
    except RecursionError:  # very many in one another
        return None


def _schema(more: Collection[str]) -> dict[str, Any]:
    others = {*more} - {*FIELDS, *OWN}
    texts = dict.fromkeys(("timestamp", *TEXTS, *sorted(others)), pl.String)
    return {**texts, **dict.fromkeys(INTEGERS, pl.Int64), **dict.fromkeys(FLOATS, pl.Float64)}


def _typed(read: Any, places: Any, times_s: Any, counted: Any) -> Any:
    """Rows with the columns of OWN, each a sequence or null, and without integers that are too great."""
    known = pl.when(pl.col(INTEGERS).is_between(-MOST, MOST)).then(pl.col(INTEGERS)).name.keep()
    columns = zip(OWN, (places, times_s, counted), (pl.Int64, pl.Float64, pl.Int64), strict=True)
    own = [
        pl.lit(None, dtype).alias(name) if values is None else pl.Series(name, values, dtype)
        for name, values, dtype in columns
    ]
    return read.with_columns(*own, known)


def _looks_whole(line: bytes) -> bool:
    """Whether a line can be one object without others in it: not that of another program, cut, or two in one."""
    return line.startswith(b"{") and line.endswith((b"}", b"}\r")) and line.count(b"{") == 1


def _is_json(line: bytes) -> bool:
    """Whether a line is JSON as polars reads it: without NaN and infinities, of which `int` makes a ValueError."""
    try:
        json.loads(line, parse_constant=int)
    except (ValueError, RecursionError):
        return False
    return True


def _read(lines: Sequence[bytes], schema: dict[str, Any]) -> Any:
    """A row for each line, or None: for one line that is no JSON, polars refuses all of them."""
    try:
        rows = pl.read_ndjson(b"\n".join(lines), schema=schema, ignore_errors=True)
    except pl.exceptions.PolarsError:
        return None
    return rows if len(rows) == len(lines) else None


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
