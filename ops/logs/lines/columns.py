"""The events that are most lines of a busy worker, as rows of a polars frame."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import Event

BATCH, DONE, REFUSED = KINDS = ("batch_done", "request_done", "request_refused")
CLASSES = ("online", "bulk")
STAGES = ("kafka", "tokenize", "cache", "schedule", "compute", "total")  # the fields of request_done are STAGE_ms
TEXTS = ("event", "level", "model", "trigger", "partition", "sample", "class", "code", "service.instance.id")
INTEGERS = ("worker", "pid", "sequences", "tokens", "max_seqlen", "records", "suppressed")
FLOATS = ("dp_gain", "predicted_s", "device_s", *[f"{stage}_ms" for stage in STAGES])
_TIME = "%Y-%m-%dT%H:%M:%S%.fZ"  # as workers write it
_FEW = 64  # lines that are not worth another attempt
MOST = 1 << 28  # no number of ours is greater, and the sums and products of such numbers fit in 64 bits
OWN = ("place", "time_s")  # columns that are no fields


def read_rows(lines: Sequence[bytes], more: Iterable[str] = ()) -> Any:
    """The lines of KINDS: `place` among the lines, `time_s`, TEXTS, INTEGERS and FLOATS.

    A value is null where a line lacks it or has one of another type. Lines that polars cannot read, and those with
    another form of time, have no row: they are left to a JSON parser. `more`: other fields, as texts.
    """
    pl = polars()
    types = {**_types(), **dict.fromkeys({*more} - _types().keys() - {*OWN}, pl.String)}
    schema, places = {"timestamp": pl.String, **types}, list(range(len(lines)))
    rows = _read(lines, schema)
    if rows is None:
        places = [place for place, line in enumerate(lines) if _looks_whole(line)]
        rows = _read_parts([lines[place] for place in places], schema)
    times = rows["timestamp"].str.to_datetime(_TIME, time_unit="us", strict=False)
    time_s = times.dt.timestamp("us").fill_null(-1).to_numpy() / 1e6  # polars does not divide exactly
    small = [pl.when(pl.col(key).is_between(-MOST, MOST)).then(pl.col(key)).alias(key) for key in INTEGERS]
    rows = rows.with_columns(pl.Series("time_s", time_s), pl.Series("place", places, pl.Int64), *small)
    is_known = pl.col("event").is_in(KINDS) & (pl.col("time_s") >= 0)
    return rows.filter(is_known).select("place", "time_s", *types)


def rows_of(events: Mapping[int, Event]) -> Any:
    """The same of events that were parsed as JSON, by the places of their lines. `time_s` is null without a time."""
    pl = polars()
    made = [
        {
            "place": place,
            "time_s": event.time_s,
            **{key: text(event.text(key)) for key in TEXTS},
            **{key: integer(event.fields.get(key)) for key in INTEGERS},
            **{key: event.number(key) for key in FLOATS},
        }
        for place, event in events.items()
    ]
    return pl.DataFrame(made, {"place": pl.Int64, "time_s": pl.Float64, **_types()})


def array(rows: Any, key: str) -> npt.NDArray[np.float64]:
    """A column of numbers, with NaN for null."""
    numbers: npt.NDArray[np.float64] = rows[key].cast(polars().Float64).fill_null(float("nan")).to_numpy()
    return numbers


def _looks_whole(line: bytes) -> bool:
    """Whether a line can be one object without others in it: not that of another program, cut, or two in one."""
    return line.startswith(b"{") and line.endswith((b"}", b"}\r")) and line.count(b"{") == 1


def _read(lines: Sequence[bytes], schema: dict[str, Any]) -> Any:
    """A row for each line, or None: for one line that is no JSON, polars refuses all of them."""
    pl = polars()
    try:
        rows = pl.read_ndjson(b"\n".join(lines), schema=schema, ignore_errors=True)
    except pl.exceptions.PolarsError:
        return None
    return rows if len(rows) == len(lines) else None


def _read_parts(lines: Sequence[bytes], schema: dict[str, Any]) -> Any:
    """A row for each line, null all over where it is no JSON or near such a line."""
    pl = polars()
    if (rows := _read(lines, schema)) is not None:
        return rows
    if len(lines) <= _FEW:
        return pl.DataFrame({key: [None] * len(lines) for key in schema}, schema)
    middle = len(lines) // 2
    return pl.concat([_read_parts(lines[:middle], schema), _read_parts(lines[middle:], schema)])


def _types() -> dict[str, Any]:
    pl = polars()
    numbers = {**dict.fromkeys(INTEGERS, pl.Int64), **dict.fromkeys(FLOATS, pl.Float64)}
    return {**dict.fromkeys(TEXTS, pl.String), **numbers}


def text(value: str | None) -> str | None:
    """A text that a row can have."""
    return None if value is None else value.encode("utf-8", "replace").decode()  # JSON may name half of a character


def integer(value: object) -> int | None:
    """An integer that a row can have, or None."""
    return value if type(value) is int and abs(value) <= MOST else None
