"""`batch_done` lines as columns: nearly all lines of a busy worker."""

from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import number, parse_time
from penstock.ops.logs.lines.line_columns import Found, LineLayout, LineShape, first_line, load_kernel

MIN_SCANNED_BYTES = 4 << 20  # smaller blocks are parsed as JSON in less time than the scanner needs to load
_TEXTS = ("trigger", "partition")
_INTEGERS = ("worker", "sequences", "tokens", "max_seqlen")
_FLOATS = ("dp_gain", "predicted_s", "device_s")
_BATCHES = LineShape("batch_done", _TEXTS, _INTEGERS, _FLOATS, optional=frozenset(["worker"]))
BATCH_COLUMNS = ("second", *_TEXTS, *_INTEGERS, *_FLOATS)


class Cut(NamedTuple):
    """A block's batches, and its other lines."""

    batches: Any  # a polars frame with BATCH_COLUMNS
    others: list[bytes]  # that are not empty


class BatchColumns:
    """Cuts the blocks of one source, in order. The first batch_done gives the layout."""

    def __init__(self) -> None:
        self._layout: LineLayout | None = None

    def cut(self, block: bytes) -> Cut:
        """Whole lines. Never raises for what they hold."""
        if self._layout is None and len(block) >= MIN_SCANNED_BYTES:
            first = first_line(_BATCHES, block)
            if first and (kernel := load_kernel()) is not None:
                self._layout = LineLayout(kernel, _BATCHES, first)
        if self._layout is None:
            return Cut(empty_batches(), [line for line in block.split(b"\n") if line.strip()])
        found, others = self._layout.scan(block)
        return Cut(_frame(found), others)


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
