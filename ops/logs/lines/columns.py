"""Events as rows of a polars frame. All of them are read by polars, so that a value has one reading."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.event import MOST, Event, number

BATCH, DONE, REFUSED = KINDS = ("batch_done", "request_done", "request_refused")  # most lines of a busy worker
CLASSES = ("online", "bulk")
STAGES = ("kafka", "tokenize", "cache", "schedule", "compute", "total")  # the fields of request_done are STAGE_ms
TEXTS = ("event", "level", "model", "trigger", "partition", "sample", "class", "code", "service.instance.id")
INTEGERS = ("worker", "pid", "sequences", "tokens", "max_seqlen", "records", "suppressed")
FLOATS = ("dp_gain", "predicted_s", "device_s", *[f"{stage}_ms" for stage in STAGES])
FIELDS = (*TEXTS, *INTEGERS, *FLOATS)
OWN = ("place", "time_s")  # columns that are no fields
_TIME = "%Y-%m-%dT%H:%M:%S.%6fZ"  # as workers write it; polars is four times as fast as with any number of digits
_FEW = 64  # lines that are not worth another attempt


def read_rows(lines: Sequence[bytes], more: Collection[str] = ()) -> Any:
    """The lines of KINDS: `place` among the lines, `time_s`, FIELDS, and `more` fields as texts.

    A value is null where a line lacks it or has one of another type. Lines that polars cannot read, and those with
    another form of time, have no row: they are left to a JSON parser.
    """
    schema, places = _schema(more), list(range(len(lines)))
    read = _read(lines, schema)
    if read is None:
        places = [place for place, line in enumerate(lines) if _looks_whole(line)]
        read = _read_parts([lines[place] for place in places], schema)
    times = read["timestamp"].str.to_datetime(_TIME, time_unit="us", strict=False)
    time_s = times.dt.timestamp("us").fill_null(-1).to_numpy() / 1e6  # polars does not divide exactly
    rows = _typed(read, places, time_s)
    return rows.filter(pl.col("event").is_in(KINDS) & (pl.col("time_s") >= 0))


def rows_of(events: Mapping[int, Event], more: Collection[str] = ()) -> Any:
    """The same of any events, by the places of their lines. `time_s` is null without a time."""
    lines = [
        json.dumps(_plain(event.fields), ensure_ascii=False).encode("utf-8", "replace") for event in events.values()
    ]
    times_s = pl.Series([event.time_s for event in events.values()], dtype=pl.Float64)
    return _typed(_read(lines, _schema(more)), [*events], times_s)


def array(rows: Any, key: str) -> npt.NDArray[np.float64]:
    """A column of numbers, with NaN for null."""
    numbers: npt.NDArray[np.float64] = rows[key].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return numbers


def _schema(more: Collection[str]) -> dict[str, Any]:
    others = {*more} - {*FIELDS, *OWN}
    texts = dict.fromkeys(("timestamp", *TEXTS, *sorted(others)), pl.String)
    return {**texts, **dict.fromkeys(INTEGERS, pl.Int64), **dict.fromkeys(FLOATS, pl.Float64)}


def _typed(read: Any, places: Sequence[int], times_s: Any) -> Any:
    known = pl.when(pl.col(INTEGERS).is_between(-MOST, MOST)).then(pl.col(INTEGERS)).name.keep()
    place, time_s = pl.Series("place", places, pl.Int64), pl.Series("time_s", times_s, pl.Float64)
    return read.with_columns(place, time_s, known)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An event's fields as polars can read them: it refuses numbers that are not finite."""
    simple = {key: _flat(value) for key, value in fields.items()}
    return {key: value for key, value in simple.items() if isinstance(value, str | bool) or number(value) is not None}


def _flat(value: object) -> object:
    """A value; an array or an object as text, and a great integer as a float."""
    if isinstance(value, int) and abs(value) > MOST:
        return number(value)
    try:
        return json.dumps(value) if isinstance(value, list | dict) else value
    except RecursionError:  # very many in one another
        return None


def _looks_whole(line: bytes) -> bool:
    """Whether a line can be one object without others in it: not that of another program, cut, or two in one."""
    return line.startswith(b"{") and line.endswith((b"}", b"}\r")) and line.count(b"{") == 1


def _read(lines: Sequence[bytes], schema: dict[str, Any]) -> Any:
    """A row for each line, or None: for one line that is no JSON, polars refuses all of them."""
    try:
        rows = pl.read_ndjson(b"\n".join(lines), schema=schema, ignore_errors=True)
    except pl.exceptions.PolarsError:
        return None
    return rows if len(rows) == len(lines) else None


def _read_parts(lines: Sequence[bytes], schema: dict[str, Any]) -> Any:
    """A row for each line, null all over where it is no JSON or near such a line."""
    if (rows := _read(lines, schema)) is not None:
        return rows
    if len(lines) <= _FEW:
        return pl.DataFrame({key: [None] * len(lines) for key in schema}, schema)
    middle = len(lines) // 2
    return pl.concat([_read_parts(lines[:middle], schema), _read_parts(lines[middle:], schema)])
