"""`batch_done` lines as columns: nearly all lines of a busy worker."""

from collections.abc import Sequence
from typing import Any

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import number, parse_time
from penstock.ops.logs.lines.line_columns import Found, LineShape

_TEXTS = ("trigger", "partition")
_INTEGERS = ("worker", "sequences", "tokens", "max_seqlen")
_FLOATS = ("dp_gain", "predicted_s", "device_s")
BATCHES = LineShape("batch_done", _TEXTS, _INTEGERS, _FLOATS, optional=frozenset(["worker"]))
BATCH_COLUMNS = ("second", *_TEXTS, *_INTEGERS, *_FLOATS)


def batches_in(found: Sequence[Found]) -> Any:
    """Batches that were scanned: a polars frame with BATCH_COLUMNS."""
    pl = polars()
    rows = [one.rows.select(BATCH_COLUMNS).with_columns(pl.col(_TEXTS).cast(pl.Categorical)) for one in found]
    return pl.concat(rows) if rows else empty_batches()


def batches_of(rows: list[dict[str, Any]]) -> Any:
    """Batches that were parsed as JSON. A value of another type becomes null."""
    pl = polars()
    made = []
    for fields in rows:
        time_s = parse_time(fields.get("timestamp"))
        row: dict[str, Any] = {key: str(fields.get(key)) for key in _TEXTS}
        row["second"] = None if time_s is None else int(time_s // 1)
        for key in (*_INTEGERS, *_FLOATS):
            value = number(fields.get(key))
            row[key] = value if value is None or key in _FLOATS else None if abs(value) > 2**62 else int(value)
        made.append({key: row[key] for key in BATCH_COLUMNS})
    return pl.DataFrame(made, schema=empty_batches().schema)


def empty_batches() -> Any:
    """A frame with BATCH_COLUMNS and no row."""
    pl = polars()
    integers, floats = dict.fromkeys(_INTEGERS, pl.Int64), dict.fromkeys(_FLOATS, pl.Float64)
    return pl.DataFrame(schema={"second": pl.Int64, **dict.fromkeys(_TEXTS, pl.Categorical), **integers, **floats})
