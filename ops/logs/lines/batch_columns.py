"""`batch_done` lines as columns: nearly all lines of a busy worker."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    return polars().concat([_frame(one) for one in found]) if found else empty_batches()


def _frame(found: Found) -> Any:
    pl, values = polars(), found.values
    names = pl.Series(found.texts, dtype=pl.Categorical)
    columns = {"second": pl.Series(values["timestamp"].astype(np.int64))}
    columns |= {key: names.gather(pl.Series(values[key].astype(np.uint32))) for key in _TEXTS}
    missing = pl.Series([None] * len(found.places), dtype=pl.Int64) if "worker" not in values else None
    columns |= {key: pl.Series(values[key].astype(np.int64)) if key in values else missing for key in _INTEGERS}
    columns |= {key: pl.Series(values[key]) for key in _FLOATS}
    return pl.DataFrame(columns).select(BATCH_COLUMNS)


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
