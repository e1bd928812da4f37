"""From blocks of lines to batches in columns and to events.

Nearly all lines of a busy worker are `batch_done`, and a worker writes the fields of an event in one order. Such lines
are cut at their commas, in columns, and checked against the order of the first: that is twice as fast as a JSON parser.
Any other line is parsed as JSON.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.ops.logs.event import Event, number, parse_time
from penstock.ops.logs.journal import is_journal, unwrapped
from penstock.ops.logs.libraries import polars

_MAX_STARTS = 8  # of an object within a broken line
_MAX_EXAMPLES = 3
_EXAMPLE_CHARS = 100
_HOT = '"event": "batch_done"'
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_NUMBERS = {"worker": int, "dp_gain": float, "sequences": int, "tokens": int, "max_seqlen": int}
_SECONDS = {"predicted_s": float, "device_s": float}
_KINDS = {**_NUMBERS, **_SECONDS}
_NEEDED = ("timestamp", "trigger", "partition", "sequences", "tokens", "max_seqlen", "predicted_s", "device_s")
BATCH_COLUMNS = ("second", "timestamp", "worker", "trigger", "partition", *list(_KINDS)[1:])


class Parsed(NamedTuple):
    """What a block holds."""

    batches: Any  # a polars frame with BATCH_COLUMNS
    events: list[Event]


@dataclass(slots=True)
class LineCounts:
    """The lines of one or more logs, by what became of them."""

    lines: int = 0
    events: int = 0  # batches too
    broken: int = 0  # begin as an event and are cut, mixed with another or too long
    foreign: int = 0  # of other programs: text, traces, JSON without an event
    timeless: int = 0  # events without a time that can be read
    examples: list[str] = field(default_factory=list)  # of broken lines


class BlockParser:
    """Parses the blocks of one source, in order."""

    def __init__(self, source: int, counts: LineCounts) -> None:
        self._source = source
        self._counts = counts
        self._layout: list[str] = []  # the keys of batch_done, in order

    def parse(self, block: bytes) -> Parsed:
        """Batches and events of whole lines. Never raises for what a line holds."""
        pl = polars()
        lines = _lines(unwrapped(block) if is_journal(block) else block)
        self._counts.lines += len(lines)
        is_hot = lines.str.contains(_HOT, literal=True)
        hot = lines.filter(is_hot)
        batches, others = self._cut(hot)
        rest = [*lines.filter(~is_hot).to_list(), *others]
        events: list[Event] = []
        more: list[dict[str, Any]] = []
        for fields in self._objects(rest):
            if fields["event"] == "batch_done":
                more.append(_batch(fields))
            else:
                events.append(Event(self._source, parse_time(fields.get("timestamp")), fields))
        if more:
            batches = pl.concat([batches, pl.DataFrame(more, schema=batch_schema(), strict=False)])
        self._counts.events += len(events) + len(batches)
        self._counts.timeless += sum(event.time_s is None for event in events) + batches["second"].null_count()
        return Parsed(batches, events)

    def events(self, block: bytes) -> list[Event]:
        """All events of whole lines, batches too, for a command that shows lines."""
        text = (unwrapped(block) if is_journal(block) else block).decode("utf-8", "replace")
        lines = text.split("\n")[: None if text[-1:] != "\n" else -1] if text else []
        self._counts.lines += len(lines)
        events = [Event(self._source, parse_time(fields.get("timestamp")), fields) for fields in self._objects(lines)]
        self._counts.events += len(events)
        return events

    def _cut(self, hot: Any) -> tuple[Any, list[str]]:
        """The lines laid out like the first, in columns, and the others."""
        pl = polars()
        if not self._layout and len(hot):
            self._layout = _layout_of(hot[0])
        layout = self._layout
        if not layout:
            return pl.DataFrame(schema=batch_schema()), hot.to_list()
        parts = hot.str.split_exact(", ", len(layout) - 1).struct.unnest()
        parts.columns = layout
        starts = ['{"' + layout[0] + '": ', *[f'"{key}": ' for key in layout[1:]]]
        is_laid_out = pl.all_horizontal(
            [pl.col(key).str.starts_with(start) for key, start in zip(layout, starts, strict=True)]
        ) & pl.col(layout[-1]).str.ends_with("}")
        values = {
            key: pl.col(key).str.slice(len(start)).str.strip_suffix("}")
            for key, start in zip(layout, starts, strict=True)
        }
        columns = parts.select(is_laid_out.fill_null(False).alias("ok"), *_typed(values))
        fits = columns.select(pl.col("ok") & pl.all_horizontal(pl.col(*_NEEDED, "second").is_not_null()))["ok"]
        return columns.filter(fits).select(BATCH_COLUMNS), hot.filter(~fits).to_list()

    def _objects(self, lines: Iterable[str | None]) -> Iterable[dict[str, Any]]:
        for line in lines:
            text = (line or "").strip("\x00 \r\t")
            if not text:
                continue
            found = _object(text)
            if found is not None:
                yield found
                continue
            if text.startswith("{") and _parsed(text) is None:
                self.note_broken(text)
            elif (salvaged := _salvaged(text)) is None:
                self._counts.foreign += 1
            else:
                yield salvaged
                continue
            if text.startswith("{") and (salvaged := _salvaged(text)) is not None:
                yield salvaged

    def note_broken(self, text: str) -> None:
        """Count a broken line."""
        self._counts.broken += 1
        if len(self._counts.examples) < _MAX_EXAMPLES:
            self._counts.examples.append(text[:_EXAMPLE_CHARS])


def batch_schema() -> dict[str, Any]:
    """The types of BATCH_COLUMNS."""
    pl = polars()
    kinds = {key: pl.Int64 if kind is int else pl.Float64 for key, kind in _KINDS.items()}
    strings = dict.fromkeys(("timestamp", "trigger", "partition"), pl.String)
    types = {"second": pl.Int64, **strings, **kinds}
    return {key: types[key] for key in BATCH_COLUMNS}


def _lines(block: bytes) -> Any:
    """The lines as a polars series. Bytes that are not UTF-8 are replaced."""
    pl = polars()
    options = {
        "has_header": False,
        "separator": "\x01",  # in no line that is JSON
        "quote_char": None,
        "schema": {"line": pl.String},
        "truncate_ragged_lines": True,
    }
    if block.isspace() or not block:
        return pl.Series("line", [], pl.String)
    try:
        return pl.read_csv(block, **options)["line"].drop_nulls()
    except pl.exceptions.PolarsError:
        clean = block.replace(b"\x01", b" ").decode("utf-8", "replace").encode()
        return pl.Series("line", clean.decode().splitlines(), pl.String)


def _layout_of(line: str) -> list[str]:
    """The keys of a line that can be cut at its commas; empty if it cannot."""
    fields = _object(line)
    if fields is None or not set(_NEEDED) <= fields.keys() or any(", " in str(value) for value in fields.values()):
        return []
    return list(fields) if not any(isinstance(value, dict | list) for value in fields.values()) else []


def _typed(values: dict[str, Any]) -> list[Any]:
    pl = polars()
    columns = [values[key].str.strip_chars('"').alias(key) for key in ("timestamp", "trigger", "partition")]
    moment = columns[0].str.slice(0, 19).str.to_datetime(_TIME_FORMAT, strict=False)
    columns.append(moment.dt.epoch("s").alias("second"))
    for key, kind in _KINDS.items():
        dtype = pl.Int64 if kind is int else pl.Float64
        columns.append(values.get(key, pl.lit(None, pl.String)).cast(dtype, strict=False).alias(key))
    return columns


def _batch(fields: dict[str, Any]) -> dict[str, Any]:
    """A batch_done that was parsed as JSON, as a row."""
    time_s = parse_time(fields.get("timestamp"))
    row: dict[str, Any] = {"second": None if time_s is None else int(time_s // 1)}
    row |= {key: str(fields.get(key)) for key in ("timestamp", "trigger", "partition")}
    for key, kind in _KINDS.items():
        value = number(fields.get(key))
        row[key] = None if value is None else kind(value)
    return {key: row[key] for key in BATCH_COLUMNS}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(text: str) -> dict[str, Any] | None:
    """The event in a line that is one JSON object."""
    found = _parsed(text) if text.startswith("{") else None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _salvaged(text: str) -> dict[str, Any] | None:
    """The event at the end of a line, after another program's prefix or the beginning of a line that was cut."""
    start = text.find('{"', 1)
    for _ in range(_MAX_STARTS):
        if start < 0:
            return None
        if (found := _object(text[start:])) is not None:
            return found
        start = text.find('{"', start + 1)
    return None
